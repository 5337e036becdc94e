"""Learners without privacy: update rules, mini-batches, and the flat state that a kernel steps."""

from __future__ import annotations

import abc
import math
import secrets
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy  # its modules are loaded on first use
from numpy.typing import NDArray

from streampair import buffers, losses, schedules
from streampair.base.buffer_storage import (
    BufferStorage,
    ChunkedBuffer,
    ClassMeans,
    FewRows,
    FewRowsByClass,
    LeastSquares,
    RowBuffer,
)
from streampair.base.learner import Columns, Explanation, Learner
from streampair.base.mini_batch import StreamingBatch, encode_labels, low_label, refuse_rows, score_error
from streampair.base.targets import Target
from streampair.base.validation import check_int
from streampair.errors import ConfigError, RecordError
from streampair.kernels import (
    history,
    least_squares,
    metric,
    ogd,
    online_auc,
    platt,
    scaling,
    sparse,
    symmetric,
)
from streampair.kernels import state as layout
from streampair.kernels import vectors as vectors_kernels
from streampair.kernels.ogd import (
    ogd_learn_few,
    ogd_proba,
    ogd_score,
    ogd_score_few,
    ogd_score_many,
)
from streampair.records import features

__all__ = [
    "LinearColumns",
    "MetricRule",
    "OAMRule",
    "OGDRule",
    "OnlinePairLearner",
    "SPAUCRule",
    "UpdateRule",
    "fade",
    "finite_number",
]

Array = NDArray[np.float64]
Bound = tuple[BufferStorage, Callable[[Array, float], int], Callable[[Array, Array, Array, Array], int]]


class UpdateRule(abc.ABC):
    """Update rule of an `OnlinePairLearner`: loss, buffer, weights and kernels."""

    #: Largest size of a feature.
    limit: float = vectors_kernels.MAX_ABS
    #: Whether a record has a score that is linear in its features, which the kernels give as they learn.
    linear: bool = True
    #: Whether the learner takes a schedule, and an average weighted by the number of the step.
    scheduled: bool = False
    #: The largest `max_features`.
    most_features: int = 1 << 22
    #: What else an error for too many features proposes.
    instead: str = ""

    def loss(self, learner: Any) -> Any:
        """The pair loss of the learner; None is the hinge."""
        return learner.loss

    def default_buffer(self, learner: Any) -> buffers.Buffer:
        """The buffer of a learner that names none."""
        return buffers.FIFO(1)

    def policy(self, learner: Any) -> buffers.Buffer:
        """The buffer policy of the learner.

        Raises
        ------
        ConfigError
            If it is no buffer policy.
        """
        policy = self.default_buffer(learner) if learner.buffer is None else learner.buffer
        if not isinstance(policy, buffers.Buffer):
            raise ConfigError(f"buffer is {policy!r}", fix="give a buffer such as buffers.FIFO(1)")
        if isinstance(policy, buffers.Reservoir) and policy.max_uses is not None:
            raise ConfigError(
                f"buffer is {policy!r}, and a learner without privacy blanks no record",
                fix="leave max_uses out",
            )
        if getattr(learner, "half_life", None) is not None and not isinstance(policy, buffers.FIFO):
            raise ConfigError(
                f"half_life is {learner.half_life!r}, and {policy!r} keeps records of long ago",
                fix="use a buffer that forgets, buffers.FIFO(size), or leave the half_life out",
            )
        return policy

    def shape(self, d: int) -> tuple[int, ...]:
        """Shape of the weights for d features."""
        return (d,)

    @abc.abstractmethod
    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """The buffer storage, and the kernels for one record and for many.

        Raises
        ------
        ConfigError
            If the buffer does not suit the task.
        """

    def mark(self, learner: Any, header: Array) -> None:  # noqa: B027  # most have nothing to add
        """Write the scalars of this rule into a fresh state."""

    def check(self, vectors: Mapping[str, Array]) -> None:  # noqa: B027
        """Raise ValueError if saved weights do not suit this rule."""


def step_sizes(learner: Any) -> float | schedules.Schedule | None:
    """The learning rate of a learner, by its name or as it is."""
    rate: float | schedules.Schedule | Literal["adagrad"] | None = learner.learning_rate
    if isinstance(rate, str) and rate == "adagrad":
        return schedules.AdaGrad(0.125) if learner.scale is None else schedules.AdaGrad(1 / 16, start=1.0)
    return rate


def fade(learner: Any, header: Array) -> None:
    """Let the running sums of a fresh state fade, if that was asked for."""
    half_life = getattr(learner, "half_life", None)
    if half_life is not None:
        header[layout.KEEP] = 2.0 ** (-1.0 / check_int("half_life", half_life, 1))


class OGDRule(UpdateRule):
    """Gradient descent on a linear score."""

    scheduled = True

    def default_buffer(self, learner: Any) -> buffers.Buffer:
        """Sixteen records for AdaGrad's steps, which gain by a gradient of less noise; else one."""
        return buffers.FIFO(16 if isinstance(step_sizes(learner), schedules.AdaGrad) else 1)

    def mark(self, learner: Any, header: Array) -> None:
        """Set the decay of the running sums, and where that of spreads ends."""
        fade(learner, header)
        if header[layout.KEEP] > 0.0:
            header[layout.FADES_TO] = _TWO_HALF_LIVES

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Storage by the buffer: rows, rows by class, blocks, or moments for least squares."""
        if isinstance(policy, buffers.FullHistory) and isinstance(loss, losses.Square):
            return (
                LeastSquares(task.real_labels),
                least_squares.moments_learn,
                least_squares.moments_learn_many,
            )
        if isinstance(policy, buffers.FullHistory):
            blocks = ChunkedBuffer(policy, history.history_learn, history.history_learn_many)
            return blocks, blocks.learn, blocks.learn_many
        if isinstance(policy, buffers.ClassReservoir):
            if not task.two_classes:
                raise ConfigError(
                    f"buffer is {policy!r}, which keeps the records of two classes apart",
                    fix="use buffers.Reservoir here: relevance is a number, not a class",
                )
            return FewRowsByClass(policy), ogd.ogd_learn, ogd.ogd_learn_many
        return FewRows(policy), ogd.ogd_learn, ogd.ogd_learn_many


class MetricRule(UpdateRule):
    """Gradient descent on a symmetric matrix."""

    limit = vectors_kernels.MAX_ABS_METRIC
    linear = False
    scheduled = True

    def shape(self, d: int) -> tuple[int, ...]:
        """(d, d)."""
        return (d, d)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Storage by the buffer: rows or blocks."""
        if isinstance(policy, buffers.ClassReservoir):
            raise ConfigError(
                f"buffer is {policy!r}, which pairs records of different classes only",
                fix="use buffers.Reservoir: a metric learns from both kinds of pairs",
            )
        if isinstance(policy, buffers.FullHistory):
            blocks = ChunkedBuffer(policy, metric.metric_history_learn, metric.metric_history_learn_many)
            return blocks, blocks.learn, blocks.learn_many
        return RowBuffer(policy), metric.metric_learn, metric.metric_learn_many

    def mark(self, learner: Any, header: Array) -> None:
        """Set whether W is kept positive semi-definite, and the decay of the running sums.

        Raises
        ------
        ConfigError
            With AdaGrad's steps.
        """
        if isinstance(step_sizes(learner), schedules.AdaGrad):
            raise ConfigError(
                f"learning_rate is {learner.learning_rate!r}, whose steps differ by weight, "
                "which a metric of all directions cannot have",
                fix="give a number or another schedule, or None for the self-tuned steps",
            )
        fade(learner, header)
        header[layout.PSD] = bool(learner.psd)

    def check(self, vectors: Mapping[str, Array]) -> None:
        """ValueError if a matrix is not symmetric."""
        if any((vectors[name] != vectors[name].T).any() for name in ("w", "averaged")):
            raise ValueError("a metric that is not symmetric")


class OAMRule(UpdateRule):
    """OAM: pairs of a record with all sampled records of the other class."""

    def loss(self, learner: Any) -> losses.PairLoss:
        """The hinge."""
        return losses.Hinge()

    def mark(self, learner: Any, header: Array) -> None:
        """ConfigError without a step size."""
        if learner.learning_rate is None:
            raise ConfigError("learning_rate is None", fix="give a number: OAM does not tune its own step")
        header[layout.SCHEDULE] = layout.SAMPLED

    def policy(self, learner: Any) -> buffers.Buffer:
        """Two reservoirs."""
        return buffers.ClassReservoir(learner.size)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Both classes."""
        return FewRowsByClass(policy), ogd.ogd_learn, ogd.ogd_learn_many


class SPAUCRule(UpdateRule):
    """SPAUC: stochastic saddle-point steps around the mean record of each class."""

    def loss(self, learner: Any) -> losses.PairLoss:
        """Least squares."""
        return losses.Square()

    def policy(self, learner: Any) -> buffers.Buffer:
        """A placeholder: no record is kept."""
        return buffers.FIFO(1)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Two means."""
        return ClassMeans(), online_auc.spauc_learn, online_auc.spauc_learn_many


_NO_SCORES: Array = np.empty(0)
#: A cell of a row of a linear learner that the record does not have.
ABSENT: float = np.array(scaling.ABSENT_BITS).view(np.float64).item()
#: What a record counts for after two half-lives; a little more, so that rounding does not decide.
_TWO_HALF_LIVES = 0.25 * (1.0 + 1e-9)
#: Radius of the self-tuned steps of a learner that names none.
_RADIUS = 2.0
_ARRAYS = ("w", "previous", "averaged")
_STATISTICS = (
    ("means", scaling.MEAN),
    ("variances", scaling.VARIANCE),
    ("values_set", scaling.COUNT),
    ("given", scaling.OCCURRENCES),
    ("units", scaling.UNIT),
    ("kinds", scaling.KIND),
    ("touched", scaling.TOUCHED),
    ("cuts", scaling.CUTS),
    ("mean_rests", scaling.REST),
    ("lows", scaling.LOW),
    ("highs", scaling.HIGH),
)
#: Of a learner whose spreads fade.
_RUNS = (("newest_values", scaling.NEWEST), ("runs", scaling.RUN))
#: Statistics that no score needs.
_LEARNED_BY = ("touched", "mean_rests", "newest_values", "runs")
_SCALARS = ("RECORDS", "FILLED", "NEXT", "GRADIENTS", "ETAS", "SEED", "POSITIVES")
_LINK = ("INFORMATION", "CENTRE", "SPREAD", "OFFSET", "SLOPE")


class LinearColumns(NamedTuple):
    """Columns of a linear learner.

    Attributes
    ----------
    names
        Of the features, and of the columns that others share.
    weights
        One a column, (d,), of scaled features.
    fixed
        Whether a column is an indicator, of a text or of a gap, (d,); None: none is.
    shared
        How many of the columns, the last, are shared by features without one of their own.
    statistics
        By which features are scaled: (d,) each, as a saved state has them. Empty: they are not scaled.
    seen
        Number of records that the statistics count.
    """

    names: tuple[Hashable, ...]
    weights: Array
    fixed: NDArray[np.bool_] | None = None
    shared: int = 0
    statistics: Mapping[str, Array] = MappingProxyType({})
    seen: int = 0


class _Found(NamedTuple):
    """The columns of a record: values by name, NaN for a gap; and which of them are indicators."""

    values: dict[Hashable, float]
    fixed: Collection[Hashable]


def _found(columns: Sequence[Hashable], row: Array, fixed: Collection[Hashable]) -> _Found:
    """A row of `_with_gaps`."""
    cells = zip(columns, row.tolist(), row.view(np.int64).tolist(), strict=True)
    return _Found({name: value for name, value, bits in cells if bits != scaling.ABSENT_BITS}, fixed)


def _with_gaps(columns: list[Hashable], rows: Array) -> tuple[list[Hashable], Array, set[Hashable]]:
    """Rows (n, columns) with an indicator for each column that has gaps (NaN); and the new columns.

    Raises
    ------
    RecordError
        If an indicator has the name of another column.
    """
    gaps = np.isnan(rows)
    if not gaps.any():  # faster than a look at each column
        return columns, rows, set()
    which = np.flatnonzero(gaps.any(axis=0)).tolist()
    names: list[Hashable] = [f"{columns[j]}=" for j in which]
    if len({*columns, *names}) < len(columns) + len(names):
        raise _called_alike(next(name for j, name in enumerate(names) if name in [*columns, *names[:j]]))
    marks = np.where(gaps[:, which], 1.0, ABSENT)
    return [*columns, *names], np.concatenate((rows, marks), axis=1), set(names)


def _called_alike(name: Hashable) -> RecordError:
    return RecordError(
        f"two features of the record are called {name!r}",
        fix="rename one: a text is the feature 'name=value', and a missing value 'name='",
    )


def finite_number(name: str, value: Any, *, low: float, open_low: bool, high: float = math.inf) -> float:
    """A constructor argument as a float in a range, or ConfigError."""
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value < low or (open_low and value == low) or value > high:
        least = f"above {low:g}" if open_low else f"of at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ConfigError(f"{name} is {value!r}", fix=f"give a finite {name} {least}{most}")
    return float(value)


class OnlinePairLearner(Learner):
    """Online pair learner whose state is one flat array, updated by a compiled kernel.

    A subclass is a dataclass of its parameters and names its `_rule`: which kernels step, on which weights,
    and where the records are kept that new ones are paired with.
    """

    takes_text: ClassVar[bool] = True
    takes_gaps: ClassVar[bool] = True
    takes_nulls: ClassVar[bool] = True
    explain_rows: ClassVar[None] = None  # records are explained one by one

    _rule: ClassVar[UpdateRule]
    _derived: ClassVar[frozenset[str]] = frozenset(
        (
            *("_state", "_columns", "_root", "_memory", "_learn", "_learn_many"),
            *("_task", "_high", "_low", "_limit", "_in_one"),
        )
    )

    # The values of a leaf that has no such parameter.
    scale: Literal["running"] | None = None
    learning_rate: float | schedules.Schedule | Literal["adagrad"] | None = None
    radius: float | None = 1.0
    average: bool | Literal["linear"] | None = True
    max_features: int = 10_000
    l2: float = 0.0
    seed: int | None = 0

    # Of a classifier.
    positive: Any
    _high: Any
    _low: Any
    # Largest size of a feature.
    _limit: float
    # Whether `prepare_many` may score and learn in one call.
    _in_one: bool
    _memory: BufferStorage
    _state: Array
    _columns: Columns
    # (state, label) -> 0, or 1 + the column that cannot be used, or what `ogd_learn` returns else.
    _learn: Callable[[Array, float], int]
    # (state, rows, labels, scores or none) -> 0, or 1 + the flat index of the value that cannot be used.
    _learn_many: Callable[[Array, Array, Array, Array], int]

    def __post_init__(self) -> None:
        max_features = self.max_features
        whole = isinstance(max_features, int) and not isinstance(max_features, bool)
        most = self._rule.most_features
        if not whole or not 1 <= max_features <= most:
            raise ConfigError(
                f"max_features is {max_features!r}",
                fix=f"give an integer from 1 to {most}{self._rule.instead}",
            )
        self._bind()
        self._allocate((), self._header(), capacity=0)

    def _bind(self) -> None:
        """Set what the hot path needs, from rule and parameters."""
        rule, task = self._rule, self._make_task()
        self._task, self._high, self._low = task, task.high, task.low
        self._columns = Columns(ABSENT if rule.linear else 0.0)
        loss = task.checked_loss(rule.loss(self))
        self._loss = losses.Hinge() if loss is None else loss
        self._policy = rule.policy(self)
        self._limit = rule.limit
        # Whether `prepare_many` may score and learn in one: both calls are those of this class.
        cls, base = type(self), OnlinePairLearner
        self._in_one = rule.linear and cls.score_one is base.score_one and cls.learn_one is base.learn_one
        self._memory, self._learn, self._learn_many = rule.bind(self._policy, self._loss, task)

    def _header(self) -> Array:
        """The scalars of a fresh state, from the checked parameters."""
        policy, seed = self._policy, self.seed
        learning_rate = step_sizes(self) if self._rule.scheduled else self.learning_rate
        header = np.zeros(layout.HEADER)
        header[layout.SIZE] = policy.size
        header[layout.POLICY] = policy.code
        header[layout.LOSS] = self._loss.code
        header[layout.WIDTH] = self._loss.width
        if self._rule.scheduled and isinstance(learning_rate, schedules.Schedule):
            header[layout.SCHEDULE], header[layout.RATE] = learning_rate.code, learning_rate.scale
            if isinstance(learning_rate, schedules.AdaGrad):
                header[layout.START] = learning_rate.start
        elif learning_rate is not None:
            header[layout.RATE] = finite_number(
                "learning_rate", learning_rate, low=0.0, open_low=True, high=1e12
            )
        header[layout.RADIUS] = self._ball()
        if self.scale not in ("running", None):
            raise ConfigError(
                f"scale is {self.scale!r}",
                fix='give "running", for features scaled by their running statistics, or None',
            )
        header[layout.SCALE] = self.scale is not None
        header[layout.L2] = finite_number("l2", self.l2, low=0.0, open_low=False, high=1e12)
        averages = self._averages()
        header[layout.AVERAGE] = 2.0 if self._linear() else averages
        header[layout.LINK] = self._task.two_classes
        header[layout.SLOPE] = 1.0
        self._rule.mark(self, header)
        if seed is None:
            header[layout.SEED] = secrets.randbits(53)
        elif isinstance(seed, int | np.integer):
            header[layout.SEED] = int(seed) % 2**53
        else:
            raise ConfigError(f"seed is {seed!r}", fix="give an integer or None")
        return header

    def _ball(self) -> float:
        """The radius of the ball; infinite without one."""
        if self.radius is not None:
            return finite_number("radius", self.radius, low=0.0, open_low=True, high=1e12)
        tuned = step_sizes(self) is None if self._rule.scheduled else self.learning_rate is None
        return _RADIUS if tuned or self.scale is None else math.inf

    def _averages(self) -> bool:
        """Whether an average of the iterates is published, rather than the last one."""
        per_weight = self._rule.scheduled and isinstance(step_sizes(self), schedules.AdaGrad)
        if per_weight and self.average:
            raise ConfigError(
                f"average is {self.average!r}, and AdaGrad's steps publish the last iterate",
                fix="give average=False, or another learning_rate",
            )
        return not per_weight if self.average is None else bool(self.average)

    def _linear(self) -> bool:
        """Whether the average is weighted by the number of the step."""
        if self._rule.scheduled and isinstance(self.average, str):
            if self.average != "linear":
                raise ConfigError(f"average is {self.average!r}", fix='give True, False or "linear"')
            if getattr(self, "half_life", None) is not None:
                raise ConfigError(
                    'average is "linear", which gives late records more weight, and so does half_life',
                    fix="leave one of them out",
                )
            return True
        return False

    # ---- columns ---------------------------------------------------------------------------------------

    def _allocate(self, names: tuple[Hashable, ...], header: Array, capacity: int) -> None:
        """A zeroed state array for these names and scalars."""
        state = np.zeros(self._memory_at(header, capacity) + self._memory.cells(capacity))
        state[: layout.HEADER] = header
        state[layout.CAP] = capacity
        self._memory.attach(state)
        self._state = state
        self._columns.clear()
        self._widen(names)

    def _widen(self, names: Sequence[Hashable], fixed: Collection[Hashable] = ()) -> None:
        """Assign the next columns, which exist and are 0, to new names; `fixed` are indicators."""
        first = self._columns.count
        if self._rule.linear:
            self._count_columns()
            self._state[layout.ALIKE] = 0.0
        self._columns.add(names, self._state, layout.HEADER)
        if self._columns.count != first + len(names):
            raise AssertionError("two columns have the same name")
        self._state[layout.D] = self._columns.count
        if self._rule.linear:
            dense = scaling.DENSE if self.scale is not None and self._seen == 0.0 else 0
            self._column(scaling.UNIT)[first:] = 1.0
            self._column(scaling.KIND)[first:] = [scaling.FIXED if n in fixed else dense for n in names]

    @property
    def _seen(self) -> float:
        """How many records the statistics of the features count."""
        return float(self._state[layout.RECORDS] + self._state[layout.BEFORE])

    def _column(self, which: int) -> Array:
        """View of one of the vectors of a linear learner, (d,)."""
        start = layout.HEADER + which * int(self._state[layout.CAP])
        return self._state[start : start + self._columns.count]

    def _memory_at(self, header: Array, capacity: int) -> int:
        """Start of the buffer's region."""
        if self._rule.linear:
            return layout.HEADER + _vector_count(header) * capacity
        return layout.HEADER + capacity + 4 * math.prod(self._rule.shape(capacity))

    def _vectors(self) -> dict[str, Array]:
        """Views of the three vectors of weights, in the shape for d features."""
        cap = int(self._state[layout.CAP])
        shape = self._rule.shape(cap)
        cells = math.prod(shape)
        used = tuple(slice(n) for n in self._rule.shape(self._columns.count))
        starts = (layout.HEADER + cap + i * cells for i in (1, 2, 3))
        return {
            name: self._state[start : start + cells].reshape(shape)[used]
            for name, start in zip(_ARRAYS, starts, strict=True)
        }

    def _count_columns(self) -> None:
        """Write how often each feature was set, which kernels need not keep while all records have all."""
        if self._state[layout.ALIKE]:
            for which in (scaling.COUNT, scaling.OCCURRENCES):
                self._column(which)[:] = self._seen

    def _statistics(self) -> dict[str, Array]:
        """Views of the statistics of the features, (d,) each.

        Where features are not scaled, at most which of them are indicators, and when their weights moved.
        """
        if self._state[layout.SCALE]:
            self._count_columns()
        has_fixed = self._rule.linear and scaling.FIXED in self._column(scaling.KIND)
        return {name: self._column(which) for name, which in _kept_statistics(self._state, has_fixed)}

    def _region(self) -> Array:
        """View of the buffer's region."""
        return self._state[self._memory_at(self._state, int(self._state[layout.CAP])) :]

    def _grow(self, new: list[Hashable], fixed: Collection[Hashable] = ()) -> None:
        """Give columns to new names; beyond `max_features` they share some."""
        room = max(self.max_features - self._columns.count, 0)
        names = features.in_order(new)
        new_names, others = names[:room], names[room:]
        if others and self._columns.count <= self.max_features:
            new_names += self._shared_names({*self._columns.index, *new_names})
            warnings.warn(
                f"there are more than max_features={self.max_features} feature names: those to come share "
                f"{self._shares} columns. Fix: raise max_features (at most {self._rule.most_features}), or "
                f"select the features first{self._rule.instead}",
                UserWarning,
                stacklevel=4,
            )
        if not new_names:
            return
        count = self._columns.count + len(new_names)
        capacity = int(self._state[layout.CAP])
        if count > capacity:
            most = self.max_features + self._shares
            self._move(count if not self._columns.count else min(max(count, 2 * capacity), most))
        else:
            self._memory.widen()
        self._widen(new_names, fixed)

    @property
    def _shares(self) -> int:
        """How many columns names beyond `max_features` share."""
        return max(1, self.max_features // 4)

    def _shared_names(self, taken: Collection[Hashable]) -> list[Hashable]:
        """Names of the columns that names beyond `max_features` share, which no feature has."""
        what = "shared column"
        while any(f"{what} {i}" in taken for i in range(self._shares)):
            what += "'"
        return [f"{what} {i}" for i in range(self._shares)]

    def _place(self, name: Hashable) -> int | None:
        """The column of a name; None if it has none."""
        place = self._columns.index.get(name)
        if place is None and self._columns.count > self.max_features:
            place = features.digest(0, f"{type(name).__name__}:{name}", 32) % self._shares + self.max_features
        return place

    def _move(self, capacity: int) -> None:
        """Copy into a larger state. Doubling keeps all copying linear in the number of names."""
        old, region, d = self._state, self._region(), self._columns.count
        before = int(old[layout.CAP])
        if self._rule.linear:
            self._count_columns()  # into what is copied
        vectors = self._vectors()
        self._allocate(self._columns.names, old[: layout.HEADER], capacity)
        if self._rule.linear:
            count = _vector_count(old)
            source, target = (
                state[layout.HEADER :][: count * cap].reshape(count, cap)
                for state, cap in ((old, before), (self._state, capacity))
            )
            target[:, :d] = source[:, :d]
        else:
            for name, view in self._vectors().items():
                view[...] = vectors[name]
        self._memory.move(region, before, self._region(), capacity, d)

    def _lengthen(self, count: int) -> None:
        """Make room in the buffer for records of so many features."""
        if self._memory.lengthen(count):
            self._move(int(self._state[layout.CAP]))

    def _read(self, x: Any, limit: float, row: int | None = None) -> _Found:
        """The columns of a record, by name; `limit` is the largest size of a number.

        Raises
        ------
        RecordError
            If it is no record, or a value is neither a number, a text nor missing.
        """
        if not isinstance(x, Mapping) or not x:
            features.read_record(x)  # raises
        found: dict[Hashable, float] = {}
        fixed: set[Hashable] = set()
        for name, value in x.items():
            number = 1.0
            column = name
            if isinstance(value, str):
                column = features.indicator(name, value)
                fixed.add(column)
            else:
                try:
                    number = features.as_number(value)
                except Exception:  # a value may raise anything
                    if not features.is_missing(value):
                        raise features.unusable_value(name, value, row=row) from None
                    number = math.nan
                if abs(number) > limit:
                    raise features.unusable_value(name, value, row=row, limit=limit)
                if number != number:
                    indicator = f"{name}="
                    if indicator in found:
                        raise _called_alike(indicator)
                    fixed.add(indicator)
                    found[indicator] = 1.0
            if column in found:
                raise _called_alike(column)
            found[column] = number
        return _Found(found, fixed)

    def _gather(self, found: _Found, *, grow: bool) -> int:
        """Gather places and values of a record that was read; how many there are."""
        if grow:
            new = [name for name in found.values if self._place(name) is None]
            if new:
                self._memory.check_room(1)
                self._grow(new, found.fixed)
        cells: dict[int, float] = {}
        for name, value in found.values.items():
            place = self._place(name)
            if place in cells:  # names share it
                value = min(max(cells[place] + value, -self._most), self._most)
            if place is not None:
                cells[place] = value
        count = len(cells)
        gathered = self._columns.scratch(count)
        gathered[:count].view(np.int64)[:] = list(cells)
        gathered[count : 2 * count] = list(cells.values())
        return count

    def _pack_slowly(self, x: Any, *, grow: bool) -> tuple[int, bool]:
        """Check and pack x: the slow path for records with other than the known features.

        Returns
        -------
        tuple of int and bool
            -1; or, of a record of a linear learner that has not exactly the known features as numbers, how
            many of its features are gathered, rather than packed. And whether there may be gaps among them.
        """
        columns = self._columns
        if not self._rule.linear:
            self._pack_numbers(x, grow=grow)
            return -1, False
        if type(x) is dict and x:
            if columns.expected < 0:
                columns.prepare(x)
            if len(x) == columns.expected and columns.scatter(x):
                return -1, False
            if columns.gather(x):
                return len(x), False
        return self._gather(self._read(x, self._most if grow else self._limit), grow=grow), True

    def _pack_numbers(self, x: Any, *, grow: bool) -> None:
        """Pack a record of numbers, in which what is missing is 0."""
        if type(x) is dict and x:
            if self._columns.expected < 0:
                self._columns.prepare(x)
            if self._columns.scatter(x):
                return
        values = features.read_record(x, self._limit)
        if grow:
            new = [name for name in values if name not in self._columns.index]
            if new:
                self._memory.check_room(1)
                beyond = self._beyond_limit(values)
                if beyond is not None:
                    raise beyond
                self._columns.check_room(len(new), self.max_features)
                self._grow(new)
        index = self._columns.index
        self._columns.scatter({name: value for name, value in values.items() if name in index})

    def _unusable(self, x: Mapping[Any, Any]) -> RecordError:
        try:
            values = features.read_record(x, self._limit)
        except RecordError as error:
            return error
        beyond = self._beyond_limit(values)
        if beyond is None:
            raise AssertionError("the kernel refused a record that the slow check accepts")
        return beyond

    def _beyond_limit(self, values: Mapping[Hashable, float]) -> RecordError | None:
        """The error for the first value that the buffer cannot hold."""
        limit = self._memory.limit
        for name, value in values.items():
            if abs(value) > limit:
                return features.unusable_value(name, value, limit=limit)
        return None

    def begin_at(self, weights: Mapping[Any, float], records: int = 0) -> None:
        """Set initial weights of a learner that has learned nothing yet (warm start).

        Parameters
        ----------
        weights
            As `weights` gives them: by feature name, or by two names for a metric.
        records
            Number of records that they count for, 0 or above. Self-tuned steps go on as if so many had been
            learned, with gradients as long as the loss allows for records of length 1; with none the first
            step is as long as the ball is wide. In the average of the iterates they count as much. With
            `learning_rate` steps keep their sizes. `records` counts what is learned from here on.

        Raises
        ------
        ConfigError
            If the learner is not new, or cannot have these weights.
        """
        metric = not self._rule.linear
        self._check_new()
        if isinstance(records, bool) or not isinstance(records, int | np.integer) or records < 0:
            raise ConfigError(f"records is {records!r}", fix="give a whole number of 0 or more")
        values = np.array(list(weights.values()), dtype=np.float64)
        if not len(values) or not np.isfinite(values).all():
            raise ConfigError("weights are not finite, or there are none", fix="give a number by feature")
        names = list(dict.fromkeys(name for pair in weights for name in pair)) if metric else list(weights)
        self._check_start(names, float(np.linalg.norm(values)))
        if not metric:
            self.set_columns(LinearColumns(tuple(names), values))
        else:
            self._begin_metric(names, weights)
        self._count_as(int(records))

    def _check_new(self) -> None:
        if type(self._rule) not in (OGDRule, MetricRule) or self.records or self._columns.names:
            raise ConfigError(
                f"a {type(self).__name__} begins at weights only as a new PairOGD",
                fix="make a new PairOGD, and let it begin there before it learns",
            )

    def _begin_metric(self, names: Sequence[Hashable], weights: Mapping[Any, float]) -> None:
        """Set the initial weights of a metric."""
        self._move(len(names))
        self._widen(names)
        index = self._columns.index
        start = np.zeros(self._rule.shape(len(names)))
        for (one, other), value in weights.items():
            start[index[one], index[other]] = value
        start = 0.5 * (start + start.T)
        if self._state[layout.PSD]:
            root = np.empty_like(start)
            start = root @ root.T if symmetric.psd_root(start, root) else np.zeros_like(start)
            start = 0.5 * (start + start.T)
        for view in self._vectors().values():
            view[...] = start
        self.__dict__.pop("_root", None)  # cached root of another metric

    def linear_columns(self) -> LinearColumns:
        """What a linear learner scores by, and the statistics that its features are scaled by."""
        weights = self._vectors()["averaged" if self._state[layout.AVERAGE] else "w"]
        kinds, statistics = self._column(scaling.KIND), self._statistics() if self.scale is not None else {}
        return LinearColumns(
            self._columns.names,
            weights.copy(),
            fixed=(kinds.astype(np.int64) & scaling.FIXED) > 0,
            shared=max(self._columns.count - self.max_features, 0),
            statistics={name: view.copy() for name, view in statistics.items() if name not in _LEARNED_BY},
            seen=int(self._seen),
        )

    def begin_with(self, columns: LinearColumns, records: int) -> None:
        """As `begin_at`, with the columns of another linear learner.

        Raises
        ------
        ConfigError
            If the learner is not new, or cannot have them.
        """
        self._check_new()
        if columns.statistics and self.scale is None:
            raise ConfigError(
                "the weights are those of scaled features, and the learner has scale=None",
                fix='make the learner with scale="running"',
            )
        count = len(columns.names)
        if columns.shared and (count - columns.shared, columns.shared) != (self.max_features, self._shares):
            raise ConfigError(
                f"the model has {count - columns.shared} features of their own, and columns that others "
                f"share, and the learner max_features={self.max_features}",
                fix=f"make the learner with max_features={count - columns.shared}",
            )
        self._check_start(columns.names[: count - columns.shared], float(np.linalg.norm(columns.weights)))
        self.set_columns(columns)
        self._count_as(records)

    def set_columns(self, columns: LinearColumns) -> None:
        """Give a new linear learner its columns, in this order: then scores have the bits of their origin.

        Raises
        ------
        ValueError
            If it would share other columns.
        """
        count = len(columns.names)
        if columns.shared and columns.shared != self._shares:
            raise ValueError(f"{columns.shared} columns are shared, and not {self._shares}")
        self._move(count)
        self._widen(columns.names)
        for view in self._vectors().values():
            view[...] = columns.weights
        if columns.statistics:
            self._state[layout.BEFORE] = columns.seen
            for name, which in _STATISTICS:
                if name in columns.statistics:
                    self._column(which)[:] = columns.statistics[name]
        else:  # in units of the raw features, until their spreads are known
            begun = scaling.DENSE | scaling.BEGUN if self.scale is not None else 0
            fixed = np.zeros(count, dtype=bool) if columns.fixed is None else columns.fixed
            self._column(scaling.KIND)[:] = np.where(fixed, scaling.FIXED, begun)
        scaling.restore(self._state)

    def _check_start(self, names: Sequence[Hashable], norm: float) -> None:
        """ConfigError if a learner of these parameters cannot have weights of these names and this norm."""
        if norm > self._ball() * (1.0 + 1e-9):
            raise ConfigError(
                f"the weights have the norm {norm:.6g}, beyond the radius {self._ball():g}",
                fix=f"make the learner with radius={norm:.3g} or more",
            )
        if len(names) > self.max_features:
            raise ConfigError(
                f"there are weights of {len(names)} features, more than max_features={self.max_features}",
                fix="make the learner with a larger max_features",
            )

    def _count_as(self, records: int) -> None:
        """Set the sums for step size and average to those after so many records."""
        state, rate = self._state, step_sizes(self)
        largest = self._loss.lipschitz(1.0, self.comparator_radius, form=self._task.form)
        if isinstance(rate, schedules.AdaGrad):
            keep = float(state[layout.KEEP])
            worth = min(float(records), 1.0 / (1.0 - keep)) if keep > 0.0 else float(records)
            vectors = self._vectors()
            vectors["previous"][...] = worth * largest * largest / self._columns.count  # each has its share
            vectors["averaged"][...] = 0.0
            return
        if state[layout.KEEP] > 0.0:
            worth = min(float(records), 1.0 / (1.0 - float(state[layout.KEEP])))
            state[layout.ETAS] = worth
        else:
            worth = float(records)
            if self._linear():
                state[layout.ETAS] = worth * (worth + 1.0) / 2.0
            elif isinstance(rate, schedules.Schedule):
                state[layout.ETAS] = _sum_of_steps(rate, records)
            else:
                first = math.sqrt(2.0) * self.comparator_radius / largest if rate is None else rate
                state[layout.ETAS] = 2.0 * first * math.sqrt(worth)  # of steps of 1 / sqrt(j), about
        if rate is None:
            state[layout.GRADIENTS] = worth * largest * largest

    # ---- one record ------------------------------------------------------------------------------------
    #
    # Packing is written out in each method: a call more is 2 to 4 % of a step with nine features.

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Take a gradient step on the pairs of this record with the buffer, then offer it to the buffer.

        Parameters
        ----------
        x
            Values by feature name: numbers, and of a linear learner booleans, texts and None, too.
        y
            Label.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        label = 1.0 if y is self._high else -1.0 if y is self._low else self._task.label(y)
        columns = self._columns
        try:
            if type(x) is not dict or len(x) != columns.expected:
                raise KeyError
            columns.pack(*columns.take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            self._learn_slowly(x, label)
        else:
            refused = self._learn(self._state, label)
            if refused < 0:
                ogd_learn_few(self._state, columns.gathered, -1, False, label)
            elif refused:
                self._learn_slowly(x, label)
        if self._unnamed and label < 0.0:
            self._learn_label(y)

    def _learn_slowly(self, x: Any, label: float) -> None:
        """Learn a record that has not exactly the known features as numbers, or that a kernel refuses."""
        count, gaps = self._pack_slowly(x, grow=True)
        if count < 0:
            self._lengthen(self._columns.count)
            refused = self._learn_packed(label)
            if refused and not self._rule.linear:
                raise self._unusable(x)
        else:
            refused = self._learn_gathered(count, gaps, label)
        if refused:
            self._learn_read(self._read(x, self._most), label)

    def _learn_read(self, found: _Found, label: float) -> None:
        """Learn a record that was read."""
        if self._learn_gathered(self._gather(found, grow=True), True, label):
            raise AssertionError("the kernel refused a record that was read")

    def _learn_packed(self, label: float) -> int:
        """Learn the packed record: 0, or 1 + the column that cannot be used."""
        refused = self._learn(self._state, label)
        return (
            refused if refused >= 0 else ogd_learn_few(self._state, self._columns.gathered, -1, False, label)
        )

    def _learn_gathered(self, count: int, gaps: bool, label: float) -> int:
        """Learn the record that is gathered: 0, or 1 if a value cannot be used."""
        gathered = self._columns.gathered
        if isinstance(self._memory, FewRows):
            self._lengthen(count)
            values = gathered[count : 2 * count]
            if not count or count < self._columns.count or np.isnan(values).any():
                return ogd_learn_few(self._state, gathered, count, gaps, label)
            # The same bits, by the kernel that a stream of whole records needs anyway.
            self._columns.record[gathered[:count].view(np.int64)] = values
            return self._learn_packed(label)
        rows = np.empty((1, self._columns.count))
        sparse.scatter(gathered, count, ABSENT, rows[0])
        if not gaps and np.isnan(gathered[count : 2 * count]).any():
            return 1
        return self._learn_many(self._state, rows, np.array([label]), _NO_SCORES)

    # ---- many records ----------------------------------------------------------------------------------

    def _learn_rows(
        self, columns: list[Hashable], rows: Array, labels: Array, scores: Array = _NO_SCORES
    ) -> None:
        fixed: set[Hashable] = set()
        if self._rule.linear and np.isnan(rows).any():
            first = self._first_new_gap(columns, rows)
            if first:  # the rows before have no column for it, as they would not one by one
                self._memory.check_room(len(rows))
                self._check_rows(columns, rows, self._memory.limit)
                _with_gaps(columns, rows)  # refuses all rows, where it refuses one
                for part in (slice(first), slice(first, None)):
                    self._learn_rows(columns, rows[part], labels[part], scores[part])
                return
            columns, rows, fixed = _with_gaps(columns, rows)
        new = [name for name in columns if name not in self._columns.index]
        if self._rule.linear and new and self._columns.count + len(new) > self.max_features:
            self._check_rows(columns, rows, self._memory.limit)
            self._learn_found([_found(columns, row, fixed) for row in rows], labels, scores)
            return
        if new:
            self._memory.check_room(len(rows))
            self._check_rows(columns, rows, self._memory.limit)
            self._columns.check_room(len(new), self.max_features)
            self._grow(new, fixed)
        self._lengthen(min(self._columns.count, len(columns)))
        arranged = self._columns.arrange(columns, rows)
        if self._learn_many(self._state, arranged, labels, scores):
            self._check_rows(columns, rows, self._memory.limit)

    def _first_new_gap(self, columns: list[Hashable], rows: Array) -> int:
        """The first row after row 0 with the first gap of a column that has had none; 0 without one."""
        gaps = np.isnan(rows)
        which = [j for j in np.flatnonzero(gaps.any(axis=0)) if f"{columns[j]}=" not in self._columns.index]
        return min((int(first) for first in gaps[:, which].argmax(axis=0) if first), default=0)

    def _learn_found(self, found: Sequence[_Found], labels: Array, scores: Array = _NO_SCORES) -> None:
        """Learn records that were read, in order; `scores`, if it is not empty, gets that of each before."""
        self._memory.check_room(len(found))
        for i, record in enumerate(found):
            if len(scores):
                scores[i] = self._score_read(record)
            if labels[i] == labels[i]:
                self._learn_read(record, float(labels[i]))

    def _names_of_arrays(self) -> Sequence[Hashable]:
        if not self._rule.linear:
            return self.feature_names
        names = self.feature_names[: self.max_features]  # the columns after them are shared
        kinds = self._column(scaling.KIND)[: self.max_features].astype(np.int64)
        return [name for name, kind in zip(names, kinds.tolist(), strict=True) if not kind & scaling.FIXED]

    @property
    def _reads_records(self) -> bool:
        return self._rule.linear

    def _read_many(self, xs: Sequence[Mapping[Any, Any]], limit: float) -> list[_Found]:
        """The columns of the rows of a frame."""
        return [self._read(x, limit, row=i) for i, x in enumerate(xs)]

    def _learn_records(self, xs: Sequence[Mapping[Any, Any]], labels: Array, scored: bool) -> Array | None:
        scores = np.empty(len(xs)) if scored else _NO_SCORES
        self._learn_found(self._read_many(xs, self._most), labels, scores)
        return scores if scored else None

    def _score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        return self._score_found(self._read_many(xs, self._limit))

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        self._learn_rows(columns, rows, labels, scores)
        return scores

    def _check_rows(self, columns: list[Hashable], rows: Array, limit: float = math.inf) -> None:
        limit = min(limit, self._limit)
        large = ogd.first_large if self._rule.linear else vectors_kernels.unusable_row
        bad = large(rows, limit)
        if bad:
            i, j = divmod(bad - 1, rows.shape[1])
            raise features.unusable_value(columns[j], float(rows[i, j]), row=i, limit=limit)

    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        self._check_rows(columns, rows)
        return self._columns.arrange(columns, rows)

    def prepare_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> StreamingBatch | None:
        """Records that can be scored and learned one after the other, in one call of compiled code.

        Parameters
        ----------
        xs
            Records with exactly the known features.
        ys
            Their labels.
        nulls
            Indices of records that are scored and not learned, whatever their labels; and of what is no
            record, which is refused.

        Returns
        -------
        StreamingBatch or None
            None where one of the records has other features, where the memory has no room or cannot hold a
            value, and for a metric: then they are to be taken one by one. Nothing has changed yet.
        """
        refused: dict[int, RecordError] = {}

        def other(i: int) -> Sequence[float] | None:
            error = score_error(self, xs[i])
            if error is None:
                return None
            refused[i] = error
            return zeros

        zeros = (0.0,) * self._columns.count
        rows = features.packed_each(self._columns.names, xs, self._most, other) if self._in_one else None
        return None if rows is None else self._ready(rows, ys, nulls, refused)

    def prepare_rows(
        self, columns: Sequence[Hashable], rows: Array, ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> StreamingBatch | None:
        """`prepare_many` of the rows of an array (n, d) whose columns have these names."""
        if not self._in_one or not self._columns.match(columns):
            return None
        usable = refuse_rows(self, columns, rows, self._most)
        if usable is None:
            return None
        rows, refused = usable
        return self._ready(self._columns.arrange(columns, rows), ys, nulls, refused)

    @property
    def _most(self) -> float:
        return min(self._limit, self._memory.limit)

    def _ready(
        self, rows: Array, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
    ) -> StreamingBatch | None:
        try:
            self._memory.check_room(2 * len(rows))  # as many others may be scored between them
        except RecordError:
            return None
        self._lengthen(self._columns.count)
        labels = encode_labels(self._task, ys, nulls, refused)
        low = low_label(ys, labels) if self._unnamed else None

        def learn(part: Array, part_labels: Array, scores: Array) -> int:
            failed = self._learn_many(self._state, part, part_labels, scores)
            if low is not None and not failed:
                self._learn_label(low)
            return failed

        return StreamingBatch(rows, labels, learn, self._vectors_of, refused)

    def _vectors_of(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Usable records as rows (n, d), in which a feature may be absent; unknown ones are ignored."""
        rows = np.empty((len(xs), self._columns.count))
        for i, x in enumerate(xs):
            count = self._gather(self._read(x, self._limit), grow=False)
            sparse.scatter(self._columns.gathered, count, ABSENT, rows[i])
        return rows

    # ---- scores ----------------------------------------------------------------------------------------

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published weights: higher ranks higher; 0 before any step.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        columns = self._columns
        try:
            if type(x) is not dict or len(x) != columns.expected:
                raise KeyError
            columns.pack(*columns.take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            return self._score_slowly(x)
        score: float = ogd_score(self._state)
        return score if score == score else self._score_slowly(x)

    def _score_slowly(self, x: Any) -> float:
        """Score of a record that has not exactly the known features as numbers, or that a kernel refuses."""
        count, gaps = self._pack_slowly(x, grow=False)
        score: float = ogd_score(self._state) if count < 0 else self._score_gathered(count, gaps)
        if score != score:
            if not self._rule.linear:
                raise self._unusable(x)
            score = self._score_read(self._read(x, self._limit))
        return score

    def _score_read(self, found: _Found) -> float:
        """Score of a record that was read."""
        score = self._score_gathered(self._gather(found, grow=False), True)
        if score != score:
            raise AssertionError("the kernel refused a record that was read")
        return score

    def _score_gathered(self, count: int, gaps: bool) -> float:
        """Score of the record that is gathered; NaN if a value cannot be used."""
        if not self._columns.count:  # no kernel is to be compiled for that
            return 0.0
        score: float = ogd_score_few(self._state, self._columns.gathered, count, gaps)
        return score

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        if any(name not in self._columns.index for name in columns):
            self._check_rows(columns, rows)
        if self._rule.linear and self._columns.count <= self.max_features:
            columns, rows, _ = _with_gaps(columns, rows)
            out = np.zeros(len(rows))
            if ogd_score_many(self._state, self._columns.arrange(columns, rows), out):
                self._check_rows(columns, rows)
            return out
        if self._rule.linear:
            self._check_rows(columns, rows)
            columns, rows, fixed = _with_gaps(columns, rows)
            return self._score_found([_found(columns, row, fixed) for row in rows])
        raise AssertionError("a metric has no linear scores")

    def _score_found(self, found: Sequence[_Found]) -> Array:
        """Scores (n,) of records that were read."""
        return np.array([self._score_read(x) for x in found])

    def proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """`ClassifierMixin.predict_proba_one` with two calls fewer; a call is 5 % of a step."""
        columns = self._columns
        try:
            if type(x) is not dict or len(x) != columns.expected:
                raise KeyError
            columns.pack(*columns.take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            p = self._proba(self._score_slowly(x))
        else:
            p = ogd_proba(self._state)
            if p != p:
                p = self._proba(self._score_slowly(x))
        return {self.positive: p} if self._unnamed else {self._negative: 1.0 - p, self.positive: p}

    def _proba(self, score: float) -> float:
        return float(platt.link_proba(self._state, score))

    def _probas(self, scores: Array) -> Array:
        p = np.empty(len(scores))
        platt.link_many(self._state, scores, p)
        return p

    # ---- properties -----------------------------------------------------------------------------------

    def _published(self) -> Array:
        weights = self._vectors()["averaged" if self._state[layout.AVERAGE] else "w"]
        return weights * self._column(scaling.UNIT) if self._rule.linear else weights

    @property
    def scaled_weights(self) -> dict[Any, float]:
        """`weights` in units of the features as the learner scales them, which can be compared."""
        if not self._rule.linear:
            return self.weights
        columns = self.linear_columns()
        return dict(zip(columns.names, columns.weights.tolist(), strict=True))

    @property
    def intercept(self) -> float:
        """What is added to the sum of weights times features, so that scores are centred.

        0 where features are not scaled.

        Examples
        --------
        >>> from streampair import auc
        >>> model = auc.PairOGD()
        >>> for a, y in [(1001.0, True), (999.0, False)] * 20:
        ...     model.learn_one({"a": a}, y)
        >>> x = {"a": 1000.5}
        >>> abs(model.weights["a"] * x["a"] + model.intercept - model.score_one(x)) < 1e-9
        True
        """
        if not self._rule.linear:
            return 0.0
        return -float(np.dot(self._published(), self._column(scaling.CENTRE)))

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Known feature names, in the order of the columns."""
        return self._columns.names

    @property
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""
        return self._loss

    @property
    def comparator_radius(self) -> float:
        """The radius of the ball; without one, that of the self-tuned steps."""
        radius = self._ball()
        return radius if math.isfinite(radius) else _RADIUS

    @property
    def records(self) -> int:
        """Number of records learned."""
        return int(self._state[layout.RECORDS])

    @property
    def buffer_records(self) -> int:
        """Number of records in the buffer."""
        return int(self._state[layout.FILLED])

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Features of x in the order of the columns, (d,): what the published weights are multiplied by.

        Missing ones are 0, unknown ones left out. A text counts as its indicator, a gap as the mean.
        """
        if not self._rule.linear:
            values = features.read_record(x, self._limit)
            return np.array([values.get(name, 0.0) for name in self._columns.names], dtype=np.float64)
        count = self._gather(self._read(x, self._limit), grow=False)
        gathered = self._columns.gathered
        out = np.zeros(self._columns.count)
        out[gathered[:count].view(np.int64)] = gathered[count : 2 * count]
        return np.where(np.isnan(out), self._column(scaling.CENTRE), out)

    def linear_reasons(self, x: Mapping[Any, Any]) -> Explanation:
        """Contribution of each feature to the score of a record: its weight times its scaled value.

        A dense feature that the record does not have contributes, too, for it is not at its mean. A text is
        the feature ``name=value``, and a missing value ``name=``.

        Raises
        ------
        RecordError
            If a feature cannot be used.

        Examples
        --------
        >>> from streampair import auc
        >>> model = auc.PairOGD()
        >>> for a, y in [(1001.0, True), (999.0, False)] * 20:
        ...     model.learn_one({"a": a, "kind": "card" if y else "cash"}, y)
        >>> x = {"a": 1000.5, "kind": "card"}
        >>> reasons = model.explain_one(x)
        >>> sorted(reasons.features), reasons.baseline
        (['a', 'kind=card'], 0.0)
        >>> abs(sum(reasons.features.values()) - model.score_one(x)) < 1e-9
        True
        """
        parts = self._published() * (self.design(x) - self._column(scaling.CENTRE))
        names = self.feature_names
        return Explanation(0.0, {names[i]: float(parts[i]) for i in np.flatnonzero(parts).tolist()})

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = features.packed(self._columns.names, xs, self._limit)
        if rows is not None:
            return rows
        if self._rule.linear:
            out: Array = self._gathered_design(xs).toarray()
            return out
        return np.array([self.design(x) for x in xs]).reshape(len(xs), self._columns.count)

    def _gathered_design(self, xs: Sequence[Mapping[Any, Any]]) -> Any:
        """`design` of several records of a linear learner, as a sparse matrix (n, d)."""
        places, values, ends = [np.zeros(0, np.int64)], [np.zeros(0)], [0]
        for x in xs:
            count = self._gather(self._read(x, self._limit), grow=False)
            gathered = self._columns.gathered
            places.append(gathered[:count].view(np.int64).copy())
            values.append(gathered[count : 2 * count].copy())
            ends.append(ends[-1] + count)
        columns, cells = np.concatenate(places), np.concatenate(values)
        cells = np.where(np.isnan(cells), self._column(scaling.CENTRE)[columns], cells)
        return scipy.sparse.csr_array((cells, columns, ends), shape=(len(xs), self._columns.count))

    def comparator_design(self, xs: Sequence[Mapping[Any, Any]]) -> Any:
        """`design_many` in units of the spreads of now; a sparse matrix unless all have all features."""
        rows: Any = features.packed(self._columns.names, xs, self._limit)
        if rows is None:
            rows = self._gathered_design(xs) if self._rule.linear else self.design_many(xs)
        if self.scale is None:
            return rows
        unit = self._column(scaling.UNIT)
        return rows * unit if isinstance(rows, np.ndarray) else rows.multiply(unit).tocsr()

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        state = self._state
        link = np.array([state[getattr(layout, name)] for name in _LINK])
        return {
            "names": list(self._columns.names),
            "scalars": {name: float(state[getattr(layout, name)]) for name in _SCALARS},
            **({"link": link} if state[layout.LINK] else {}),
            **({"before": float(state[layout.BEFORE])} if state[layout.BEFORE] else {}),
            **{name: view.copy() for name, view in self._vectors().items()},
            **{name: view.copy() for name, view in self._statistics().items()},
            **self._memory.export(self._region(), state),
            "y_name": self._y_name,
            **self._learned_labels(),
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `_export`. All is checked first: kernels use the counters as indices."""
        names = tuple(saved["names"])
        d = len(names)
        header = self._checked_header(saved)
        if len(set(names)) != d or (d > self.max_features and d != self.max_features + self._shares):
            raise ValueError("feature names that occur twice, or too many")
        kept = self._memory.check(saved, header, d)
        self._check_gaps(kept, names)
        vectors = self._checked_vectors(saved, d)
        wanted = _kept_statistics(header, "kinds" in saved)
        statistics = _checked_statistics(saved, wanted, d)
        y_name, negative = saved["y_name"], self._checked_label(saved)
        self._allocate(names, header, capacity=d)
        for name, view in self._vectors().items():
            view[:] = vectors[name]
        for name, which in wanted:
            self._column(which)[:] = statistics[name]
        if self._rule.linear:
            scaling.restore(self._state)
        self._memory.fill(self._region(), kept, d)
        self._y_name = y_name
        self._learn_label(negative)
        self.__dict__.pop("_root", None)  # cached root of another metric

    def _check_gaps(self, kept: Mapping[str, Any], names: Sequence[Hashable]) -> None:
        """Raise ValueError if a gap in the rows of the buffer lacks its indicator."""
        gaps = np.flatnonzero(np.isnan(kept.get("values", []))).tolist()
        if not gaps:
            return
        index = {name: place for place, name in enumerate(names)}
        rows = np.repeat(np.arange(len(kept["counts"])), kept["counts"]).tolist()
        places = kept["places"].tolist()
        found = {*zip(rows, places, strict=True)}
        for i in gaps:
            mark = index.get(f"{names[places[i]]}=")
            shared = mark is None and len(names) > self.max_features
            if self.scale is None or not (shared or (rows[i], mark) in found):
                raise ValueError("a gap without its indicator")

    def _checked_header(self, saved: Mapping[str, Any]) -> Array:
        """The scalars of a saved state, or ValueError."""
        header = self._header()
        for name in _SCALARS:
            value = float(saved["scalars"][name])
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")
            header[getattr(layout, name)] = value
        header[layout.BEFORE] = float(saved.get("before", 0.0))
        if header[layout.SEED] >= 2**53 or not 0.0 <= header[layout.BEFORE] < 2**53:
            raise ValueError("a seed, or a number of records, out of range")
        if header[layout.LINK]:
            for name, value in zip(_LINK, _checked_link(saved), strict=True):
                header[getattr(layout, name)] = value
        return header

    def _checked_vectors(self, saved: Mapping[str, Any], d: int) -> dict[str, Array]:
        """The three vectors of a saved state, or ValueError."""
        vectors = {name: np.asarray(saved[name], dtype=np.float64) for name in _ARRAYS}
        if any(v.shape != self._rule.shape(d) for v in vectors.values()):
            raise ValueError("weights of another shape")
        if not all(np.isfinite(a).all() for a in vectors.values()):
            raise ValueError("numbers that are not finite")
        self._rule.check(vectors)
        if isinstance(step_sizes(self), schedules.AdaGrad) and (vectors["previous"] < 0.0).any():
            raise ValueError("sums of squares below 0")
        return vectors


def _vector_count(header: Array) -> int:
    """How many vectors a state of a linear learner has."""
    return scaling.VECTORS + (len(_RUNS) if header[layout.FADES_TO] else 0)


def _kept_statistics(header: Array, has_fixed: bool) -> tuple[tuple[str, int], ...]:
    """Which statistics of the features a saved state has; `has_fixed`: whether some are indicators."""
    if header[layout.SCALE]:
        return (*_STATISTICS, *_RUNS) if header[layout.FADES_TO] else _STATISTICS
    fades = header[layout.SCHEDULE] == layout.ADAGRAD and header[layout.KEEP] > 0.0
    unscaled = {"kinds": has_fixed, "touched": fades}
    return tuple((name, which) for name, which in _STATISTICS if unscaled.get(name, False))


def _checked_statistics(
    saved: Mapping[str, Any], wanted: Sequence[tuple[str, int]], d: int
) -> dict[str, Array]:
    """The statistics of the features in a saved state, or ValueError."""
    found = {name: np.asarray(saved[name], dtype=np.float64) for name, _ in wanted}
    if any(v.shape != (d,) or not np.isfinite(v).all() for v in found.values()):
        raise ValueError("statistics of another shape, or not finite")
    signed = ("means", "mean_rests", "lows", "highs", "newest_values")
    if any((values < 0.0).any() for name, values in found.items() if name not in signed):
        raise ValueError("statistics below 0")
    if "cuts" in found and (found["cuts"] > scaling.MOST_CUTS).any():
        raise ValueError("more far values than can be")
    if "runs" in found and (found["runs"] > 1.0).any():
        raise ValueError("a value counts for more than itself")
    if "lows" in found and (found["lows"] > found["highs"]).any():
        raise ValueError("the lower of two values is above the higher")
    if "kinds" in found and not np.isin(found["kinds"], range(2 * scaling.BEGUN)).all():
        raise ValueError("columns of an unknown kind")
    return found


# Steps of a schedule that are added one by one.
_MOST_ADDED = 1_000_000


def _sum_of_steps(schedule: schedules.Schedule, records: int) -> float:
    """Sum of the sizes of so many steps; after the first million by the integral, for it costs no memory."""
    added = min(records, _MOST_ADDED)
    total = float(schedule.sizes(1, added).sum())
    n, m = records + 0.5, added + 0.5
    if schedule.code == layout.CONSTANT:
        return total + schedule.scale * (records - added)
    if schedule.code == layout.INVERSE_TIME:
        return total + schedule.scale * math.log((n + 1.0) / (m + 1.0))
    return total + 2.0 * schedule.scale * (math.sqrt(n) - math.sqrt(m))


def _checked_link(saved: Mapping[str, Any]) -> list[float]:
    """The numbers of a saved link, in the order of `_LINK`."""
    link = np.asarray(saved["link"], dtype=np.float64)
    lowest = (0.0, -math.inf, 0.0, -math.inf, platt.LEAST)
    if link.shape != (len(_LINK),) or not (np.isfinite(link) & (link >= lowest)).all():
        raise ValueError("a link that is none")
    return link.tolist()  # type: ignore[no-any-return]
