"""The engine of the forests: random trees under experts, one flat array stepped by a compiled loop."""

from __future__ import annotations

import math
import secrets
import struct
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair import kernels as k
from streampair import losses
from streampair.errors import ConfigError, RecordError
from streampair.learners.columns import KnowsColumns
from streampair.learners.forest_rows import ForestRows
from streampair.learners.forest_state import (
    columns_of,
    exported,
    pairs_moved,
    pairs_widened,
    restore,
    sections_of,
)
from streampair.learners.ready import labels_of, low_label, refusal
from streampair.records import features as _features
from streampair.records import texts as _texts

__all__ = ["Explanation", "ForestLearner"]

Array = NDArray[np.float64]

_NO_SCORES: Array = np.empty(0)
_MOST_NODES = 32_767

# Of how many records texts are looked at, and how many different numbers in a column are no categories.
_WATCHED, _NUMBERS = 100, 20


class Explanation(NamedTuple):
    """Where a score comes from: baseline and parts add up to it, but for rounding.

    Attributes
    ----------
    baseline
        What the trees say before they look at the record.
    features
        The part of each known feature: its linear terms, and what the splits that it decides change.
    """

    baseline: float
    features: dict[Any, float]


class ForestLearner(KnowsColumns):
    """A learner of random trees whose leaves are fitted online; a leaf is a dataclass of its parameters."""

    #: A text is a feature like any other.
    takes_text: ClassVar[bool] = True
    takes_gaps: ClassVar[bool] = True
    takes_nulls: ClassVar[bool] = True
    _squared: ClassVar[bool] = False
    _guided: ClassVar[bool] = True  # gains say which columns are drawn more often
    _brisk: ClassVar[bool] = True  # fitted to records of two classes, it steps quicker where things move
    _derived: ClassVar[frozenset[str]] = (
        frozenset(
            (
                *("_state", "_coded", "_pairs", "_tail"),
                *("_task", "_high", "_low", "_in_one", "_watching", "_watched"),
            )
        )
        | KnowsColumns._derived
    )
    _missing: ClassVar[float] = math.nan

    trees: int
    nodes: int
    seed: int | None
    max_features: int

    _in_one: bool

    def __post_init__(self) -> None:
        _whole("trees", self.trees, 1, 1000)
        _whole("nodes", self.nodes, 1, _MOST_NODES)
        _whole("max_features", self.max_features, 1, 1_000_000)
        self._bind()
        self._allocate((), self._header(), capacity=0)
        k.forest_fresh(self._state)

    def _bind(self) -> None:
        """Take from the parameters what the hot path needs."""
        task = self._make_task()
        self._pairs: losses.PairLoss | None = task.checked_loss(getattr(self, "loss", None))
        self._task, self._high, self._low = task, task.high, task.low
        kind, own = type(self), ForestLearner
        self._in_one = kind.score_one is own.score_one and kind.learn_one is own.learn_one
        # For so many more records the numbers that each column had as texts; None: it has other texts.
        self._watching = _WATCHED
        self._watched: dict[Hashable, set[float] | None] = {}

    def _header(self) -> Array:
        """The scalars of a fresh state, from the checked parameters."""
        header, seed = np.zeros(k.FOREST_HEADER), self.seed
        header[k.FOREST_TREES] = self.trees
        header[k.FOREST_NODES] = self.nodes
        header[k.FOREST_GUIDED] = self._guided
        header[k.FOREST_BRISK] = self._brisk and not self._squared and self._pairs is None
        header[k.FOREST_TASK] = self._squared if self._pairs is None else k.FOREST_PAIRS + self._pairs.code
        if seed is None:
            header[k.FOREST_SEED] = secrets.randbits(53)
        elif isinstance(seed, int | np.integer):
            header[k.FOREST_SEED] = int(seed) % 2**53
        else:
            raise ConfigError(f"seed is {seed!r}", fix="give an integer or None")
        return header

    # ---- columns ---------------------------------------------------------------------------------------

    def _allocate(
        self, names: tuple[Hashable, ...], header: Array, capacity: int, coded: tuple[int, ...] = ()
    ) -> None:
        """A state for these names and scalars; `coded` are the columns that have had texts."""
        texts = k.FOREST_BUCKETS if coded else 0
        end = k.forest_places(self.trees, self.nodes, capacity, texts)[-1]
        further = 0 if self._pairs is None else k.forest_pair_places(self.trees, capacity)[-1]
        state = np.zeros(end + further)
        state[: k.FOREST_HEADER] = header
        self._tail = state[end:]  # what pairs need
        self._tail[k.SLOPE : k.SLOPE + 1] = 1.0
        state[k.FOREST_CAP], state[k.FOREST_TEXTS], state[k.FOREST_DECIDED] = capacity, texts, 0.0
        self._state, self._coded = state, coded
        self._no_columns()
        self._widen(names)

    def _widen(self, names: Sequence[Hashable]) -> None:
        """Give new names the next columns, for which there is room: nothing is known of them yet."""
        self._add_columns(names, self._state, k.FOREST_HEADER + k.RECORD_AT * int(self._state[k.FOREST_CAP]))
        for block in self._blocks():
            block[k.FOREST_D] = self._d
        self._state[[k.FOREST_READY, k.FOREST_FEW]] = 0.0

    def _know(self, new: list[Hashable], told: Sequence[Hashable]) -> None:
        """Make room for new names, and for texts, which the features `told` have now.

        Raises
        ------
        RecordError
            If there would be too many names; then nothing has changed.
        """
        d, names = self._d, self._d + len(new)
        later = dict(zip(_features.in_order(new), range(d, names), strict=True))
        coded = {*self._coded, *((later if name in later else self._index)[name] for name in told)}
        if not new and len(coded) == len(self._coded):
            return
        if names > self.max_features:
            raise RecordError(
                f"the record has new feature names, and with them there would be {names}, "
                f"more than max_features={self.max_features}",
                fix="hash or select the features first, or raise max_features",
            )
        capacity = int(self._state[k.FOREST_CAP])
        if names > capacity:
            # Doubling keeps the copying linear in the number of names; the first record is taken as it is.
            capacity = names if not d else min(max(names, 2 * capacity), self.max_features)
            self._move(capacity, tuple(sorted(coded)))
        elif coded and not self._coded:
            self._move(capacity, tuple(sorted(coded)))
        else:
            self._coded = tuple(sorted(coded))
        self._widen(list(later))
        if self._pairs is not None:
            pairs_widened(self, d)

    def _move(self, capacity: int, coded: tuple[int, ...]) -> None:
        """Take everything into a state with room for more columns, or for texts."""
        before, d, kept = self._blocks(), self._d, self._tail
        self._allocate(self._names, self._state[: k.FOREST_HEADER], capacity, coded)
        for old, block in zip(before, self._blocks(), strict=True):
            columns, sections = columns_of(old), sections_of(old)
            for name, view in columns_of(block).items():
                view[:] = columns[name]
            for name, view in sections_of(block).items():
                if name != "texts" or len(sections[name]):
                    view.view(np.int64)[:] = sections[name].view(np.int64)
        if self._pairs is not None:
            pairs_moved(self, kept, int(before[0][k.FOREST_CAP]), d)

    def _blocks(self) -> list[Array]:
        """What labels have a say in, of each class; the state is the first of them."""
        return [self._state]

    # ---- one record ------------------------------------------------------------------------------------

    def _read(self, x: Any, *, grow: bool) -> bool:
        """Pack a record; whether features may be missing.

        Raises
        ------
        RecordError
            If a value cannot be used, as far as it is looked at here: the kernel looks at all numbers.
        """
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            if self._coded:
                row = list(self._take(x))
                for j in self._coded:
                    if type(row[j]) is str:
                        row[j] = _texts.as_code(row[j])
                self._pack(*row)
            else:
                self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            if type(x) is dict and x and self._pairs is None:
                if self._expected < 0:
                    self._prepare(x)
                if self._write(x):
                    return True
            values, index = self._values(x), self._index
            if grow:
                new = [name for name in values if name not in index]
                self._know(new, [name for name in values if isinstance(x[name], str)])
                index = self._index
            if self._expected < 0:
                self._prepare(values)
            self._write({name: value for name, value in values.items() if name in index})
            return True
        return False

    def _write(self, values: Mapping[Any, Any]) -> bool:
        """Put a record with gaps into the state; False if a name is unknown, or a value is no number."""
        if self._pairs is not None:  # its partners have gaps of their own
            return self._scatter(values)
        gathered = self._gather(values)
        if gathered:
            k.forest_scatter(self._state, self._given, len(values))
        return gathered

    @staticmethod
    def _read_cell(cell: Any) -> float:
        return _texts.code_or_number(cell)

    @staticmethod
    def _values(x: Any) -> dict[Hashable, float]:
        """All features of a record, each checked; texts as their codes."""
        if not isinstance(x, Mapping) or not x:
            _features.read_record(x)
        if not any(isinstance(value, str) for value in x.values()):
            return _features.read_record(x)
        values: dict[Hashable, float] = {}
        for name, value in x.items():
            if isinstance(value, str):
                values[name] = _texts.as_code(value)
            else:
                values |= _features.read_record({name: value})
        return values

    def _watch(self, x: Mapping[Any, Any]) -> None:
        """Look at the texts of a record: numbers that a file had as text would be categories."""
        for name in (self._names[j] for j in self._coded):
            text, numbers = x.get(name), self._watched.setdefault(name, set())
            if isinstance(text, str) and numbers is not None:
                try:
                    numbers.add(float(text))
                except ValueError:
                    self._watched[name] = None
        self._watching -= 1
        if self._watching:
            return
        # Too many that differ to be codes of a few categories.
        names = [repr(name) for name, found in self._watched.items() if len(found or ()) >= _NUMBERS]
        self._watched = {}
        if names:
            warnings.warn(
                f"{', '.join(names[:10])}{' ...' * (len(names) > 10)} had texts that read as numbers, and "
                "each different text is a category of its own; if they are numbers, convert them first, for "
                "example with river.stream.iter_csv(..., converters={'amount': float})",
                UserWarning,
                stacklevel=3,
            )

    def _unusable(self, x: Any) -> RecordError:
        try:
            self._values(x)
        except RecordError as error:
            return error
        raise AssertionError("the kernel refused a record that the slow check accepts")

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Step every expert along its loss at this record; then let it visit its leaves, which may split.

        Parameters
        ----------
        x
            Real numbers and texts by feature name; a known feature may be missing.
        y
            Label.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        label = 1.0 if y is self._high else -1.0 if y is self._low else self._task.label(y)
        if self._coded or type(x) is not dict or len(x) != self._expected:
            gaps = self._read(x, grow=True)  # which may make another state
        else:
            try:  # as in `_read`: a call more is some per cent of a record
                self._pack(*self._take(x))
                gaps = False
            except Exception:
                gaps = self._read(x, grow=True)
        if k.forest_learn(self._state, label, gaps):
            raise self._unusable(x)
        if self._unnamed and label < 0.0:
            self._learn_label(y)
        if self._coded and self._watching:
            self._watch(x)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record: higher ranks higher; 0 before any record.

        The leaves that it finds are at hand for a `learn_one` of the same record that comes next.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        gaps = self._read(x, grow=False)
        score: float = k.forest_score(self._state, gaps)
        if score != score:
            raise self._unusable(x)
        return score

    def explain_one(self, x: Mapping[Any, Any]) -> Explanation:
        """What each feature adds to the score of a record.

        Down the path of a tree, a feature that decides is told the difference that it makes to the mean of
        the leaves below; linear terms are its own.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        self.score_one(x)
        out = np.empty(self._d + 1)
        k.forest_explain(self._state, self._state, out)
        *parts, baseline = out.tolist()
        return Explanation(baseline, dict(zip(self._names, parts, strict=True)))

    @property
    def feature_importances(self) -> dict[Any, float]:
        """How much each feature moves scores, as shares that add up to 1; all 0 before any record.

        Its linear weights, for a standard deviation, and the splits that it decides: the difference of the
        means of the leaves on both sides, halved at each level.
        """
        out = np.empty(self._d)
        k.forest_importances(self._state, self._state, out)
        total = float(out.sum())
        return dict(zip(self._names, (out / total if total > 0.0 else out).tolist(), strict=True))

    # ---- many records ----------------------------------------------------------------------------------

    def _arranged(self, columns: Sequence[Hashable], rows: Array) -> Array:
        """Rows (n, columns) in the order of the features, (n, d); absent columns are missing."""
        if tuple(columns) == self._names:
            return rows
        out = np.full((len(rows), self._d), math.nan)
        for j, column in enumerate(columns):
            at = self._index.get(column)
            if at is not None:
                out[:, at] = rows[:, j]
        return out

    @staticmethod
    def _check_rows(columns: Sequence[Hashable], rows: Array) -> None:
        good = np.abs(rows) <= k.MAX_ABS
        if not good.all():
            bad = np.argwhere(~(good | np.isnan(rows)))
            if len(bad):
                i, j = bad[0].tolist()
                raise _features.unusable_value(columns[j], float(rows[i, j]), row=i)

    def _learn_rows(
        self, columns: list[Hashable], rows: Array, labels: Array, scores: Array = _NO_SCORES
    ) -> None:
        self._check_rows(columns, rows)
        self._know_columns(columns, rows)
        k.forest_learn_many(self._state, self._arranged(columns, rows), labels, scores)

    def _know_columns(self, columns: Sequence[Hashable], rows: Array) -> None:
        new = [name for name in columns if name not in self._index]
        self._know(new, [columns[j] for j in np.flatnonzero(_texts.which(rows).any(axis=0)).tolist()])

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        self._learn_rows(columns, rows, labels, scores)
        return scores

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        self._check_rows(columns, rows)
        out = np.empty(len(rows))
        k.forest_score_many(self._state, self._arranged(columns, rows), out)
        return out

    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        self._check_rows(columns, rows)
        out: Array = np.nan_to_num(self._arranged(columns, rows), nan=0.0)
        return out

    def ready_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> ForestRows | None:
        """Records that can be scored and learned one after the other, in one call of compiled code.

        Parameters
        ----------
        xs
            Records with exactly the known features, and texts where there have been some.
        ys
            Their labels.
        nulls
            Indices of records that are scored and not learned, whatever their labels; and of what is no
            record, which is refused.

        Returns
        -------
        ForestRows or None
            None where one of the records has other features: then they are to be taken one by one. Nothing
            has changed yet.
        """
        if not self._in_one:
            return None
        refused: dict[int, RecordError] = {}
        rows = self._packed(xs)
        if rows is None:
            rows = self._packed_each(xs, refused)
        if rows is not None and self._coded and self._watching:
            for x in (x for i, x in enumerate(xs[: self._watching]) if i not in refused):
                self._watch(x)
        return None if rows is None else self._ready(rows, ys, nulls, refused)

    def _packed(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        return self._coded_rows(xs) if self._coded else _features.packed(self._names, xs)

    def _packed_each(self, xs: Sequence[Mapping[Any, Any]], refused: dict[int, RecordError]) -> Array | None:
        """Rows of the records, zeros for one that is refused; None if one has other features."""
        rows = np.zeros((len(xs), self._d))
        for i, x in enumerate(xs):
            row = self._packed([x])
            if row is not None:
                rows[i : i + 1].view(np.int64)[:] = row.view(np.int64)
                continue
            error = refusal(self, x)
            if error is None:
                return None
            refused[i] = error
        return rows if len(xs) else None

    def _coded_rows(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        rows = np.empty((len(xs), self._d))
        if self._expected < 0 and len(xs) and type(xs[0]) is dict:
            self._prepare(xs[0])
        try:
            for row, x in zip(rows, xs, strict=True):
                if type(x) is not dict or len(x) != self._d:
                    return None
                values = list(self._take(x))
                for j in self._coded:
                    if type(values[j]) is str:
                        values[j] = _texts.as_code(values[j])
                struct.pack_into(f"{self._d}d", row.data, 0, *values)
        except Exception:  # a name that is missing, or a value that struct refuses
            return None
        return rows if len(rows) and ((np.abs(rows) <= k.MAX_ABS) | _texts.which(rows)).all() else None

    def ready_rows(
        self, columns: Sequence[Hashable], rows: Array, ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> ForestRows | None:
        """`ready_many` of the rows of an array (n, d) of numbers whose columns have these names."""
        if not (self._in_one and len(columns) == self._d and all(map(self._index.__contains__, columns))):
            return None
        refused: dict[int, RecordError] = {}
        fine = np.abs(rows) <= k.MAX_ABS
        if not fine.all():
            rows = rows.copy()
            for i in np.flatnonzero(~fine.all(axis=1)).tolist():
                error = refusal(self, dict(zip(columns, rows[i].tolist(), strict=True)))
                if error is None:
                    return None
                refused[i] = error
                rows[i] = 0.0
        arranged = np.ascontiguousarray(self._arranged(columns, rows))
        return self._ready(arranged, ys, nulls, refused)

    def _ready(
        self, rows: Array, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
    ) -> ForestRows:
        labels = labels_of(self, ys, nulls, refused)
        return ForestRows(self, rows, labels, refused, low_label(self, ys, labels))

    def _row_of(self, x: Mapping[Any, Any]) -> Array:
        """A usable record as a row (d,)."""
        values = self._values(x)
        return np.array([values.get(name, math.nan) for name in self._names])

    # ---- what others look at ---------------------------------------------------------------------------

    def _published(self) -> Array:
        stack = self._state[k.FOREST_STACK : k.FOREST_STACK + k.EXPERTS]
        weights: Array = (columns_of(self._state)["weights"] * stack).sum(axis=1)
        return weights

    @property
    def weights_vector(self) -> Array:
        """Weights of the linear part alone, for standardised features, (d,): a copy."""
        return self._published()

    def _proba(self, score: float) -> float:
        return float(k.sigmoid(score) if self._pairs is None else k.link_proba(self._tail, score))

    def _probas(self, scores: Array) -> Array:
        p = np.empty(len(scores))
        if self._pairs is None:
            k.sigmoid_many(scores, p)
        else:
            k.link_many(self._tail, scores, p)
        return p

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Known feature names, in the order of the columns."""
        return self._names

    @property
    def pair_loss(self) -> losses.PairLoss:
        """What a lane measures the regret by; the logistic one where leaves are fitted to no pairs."""
        return losses.Logistic() if self._pairs is None else self._pairs

    @property
    def comparator_radius(self) -> float:
        """1: nothing is projected."""
        return 1.0

    @property
    def records(self) -> int:
        """Number of records learned."""
        return int(self._state[k.FOREST_RECORDS])

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Known features of x in the order of the columns, (d,): missing ones and texts 0."""
        values = self._values(x)
        out: Array = np.nan_to_num(np.array([values.get(name, 0.0) for name in self._names]), nan=0.0)
        return out

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = _features.packed(self._names, xs)
        return np.array([self.design(x) for x in xs]).reshape(len(xs), self._d) if rows is None else rows

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        return exported(self)

    def _import(self, saved: Mapping[str, Any]) -> None:
        restore(self, saved)


def _whole(name: str, value: Any, low: int, high: int) -> None:
    """ConfigError for a constructor argument that is no integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}", fix=f"give an integer from {low} to {high}")
