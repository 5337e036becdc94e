"""Learners without privacy: update rules, mini-batches, and the flat state that a kernel steps."""

from __future__ import annotations

import abc
import math
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streampair import buffers, losses, schedules
from streampair.base.buffer_storage import (
    BufferStorage,
    ChunkedBuffer,
    ClassMeans,
    LeastSquares,
    PerClassBuffer,
    RowBuffer,
)
from streampair.base.learner import Columns, Learner
from streampair.base.mini_batch import StreamingBatch, encode_labels, low_label, refuse_rows, score_error
from streampair.base.targets import Target
from streampair.base.validation import check_int
from streampair.errors import ConfigError, RecordError
from streampair.kernels import history, least_squares, metric, ogd, online_auc, platt, symmetric
from streampair.kernels import state as layout
from streampair.kernels import vectors as vectors_kernels
from streampair.kernels.ogd import ogd_proba, ogd_score
from streampair.kernels.sparse import sparse_learn, sparse_proba, sparse_score
from streampair.kernels.vectors import score_many
from streampair.records import features

__all__ = [
    "MetricRule",
    "OAMRule",
    "OGDRule",
    "OnlinePairLearner",
    "SPAUCRule",
    "UpdateRule",
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
    rate = learner.learning_rate
    return schedules.AdaGrad(0.125) if isinstance(rate, str) and rate == "adagrad" else rate


def _fade(learner: Any, header: Array) -> None:
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
        """Set the decay of the running sums."""
        _fade(learner, header)

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
            return PerClassBuffer(policy), ogd.ogd_learn, ogd.ogd_learn_many
        return RowBuffer(policy), ogd.ogd_learn, ogd.ogd_learn_many


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
        _fade(learner, header)
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

    def policy(self, learner: Any) -> buffers.Buffer:
        """Two reservoirs."""
        return buffers.ClassReservoir(learner.size)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Both classes."""
        return PerClassBuffer(policy), online_auc.online_auc_learn, online_auc.online_auc_learn_many


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
        return ClassMeans(), online_auc.online_auc_learn, online_auc.online_auc_learn_many


_NO_SCORES: Array = np.empty(0)
#: A record that has at most one in so many of the known features is learned by its own features alone.
_FEW = 4
_ARRAYS = ("w", "previous", "averaged")
_SCALARS = ("RECORDS", "FILLED", "NEXT", "GRADIENTS", "ETAS", "SEED", "POSITIVES")
_LINK = ("INFORMATION", "CENTRE", "SPREAD", "OFFSET", "SLOPE")


def _number(name: str, value: Any, *, low: float, open_low: bool, high: float = math.inf) -> float:
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

    _rule: ClassVar[UpdateRule]
    _derived: ClassVar[frozenset[str]] = frozenset(
        (
            *("_state", "_columns", "_root", "_memory", "_learn", "_learn_many"),
            *("_task", "_high", "_low", "_limit", "_in_one", "_few_learn"),
        )
    )

    # The values of a leaf that has no such parameter.
    learning_rate: float | schedules.Schedule | Literal["adagrad"] | None = None
    radius: float = 1.0
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
    # Whether a record is learned by its own features alone, if they are few.
    _few_learn: bool
    _memory: BufferStorage
    _state: Array
    _columns: Columns
    # (state, label) -> 0, or 1 + the column that cannot be used.
    _learn: Callable[[Array, float], int]
    # (state, rows, labels, scores or none) -> 0, or 1 + the flat index of the value that cannot be used.
    _learn_many: Callable[[Array, Array, Array, Array], int]

    def __post_init__(self) -> None:
        max_features = self.max_features
        if isinstance(max_features, bool) or not isinstance(max_features, int) or max_features < 1:
            raise ConfigError(f"max_features is {max_features!r}", fix="give an integer of at least 1")
        self._bind()
        self._allocate((), self._header(), capacity=0)

    def _bind(self) -> None:
        """Set what the hot path needs, from rule and parameters."""
        rule, task = self._rule, self._make_task()
        self._task, self._high, self._low = task, task.high, task.low
        self._columns = Columns()
        loss = task.checked_loss(rule.loss(self))
        self._loss = losses.Hinge() if loss is None else loss
        self._policy = rule.policy(self)
        self._limit = rule.limit
        # Whether `prepare_many` may score and learn in one: both calls are those of this class.
        cls, base = type(self), OnlinePairLearner
        self._in_one = rule.linear and cls.score_one is base.score_one and cls.learn_one is base.learn_one
        self._memory, self._learn, self._learn_many = rule.bind(self._policy, self._loss, task)
        self._few_learn = type(rule) is OGDRule and self._policy == buffers.FIFO(1) and self.l2 == 0.0

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
        elif learning_rate is not None:
            header[layout.RATE] = _number("learning_rate", learning_rate, low=0.0, open_low=True, high=1e12)
        header[layout.RADIUS] = _number("radius", self.radius, low=0.0, open_low=True, high=1e12)
        header[layout.L2] = _number("l2", self.l2, low=0.0, open_low=False, high=1e12)
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
        state = np.zeros(self._memory_at(capacity) + self._memory.cells(capacity))
        state[: layout.HEADER] = header
        state[layout.CAP], state[layout.FEW] = capacity, 0.0
        self._memory.attach(state)
        self._state = state
        self._columns.clear()
        self._widen(names)

    def _widen(self, names: Sequence[Hashable]) -> None:
        """Assign the next columns, which exist and are 0, to new names."""
        self._columns.add(names, self._state, layout.HEADER)
        self._state[layout.D] = self._columns.count

    def _memory_at(self, capacity: int) -> int:
        """Start of the buffer's region: after scalars, record, gradient and three weight vectors."""
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

    def _region(self) -> Array:
        """View of the buffer's region."""
        return self._state[self._memory_at(int(self._state[layout.CAP])) :]

    def _grow(self, new: list[Hashable]) -> None:
        names = self._columns.count + len(new)
        if names > self.max_features:
            raise RecordError(
                f"the record has new feature names, and with them there would be {names}, "
                f"more than max_features={self.max_features}",
                fix="hash or select the features first, or raise max_features",
            )
        capacity = int(self._state[layout.CAP])
        if names > capacity:
            self._move(names if not self._columns.count else min(max(names, 2 * capacity), self.max_features))
        else:
            self._memory.widen()
        self._widen(features.in_order(new))

    def _move(self, capacity: int) -> None:
        """Copy into a larger state. Doubling keeps all copying linear in the number of names."""
        vectors, region, d = self._vectors(), self._region(), self._columns.count
        before = int(self._state[layout.CAP])
        self._allocate(self._columns.names, self._state[: layout.HEADER], capacity)
        for name, view in self._vectors().items():
            view[...] = vectors[name]
        self._memory.move(region, before, self._region(), capacity, d)

    def _pack_slowly(self, x: Any, *, grow: bool) -> int:
        """Check and pack x: the slow path for records with other than the known features.

        Returns
        -------
        int
            0; or, of a record that has few of many features, how many: it is gathered, and not packed.
        """
        few = self._few_learn if grow else self._rule.linear
        if type(x) is dict and x:
            if few and len(x) * _FEW <= self._columns.count:
                if self._columns.gather(x):
                    return len(x)
            else:
                if self._columns.expected < 0:
                    self._columns.prepare(x)
                if self._columns.scatter(x):
                    return 0
        values = features.read_record(x, self._limit)
        if grow:
            new = [name for name in values if name not in self._columns.index]
            if new:
                self._memory.check_room(1)
                beyond = self._beyond_limit(values)
                if beyond is not None:
                    raise beyond
                self._grow(new)
        index = self._columns.index
        known = {name: value for name, value in values.items() if name in index}
        if few and 0 < len(known) * _FEW <= self._columns.count:
            self._columns.gather(known)
            return len(known)
        self._columns.scatter(known)
        return 0

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
        if type(self._rule) not in (OGDRule, MetricRule) or self.records or self._columns.names:
            raise ConfigError(
                f"a {type(self).__name__} begins at weights only as a new PairOGD",
                fix="make a new PairOGD, and let it begin there before it learns",
            )
        if isinstance(records, bool) or not isinstance(records, int | np.integer) or records < 0:
            raise ConfigError(f"records is {records!r}", fix="give a whole number of 0 or more")
        values = np.array(list(weights.values()), dtype=np.float64)
        if not len(values) or not np.isfinite(values).all():
            raise ConfigError("weights are not finite, or there are none", fix="give a number by feature")
        names = list(dict.fromkeys(name for pair in weights for name in pair)) if metric else list(weights)
        norm = float(np.linalg.norm(values))
        if norm > self.radius * (1.0 + 1e-9):
            raise ConfigError(
                f"the weights have the norm {norm:.6g}, beyond the radius {self.radius:g}",
                fix=f"make the learner with radius={norm:.3g} or more",
            )
        if len(names) > self.max_features:
            raise ConfigError(
                f"there are weights of {len(names)} features, more than max_features={self.max_features}",
                fix="make the learner with a larger max_features",
            )
        self._move(len(names))
        self._widen(names)  # in the order given, so that scores have the bits of whatever gave the weights
        index = self._columns.index
        start = np.zeros(self._rule.shape(len(names)))
        for name, value in weights.items():
            start[(index[name[0]], index[name[1]]) if metric else index[name]] = value
        if metric:
            start = 0.5 * (start + start.T)
            if self._state[layout.PSD]:
                root = np.empty_like(start)
                start = root @ root.T if symmetric.psd_root(start, root) else np.zeros_like(start)
                start = 0.5 * (start + start.T)
        for view in self._vectors().values():
            view[...] = start
        self.__dict__.pop("_root", None)  # cached root of another metric
        self._count_as(int(records))

    def _count_as(self, records: int) -> None:
        """Set the sums for step size and average to those after so many records."""
        state, rate = self._state, step_sizes(self)
        largest = self._loss.lipschitz(1.0, float(self.radius), form=self._task.form)
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
                first = math.sqrt(2.0) * self.radius / largest if rate is None else rate
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
            Real numbers by feature name.
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
            count = self._pack_slowly(x, grow=True)
            if count:
                if sparse_learn(self._state, columns.gathered, count, label):
                    raise self._unusable(x) from None
                if self._unnamed and label < 0.0:
                    self._learn_label(y)
                return
        if self._learn(self._state, label):
            raise self._unusable(x)
        if self._unnamed and label < 0.0:
            self._learn_label(y)

    # ---- many records ----------------------------------------------------------------------------------

    def _learn_rows(
        self, columns: list[Hashable], rows: Array, labels: Array, scores: Array = _NO_SCORES
    ) -> None:
        new = [name for name in columns if name not in self._columns.index]
        if new:
            self._memory.check_room(len(rows))
            self._check_rows(columns, rows, self._memory.limit)
            self._grow(new)
        arranged = self._columns.arrange(columns, rows)
        if self._learn_many(self._state, arranged, labels, scores):
            self._check_rows(columns, rows, self._memory.limit)

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        self._learn_rows(columns, rows, labels, scores)
        return scores

    def _check_rows(self, columns: list[Hashable], rows: Array, limit: float = math.inf) -> None:
        limit = min(limit, self._limit)
        bad = vectors_kernels.unusable_row(rows, limit)
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
            self._memory.check_room(len(rows))
        except RecordError:
            return None
        labels = encode_labels(self._task, ys, nulls, refused)
        low = low_label(ys, labels) if self._unnamed else None

        def learn(part: Array, part_labels: Array, scores: Array) -> int:
            failed = self._learn_many(self._state, part, part_labels, scores)
            if low is not None and not failed:
                self._learn_label(low)
            return failed

        published = self._published()  # a view that stays valid, since there are no new names
        return StreamingBatch(rows, labels, learn, lambda: published, self._vectors_of, refused)

    def _vectors_of(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Usable records as rows (n, d): missing features are 0, unknown ones are ignored."""
        names = self._columns.names
        rows = [[x.get(name, 0.0) for name in names] for x in xs]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))

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
            count = self._pack_slowly(x, grow=False)
            if count:
                score: float = sparse_score(self._state, columns.gathered, count)
            else:
                score = ogd_score(self._state)
        else:
            score = ogd_score(self._state)
        if score != score:
            raise self._unusable(x)
        return score

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        if any(name not in self._columns.index for name in columns):
            self._check_rows(columns, rows)
        out = np.zeros(len(rows))
        if score_many(self._published(), self._columns.arrange(columns, rows), out):
            self._check_rows(columns, rows)
        return out

    def proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """`ClassifierMixin.predict_proba_one` with two calls fewer; a call is 5 % of a step."""
        columns = self._columns
        try:
            if type(x) is not dict or len(x) != columns.expected:
                raise KeyError
            columns.pack(*columns.take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            count = self._pack_slowly(x, grow=False)
            p = sparse_proba(self._state, columns.gathered, count) if count else ogd_proba(self._state)
        else:
            p = ogd_proba(self._state)
        if p != p:
            raise self._unusable(x)
        return {self.positive: p} if self._unnamed else {self._negative: 1.0 - p, self.positive: p}

    def _proba(self, score: float) -> float:
        return float(platt.link_proba(self._state, score))

    def _probas(self, scores: Array) -> Array:
        p = np.empty(len(scores))
        platt.link_many(self._state, scores, p)
        return p

    # ---- properties -----------------------------------------------------------------------------------

    def _published(self) -> Array:
        return self._vectors()["averaged" if self._state[layout.AVERAGE] else "w"]

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
        """The radius of the ball."""
        return float(self.radius)

    @property
    def records(self) -> int:
        """Number of records learned."""
        return int(self._state[layout.RECORDS])

    @property
    def buffer_records(self) -> int:
        """Number of records in the buffer."""
        return int(self._state[layout.FILLED])

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Known features of x in the order of the columns, (d,): missing ones 0, unknown ones left out."""
        values = features.read_record(x, self._limit)
        return np.array([values.get(name, 0.0) for name in self._columns.names], dtype=np.float64)

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = features.packed(self._columns.names, xs, self._limit)
        if rows is not None:
            return rows
        out = np.empty((len(xs), self._columns.count))
        for i, x in enumerate(xs):
            out[i] = self.design(x)
        return out

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        state = self._state
        link = np.array([state[getattr(layout, name)] for name in _LINK])
        return {
            "names": list(self._columns.names),
            "scalars": {name: float(state[getattr(layout, name)]) for name in _SCALARS},
            **({"link": link} if state[layout.LINK] else {}),
            **{name: view.copy() for name, view in self._vectors().items()},
            **self._memory.export(self._region(), state),
            "y_name": self._y_name,
            **self._learned_labels(),
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `_export`. All is checked first: kernels use the counters as indices."""
        names = tuple(saved["names"])
        d = len(names)
        header = self._header()
        for name in _SCALARS:
            value = float(saved["scalars"][name])
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")
            header[getattr(layout, name)] = value
        if header[layout.SEED] >= 2**53:
            raise ValueError("a seed out of range")
        if header[layout.LINK]:
            for name, value in zip(_LINK, _checked_link(saved), strict=True):
                header[getattr(layout, name)] = value
        if len(set(names)) != d or d > self.max_features:
            raise ValueError("feature names that occur twice, or too many")
        kept = self._memory.check(saved, header, d)
        vectors = self._checked_vectors(saved, d)
        y_name, negative = saved["y_name"], self._checked_label(saved)
        self._allocate(names, header, capacity=d)
        for name, view in self._vectors().items():
            view[:] = vectors[name]
        self._memory.fill(self._region(), kept, d)
        self._y_name = y_name
        self._learn_label(negative)
        self.__dict__.pop("_root", None)  # cached root of another metric

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
