"""What a private learner holds: its session, which takes the slots, and what decides over its account.

- `PrivateSession` takes every record as a slot: it prepares the record, and gives it to the state of the
  mechanism with the stream of noise. It exists as soon as the features are known, for noise and plan depend
  on their number.
- `UninitializedSession` stands in its place before that, and counts null slots.
- `PrivateState` has one of the two, and all else that changes: counters, identity, start model, plan and
  account. A saved state or a plan is loaded into a new `PrivateState`, which then takes the place of the old
  one, so that a damaged one changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.base.start_model import StartModel
from streampair.base.validation import ValidatedParameters
from streampair.errors import ConfigError, PrivacyWarning
from streampair.privacy.mechanisms import base
from streampair.privacy.mechanisms.base import Link, MechanismState, Release, Settings, SlotBatch
from streampair.privacy.mechanisms.dp_forest import DPForestState
from streampair.privacy.mechanisms.standardization import Warmup, plan_warmup
from streampair.privacy.mechanisms.start_moments import StartMoments
from streampair.privacy.noise import ChainedNoise, NoiseKey, NormalStream, Stream, process_splits
from streampair.privacy.provenance import Origin, Origins, PackedIdentities
from streampair.privacy.report import AccountStatus
from streampair.privacy.user_level import Admission
from streampair.records import features
from streampair.records.features import Design, check_finite, check_scored

__all__ = [
    "BoundsWatch",
    "Counts",
    "Identity",
    "PrivateSession",
    "PrivateState",
    "UninitializedSession",
    "record_digests",
]

Array = NDArray[np.float64]
# Domain separation: what follows is the row itself, not a caller's context.
_ROW_DOMAIN = np.frombuffer(b"own", dtype=np.uint8)


def record_digests(rows: Array, labels: Array, contexts: Sequence[bytes | None] | None) -> Sequence[bytes]:
    """Digest input of each row's record: the caller's context, or the bytes of the row."""
    if contexts is not None and None not in contexts:
        return [b"told" + context for context in contexts]  # type: ignore[operator]
    # One array of bytes: the objects of a list would cost more than the records do.
    n, size = len(rows), 8 * (rows.shape[1] + 1)
    cells = np.empty((n, 3 + size), dtype=np.uint8)
    cells[:, :3] = _ROW_DOMAIN
    cells[:, 3:] = np.concatenate((rows, labels[:, None]), axis=1).view(np.uint8)
    digests = PackedIdentities(cells)
    if contexts is None:
        return digests
    return [
        digest if context is None else b"told" + context
        for digest, context in zip(digests, contexts, strict=True)
    ]


class Counts:
    """Counters of a learner: functions of raw data, for the operator only.

    Attributes
    ----------
    null_slots
        Slots without a usable record.
    ignored_features
        Features that are not in the set.
    refused_records
        Records beyond the limits of their entities.
    """

    __slots__ = ("ignored_features", "null_slots", "refused_records")

    def __init__(self) -> None:
        self.null_slots = 0
        self.ignored_features = 0
        self.refused_records = 0


class Identity:
    """Identity of a learner for noise derivation: key, seed, name and parameters.

    Parameters
    ----------
    key
        The noise key; None for noise from the operating system or a seed.
    seed
        A fixed seed, for tests.
    parameters
        Gives the learner's class and parameters, for the chain.

    Attributes
    ----------
    name, digests
        As `PrivateLearner.bind_noise` says.
    chained
        The state of a chain to continue.
    folded
        The contexts of the null slots before the features were known.
    """

    def __init__(self, key: NoiseKey | None, seed: int | None, parameters: Callable[[], object]) -> None:
        self.key = key
        self.seed = seed
        self.parameters = parameters
        self.name = ""
        self.digests: list[bytes] | None = None
        self.chained: Mapping[str, Any] | None = None
        self.folded = b""

    def renewed(self) -> Identity:
        """The same identity, before its first slot."""
        other = Identity(self.key, self.seed, self.parameters)
        other.name, other.digests = self.name, self.digests
        return other

    def buffer_seed(self) -> int | None:
        """Seed of the buffer's random choices: with a noise key a function of it, so that replays agree.

        An unpickled learner without its key uses the coins of its state.
        """
        if self.key is None:
            return self.seed
        if self.key.absent:
            return None
        return int.from_bytes(self.key.mac()(b"coins")[:8], "big")

    def open(self, names: Sequence[Hashable], numbers: list[float]) -> NormalStream | ChainedNoise:
        """Open the noise at the first record, when everything that a chain depends on is known.

        Parameters
        ----------
        names
            The features.
        numbers
            Everything that scales or shapes the noise: two learners with the same noise under different
            scales could be subtracted.
        """
        if self.key is None:
            return NormalStream(self.seed)
        identity: list[object] = [self.name, self.parameters(), [repr(name) for name in names]]
        # Twelve digits: the last ones differ between processors.
        identity.append([f"{number:.12e}" for number in numbers])
        chain = ChainedNoise(self.key, repr(identity).encode())
        if self.chained is not None:
            chain.load_state(self.chained)
            self.chained = None
        chain.digests = self.digests
        return chain


_FIRST = 100
_MOST = 0.95


class BoundsWatch:
    """Counts how often each feature of the first 100 whole records lies outside its bounds, then warns once.

    The warning depends on raw data, so it goes to the process of the learner, as a `PrivacyWarning`, and
    nowhere else: no release, report or state knows of it, and it raises nothing, not even where warnings are
    errors. An exception would disclose something about the records, and cost one its slot.

    Parameters
    ----------
    design
        Features with their bounds.

    Attributes
    ----------
    seen
        Number of records seen.
    """

    __slots__ = ("_design", "_outside", "seen")

    def __init__(self, design: Design) -> None:
        self._design = design
        self._outside = np.zeros(len(design.names), dtype=np.int64)
        self.seen = 0

    def look(self, rows: Array) -> bool:
        """Count whole raw rows (n, d); True if the watch needs more rows."""
        rows = rows[: _FIRST - self.seen]
        scale, shift = self._design.scaling[:2]
        self._outside += (np.abs(rows * scale + shift) > 1.0 + 1e-9).sum(axis=0)
        self.seen += len(rows)
        if self.seen < _FIRST:
            return True
        self._warn()
        return False

    def _warn(self) -> None:
        names = [
            name for name, n in zip(self._design.names, self._outside, strict=True) if n >= _MOST * _FIRST
        ]
        if not names:
            return
        listed = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        with contextlib.suppress(PrivacyWarning):  # where warnings are errors
            warnings.warn(
                f"nearly all of the first {_FIRST} values of {listed} lie outside their bounds and are cut "
                "off, so little can be learned from them: declare bounds= (without, values are taken to be "
                "from -1 to 1) from what is publicly known, not from these records",
                PrivacyWarning,
                stacklevel=7,
            )


_CHUNK = 1024


class UninitializedSession:
    """Placeholder for a `PrivateSession` until the feature names are known.

    Parameters
    ----------
    settings
        What is promised.
    identity
        Identity of the learner.
    begin
        Replaces this placeholder by a session, once a record has named its features.

    Attributes
    ----------
    pending
        Null slots that will be released once the features are known.
    """

    names: tuple[Hashable, ...] = ()
    weights: Array = np.empty(0)
    warmed = False
    forked = False
    slots = 0
    digest = b""
    state: MechanismState | None = None
    admission: Admission | None = None
    link = Link()

    def __init__(
        self, settings: Settings, identity: Identity, begin: Callable[[Sequence[Hashable]], PrivateSession]
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.mu_warmup = settings.mu_warmup(None)
        self.pending = 0
        self._begin = begin

    def card(self) -> tuple[Release, ...]:
        """Nothing is calibrated yet."""
        return ()

    def take(self, x: Any, label: float, origin: Origin | None = None) -> None:
        """Take one slot: the first record with features begins the session, any before it is a null slot."""
        try:
            names = list(x) if isinstance(x, Mapping) else []
        except Exception:  # a mapping that cannot be read
            names = []
        if names:
            self._start(names).take(x, label, origin)
        else:
            self.null(origin)

    def score_and_take(
        self, x: Any, label: float, origin: Origin | None = None, *, raises: bool = True
    ) -> float:
        """`score`, then `take`; where it is not to raise, NaN is returned."""
        try:
            score = self.score(x)
        except Exception:
            if raises:
                raise
            score = math.nan
        self.take(x, label, origin)
        return score

    def take_frame(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """Take the rows of a frame, whose columns name the features."""
        self._start(columns).take_frame(columns, rows, labels)

    def null(self, origin: Origin | None = None) -> None:
        """Count a null slot, which is taken once the features are known."""
        horizon, identity = self.settings.horizon, self.identity
        if horizon is None or self.pending < horizon:
            self.pending += 1
            context = None if origin is None else origin.context
            identity.folded = hashlib.blake2b(identity.folded + (context or b"")).digest()

    def _start(self, names: Sequence[Hashable]) -> PrivateSession:
        """Fix the feature set, then take the null slots that came before it was known."""
        run = self._begin(names)
        refused = run.counts.refused_records
        first: bytes | None = self.identity.folded
        while self.pending:
            count = min(self.pending, _CHUNK)
            self.pending -= count
            raw, labels = np.full((count, len(names)), math.nan), np.full(count, math.nan)
            run.take_many(raw, labels, Origins([first, *[None] * (count - 1)]))
            first = None
        run.counts.refused_records = refused  # null slots before the start are no refusals
        return run

    def vector(self, x: Any) -> Array:
        """Empty vector, if the record can be scored."""
        check_scored(x)
        return np.empty(0)

    def score(self, x: Any) -> float:
        """0, if the record can be scored."""
        check_scored(x)
        return 0.0

    def vectors(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """None: the records are taken one by one."""
        return None

    def prepared(self, columns: list[Hashable], rows: Array) -> Array:
        """Array without columns, if the rows can be scored."""
        check_finite(columns, rows, list(range(len(columns))))
        return np.empty((len(rows), 0))

    def scores(self, columns: list[Hashable], rows: Array) -> Array:
        """Zeros, if the rows can be scored."""
        return np.zeros(len(self.prepared(columns, rows)))

    def to_state(self) -> dict[str, Any]:
        """As of a `PrivateSession`, with no content."""
        return {
            "names": None,
            "slots": 0,
            "pending": self.pending,
            "plan": None,
            "standardised": False,
            "sums": None,
            "mean": None,
            "factor": None,
            "mechanism": None,
            "chain": self.identity.chained,
        }


_NO_ORIGIN = Origin()
_NO_ORIGINS = Origins()


class PrivateSession:
    """Takes every record as a slot, and releases models under calibrated noise.

    Parameters
    ----------
    settings
        What is promised, with the number of features.
    names
        Feature names.
    identity
        Identity of the learner.
    counts
        Counters of the learner.
    admission
        Admission of records by entity; None without entities.
    plan
        Result of `written` of an earlier run, whose numbers are used unchanged. None: numbers
        are fitted here.

    Raises
    ------
    ValueError
        If the plan is not of these settings.

    Attributes
    ----------
    design
        Map from a record to its design vector.
    warmup
        The warm-up; None without one.
    state
        State of the mechanism.
    mu_warmup
        mu of one release of the warm-up.
    slots
        Slots taken.
    stream
        The noise; None before the first record.
    start
        The model that it began with; None: it began with none.
    """

    #: Number of null slots that wait for the feature names: 0 in a session.
    pending = 0

    def __init__(
        self,
        settings: Settings,
        names: Sequence[Hashable],
        identity: Identity,
        counts: Counts,
        admission: Admission | None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.counts = counts
        self.admission = admission
        seed, saved = identity.buffer_seed(), None if plan is None else plan["mechanism"]
        self.design: Design = settings.mechanism.design(names, settings.bounds)
        self.state: MechanismState = settings.start(seed=seed, saved=saved)
        self.design.cap = self.state.cap
        self.state.scaling = self.design.scaling
        again = self.state.plan.fork_mu2(settings.window) if settings.forks else None
        self.mu_warmup = settings.mu_warmup(again)
        if plan is not None:
            self.mu_warmup = base.check_close("mu_warmup", plan["mu_warmup"], self.mu_warmup)
        self.warmup: Warmup | None = None
        if settings.warmup:
            warmup_plan = plan_warmup(
                self.mu_warmup / settings.warmup_records,
                dim=len(names),
                slots=settings.warmup,
                labels=settings.mechanism.label_mean,
                relation=settings.relation,
                cross=settings.mechanism.label_cross,
            )
            warmup_plan = warmup_plan.with_fitted(None if plan is None else plan["standardization"])
            self.warmup = Warmup(warmup_plan, len(names), settings.warmup_records)
        if plan is not None and self.written() != plan:
            raise ValueError("the plan has other numbers")
        limit = base.rounding_limit(self.card(), settings.epsilon, settings.delta, settings.forks)
        # Slots after which nothing more is learned: the horizon, or before the rounding of noise exceeds its
        # part of delta.
        self.end = settings.warmup + limit if settings.horizon is None else settings.horizon
        self._watch: BoundsWatch | None = BoundsWatch(self.design)
        # The record in the design's scratch.
        self._record = [b""]
        self._one = SlotBatch(self.design.ready, self.design.label, records=self._record)
        self.start: StartModel | None = None
        self._start_weights: Array | None = None  # while records are scored with the start model
        self.slots = 0
        self._splits = process_splits()
        self.stream: NormalStream | ChainedNoise | Stream | None = None

    # ---- properties ------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[Hashable, ...]:
        """The features, in the order of the columns."""
        return self.design.names

    @property
    def weights(self) -> Array:
        """Published weights, in the coordinates of the designs: a view."""
        return self.state.average if self._start_weights is None else self._start_weights

    @property
    def link(self) -> Link:
        """Link from a score to a probability, from releases and a start model alone."""
        start = self.scoring_start
        return self.state.link if start is None or start.link is None else start.link

    @property
    def scoring_start(self) -> StartModel | None:
        """The start model, while records are scored with it: until the warm-up has ended."""
        return None if self._start_weights is None else self.start

    @property
    def warmed(self) -> bool:
        """Whether the warm-up's moments have been released."""
        return self.design.standardised

    @property
    def forked(self) -> bool:
        """Whether the process has forked since the first record, so that two copies use one budget."""
        return self.slots > 0 and self._splits != process_splits()

    @property
    def released(self) -> Array:
        """The mechanism's last release, before any post-processing: for the audit."""
        return self.state.released

    def card(self) -> tuple[Release, ...]:
        """The mechanism card: each kind of release with its sensitivity, noise and cost."""
        warmup = () if self.warmup is None else (self.warmup.sums.release,)
        return (*warmup, *self.state.card())

    def written(self) -> dict[str, Any]:
        """All fitted numbers, as plain values."""
        warmup = self.warmup
        return {
            "mu": self.settings.mu,
            "warmup": self.settings.warmup,
            "mu_warmup": self.mu_warmup,
            "standardization": None if warmup is None else warmup.plan.fitted(),
            "mechanism": self.state.plan.fitted(),
        }

    # ---- one record ------------------------------------------------------------------------------------

    def take(self, x: Any, label: float, origin: Origin | None = None) -> None:
        """Take one slot. No record is refused: one with a missing value makes a null slot.

        Parameters
        ----------
        x
            A record.
        label
            The number of its label; NaN: none.
        origin
            Where it comes from; None: unknown, and the record itself may name its entity.
        """
        design, state, stream, counts = self.design, self.state, self.stream, self.counts
        counts.ignored_features += design.read_learned(x, label)
        if (
            stream is None
            or self.admission is not None
            or self._watch is not None
            or not state.releases_nothing
        ):
            if origin is None:
                origin = _NO_ORIGIN if self.admission is None else self._origin(x)
            self._take_slot(origin)
            return
        # Fast path of most records: add to the sums, and hash.
        if isinstance(stream, ChainedNoise):
            stream.wait(design.record_id(None if origin is None else origin.context))
        state.accumulate(design)
        self.slots += 1
        value = design.label.item()
        if value != value:
            counts.null_slots += 1

    def score_and_take(
        self, x: Any, label: float, origin: Origin | None = None, *, raises: bool = True
    ) -> float:
        """`score`, then `take`, with the same bits; a whole record is packed and prepared only once.

        An error of `score` is raised before the slot is taken; with `raises=False` the score is NaN instead.
        """
        design = self.design
        if not design.whole(x):
            try:
                score = self.score(x)
            except Exception:
                if raises:
                    raise
                score = math.nan
            self.take(x, label, origin)
            return score
        score = float(design.dot(self.weights, design.ready[0]))
        self.counts.ignored_features += len(x) - len(design.names)
        design.label[0] = label
        self._take_slot(self._origin(x) if origin is None else origin, prepared=True)
        return score

    def null(self, origin: Origin | None = None) -> None:
        """Take one slot without a record."""
        self.design.raw.fill(math.nan)
        self.design.label[0] = math.nan
        self._take_slot(_NO_ORIGIN if origin is None else origin)

    def _origin(self, x: Any) -> Origin:
        """Origin of a record for which the caller gave none."""
        return _NO_ORIGIN if self.admission is None else Origin(entity=self._named(x))

    def _named(self, x: Any) -> Any:
        """The entity in the record's entity field; None if it has none."""
        entity = self.settings.entity
        field = None if entity is None else entity.field
        if field is None or not isinstance(x, Mapping):
            return None
        try:
            named, who = field in x, x.get(field)
        except Exception:  # a mapping that cannot be read
            return None
        if named:
            self.counts.ignored_features -= 1  # it was counted as an unknown feature
        return who

    def _admit(self, admission: Admission, who: Hashable) -> bool:
        """Blank the record in the scratch if its entity is at its limit, by entity and slot alone."""
        try:
            admitted = who is not None and admission.admit(who, self.slots + 1)
        except TypeError:  # not hashable, so it names no entity
            admitted = False
        if not admitted:
            self.counts.refused_records += 1
            self.design.raw.fill(math.nan)
            self.design.label[0] = math.nan
        return admitted

    def _take_slot(self, origin: Origin, *, prepared: bool = False) -> None:
        """Take one slot for the record in the design's scratch, `prepared` or raw: the hot path."""
        design, state, settings = self.design, self.state, self.settings
        if self.slots >= self.end:
            return
        stream = self._open() if self.stream is None else self.stream
        chain = stream if isinstance(stream, ChainedNoise) else None
        label, ready, usable = design.label, design.ready, design.usable
        record = b"" if chain is None else design.record_id(origin.context)
        if self.admission is not None and not self._admit(self.admission, origin.entity):
            prepared = False
        learning = self.slots >= settings.warmup
        if not learning:
            ready = design.clipped
            design.clip(design.raw, ready, usable)
        elif not prepared:
            design.prepare(design.raw, ready, usable)
        if usable.item() != 1.0:
            label[0] = math.nan
        value = label.item()
        if value != value:
            self.counts.null_slots += 1
        if self._watch is not None and usable.item() == 1.0:
            self._look(self._watch, design.raw)
        if learning:
            self._record[0] = record
            state.take(self._one, stream)
            self.slots += 1
        else:
            self._take_warmup(ready, usable, label, stream, (record,))

    def _look(self, watch: BoundsWatch, rows: Array) -> None:
        """Give whole rows to the watch, and drop it once it is done."""
        if not watch.look(rows):
            self._watch = None

    def _take_warmup(
        self, ready: Array, usable: Array, labels: Array, stream: Any, records: Sequence[bytes]
    ) -> None:
        """Take slots of the warm-up, one for each row; `records`: digest inputs, for a chain."""
        warmup = self.warmup
        assert warmup is not None
        warmup.add(ready, usable, labels)
        self.slots += len(ready)
        ends = self.slots == self.settings.warmup
        if isinstance(stream, ChainedNoise):
            stream.skip(records[: len(records) - ends])
            if ends:
                stream.record(records[-1])
                stream.advance(warmup.sums.cells())
        if ends:
            self._standardise(*warmup.release(stream))
            if warmup.cross is not None and self.state.pooled is None:
                self.state.begin_with(warmup.cross)

    def _standardise(self, mean: Array, factor: Array, label: float) -> None:
        """Standardise by the warm-up's release, or by a table's that it agrees with."""
        moments = self._moments
        if moments is not None and self._agrees(moments, mean, label):
            self._pool(moments)
            mean, factor = moments.mean, moments.factor
        else:
            self.state.centre(label)
            factor = self.state.spread * factor
        self.design.standardise(mean, factor)
        self._begin_at_start()

    # ---- moments of a table ----------------------------------------------------------------------------

    @property
    def _moments(self) -> StartMoments | None:
        """Moments of the start model that can be pooled: of the same features, scaled by the same bounds."""
        start, bounds = self.start, self.settings.bounds
        if start is None or start.moments is None or not self.state.pools:
            return None
        declared = tuple(bounds.get(name, (-1.0, 1.0)) for name in self.names)
        return start.moments if (start.names, start.bounds) == (self.names, declared) else None

    def _agrees(self, moments: StartMoments, mean: Array, label: float) -> bool:
        """Whether the warm-up has released the means of the table, up to noise and sampling."""
        assert self.warmup is not None
        plan = self.warmup.plan
        noise = plan.sigma_sum / plan.slots
        return moments.has_means(mean, label, noise * noise, plan.slots)

    def _pool(self, moments: StartMoments) -> None:
        """Pool the moments of a table with the learner's own, and take its bound of standardised values."""
        self.state.begin_with_moments(moments)
        self.design.cap = self.state.cap

    @property
    def table(self) -> str | None:
        """What has become of the moments of a table that the start model has, in words; None: it has none."""
        if self.start is None or self.start.moments is None:
            return None
        rows, pooled = f"{self.start.moments.rows:,} rows of a table", self.state.pooled
        if pooled:
            return f"Moments are pooled with the released ones of {rows}."
        if pooled is not None:
            return f"The released moments of {rows} were dropped: those of the stream differ."
        if self._moments is None:
            return (
                f"The released moments of {rows} are not used, but the weights are: they are for second "
                "moments of the same features, bounds and labels, without auc_share."
            )
        if not self.warmed:
            return f"The released moments of {rows} are compared with the warm-up's release at its end."
        return f"The released moments of {rows} are not used: the warm-up has found other means."

    # ---- start model -----------------------------------------------------------------------------------

    def begin_from(self, start: StartModel) -> None:
        """Score with a model until the warm-up has ended, and begin the learning at its weights.

        Parameters
        ----------
        start
            A model of features that are all in `names`.
        """
        if start.leaves is not None and not self._has_trees(start):
            raise ValueError("leaves of other trees than the learner has")
        self.start = start
        if self.settings.warmup:
            self._start_weights = start.weights_of(self.names)
            self.design.start = start.vectors_of(self.names)
        else:
            self._begin_at_start()

    def _has_trees(self, start: StartModel) -> bool:
        state, moments = self.state, start.moments
        if not isinstance(state, DPForestState) or start.leaves is None or moments is None:
            return False
        cells = None if moments.leaves is None else moments.leaves.shape
        return (
            start.names == self.names
            and start.leaves.shape == state.trees.fields.shape
            and cells == (state.plan.dim - state.plan.packed,)
        )

    def _begin_at_start(self) -> None:
        """Begin the learning at the weights of the start model, now that the designs of records are final."""
        if self.start is not None:
            self._start_weights = None
            self.state.begin_at(self.start.begin_weights(self.names, self.design.slope, self.settings.radius))
            if self.state.pooled and isinstance(self.state, DPForestState) and self.start.link is not None:
                self.state.begin_with_model(self.start.weights_of(self.names), self.start.link)

    # ---- many records ----------------------------------------------------------------------------------

    def take_many(
        self,
        raw: Array,
        label_numbers: Array,
        origins: Origins = _NO_ORIGINS,
        scores: Array | None = None,
        null: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_] | None:
        """Take a slot for each row, up to the horizon: first the warm-up, then learning.

        Parameters
        ----------
        raw
            Values (n, d) in the order of the features; NaN where there is none.
        given
            Numbers of the labels (n,); NaN: none.
        origins
            Where the rows come from.
        scores
            Receives the linear score (n,) of each row before its slot, before any blanking; None: no
            scores.
        null
            Mask (n,) of rows that are scored and then taken as by `null`; None: no row.

        Returns
        -------
        array or None
            Mask of the admitted rows, of those before the horizon; None without entities.
        """
        design, state, warmup = self.design, self.state, self.settings.warmup
        n, start = len(raw), 0
        end = min(n, max(self.end - self.slots, 0))
        admitted = None if self.admission is None else np.empty(end, dtype=np.bool_)
        while start < end:
            stream = self._open() if self.stream is None else self.stream
            learning = self.slots >= warmup
            stop = min(end, start + min(design.chunk, end if learning else warmup - self.slots))
            part, labels, part_scores = (
                raw[start:stop],
                label_numbers[start:stop],
                None if scores is None else scores[start:stop],
            )
            ready, usable = np.empty((stop - start, design.width)), np.empty(stop - start)
            if learning or part_scores is not None:
                design.prepare(part, ready, usable)
            if not learning and part_scores is not None:
                design.score_rows(self.weights, ready, part_scores)
            queries = {} if part_scores is None else {"scored": ready, "scores": part_scores}
            blank = None if null is None else null[start:stop]
            if blank is not None and blank.any():
                part, labels = part.copy(), labels.copy()
                part[blank] = labels[blank] = math.nan
            if not learning:
                ready = np.empty(part.shape)
                design.clip(part, ready, usable)
            where = origins.part(slice(start, stop))
            records = record_digests(part, labels, where.contexts) if isinstance(stream, ChainedNoise) else ()
            if admitted is not None:
                ready = ready.copy()
                self._blank(ready, usable, admitted[start:stop], where.entities)
            if self._watch is not None:
                self._look(self._watch, part[usable == 1.0])
            labels = np.where(usable == 1.0, labels, math.nan)
            self.counts.null_slots += int(np.count_nonzero(np.isnan(labels)))
            if learning:
                state.take(SlotBatch(ready, labels, **queries, records=records), stream)
                self.slots += stop - start
            else:
                self._take_warmup(ready, usable, labels, stream, records)
            start = stop
        if scores is not None and end < n:
            design.scores(self.weights, raw[end:], scores[end:])
        return admitted

    def _blank(
        self, ready: Array, usable: Array, admitted: NDArray[np.bool_], entities: Sequence[Hashable] | None
    ) -> None:
        """Blank the rows of entities at their limit, by entity and slot alone."""
        assert self.admission is not None
        whose = [None] * len(ready) if entities is None else entities
        admitted[:] = self.admission.admit_many(whose, self.slots + 1)
        refused = ~admitted
        self.counts.refused_records += int(np.count_nonzero(refused))
        ready[refused] = 0.0
        usable[refused] = 0.0

    def take_frame(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """`take_many` of rows with named columns."""
        known = sum(name in self.design.index for name in columns)
        self.counts.ignored_features += (len(columns) - known) * len(rows)
        self.take_many(self.design.arranged(columns, rows), labels)

    # ---- noise -----------------------------------------------------------------------------------------

    def _open(self) -> NormalStream | ChainedNoise:
        if not self.slots:  # a fork before the first record makes two new learners
            self._splits = process_splits()
        numbers = self.state.numbers()
        if self.warmup is not None:
            numbers += self.warmup.plan.sigmas
        opened = self.identity.open(self.names, numbers)
        self.stream = opened
        return opened

    @property
    def digest(self) -> bytes:
        """Keyed digest of all that the next noise depends on; empty without a key or a slot."""
        if self.stream is None and self.identity.chained is not None:
            self._open()
        return self.stream.digest if isinstance(self.stream, ChainedNoise) else b""

    # ---- for audits ------------------------------------------------------------------------------------

    def skip_warmup(self) -> None:
        """Continue as if the warm-up had ended and found standardised features."""
        self.slots = self.settings.warmup
        self._watch = None  # it watches a run from its beginning

    def as_released(self, mean: Array, factor: Array, label: float) -> None:
        """Continue as if the warm-up had released these values, which do not depend on its records."""
        self._standardise(mean, factor, label)

    def draw_from(self, key: NoiseKey | None) -> None:
        """Take noise from a key or the operating system; the buffer's coins do not change."""
        self.identity.key, self.identity.seed = key, None

    def use(self, stream: Stream) -> None:
        """Take normals from this stream, which an audit chooses."""
        self.stream = stream

    # ---- scores ----------------------------------------------------------------------------------------

    def vector(self, x: Any) -> Array:
        """Design vector (d,) of a record to score: a view of scratch."""
        return self.design.of(x)

    def score(self, x: Any) -> float:
        """Score of a record to score."""
        return float(self.design.dot(self.weights, self.design.of(x)))

    def vectors(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """Design vectors (n, d) of records with exactly the features; None if one has others."""
        rows = features.packed(self.names, xs)
        return None if rows is None else self.design.prepared(rows)

    def prepared(self, columns: list[Hashable], rows: Array) -> Array:
        """Design vectors (n, d) of raw rows to score.

        Raises
        ------
        RecordError
            If a known feature is not finite.
        """
        design = self.design
        check_finite(columns, rows, [j for j, name in enumerate(columns) if name in design.index])
        return design.prepared(design.arranged(columns, rows))

    def scores(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of raw rows: errors as of `prepared`."""
        design = self.design
        check_finite(columns, rows, [j for j, name in enumerate(columns) if name in design.index])
        out = np.zeros(len(rows))
        design.scores(self.weights, design.arranged(columns, rows), out)
        return out

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays, which include raw records and the noise memory."""
        return {
            "names": list(self.names),
            "slots": self.slots,
            "pending": 0,
            "plan": self.written(),
            "standardised": self.warmed,
            "sums": None if self.warmup is None else self.warmup.sums.to_state(),
            "mean": self.design.mean.copy(),
            "factor": self.design.factor.copy(),
            "mechanism": self.state.to_state(),
            "chain": self.stream.to_state()
            if isinstance(self.stream, ChainedNoise)
            else self.identity.chained,
        }

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same settings; noise from here on is new."""
        mean = np.array(saved["mean"], dtype=np.float64)
        factor = np.array(saved["factor"], dtype=np.float64)
        design = self.design
        if list(design.names) != list(saved["names"]) or not mean.shape == factor.shape == design.mean.shape:
            raise ValueError("features or moments of another shape")
        if self.warmup is not None:
            self.warmup.sums.load_state(saved["sums"])
        if saved["standardised"]:
            if "pooled" in saved["mechanism"]:
                if self._moments is None:
                    raise ValueError("moments of a table that the learner has not begun with")
                self._pool(self._moments)
            design.standardise(mean, factor)
            self._begin_at_start()
        self.state.load_state(saved["mechanism"])
        self.slots = int(saved["slots"])
        self._watch = None  # it watches a run from its beginning


class PrivateState:
    """All that changes in a private learner; its methods begin a session, and save and restore it.

    Parameters
    ----------
    parameters
        The learner's parameters, checked.
    identity
        Identity of the learner.

    Attributes
    ----------
    parameters
        As given.
    session
        Takes the slots.
    counts, identity
        Counters and identity of the learner.
    admission
        Admission of records by entity; None without entities.
    start
        The model that the learner begins with; None: it begins with none.
    planned
        Features and fitted numbers that `load_plan` was given; None: it was not called.
    standing
        Restarts, forks and other events that the account has to speak of.
    """

    session: UninitializedSession | PrivateSession

    def __init__(self, parameters: ValidatedParameters, identity: Identity) -> None:
        limit = parameters.entity
        self.parameters = parameters
        self.identity = identity
        self.counts = Counts()
        self.admission = None if limit is None else Admission(limit)
        self.start: StartModel | None = None
        self.planned: tuple[list[Hashable], Mapping[str, Any]] | None = None
        self.standing = AccountStatus()
        # What `defer_fits` was given; None: it was not called.
        self._deferred: Collection[int] | None = None

    # ---- the session -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin with what is known before the first record: a plan, a start model or declared features."""
        features = self.parameters.features
        if self.planned is not None:
            self._begin(*self.planned)
        elif features is not None:
            self._begin(features)
        elif self.start is not None:
            self._begin(self._names_with(self.start))
        else:
            self._wait()

    def _wait(self) -> UninitializedSession:
        """Wait for a record that names the features."""
        settings = self.parameters.settings(None)
        self.session = waiting = UninitializedSession(settings, self.identity, self._begin_with)
        return waiting

    def _begin(self, names: Sequence[Hashable], plan: Mapping[str, Any] | None = None) -> PrivateSession:
        """Fix the feature set, and with it the dimension and the noise; the numbers of a plan are taken."""
        settings = self.parameters.settings(names, plan)
        session = PrivateSession(settings, names, self.identity, self.counts, self.admission, plan)
        if self._deferred is not None:
            session.state.defer_fits(self._deferred)
        if self.start is not None:
            session.begin_from(self.start)
        self.session = session
        return session

    def _begin_with(self, names: Sequence[Hashable]) -> PrivateSession:
        """Fix the feature set by the names of a first record: theirs, and before them those with bounds.

        Bounds are public, so what they name is a feature for all neighbours. A first record that lacks one
        is a null record, as any other would be. A plan that was given names all of them.
        """
        if self.planned is not None:
            return self._begin(*self.planned)
        declared = self.parameters.bounds
        present = set(names)
        lacking = [name for name in declared if name not in present]
        session = self._begin([*declared, *(name for name in names if name not in declared)])
        if lacking:
            warnings.warn(
                f"bounds names {', '.join(map(repr, lacking))}, which the first record lacks: a feature all "
                "the same, without which a record is a null record; is the name misspelt?",
                UserWarning,
                stacklevel=2,
            )
        return session

    def _names_with(self, start: StartModel) -> Sequence[Hashable]:
        """The feature set of a learner that begins with this model: without `features` it is the model's.

        Names in `bounds` are part of it, too. Both are public, so no record decides about the set.
        """
        features = self.parameters.features
        return list(dict.fromkeys([*self.parameters.bounds, *start.names])) if features is None else features

    def begin_from(self, start: StartModel) -> None:
        """Begin with a model, before the first record.

        Raises
        ------
        ConfigError
            If the learner does not know a feature of the model, or there are too many; then nothing has
            changed.
        """
        known = set(self._names_with(start))
        unknown = [str(name) for name in start.names if name not in known]
        if unknown:
            raise ConfigError(
                f"the model has features that features= does not name: {', '.join(unknown[:5])}",
                fix="add them to features=, or begin with a model of these features",
            )
        try:
            self._set_start(start)
            self.begin()
        except ConfigError:  # too many features
            self._set_start(None)
            raise

    def _set_start(self, start: StartModel | None) -> None:
        self.start = start
        self.standing.start = None if start is None else start.account

    def defer_fits(self, releases: Collection[int]) -> None:
        """Leave slow models to the caller, in this session and the next."""
        self._deferred = tuple(releases)
        if self.session.state is not None:
            self.session.state.defer_fits(releases)

    def set_key(self, key: NoiseKey) -> None:
        """Draw noise with a key from here on; a session that has taken no slot begins again.

        What its buffer draws is a function of the key.
        """
        self.identity.key = key
        session = self.session
        if not self.slots and isinstance(session, PrivateSession):
            self._begin(session.names, session.written())

    # ---- the account -----------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Slots taken, those among them that wait for the features."""
        return self.session.slots + self.session.pending

    def current_standing(self) -> AccountStatus:
        """The standing, with forks of the process since it was last read."""
        self.standing.forked = self.standing.forked or self.session.forked
        return self.standing

    # ---- saving and restoring --------------------------------------------------------------------------

    def renewed(self) -> PrivateState:
        """This state before its first record, and before a session: for a state or plan that is loaded."""
        other = PrivateState(self.parameters, self.identity.renewed())
        other.start, other.planned, other._deferred = self.start, self.planned, self._deferred
        other.standing = copy.deepcopy(self.standing)
        return other

    def load_plan(self, saved: Mapping[str, Any]) -> None:
        """Begin under a plan; ValueError and the like if it cannot be of this learner."""
        names, numbers = list(saved["names"]), dict(saved["plan"])
        features = self.parameters.features
        if len(set(names)) != len(names) or set(names) != set(names if features is None else features):
            raise ValueError("other features")
        self._begin(names, numbers)
        self.planned = names, numbers

    def to_state(self, y_name: object) -> dict[str, Any]:
        """Export everything, as plain values and arrays.

        Parameters
        ----------
        y_name
            Name of the series of labels.
        """
        standing, counts = self.current_standing(), self.counts
        return {
            **self.session.to_state(),
            "null_slots": counts.null_slots,
            "ignored_features": counts.ignored_features,
            "refused_records": counts.refused_records,
            "restarts": [standing.clean, standing.unclean],
            "charged": standing.charged,
            "continued": standing.continued,
            "forked": standing.forked,
            "void": list(standing.void_reasons),
            "accepted": list(standing.accepted),
            "entities": None if self.admission is None else self.admission.to_state(),
            "y_name": y_name if isinstance(y_name, str) else None,
            "folded": self.identity.folded,
            **({} if self.start is None else {"start": self.start.to_state()}),
        }

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue from `to_state`, before a session; ValueError and the like if it cannot be that."""
        _check_saved(saved)
        start = StartModel.from_state(saved["start"]) if "start" in saved else None
        if self.start is not None and not self.start.same(start):
            raise ValueError("it began with another model, or none, or the model was declared otherwise")
        self._set_start(start)
        if saved["names"] is not None:
            self._load_session(saved)
        elif self.parameters.features is None and start is None:
            # Also where a plan says what the features will be: slots wait for the record that names them.
            self._wait().pending = int(saved["pending"])
        else:
            self.begin()
        self._load_account(saved)
        if self.admission is not None:
            self.admission.load_state(saved["entities"])
        self.identity.folded = bytes(saved["folded"])
        self.identity.chained = saved["chain"]
        if self.slots and self.identity.key is None:
            # Fresh also where the original's came from a fixed seed.
            self.identity.seed = None

    def _load_session(self, saved: Mapping[str, Any]) -> None:
        """Begin the session of a state, under the plan of this learner if it was given one."""
        plan: Mapping[str, Any] = saved["plan"]
        if self.planned is not None and plan != self.planned[1]:
            raise ValueError("another plan than this learner was given")
        session = self._begin(saved["names"], plan)
        session.load_state(saved)
        warmup, horizon = session.settings.warmup, session.settings.horizon
        slots = session.slots
        if session.state.steps != max(slots - warmup, 0) or (horizon is not None and slots > horizon):
            raise ValueError("slots that are not those of the mechanism")
        if session.warmed != (0 < warmup <= slots):
            raise ValueError("moments before the warm-up has ended, or none after it")

    def _load_account(self, saved: Mapping[str, Any]) -> None:
        """Take counters and the account; what this learner was marked with comes after what was saved."""
        counts, standing = self.counts, self.standing
        counts.null_slots = int(saved["null_slots"])
        counts.ignored_features = int(saved["ignored_features"])
        counts.refused_records = int(saved["refused_records"])
        standing.clean, standing.unclean = (int(count) for count in saved["restarts"])
        standing.charged = int(saved["charged"])
        marked = standing.void_reasons, standing.accepted
        standing.void_reasons, standing.accepted = [], []
        standing.mark(*(_texts(saved[name]) for name in ("void", "accepted")))
        standing.mark(*marked)
        # Nothing was released by a learner without slots, so its copy is simply another new one.
        standing.continued = bool(saved["continued"]) or self.slots > 0
        standing.forked = standing.forked or bool(saved["forked"])


def _check_saved(saved: Mapping[str, Any]) -> None:
    """Refuse what no learner can have kept: counts below 0, numbers that are not finite, a name twice."""
    names = ("slots", "pending", "null_slots", "ignored_features", "refused_records", "charged")
    for count in (*(saved[name] for name in names), *saved["restarts"]):
        if type(count) is not int or count < 0:
            raise ValueError(f"a count of {count!r}")
    if not all(isinstance(saved[name], bool) for name in ("forked", "continued", "standardised")):
        raise ValueError("a flag that is neither true nor false")
    if saved["names"] is not None and len(set(saved["names"])) != len(saved["names"]):
        raise ValueError("a feature twice")
    taken = saved["slots"] + saved["pending"]
    if saved["null_slots"] > taken or saved["refused_records"] > taken:
        raise ValueError("more null slots than slots")
    for name in ("mean", "factor", "sums", "mechanism"):
        _check_finite(saved[name])


def _check_finite(value: Any, name: str = "") -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(inner, key)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # A label that is NaN makes a null record.
        if np.isinf(value).any() or (name != "labels" and np.isnan(value).any()):
            raise ValueError("numbers that are not finite")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")


def _texts(saved: Any) -> list[str]:
    if not isinstance(saved, list) or not all(isinstance(text, str) for text in saved):
        raise ValueError("reasons that are no texts")
    return saved
