"""The engine of the learners that are not private: one flat array, stepped by a compiled loop."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streampair import buffers, losses, schedules
from streampair import kernels as k
from streampair.errors import ConfigError, RecordError
from streampair.kernels import ogd_proba, ogd_score, score_many, sparse_learn, sparse_proba, sparse_score
from streampair.learners.batches import LearnsBatches
from streampair.learners.rules import FlatRule, MetricRule, OGDRule
from streampair.learners.storage import Memory
from streampair.records import features as _features

__all__ = ["FlatLearner"]

Array = NDArray[np.float64]

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


class FlatLearner(LearnsBatches):
    """A learner whose whole state is one flat array, stepped by a kernel.

    A leaf is a dataclass of its parameters, and names its `_rule`: which kernels step, on which weights, and
    where the records are kept that new ones are paired with.
    """

    _rule: ClassVar[FlatRule]
    _derived: ClassVar[frozenset[str]] = (
        frozenset(
            (
                *("_state", "_root", "_memory", "_learn", "_learn_many"),
                *("_task", "_high", "_low", "_limit", "_in_one", "_few_learn"),
            )
        )
        | LearnsBatches._derived
    )

    learning_rate: float | schedules.Schedule | None
    radius: float
    average: bool | Literal["linear"]
    max_features: int
    # Where a leaf has no such parameter.
    l2: float = 0.0
    seed: int | None = 0

    # Of a classifier.
    positive: Any
    _negative: Any
    _in_one: bool
    # Whether a record is learned by its own features alone, if they are few.
    _few_learn: bool
    _memory: Memory
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
        """Take from rule and parameters what the hot path needs."""
        rule, task = self._rule, self._make_task()
        self._task, self._high, self._low = task, task.high, task.low
        loss = task.checked_loss(rule.loss(self))
        self._loss = losses.Hinge() if loss is None else loss
        self._policy = rule.policy(self)
        self._limit = rule.limit
        # Whether `ready_many` may score and learn in one: both calls are those of this class.
        kind, own = type(self), FlatLearner
        self._in_one = rule.linear and kind.score_one is own.score_one and kind.learn_one is own.learn_one
        self._memory, self._learn, self._learn_many = rule.bind(self._policy, self._loss, task)
        self._few_learn = type(rule) is OGDRule and self._policy == buffers.FIFO(1) and self.l2 == 0.0

    def _header(self) -> Array:
        """The scalars of a fresh state, from the checked parameters."""
        policy, learning_rate, seed = self._policy, self.learning_rate, self.seed
        header = np.zeros(k.HEADER)
        header[k.SIZE] = policy.size
        header[k.POLICY] = policy.code
        header[k.LOSS] = self._loss.code
        header[k.WIDTH] = self._loss.width
        if self._rule.scheduled and isinstance(learning_rate, schedules.Schedule):
            header[k.SCHEDULE], header[k.RATE] = learning_rate.code, learning_rate.scale
        elif learning_rate is not None:
            header[k.RATE] = _number("learning_rate", learning_rate, low=0.0, open_low=True, high=1e12)
        header[k.RADIUS] = _number("radius", self.radius, low=0.0, open_low=True, high=1e12)
        header[k.L2] = _number("l2", self.l2, low=0.0, open_low=False, high=1e12)
        header[k.AVERAGE] = 2.0 if self._linear() else bool(self.average)
        header[k.LINK] = self._task.two_classes
        header[k.SLOPE] = 1.0
        self._rule.mark(self, header)
        if seed is None:
            header[k.SEED] = secrets.randbits(53)
        elif isinstance(seed, int | np.integer):
            header[k.SEED] = int(seed) % 2**53
        else:
            raise ConfigError(f"seed is {seed!r}", fix="give an integer or None")
        return header

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
        state[: k.HEADER] = header
        state[k.CAP], state[k.FEW] = capacity, 0.0
        self._memory.attach(state)
        self._state = state
        self._no_columns()
        self._widen(names)

    def _widen(self, names: Sequence[Hashable]) -> None:
        """Give new names the next columns, for which there is room: they are 0 so far."""
        self._add_columns(names, self._state, k.HEADER)
        self._state[k.D] = self._d

    def _memory_at(self, capacity: int) -> int:
        """Where the memory begins: after scalars, record, gradient and the three vectors of weights."""
        return k.HEADER + capacity + 4 * math.prod(self._rule.shape(capacity))

    def _vectors(self) -> dict[str, Array]:
        """Views of the three vectors of weights, in the shape for d features."""
        cap = int(self._state[k.CAP])
        shape = self._rule.shape(cap)
        cells = math.prod(shape)
        used = tuple(slice(n) for n in self._rule.shape(self._d))
        starts = (k.HEADER + cap + i * cells for i in (1, 2, 3))
        return {
            name: self._state[at : at + cells].reshape(shape)[used]
            for name, at in zip(_ARRAYS, starts, strict=True)
        }

    def _region(self) -> Array:
        """View of the memory."""
        return self._state[self._memory_at(int(self._state[k.CAP])) :]

    def _grow(self, new: list[Hashable]) -> None:
        names = self._d + len(new)
        if names > self.max_features:
            raise RecordError(
                f"the record has new feature names, and with them there would be {names}, "
                f"more than max_features={self.max_features}",
                fix="hash or select the features first, or raise max_features",
            )
        capacity = int(self._state[k.CAP])
        if names > capacity:
            self._move(names if not self._d else min(max(names, 2 * capacity), self.max_features))
        else:
            self._memory.widen()
        self._widen(_features.in_order(new))

    def _move(self, capacity: int) -> None:
        """Take everything into a state with more room. Doubling keeps all copying linear in the names."""
        vectors, region, d, before = self._vectors(), self._region(), self._d, int(self._state[k.CAP])
        self._allocate(self._names, self._state[: k.HEADER], capacity)
        for name, view in self._vectors().items():
            view[...] = vectors[name]
        self._memory.move(region, before, self._region(), capacity, d)

    def _pack_slowly(self, x: Any, *, grow: bool) -> int:
        """Check x and pack it: the way of records whose features are not exactly the known ones.

        Returns
        -------
        int
            0; or, of a record that has few of many features, how many: it is in `_given`, and not packed.
        """
        few = self._few_learn if grow else self._rule.linear
        if type(x) is dict and x:
            if few and len(x) * _FEW <= self._d:
                if self._gather(x):
                    return len(x)
            else:
                if self._expected < 0:
                    self._prepare(x)
                if self._scatter(x):
                    return 0
        values = _features.read_record(x, self._limit)
        if grow:
            new = [name for name in values if name not in self._index]
            if new:
                self._memory.check_room(1)
                beyond = self._beyond_limit(values)
                if beyond is not None:
                    raise beyond
                self._grow(new)
        index = self._index
        known = {name: value for name, value in values.items() if name in index}
        if few and 0 < len(known) * _FEW <= self._d:
            self._gather(known)
            return len(known)
        self._scatter(known)
        return 0

    def _unusable(self, x: Mapping[Any, Any]) -> RecordError:
        try:
            values = _features.read_record(x, self._limit)
        except RecordError as error:
            return error
        beyond = self._beyond_limit(values)
        if beyond is None:
            raise AssertionError("the kernel refused a record that the slow check accepts")
        return beyond

    def _beyond_limit(self, values: Mapping[Hashable, float]) -> RecordError | None:
        """The error for the first value that the memory cannot hold."""
        limit = self._memory.limit
        for name, value in values.items():
            if abs(value) > limit:
                return _features.unusable_value(name, value, limit=limit)
        return None

    def begin_at(self, weights: Mapping[Any, float], records: int = 0) -> None:
        """Begin at these weights: of a learner that has learned nothing yet.

        Parameters
        ----------
        weights
            As `weights` gives them: by feature name, or by two names for a metric.
        records
            How many records they are worth, 0 or above. Self-tuned steps go on as if so many had been
            learned, with gradients as long as the loss allows for records of length 1; with none the first
            step is as long as the ball is wide. In the average of the iterates they count as much. With
            `learning_rate` steps keep their sizes. `records` counts what is learned from here on.

        Raises
        ------
        ConfigError
            If the learner is not new, or cannot have these weights.
        """
        metric = not self._rule.linear
        if type(self._rule) not in (OGDRule, MetricRule) or self.records or self._names:
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
        self._grow(names)
        at = self._index
        start = np.zeros(self._rule.shape(len(names)))
        for name, value in weights.items():
            start[(at[name[0]], at[name[1]]) if metric else at[name]] = value
        if metric:
            start = 0.5 * (start + start.T)
            if self._state[k.PSD]:
                root = np.empty_like(start)
                start = root @ root.T if k.psd_root(start, root) else np.zeros_like(start)
                start = 0.5 * (start + start.T)
        for view in self._vectors().values():
            view[...] = start
        self.__dict__.pop("_root", None)  # a transformer's: it was of another metric
        self._count_as(int(records))

    def _count_as(self, records: int) -> None:
        """Let the sums that set steps and average be those of so many records."""
        state = self._state
        largest = self._loss.lipschitz(1.0, float(self.radius), form=self._task.form)
        if state[k.KEEP] > 0.0:
            worth = min(float(records), 1.0 / (1.0 - float(state[k.KEEP])))
            state[k.ETAS] = worth
        else:
            worth = float(records)
            rate = self.learning_rate
            if self._linear():
                state[k.ETAS] = worth * (worth + 1.0) / 2.0
            elif isinstance(rate, schedules.Schedule):
                state[k.ETAS] = rate.sizes(1, records).sum()
            else:
                first = math.sqrt(2.0) * self.radius / largest if rate is None else rate
                state[k.ETAS] = 2.0 * first * math.sqrt(worth)  # of steps of 1 / sqrt(j), about
        if self.learning_rate is None:
            state[k.GRADIENTS] = worth * largest * largest

    # ---- one record ------------------------------------------------------------------------------------
    #
    # Packing is written out in each method: a call more is 2 to 4 % of a step with nine features.

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Step on the pairs of this record with the buffer, then let it into the buffer.

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
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            count = self._pack_slowly(x, grow=True)
            if count:
                if sparse_learn(self._state, self._given, count, label):
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
        new = [name for name in columns if name not in self._index]
        if new:
            self._memory.check_room(len(rows))
            self._check_rows(columns, rows, self._memory.limit)
            self._grow(new)
        arranged = _features.arrange(columns, rows, self._names, self._index)
        if self._learn_many(self._state, arranged, labels, scores):
            self._check_rows(columns, rows, self._memory.limit)

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        self._learn_rows(columns, rows, labels, scores)
        return scores

    def _check_rows(self, columns: list[Hashable], rows: Array, limit: float = math.inf) -> None:
        limit = min(limit, self._limit)
        bad = k.unusable_row(rows, limit)
        if bad:
            i, j = divmod(bad - 1, rows.shape[1])
            raise _features.unusable_value(columns[j], float(rows[i, j]), row=i, limit=limit)

    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        self._check_rows(columns, rows)
        return _features.arrange(columns, rows, self._names, self._index)

    # ---- scores ----------------------------------------------------------------------------------------

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published weights: higher ranks higher; 0 before any step.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            count = self._pack_slowly(x, grow=False)
            if count:
                score: float = sparse_score(self._state, self._given, count)
            else:
                score = ogd_score(self._state)
        else:
            score = ogd_score(self._state)
        if score != score:
            raise self._unusable(x)
        return score

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        if any(name not in self._index for name in columns):
            self._check_rows(columns, rows)
        out = np.zeros(len(rows))
        if score_many(self._published(), _features.arrange(columns, rows, self._names, self._index), out):
            self._check_rows(columns, rows)
        return out

    def proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """`Classifier.predict_proba_one` of a flat learner in two calls less; one is 5 % of a step."""
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            count = self._pack_slowly(x, grow=False)
            p = sparse_proba(self._state, self._given, count) if count else ogd_proba(self._state)
        else:
            p = ogd_proba(self._state)
        if p != p:
            raise self._unusable(x)
        return {self.positive: p} if self._unnamed else {self._negative: 1.0 - p, self.positive: p}

    def _proba(self, score: float) -> float:
        return float(k.link_proba(self._state, score))

    def _probas(self, scores: Array) -> Array:
        p = np.empty(len(scores))
        k.link_many(self._state, scores, p)
        return p

    # ---- what others look at ---------------------------------------------------------------------------

    def _published(self) -> Array:
        return self._vectors()["averaged" if self.average else "w"]

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Known feature names, in the order of the columns."""
        return self._names

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
        return int(self._state[k.RECORDS])

    @property
    def buffer_records(self) -> int:
        """Number of records in the buffer."""
        return int(self._state[k.FILLED])

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Known features of x in the order of the columns, (d,): missing ones 0, unknown ones left out."""
        values = _features.read_record(x, self._limit)
        return np.array([values.get(name, 0.0) for name in self._names], dtype=np.float64)

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = _features.packed(self._names, xs, self._limit)
        if rows is not None:
            return rows
        out = np.empty((len(xs), self._d))
        for i, x in enumerate(xs):
            out[i] = self.design(x)
        return out

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        state = self._state
        link = np.array([state[getattr(k, name)] for name in _LINK])
        return {
            "names": list(self._names),
            "scalars": {name: float(state[getattr(k, name)]) for name in _SCALARS},
            **({"link": link} if state[k.LINK] else {}),
            **{name: view.copy() for name, view in self._vectors().items()},
            **self._memory.export(self._region(), state),
            "y_name": self._y_name,
            **self._learned_labels(),
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        """Take what `_export` gave. Checked in full first: kernels trust the counters as indices."""
        names = tuple(saved["names"])
        d = len(names)
        header = self._header()
        for name in _SCALARS:
            value = float(saved["scalars"][name])
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")
            header[getattr(k, name)] = value
        if header[k.SEED] >= 2**53:
            raise ValueError("a seed out of range")
        if header[k.LINK]:
            link = np.asarray(saved["link"], dtype=np.float64)
            lowest = (0.0, -math.inf, 0.0, -math.inf, k.LEAST)
            if link.shape != (len(_LINK),) or not (np.isfinite(link) & (link >= lowest)).all():
                raise ValueError("a link that is none")
            for name, value in zip(_LINK, link.tolist(), strict=True):
                header[getattr(k, name)] = value
        if len(set(names)) != d or d > self.max_features:
            raise ValueError("feature names that occur twice, or too many")
        kept = self._memory.check(saved, header, d)
        vectors = {name: np.asarray(saved[name], dtype=np.float64) for name in _ARRAYS}
        if any(v.shape != self._rule.shape(d) for v in vectors.values()):
            raise ValueError("weights of another shape")
        if not all(np.isfinite(a).all() for a in vectors.values()):
            raise ValueError("numbers that are not finite")
        self._rule.check(vectors)
        y_name, negative = saved["y_name"], self._checked_label(saved)
        self._allocate(names, header, capacity=d)
        for name, view in self._vectors().items():
            view[:] = vectors[name]
        self._memory.fill(self._region(), kept, d)
        self._y_name = y_name
        self._learn_label(negative)
        self.__dict__.pop("_root", None)  # a transformer's: it was of another metric
