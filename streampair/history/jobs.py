"""Jobs, their sums, and the release of a model from them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streampair import auc, metric, ranking
from streampair.base.learner import map_of, symmetric_of
from streampair.base.targets import BinaryTarget, ClassTarget, RelevanceTarget, Target
from streampair.errors import ConfigError, PrivacyWarning, RecordError
from streampair.history.account import AttemptAccount, Standardisation, open_account
from streampair.history.rows import TableBatch, block_hashes, fingerprint, label_numbers, read_batch
from streampair.kernels import random_trees, table_sums
from streampair.models import Model
from streampair.models.exporting import tree_parts
from streampair.models.format import (
    Curve,
    EncodedArray,
    Labels,
    LinearModel,
    MetricModel,
    Promise,
    RandomForestModel,
    ReleasedMoments,
    Scaling,
    decode,
    encode,
    plain_label,
    plain_names,
)
from streampair.privacy.accounting import doubts, promised_epsilon, rounded_to_budget
from streampair.privacy.mechanisms.base import Release, Settings, rounding_limit
from streampair.privacy.mechanisms.dp_forest import DPForest
from streampair.privacy.mechanisms.metric_moments import MetricMoments
from streampair.privacy.mechanisms.second_moments import LEAST_HORIZON, Moments, RankingMoments
from streampair.privacy.mechanisms.standardization import Warmup, WarmupPlan
from streampair.privacy.mechanisms.start_moments import MOST_ROWS
from streampair.privacy.mechanisms.table_moments import (
    MetricTableState,
    RankingTableState,
    SumsRelease,
    TableForestPlan,
    TableForestState,
    TableMomentsState,
    class_sums,
    moments_release,
    plan_sample,
    plan_table_moments,
    product_sums,
    sample_release,
    sample_sums,
)
from streampair.privacy.noise import ChainedNoise, NoiseKey
from streampair.privacy.report import TABLE_AS_ASSUMED
from streampair.privacy.user_level import EntityLimit
from streampair.records.features import Design
from streampair.records.random_trees import RandomTreeDesign

__all__ = ["ASSUMED", "LEARNERS", "Job", "Sums", "fit"]

Floats = NDArray[np.float64]
Columns = list[NDArray[Any]]
Counts = NDArray[np.int64]

Learner = auc.PairFTRL | auc.PrivateForest | ranking.PairFTRL | metric.PairFTRL
LEARNERS = (auc.PairFTRL, auc.PrivateForest, ranking.PairFTRL, metric.PairFTRL)
"""Classes of which a table is learned."""

_NAME = "streampair history 1"
_MOST_CHECKED = 100_000_000  # rows whose ids are compared
_COMPARED = 2**24  # ids that are compared at a time, in 16 bytes each
_LONG = 2**20  # rows of a table that is sampled by blocks of ids
_BLOCKS = 200  # of a table whose ids are consecutive, at least
_MOST_BLOCKS = 2**12  # of a range whose blocks are looked at: nearly every longer one has some of each stage
_CHUNK = 2000  # rows that are prepared at a time, in the processor's cache

ASSUMED = (
    "a row holds the records of one person, and no other row does: tables are joined one to one",
    "no two rows of the table have one id, and the sums of each batch are added once, after retries too "
    "(`fit` and `streampair backfill` check both in a table of at most 100,000,000 rows)",
    "which rows there are, how many and with which ids depends on no content: a filter on content makes the "
    "features of a row None in place of leaving it out",
    "no feature of a row is computed from other rows: no windows, aggregates, ranks, or scalers that were "
    "fitted to the table",
    "row ids, the names of columns, bounds and labels are public",
    "whether the table was refused, as for a row without a label, is seen by its operator alone",
)
"""What the guarantee assumes of the table, and cannot check; a released model says it too.

With `entity=` the first one is that a row holds records of one entity, of at most so many rows.
"""


@dataclass(frozen=True)
class _Plain:
    """What is public before the table is read, as plain values."""

    learner: str
    epsilon: float
    delta: float
    radius: float | None
    warmup: int | None
    features: tuple[Any, ...]
    bounds: tuple[tuple[Any, tuple[float, float]], ...]
    positive: Any
    negative: Any
    relevance: tuple[float, float] | None
    classes: tuple[Any, ...] | None  # of a metric
    label: Any
    row_id: Any
    rows: int
    salt: str
    below: int  # a row is in the sample if the hash of its block is below this
    shift: int  # a block is 2^shift ids that are whole numbers; a text is one of its own
    forest: tuple[int | None, int] | None  # trees and depth
    entity: Any  # column of the entity; None: a row is one
    records: int  # most rows of an entity


def _assumed_of_entities(plain: _Plain) -> str:
    return (
        f"a row holds records of one entity, which its column {plain.entity!r} names; these names are "
        f"public, and at most {plain.records} rows have the same one (`fit` and `streampair backfill` count "
        "them in a table of at most 100,000,000 rows); a learner that begins with the model has these "
        "entities, not others such as the cards of a customer"
    )


def _exact(value: Any) -> Any:
    """A value for JSON in which every bit of a float shows, and no float is a text."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, dict):
        return {name: _exact(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(part) for part in value]
    return value


@dataclass(frozen=True, eq=False, repr=False)
class Sums:
    """Exact sums over some rows of a table, as a task of any engine returns them: add them up in any order.

    As secret as the table: they have no noise. They leave through `Job.standardised` and `Job.release` alone.

    Attributes
    ----------
    cells
        The sums, integers.
    rows
        Number of rows that were read.
    taken
        Those of them that this stage is about: in the sample, or not in it.
    nulls
        Those of `taken` that nothing is learned of, which add 0: a function of the content.
    job
        Digest of the job and its stage.
    """

    cells: NDArray[np.int64]
    rows: int
    taken: int
    nulls: int
    ids: int
    kind: str
    job: str

    def __add__(self, other: Sums) -> Sums:
        if not isinstance(other, Sums):
            return NotImplemented
        if other.job != self.job:
            raise ConfigError(
                "these sums are of two jobs, or of two stages of one",
                fix="add up the sums of one job; job.sums of the second stage is that of job.standardised",
            )
        if self.kind and other.kind and self.kind != other.kind:
            raise RecordError(
                f"row ids are {' in one batch and '.join(sorted((self.kind, other.kind)))} in another",
                fix="give the columns of row ids and entities one type in all files",
            )
        if self.rows + other.rows >= MOST_ROWS:
            raise RecordError(
                f"{self.rows + other.rows:,} rows are more than the sums can hold",
                fix=f"give a table of less than {MOST_ROWS:,} rows",
            )
        return Sums(
            self.cells + other.cells,
            self.rows + other.rows,
            self.taken + other.taken,
            self.nulls + other.nulls,
            (self.ids + other.ids) % 2**64,
            self.kind or other.kind,
            self.job,
        )

    def __radd__(self, other: object) -> Sums:
        # As the built-in `sum` begins.
        return self if type(other) is int and other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and self._bytes() == other._bytes()

    __hash__ = None  # type: ignore[assignment]

    def _bytes(self) -> bytes:
        """All of it, for a MAC."""
        counts = (self.rows, self.taken, self.nulls, self.ids, self.kind, self.job)
        return repr(counts).encode() + self.cells.astype("<i8").tobytes()

    def __repr__(self) -> str:
        return f"<Sums of {self.rows} rows>"


class Job:
    """A private learner of a whole table: plain data, to be sent to tasks; it holds no key.

    Two stages read the table. In the first a sample of the rows, chosen by a hash of their ids, gives private
    means and spreads (`standardised`). In the second all other rows, standardised by them, give the second
    moments from which the model is computed (`release`). In both `sums` of any cut of the table add up to the
    same bits. Of a table of 2^20 rows or more the sample is of blocks of consecutive whole numbers, so that
    what is stored in the order of its ids is read about once (`needs`).

    Parameters
    ----------
    learner
        A new `auc.PairFTRL`, `auc.PrivateForest` or `ranking.PairFTRL`, or a new `metric.PairFTRL` with
        `classes`, with its budget, `bounds` and labels. Its features are `features`, or those with bounds.
        Its `warmup` is the expected size of the sample; None: as of a stream of so many records. Of two
        classes with `entity=EntityLimit(records, field=COLUMN)` all rows of
        an entity are protected together; `fit`, `check_ids` and `streampair backfill` refuse a table with
        more than `records` of one.
    label
        Column of the label.
    rows
        Number of rows of the table, which is public. Another number is refused before anything is spent.
    row_id
        Column that names each row: whole numbers or texts, which are public.
    salt
        Public text from which the sample is drawn, such as a name and a date. A job is made again, after its
        driver has died, with the same salt.

    Attributes
    ----------
    stage
        1, or 2 after `standardised`.
    columns
        Names of the columns that `sums` reads.
    digest
        Digest of all that the job consists of, bounds and released numbers bit for bit.
    releases
        The mechanism card: a line for each of the two releases; of the first stage that of the sample alone,
        for the expected number of rows.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or the learner is not one that can learn from a table.

    Notes
    -----
    Guarantee (docs/privacy 10.7): (epsilon, delta) for the content of one row, label included, or of all rows
    of an entity. Each release spends the budget on other rows, so both together spend it once. A further
    attempt at a release is charged as one of its own. What is assumed of the table is in `history.ASSUMED`.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import auc, history
    >>> rng = np.random.default_rng(1)
    >>> x = rng.uniform(-1, 1, (4000, 2))
    >>> table = {"id": np.arange(4000), "a": x[:, 0], "b": x[:, 1], "fraud": x[:, 0] > 0.3}
    >>> learner = auc.PairFTRL(epsilon=1.0, delta=1e-6, bounds={"a": (-1, 1), "b": (-1, 1)})
    >>> job = history.Job(learner, label="fraud", rows=4000, row_id="id", salt="an example")
    >>> parts = [{name: column[i::3] for name, column in table.items()} for i in range(3)]
    >>> sum(map(job.sums, parts)) == job.sums(table)
    True
    """

    __slots__ = ("_made", "_plain", "_standardisation")

    _plain: _Plain
    _standardisation: Standardisation | None
    _made: tuple[str, Target, Design] | None

    def __init__(self, learner: Learner, *, label: Any, rows: int, row_id: Any, salt: str) -> None:
        names = _checked_learner(learner)
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 0 < rows < MOST_ROWS:
            raise ConfigError(f"rows is {rows!r}", fix=f"give the number of rows, below {MOST_ROWS:,}")
        if not isinstance(salt, str):
            raise ConfigError(f"salt is a {type(salt).__name__}", fix="give a text, which is public")
        limit = learner.entity
        roles = {"label": label, "row_id": row_id} | ({} if limit is None else {"entity": limit.field})
        for role, name in roles.items():
            if type(name) not in (str, int):
                fix = "give the name of a column"
                raise ConfigError(
                    f"{role} is {name!r}", fix=fix if role != "entity" else f"{fix} in EntityLimit(field=)"
                )
            if name in names or list(roles.values()).count(name) > 1:
                raise ConfigError(
                    f"the column {name!r} is {role}, and is something else too",
                    fix=f"give features, {', '.join(roles)} columns of their own",
                )
        labels = _plain_target(learner)
        named = labels["classes"] or (labels["positive"], labels["negative"])
        _check_texts(salt, *roles.values(), *names, *named)
        settings = _settings(learner, names, int(rows))
        names = Design(names, settings.bounds).names
        self._plain = _Plain(
            learner=f"{type(learner).__module__.split('.')[1]}.{type(learner).__name__}",
            epsilon=settings.epsilon,
            delta=settings.delta,
            radius=None if learner.radius is None else float(learner.radius),
            warmup=None if learner.warmup is None else int(learner.warmup),
            features=plain_names(names),
            bounds=tuple((name, settings.bounds[name]) for name in names if name in settings.bounds),
            **labels,
            label=label,
            row_id=row_id,
            rows=int(rows),
            salt=salt,
            below=settings.warmup * 2**64 // int(rows),
            shift=_shift(int(rows)),
            forest=_plain_forest(learner),
            entity=None if limit is None else limit.field,
            records=1 if limit is None else limit.records,
        )
        self._standardisation = self._made = None
        target = self._target()
        if target.wide_labels:
            raise ConfigError(
                f"a label of {', '.join(repr(each) for each in named if each is not None)} is a number that "
                "doubles do not hold",
                fix="turn labels into texts: a column of such numbers is rounded if one row has none",
            )
        for text in doubts(settings.epsilon, settings.delta, int(rows), "rows"):
            warnings.warn(text, PrivacyWarning, stacklevel=2)
        cards = [self._sample_release(settings.warmup).card, _moments(settings, settings.warmup).card]
        # Before the sizes of both parts are known: what is refused later has spent the first stage.
        for together in [cards] if limit is not None else [[card] for card in cards]:
            rounding_limit(together, settings.epsilon, settings.delta)

    def __getstate__(self) -> tuple[_Plain, Standardisation | None]:
        return self._plain, self._standardisation

    def __setstate__(self, state: tuple[_Plain, Standardisation | None]) -> None:
        (self._plain, self._standardisation), self._made = state, None

    def __repr__(self) -> str:
        return f"<Job of {self._plain.rows:,} rows, stage {self.stage}>"

    @property
    def stage(self) -> Literal[1, 2]:
        """1, or 2 after `standardised`."""
        return 1 if self._standardisation is None else 2

    @property
    def columns(self) -> tuple[Any, ...]:
        """Names of the columns that `sums` reads: features, the label, the id of a row, and its entity."""
        return (*self._plain.features, self._plain.label, *self.id_columns)

    @property
    def id_columns(self) -> tuple[Any, ...]:
        """Those of them that `sums_of_ids` and `check_ids` read: the id of a row, and its entity."""
        plain = self._plain
        return (plain.row_id,) if plain.entity is None else (plain.row_id, plain.entity)

    @property
    def digest(self) -> str:
        """Digest of all that the job consists of, as a hexadecimal text."""
        return self._parts()[0]

    def _digest(self, standardisation: Standardisation | None) -> str:
        released = None if standardisation is None else asdict(standardisation)
        plain = asdict(self._plain)
        for name in ("forest", "classes", "shift"):
            if not plain[name]:
                del plain[name]
        text = json.dumps(_exact([_NAME, plain, released]), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()

    @property
    def releases(self) -> tuple[Release, ...]:
        """The mechanism card: a line for each release."""
        expected = self._plain.rows * self._plain.below // 2**64
        done = self._standardisation
        first = self._sample_release(expected if done is None else done.sampled)
        return (first.card,) if done is None else (first.card, _moments(self._settings(), done.sampled).card)

    # ---- what follows from the plain values ------------------------------------------------------------

    def _learner(self) -> Learner:
        plain = self._plain
        options: dict[str, Any] = {
            "radius": plain.radius,
            "warmup": plain.warmup,
            "features": list(plain.features),
            "bounds": dict(plain.bounds),
            "entity": None if plain.entity is None else EntityLimit(plain.records, field=plain.entity),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # the job has warned
            if plain.relevance is not None:
                return ranking.PairFTRL(plain.epsilon, plain.delta, relevance=plain.relevance, **options)
            if plain.classes is not None:
                return metric.PairFTRL(plain.epsilon, plain.delta, classes=plain.classes, **options)
            options |= {"positive": plain.positive, "negative": plain.negative}
            if plain.forest is None:
                return auc.PairFTRL(plain.epsilon, plain.delta, **options)
            trees, depth = plain.forest
            return auc.PrivateForest(plain.epsilon, plain.delta, trees=trees, depth=depth, **options)

    def _target(self) -> Target:
        plain = self._plain
        if plain.relevance is not None:
            return RelevanceTarget(plain.relevance)
        if plain.classes is not None:
            return ClassTarget(plain.classes)
        return BinaryTarget(plain.positive, plain.negative)

    def _new_state(self, sampled: int) -> TableMomentsState:
        settings = self._settings()
        plan = plan_table_moments(settings, self._plain.rows - sampled)
        if isinstance(plan, TableForestPlan):
            return TableForestState(plan)
        if isinstance(settings.mechanism, MetricMoments):
            return MetricTableState(plan, settings.mechanism.classes)
        return (TableMomentsState if self._plain.relevance is None else RankingTableState)(plan)

    def _settings(self) -> Settings:
        return _settings(self._learner(), self._plain.features, self._plain.rows)

    def _design(self) -> Design:
        design = self._settings().mechanism.design(self._plain.features, dict(self._plain.bounds))
        done = self._standardisation
        if done is not None:
            design.cap = done.cap
            design.standardise(np.array(done.mean), np.array(done.factor))
        return design

    def _sample_plan(self, sampled: int) -> WarmupPlan:
        settings, d = self._settings(), len(self._plain.features)
        return plan_sample(settings.mu, d, sampled, settings.relation, settings.mechanism.label_mean)

    def _sample_release(self, sampled: int) -> SumsRelease:
        return sample_release(self._sample_plan(sampled), len(self._plain.features))

    def _state(self) -> TableMomentsState:
        """The model's state, before its release."""
        done = self._standardisation
        assert done is not None
        state = self._new_state(done.sampled)
        state.scaling = self._parts()[2].scaling
        state.centre(done.centre)
        if done.cross:
            state.begin_with(np.array(done.cross))
        return state

    # ---- the two passes --------------------------------------------------------------------------------

    def sums(self, batch: Any) -> Sums:
        """Exact sums over the rows of a batch, for the stage of this job.

        A row with a feature that is missing, NaN or infinite is a null row: it adds 0. Leaves of a
        `PrivateForest` learn from its other features. The bits of the sum of all batches do not depend on how
        the table is cut, nor on the order of rows or batches.

        Parameters
        ----------
        batch
            A pandas or polars data frame, an Arrow table or record batch, a mapping from names to arrays, or
            an array (n, columns), whose columns are 0, 1, ...

        Raises
        ------
        RecordError
            If a column is missing or has another type, a whole row has no label, or a row id is missing or
            occurs twice in the batch. The message quotes no value.
        """
        return self._sums_and_ids(batch)[0]

    def _sums_and_ids(self, batch: Any) -> tuple[Sums, NDArray[np.uint64]]:
        """`sums`, and the hashes of the row ids (1, n), or of row ids and entities (2, n)."""
        read = self._read(batch, self._plain.features, self._plain.label)
        digest, target, _ = self._parts()
        labels = label_numbers(read, target, self._plain.label)
        mine = self._mine(read.blocks)
        cells, nulls = self._cells(read.columns, labels, mine)
        taken = int(np.count_nonzero(mine))
        sums = Sums(cells, len(mine), taken, nulls, fingerprint(read.hashes), read.kind, digest)
        return sums, read.hashes

    def _read(self, batch: Any, features: Sequence[Any], label: Any) -> TableBatch:
        plain = self._plain
        return read_batch(batch, features, label, plain.row_id, plain.salt, plain.entity, plain.shift)

    def _cells(self, columns: Columns, labels: Floats, mine: NDArray[np.bool_]) -> tuple[Counts, int]:
        """Sums of those rows that are of this stage, and how many are null. Labels are overwritten."""
        done, (_, target, design) = self._standardisation, self._parts()
        if done is None:
            cells, nulls = _sample_cells(columns, labels, np.flatnonzero(mine), design)
            # Of classes the sample says nothing.
            return cells[: 2 * len(columns)] if isinstance(target, ClassTarget) else cells, nulls
        labels[~mine] = math.nan  # they add 0, as null rows do
        summed = partial(product_sums, centre=done.centre)
        if isinstance(target, ClassTarget):
            summed = partial(class_sums, classes=np.array(target.classes))
        cells, nulls = _product_cells(columns, labels, summed, design)
        if isinstance(design, RandomTreeDesign):
            leaves, nulls = _leaf_cells(columns, labels, design)
            cells = np.concatenate((cells, leaves))
        return cells, nulls - int(np.count_nonzero(~mine))

    def _mine(self, blocks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether rows are of this stage, by the hashes of their blocks."""
        sampled = blocks < np.uint64(self._plain.below)
        return sampled if self.stage == 1 else ~sampled

    def needs(self, low: int, high: int) -> bool:
        """Whether a row whose id is in this range may be of this stage, by public facts alone.

        Ask for each row group of Parquet, whose statistics have both numbers. Of one that is not needed read
        the columns of ids alone, for `sums_of_ids`.

        Parameters
        ----------
        low, high
            The smallest and the largest id, whole numbers.

        Examples
        --------
        >>> from streampair import auc, history
        >>> learner = auc.PairFTRL(epsilon=1.0, delta=1e-9, bounds={"a": (-1, 1)})
        >>> job = history.Job(learner, label="y", rows=2_000_000, row_id="id", salt="an example")
        >>> [job.needs(low, low + 999) for low in (0, 10_000, 100_000)]
        [False, False, False]
        >>> job.sums_of_ids({"id": range(1000)})
        <Sums of 1000 rows>
        """
        first, last = low >> self._plain.shift, high >> self._plain.shift
        if last - first >= _MOST_BLOCKS:
            return True
        blocks = np.array([block % 2**64 for block in range(first, last + 1)], dtype=np.uint64)
        return bool(self._mine(block_hashes(blocks, self._plain.salt)).any())

    def sums_of_ids(self, batch: Any) -> Sums:
        """`sums` of a batch without a row of this stage, of which the columns `id_columns` are read alone.

        Parameters
        ----------
        batch
            As of `sums`; other columns may be missing.

        Raises
        ------
        RecordError
            If a row is of this stage; or its id or its entity is missing, of another type, or occurs twice.
        """
        read = self._read(batch, (), self._plain.row_id)
        mine = int(np.count_nonzero(self._mine(read.blocks)))
        if mine:
            raise RecordError(
                f"{mine} of {len(read.blocks)} rows are of stage {self.stage}, and their ids alone were read",
                fix="give sums all columns of a batch, unless needs says that no id of it is of this stage; "
                "if that was said of a row group, its statistics are wrong: write the file anew",
            )
        none = np.empty(0)
        cells, _ = self._cells([none] * len(self._plain.features), none, np.empty(0, dtype=np.bool_))
        return Sums(cells, len(read.blocks), 0, 0, fingerprint(read.hashes), read.kind, self.digest)

    def _parts(self) -> tuple[str, Target, Design]:
        """What every batch needs, made once in a process: digest, labels, and vectors."""
        if self._made is None:
            self._made = self._digest(self._standardisation), self._target(), self._design()
        return self._made

    def check_ids(self, batches: Iterable[Any], *, each: Callable[..., Iterable[Counts]] = map) -> bool:
        """Refuse a table in which a row id occurs twice, or an entity in more rows than its limit says.

        Of the batches the columns of ids and entities are read alone. `sums` sees what is in one batch, and
        an engine may add a batch twice. Whole numbers that ascend within each batch are read once, and the
        ranges of the batches compared. Else, and with entities, memory is at most 16 bytes for each of 2^24
        rows, and 16 more with entities: a larger table is read as many times as it is larger, for a part of
        the ids each.

        Parameters
        ----------
        batches
            As of `sums`; other columns may be missing. They are iterated over once, and once for each part.
        each
            Calls a function with each part: `map`, or that of an executor, to which the batches are sent.

        Returns
        -------
        bool
            Whether the ids were compared: those of more than 100,000,000 rows are not even read.

        Raises
        ------
        ConfigError
            If the batches can be read only once.
        RecordError
            If a row id or an entity is missing, of another type, or occurs too often.
        """
        _check_readable_again(batches)
        rows = self._plain.rows
        if rows > _MOST_CHECKED:
            return False
        if self._plain.entity is None and self._ascend(batches):
            return True
        parts = -(-rows // _COMPARED)
        found = sum(each(partial(self._repeated, batches, parts), range(parts)), np.zeros(2, dtype=np.int64))
        _refuse_repeated(found, self._plain)
        return True

    def _ascend(self, batches: Iterable[Any]) -> bool:
        """Whether ids ascend within each batch, and ranges of batches never meet: all are different."""
        ranges = []
        for batch in batches:
            read = self._read(batch, (), self._plain.row_id)
            if read.ends is not None:
                ranges.append(read.ends)
            elif len(read.blocks):
                return False
        ranges.sort()
        return all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))

    def _repeated(self, batches: Iterable[Any], parts: int, part: int) -> Counts:
        """`_repeated` of a part of ids and entities, by the remainder of their hashes."""
        plain = self._plain
        kept: list[list[NDArray[np.uint64]]] = [[], []]
        for batch in batches:
            read = self._read(batch, (), plain.row_id)
            for out, hashes in zip(kept, read.hashes, strict=False):
                out.append(hashes if parts == 1 else hashes[hashes % np.uint64(parts) == part])
        return _repeated([np.concatenate(hashes) for hashes in kept if hashes], plain.records)

    def standardised(
        self, sums: Sums, key: NoiseKey | bytes, *, account: str | Path, new_attempt: bool = False
    ) -> Job:
        """Release means and spreads from the sums of the first stage: the job of the second stage.

        Parameters
        ----------
        sums
            Of the whole table.
        key
            The noise key, a `streampair.privacy.NoiseKey` or its at least 32 bytes.
        account
            The account file of this job. The attempt is written to it, and on disk, before noise is drawn.
        new_attempt
            Whether to release again after an attempt that has returned, or that was interrupted and had other
            sums. It is charged as a release of its own.

        Raises
        ------
        ConfigError
            If the sums are of another job or stage, or the key is missing.
        RecordError
            If the table has another number of rows than was declared, or too few in a stage.
        PrivacyError
            If an attempt was made before, and no new one is asked for.
        StoreError
            If the account cannot be used.
        """
        if self._standardisation is not None:
            raise ConfigError("this job is standardised already", fix="use release, or the first job")
        self._check(sums)
        if not 0 < sums.taken < self._plain.rows:
            raise RecordError(
                f"the sample has {sums.taken} of {self._plain.rows} rows, by the hashes of their ids",
                fix="give each row an id of its own, and more rows",
            )

        def finish(drawn: Floats, book: AttemptAccount) -> Standardisation:
            d = len(self._plain.features)
            plan = self._sample_plan(sums.taken)
            warmup = Warmup(plan, d)
            means = np.zeros((3, d + 1))
            means[0, :d], means[1, :d] = drawn[:d], drawn[d : 2 * d]
            if plan.labels:
                means[0, d], means[2, :d] = drawn[2 * d], drawn[2 * d + 1 :]
            mean, factor, label = warmup.read(means / sums.taken)
            state = self._new_state(sums.taken)
            state.centre(label)
            cross = () if warmup.cross is None else warmup.cross.tolist()
            return Standardisation(
                attempt=book.attempts(1),
                sampled=sums.taken,
                ids=sums.ids,
                kind=sums.kind,
                centre=state._centre,
                mean=tuple(mean.tolist()),
                factor=tuple((state.spread * factor).tolist()),
                cap=float(state.cap),
                cross=tuple(map(tuple, cross)),
            )

        # The plan of the second stage is made before the attempt: where there is none, nothing is spent.
        plan_table_moments(self._settings(), self._plain.rows - sums.taken)
        release = self._sample_release(sums.taken)
        return self._second(self._attempt(sums, release, key, account, new_attempt, finish))

    def resumed(self, account: str | Path) -> Job | None:
        """The job of the second stage, as the last attempt at the first one released it; None: there is none.

        It is read from the account, so nothing is released again, and nothing is spent.

        Raises
        ------
        PrivacyError, StoreError
            If the account is of another job, or damaged.
        """
        with open_account(account, self._digest(None)) as book:
            done = book.standardisation()
        return None if done is None else self._second(done)

    def next_attempt(self, account: str | Path, *, new_attempt: bool = False) -> int:
        """The number of the attempt at the release of this stage that comes next: an interrupted one first.

        Nothing is written. Ask for it before a long table is read: what would be refused after it is refused
        now, except for other sums than an interrupted attempt had.

        Raises
        ------
        PrivacyError, StoreError
            As of `standardised` and `release`.
        """
        with open_account(account, self._digest(None)) as book:
            return book.next_attempt(self.stage, None, new=new_attempt)

    def _second(self, done: Standardisation) -> Job:
        other = Job.__new__(Job)
        other._plain, other._standardisation, other._made = self._plain, done, None
        return other

    def release(
        self,
        sums: Sums,
        key: NoiseKey | bytes,
        *,
        account: str | Path,
        new_attempt: bool = False,
        save: Callable[[Model], object] | None = None,
    ) -> Model:
        """Release the model from the sums of the second stage.

        Parameters
        ----------
        sums, key, account, new_attempt
            As of `standardised`.
        save
            Called with the model while its attempt still counts as interrupted: if it raises, or the process
            dies in it, the same sums finish the attempt, free and with the same bytes.

        Returns
        -------
        Model
            With its guarantee as `privacy`, and with what was assumed of the table in `metadata`.

        Warns
        -----
        PrivacyWarning
            If a metric has learned nothing, since fewer than two classes exceed the noise.

        Raises
        ------
        ConfigError, RecordError, PrivacyError, StoreError
            As of `standardised`; RecordError also if the row ids are not those of the first stage.
        """
        done = self._standardisation
        if done is None:
            raise ConfigError(
                "this job is of the first stage, which releases no model",
                fix="call release of the job that standardised returns",
            )
        self._check(sums)
        if (sums.rows - sums.taken, sums.ids, sums.kind) != (done.sampled, done.ids, done.kind):
            raise RecordError(
                "the row ids, or their entities, are not those that the first stage has read",
                fix="read the same table in both stages; a table that has changed is a new job",
            )
        state = self._state()

        def finish(drawn: Floats, book: AttemptAccount) -> Model:
            state.learn_released(drawn)
            made = self._model(state, done, (book.attempts(1), book.attempts(2)))
            if save is not None:
                save(made)
            return made

        model: Model = self._attempt(sums, moments_release(state.plan), key, account, new_attempt, finish)
        document = model._document
        if isinstance(document, MetricModel) and document.root is None:
            with contextlib.suppress(PrivacyWarning):  # where warnings are errors: the release is charged
                warnings.warn(
                    "fewer than two classes exceed the noise, as the released sums show: the metric has "
                    "learned nothing, and its scores are the norms of the raw values. Fix: give more rows, a "
                    "larger epsilon, or fewer classes, in a new job, which is charged",
                    PrivacyWarning,
                    stacklevel=2,
                )
        return model

    def _check(self, sums: Sums) -> None:
        if not isinstance(sums, Sums):
            raise ConfigError(f"the sums are a {type(sums).__name__}", fix="give the sum of job.sums(batch)")
        if sums.job != self.digest:
            raise ConfigError(
                "these sums are of another job, or of another stage of this one",
                fix="give the sums of this very job: job.sums(batch) of each batch, added up",
            )
        if sums.rows != self._plain.rows:
            raise RecordError(
                f"{sums.rows:,} rows were read, and rows={self._plain.rows:,} was declared",
                fix="read the whole table, each batch once, or declare its number of rows in a new job",
            )

    def _attempt(
        self,
        sums: Sums,
        release: SumsRelease,
        key: NoiseKey | bytes,
        path: str | Path,
        new: bool,
        finish: Any,
    ) -> Any:
        """Charge an attempt, draw its noise, and return what is made of the release."""
        secret = NoiseKey.of(key)
        if secret is None:
            raise ConfigError(
                "the noise key is None", fix="give 32 random bytes that you keep, or a NoiseKey"
            )
        mac = secret.mac()
        stage, digest = self.stage, self.digest
        with open_account(path, self._digest(None)) as book:
            if self._standardisation is not None:
                book.check_released(self._standardisation)
            exact = release.identity + sums._bytes()

            def proof(number: int) -> bytes:
                return mac(f"{_NAME} sums {stage} attempt {number} ".encode() + exact)

            number = book.next_attempt(stage, proof, new=new)
            self._check_rounding(release.card, number, book.attempts(3 - stage))
            book.begin(stage, proof(number), number)
            chain = ChainedNoise(secret, f"{_NAME} {digest} stage {stage} attempt {number}".encode())
            chain.advance(exact)
            out = finish(release.draw(sums.cells, chain), book)
            book.finish(stage, out if isinstance(out, Standardisation) else None)
            return out

    def _check_rounding(self, card: Release, number: int, others: int) -> None:
        """Refuse attempts for which the rounding of noise needs more of delta than is kept for it.

        `number`: attempts at this stage with this one; `others`: those at the other one.
        """
        epsilon = promised_epsilon(self._settings().mu * math.sqrt(max(number, others)), self._plain.delta)
        cards = [card] * number
        if self._plain.entity is not None:  # its rows may be in both stages
            other = self.releases[0] if self.stage == 2 else self._second_card()
            cards += [other] * others
        rounding_limit(cards, epsilon, self._plain.delta)

    def _second_card(self) -> Release:
        """The second stage's line of the mechanism card, for a sample of the expected size."""
        return _moments(self._settings(), self._plain.rows * self._plain.below // 2**64).card

    def _model(self, state: TableMomentsState, done: Standardisation, attempts: tuple[int, int]) -> Model:
        plain, settings, learner = self._plain, self._settings(), self._learner()
        charged = max(attempts)
        mu = settings.mu * math.sqrt(charged)
        epsilon = plain.epsilon if charged == 1 else promised_epsilon(mu, plain.delta)
        bounds = dict(plain.bounds)
        assumed = ASSUMED if plain.entity is None else (_assumed_of_entities(plain), *ASSUMED[1:])
        labels = probability = None
        if isinstance(learner, auc.PairFTRL | auc.PrivateForest):
            link = state.link
            labels = Labels(plain.positive, None if learner._unnamed else plain_label(learner._negative))
            probability = Curve(float(link.offset), float(link.slope), 0.0, 1.0)
        design, d = self._parts()[2], len(plain.features)
        kind: Any = LinearModel
        linear: dict[str, Any] = {"labels": labels, "probability": probability}
        linear |= {"weights": tuple(state.average[:d].tolist())}
        if isinstance(learner, metric.PairFTRL):
            root = map_of(symmetric_of(state.average, d))
            kind, parts = MetricModel, {"root": None if root is None else tuple(map(tuple, root.tolist()))}
        else:
            parts = linear | {"moments": self._released_moments(state)}
            if isinstance(design, RandomTreeDesign):
                kind, parts = RandomForestModel, parts | tree_parts(design, state.average)
        document = kind(
            class_name=plain.learner,
            features=plain.features,
            slots=plain.rows,
            time=None,
            privacy=Promise(
                epsilon_spent=rounded_to_budget(promised_epsilon(mu, plain.delta), epsilon),
                epsilon_budget=epsilon,
                delta=plain.delta,
                mu_spent=mu,
                mu_budget=mu,
                unit=settings.relation.unit,
                adjacency=settings.relation.adjacency,
                kind="holds",
                guarantee="exact accounting of every attempt, in Gaussian differential privacy, "
                f"{TABLE_AS_ASSUMED}: "
                + ("one person each" if plain.entity is None else f"at most {plain.records} of an entity")
                + ", added once, no content in ids, numbers of rows or other rows",
                horizon=plain.rows,
                assumed=assumed,
            ),
            metadata={
                "history": {
                    "job": self._digest(None),
                    "rows": plain.rows,
                    "sample": done.sampled,
                    "attempts": list(attempts),
                    "salt": plain.salt,
                    "assumed": list(assumed),
                }
            },
            scaling=Scaling(
                bounds=tuple(bounds.get(name, (-1.0, 1.0)) for name in plain.features),
                mean=done.mean,
                factor=done.factor,
                cap=done.cap,
            ),
            **parts,
        )
        return Model(decode(encode(document)))

    def _released_moments(self, state: TableMomentsState) -> ReleasedMoments:
        """What was released, for a learner that begins with it."""
        done, plain = self._standardisation, self._plain
        assert done is not None
        return ReleasedMoments(
            rows=state.plan.horizon or 0,
            sums=EncodedArray.floats(state.released_sums),
            sigma=state.plan.sigma_last,
            centre=done.centre,
            sample=done.sampled,
            sample_sigma=self._sample_release(done.sampled).card.sigma,
            relevance=plain.relevance,
        )


def _checked_learner(learner: Any) -> tuple[Any, ...]:
    """The features of a learner that can learn from a table."""
    if type(learner) not in LEARNERS:
        raise ConfigError(
            f"a {type(learner).__name__} does not learn from sums of a table",
            fix="use auc.PairFTRL, auc.PrivateForest, ranking.PairFTRL or metric.PairFTRL",
        )
    if isinstance(learner, metric.PairFTRL) and learner.classes is None:
        raise ConfigError(
            "the classes are not known", fix="declare all that there can be with classes= of the learner"
        )
    if learner.slots or learner._private.start is not None:
        raise ConfigError("the learner has begun", fix="give a new one: it stands for its parameters alone")
    if learner.noise_key is not None or learner.seed is not None:
        raise ConfigError(
            "the learner has a noise key or a seed, and a job goes to tasks that must hold none",
            fix="leave both out, and give the key to standardised and release",
        )
    options = ["auc_share"] if getattr(learner, "auc_share", None) is not None else []
    options += ["forks"] if learner.forks else []
    if options:
        raise ConfigError(f"{options[0]} is set, which sums of a table do not know", fix="leave it out")
    names = learner.features if learner.features is not None else list(learner.bounds or {})
    if not names:
        raise ConfigError(
            "the features are not known", fix="give the learner bounds= of its features, or features="
        )
    return tuple(names)


def _check_texts(*values: Any) -> None:
    """Refuse before a release what a file of the model could not hold after it."""
    for value in values:
        try:
            str(value).encode()
            usable = not isinstance(value, float) or math.isfinite(value)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise ConfigError(
                f"{value!r} cannot be written to a file", fix="give names and labels of plain text"
            )


def _plain_target(learner: Learner) -> dict[str, Any]:
    """Labels of a learner, as plain values."""
    found: dict[str, Any] = dict.fromkeys(("positive", "negative", "relevance", "classes"))
    if isinstance(learner, ranking.PairFTRL):
        assert learner.relevance is not None
        low, high = map(float, learner.relevance)
        return found | {"relevance": (low, high)}
    if isinstance(learner, metric.PairFTRL):
        assert learner.classes is not None
        return found | {"classes": tuple(map(plain_label, learner.classes))}
    negative = None if learner.negative is None else plain_label(learner.negative)
    return found | {"positive": plain_label(learner.positive), "negative": negative}


def _shift(rows: int) -> int:
    """A block has 2^shift ids: a function of the number of rows alone, which is public."""
    return 0 if rows < _LONG else (rows // _BLOCKS).bit_length() - 1


def _plain_forest(learner: Learner) -> tuple[int | None, int] | None:
    """Trees and depth of a private forest, as they were given; None: of another learner."""
    if not isinstance(learner, auc.PrivateForest):
        return None
    return None if learner.trees is None else int(learner.trees), int(learner.depth)


def _settings(learner: Learner, names: Iterable[Any], rows: int) -> Settings:
    """The settings of a learner for so many rows."""
    if learner.horizon not in (None, rows):
        raise ConfigError(
            f"the horizon of the learner is {learner.horizon}, and rows={rows}",
            fix="leave the horizon out: it is the number of rows",
        )
    settings = learner.settings_with(features=list(names), horizon=rows)
    if type(settings.mechanism) not in (Moments, RankingMoments, MetricMoments, DPForest):
        raise ConfigError(
            f"a table is learned from second moments, and this learner, of {rows} rows and "
            f"{settings.features} features, has another mechanism",
            fix=f"leave mechanism out, and give at least {LEAST_HORIZON} rows and at most 512 features; with "
            "an entity, use a learner of auc",
        )
    return settings


def _moments(settings: Settings, sampled: int) -> SumsRelease:
    """The release of the second stage, where so many of the rows are in the sample."""
    assert settings.horizon is not None
    return moments_release(plan_table_moments(settings, settings.horizon - sampled))


def _sample_cells(
    columns: Columns, labels: Floats, rows: NDArray[np.intp], design: Design
) -> tuple[NDArray[np.int64], int]:
    """`sample_sums` of these rows, and how many of them are null."""
    d, nulls = len(columns), 0
    cells = np.zeros(3 * d + 1, dtype=np.int64)
    scale, shift = design.scaling[:2, :, None]
    for start in range(0, len(rows), _CHUNK):
        some = rows[start : start + _CHUNK]
        part = np.empty((d + 1, len(some)))
        for j, column in enumerate(columns):
            part[j] = column[some]
        x, part[d] = part[:d], labels[some]
        part[d, ~np.isfinite(x).all(axis=0)] = math.nan
        nulls += int(np.count_nonzero(np.isnan(part[d])))
        np.clip(x, -1e100, 1e100, out=x)  # as in `clip_rows`
        x *= scale
        x += shift
        np.clip(x, -1.0, 1.0, out=x)
        cells += sample_sums(part)
    return cells, nulls


def _product_cells(
    columns: Columns, labels: Floats, summed: Callable[[Floats], Counts], design: Design
) -> tuple[NDArray[np.int64], int]:
    """`product_sums` or `class_sums` of all rows, and how many of them are null."""
    d, nulls = len(columns), 0
    cells = summed(np.empty((d + 1, 0)))
    buffers = np.empty((2, (d + 1) * min(_CHUNK, len(labels))))
    for start in range(0, len(labels), _CHUNK):
        part = labels[start : start + _CHUNK]
        raw, vectors = buffers[:, : (d + 1) * len(part)].reshape(2, d + 1, len(part))
        rows = slice(start, start + len(part))
        for j, column in enumerate(columns):
            raw[j] = column[rows]
        vectors[d] = part
        table_sums.design_columns(raw[:d], design.scaling, design.cap, vectors[:d], vectors[d])
        nulls += int(np.count_nonzero(np.isnan(vectors[d])))
        cells += summed(vectors)
    return cells, nulls


def _leaf_cells(columns: Columns, labels: Floats, design: RandomTreeDesign) -> tuple[NDArray[np.int64], int]:
    """Counts of leaves, their labels, and counts of bins of all rows, and of how many nothing is learned.

    Of a row with a gap the leaves learn the other features.
    """
    d, trees = len(columns), len(design.trees.fields)
    leaves, nulls = int(design.trees.fields.size), 0
    first = d * (d + 1) // 2 + d  # of second moments, which are summed up elsewhere
    cells = np.zeros(first + design.coordinates - d + leaves, dtype=np.int64)
    for start in range(0, len(labels), _CHUNK):
        part = labels[start : start + _CHUNK].copy()
        raw, rows, usable = np.empty((len(part), d)), np.empty((len(part), design.width)), np.empty(len(part))
        for j, column in enumerate(columns):
            raw[:, j] = column[start : start + len(part)]
        design.prepare(raw, rows, usable)
        part[usable == 0.0] = math.nan
        nulls += int(np.count_nonzero(np.isnan(part)))
        random_trees.tree_sums(rows, part, d, trees, leaves, cells)
    return cells[first:], nulls


def fit(
    job: Job, batches: Iterable[Any], key: NoiseKey | bytes, *, account: str | Path, new_attempt: bool = False
) -> Model:
    """Both stages of a job over a table that can be read twice, in this process.

    Up to 100,000,000 rows it checks that no row id occurs twice in the table, with 8 bytes of memory a row.

    Parameters
    ----------
    job
        Of the first stage.
    batches
        The batches of the table, such as a list of data frames; it is iterated over twice.
    key, account, new_attempt
        As of `Job.standardised`; a new attempt is one at both stages. Where the first stage has been
        released, and the second has not, only the second is done.

    Raises
    ------
    ConfigError
        If the batches can be read only once.
    RecordError, PrivacyError, StoreError
        As of `Job.sums`, `Job.standardised` and `Job.release`; RecordError also if a row id occurs twice, in
        one batch or in two. Then nothing is spent.

    Examples
    --------
    >>> import secrets, tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from streampair import auc, history
    >>> rng = np.random.default_rng(1)
    >>> x = rng.uniform(-1, 1, (4000, 2))
    >>> table = {"id": np.arange(4000), "a": x[:, 0], "b": x[:, 1], "fraud": x[:, 0] > 0.3}
    >>> learner = auc.PairFTRL(epsilon=1.0, delta=1e-6, bounds={"a": (-1, 1), "b": (-1, 1)})
    >>> job = history.Job(learner, label="fraud", rows=4000, row_id="id", salt="an example")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "account.json"
    ...     model = history.fit(job, [table], secrets.token_bytes(32), account=path)
    >>> model.score_one({"a": 1.0, "b": 0.0}) > model.score_one({"a": -1.0, "b": 0.0})
    True
    >>> round(model.privacy["epsilon_spent"], 6), model.slots
    (1.0, 4000)
    """
    _check_readable_again(batches)
    second = second_stage(job, account, new_attempt=new_attempt)
    if second is None:
        second = job.standardised(_total(job, batches), key, account=account, new_attempt=new_attempt)
    return second.release(_total(second, batches), key, account=account, new_attempt=new_attempt)


def second_stage(job: Job, account: str | Path, *, new_attempt: bool) -> Job | None:
    """`Job.resumed`; of a new attempt, only if its first stage has been released, and its second has not."""
    second = job.resumed(account)
    if second is not None and new_attempt:
        made = [stage.next_attempt(account, new_attempt=True) for stage in (job, second)]
        second = second if made[0] > made[1] else None
    return second


def _total(job: Job, batches: Iterable[Any]) -> Sums:
    total: Sums | None = None
    rows = job._plain.rows
    ids = np.empty(
        (1 + (job._plain.entity is not None), rows if rows <= _MOST_CHECKED else 0), dtype=np.uint64
    )
    for batch in batches:
        part, hashes = job._sums_and_ids(batch)
        start = 0 if total is None else total.rows
        total = part if total is None else total + part
        if total.rows <= ids.shape[1]:
            ids[:, start : total.rows] = hashes
    if total is None:
        raise RecordError("the table has no batches", fix="give at least one")
    if total.rows == ids.shape[1]:
        _refuse_repeated(_repeated(ids, job._plain.records), job._plain)
    return total


def _check_readable_again(batches: Iterable[Any]) -> None:
    if iter(batches) is batches:
        raise ConfigError(
            f"a {type(batches).__name__} can be read once, and the table is read more than once",
            fix="give a list of batches, or an object whose __iter__ reads the table from its beginning",
        )


def _repeated(hashes: Iterable[NDArray[np.uint64]], records: int) -> Counts:
    """How many hashes of ids occur twice, and how many of entities more often than `records` times, (2,).

    Both are sorted in place.
    """
    out = np.zeros(2, dtype=np.int64)
    for place, (each, most) in enumerate(zip(hashes, (1, records), strict=False)):
        each.sort()
        out[place] = len(np.unique(each[most:][each[most:] == each[: max(len(each) - most, 0)]]))
    return out


def _refuse_repeated(found: Counts, plain: _Plain) -> None:
    """Refuse a table by what `_repeated` has found.

    Different numbers have different hashes. Two of 100,000,000 different texts have one hash with probability
    3e-4, and are refused too.
    """
    again, more = found.tolist()
    if again:
        raise RecordError(
            f"{again} row {'id occurs' if again == 1 else 'ids occur'} twice in the table, in two batches",
            fix="give each batch once, and every row an id of its own; two ids that are different strings "
            "share a hash once in thousands of tables: then take whole numbers",
        )
    if more:
        raise RecordError(
            f"{more} {'entity' if more == 1 else 'entities'} of the column {plain.entity!r} "
            f"{'has' if more == 1 else 'have'} more than {plain.records} rows",
            fix=f"leave at most {plain.records} rows of each, chosen by entity and row id alone, such as "
            "those with the lowest ids; or declare more in EntityLimit(records=)",
        )
