"""Learners that maximise the area under the ROC curve: rank positives above negatives."""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import _features, buffers, losses
from streampair import _kernels as k
from streampair._kernels import ogd_learn, ogd_learn_many, ogd_proba, ogd_score, score_many
from streampair._linear import LinearPairLearner
from streampair._pairftrl import PairFTRL
from streampair.errors import ConfigError, RecordError

__all__ = ["PairFTRL", "PairOGD"]

Array = NDArray[np.float64]

_X_AT = 8 * k.HEADER
_ARRAYS = ("w", "previous", "averaged")
_DERIVED = frozenset(("_state", "_names", "_index", "_d", "_expected", "_take", "_pack"))
_SCALARS = ("RECORDS", "FILLED", "NEXT", "GRADIENTS", "ETAS", "SEED")


def _number(name: str, value: Any, *, low: float, open_low: bool, high: float = math.inf) -> float:
    """A constructor argument as a float in a range, or ConfigError."""
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value < low or (open_low and value == low) or value > high:
        least = f"above {low:g}" if open_low else f"of at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ConfigError(f"{name} is {value!r}", fix=f"give a finite {name} {least}{most}")
    return float(value)


class PairOGD(LinearPairLearner):
    """Online gradient descent on pairs; not private.

    A record is paired with each record in the buffer; the gradient of the pair loss, averaged over the pairs
    (over the records that are actually in the buffer), makes one step, which is projected on the ball of the
    given radius. Records of equal labels have no gradient. The margin of a pair is ``(y - y') w.(x - x')``
    with labels +1 and -1. With ``FIFO(1)`` this is Algorithm 2 of Yang et al. (2021), with ``Reservoir`` the
    online learner of Kar et al. (2013).

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far: the best constant in the
        regret bound of online gradient descent on this ball, without knowing the gradients' size.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12. It bounds the margins;
        the ranking hardly depends on it while features are of order 1.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes, ``sum_j eta_j w_{j-2} / sum_j eta_j``
        (Algorithm 2 of Yang et al.), rather than the last iterate.
    positive
        The label that ranks high; every other label is negative.
    seed
        Seed of the reservoir's coins; None takes one from the operating system. FIFO has no coins.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError. It bounds the
        memory on streams whose names never end.

    Notes
    -----
    Features are real numbers by name, in any order. A known feature that is missing counts as 0; a new name
    gets a new column. Text, None, NaN, infinity, numbers beyond 1e50 and empty records raise `RecordError`
    before anything has changed. Time and memory of a step are O(d size).

    `predict_proba_one` is the sigmoid of the score. A pairwise loss learns no intercept, so it ranks records
    and is not a calibrated probability.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Streeter, M. and McMahan, H. B. (2010). Less regret via online conditioning. arXiv:1002.4862. (The
    self-tuned step size.)

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streampair import auc
    >>> model = auc.PairOGD()
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.ROCAUC())  # doctest: +ELLIPSIS
    ROCAUC: 9...%
    """

    def __init__(
        self,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        learning_rate: float | None = None,
        radius: float = 1.0,
        l2: float = 0.0,
        average: bool = True,
        positive: Any = True,
        seed: int | None = None,
        max_features: int = 10_000,
    ) -> None:
        self.loss = loss
        self.buffer = buffer
        self.learning_rate = learning_rate
        self.radius = radius
        self.l2 = l2
        self.average = average
        self.positive = positive
        self.seed = seed
        self.max_features = max_features

        self._init_labels(positive)
        self._loss = losses.Hinge() if loss is None else loss
        if not isinstance(self._loss, losses.PairLoss):
            raise ConfigError(f"loss is {loss!r}", fix="give a pair loss such as losses.Logistic()")
        policy = buffers.FIFO(1) if buffer is None else buffer
        if not isinstance(policy, buffers.Buffer):
            raise ConfigError(f"buffer is {buffer!r}", fix="give a buffer such as buffers.FIFO(1)")
        self._policy = policy
        if isinstance(max_features, bool) or not isinstance(max_features, int) or max_features < 1:
            raise ConfigError(f"max_features is {max_features!r}", fix="give an integer of at least 1")
        self._allocate((), self._header(), capacity=0)

    def _header(self) -> Array:
        """The scalars of a fresh state, from the checked parameters."""
        policy, learning_rate, seed = self._policy, self.learning_rate, self.seed
        header = np.zeros(k.HEADER)
        header[k.SIZE] = policy.size
        header[k.POLICY] = policy.code
        header[k.LOSS] = self._loss.code
        if learning_rate is not None:
            header[k.RATE] = _number("learning_rate", learning_rate, low=0.0, open_low=True, high=1e12)
        header[k.RADIUS] = _number("radius", self.radius, low=0.0, open_low=True, high=1e12)
        header[k.L2] = _number("l2", self.l2, low=0.0, open_low=False, high=1e12)
        header[k.AVERAGE] = bool(self.average)
        if seed is None:
            header[k.SEED] = secrets.randbits(53)
        elif isinstance(seed, int | np.integer):
            header[k.SEED] = int(seed) % 2**53
        else:
            raise ConfigError(f"seed is {seed!r}", fix="give an integer or None")
        return header

    # ---- columns ---------------------------------------------------------------------------------------

    def _allocate(self, names: tuple[Hashable, ...], header: Array, capacity: int) -> None:
        """A zeroed state array for these names and scalars."""
        size = int(header[k.SIZE])
        state = np.zeros(k.HEADER + 5 * capacity + size * (1 + capacity))
        state[: k.HEADER] = header
        state[k.D] = len(names)
        state[k.CAP] = capacity
        self._state = state
        self._names = names
        self._index = {name: i for i, name in enumerate(names)}
        self._d = len(names)
        self._expected = len(names) or -1  # how many features the fast way takes; none are never enough
        self._take = _features.getter(names)
        # Bound to its place, so that a record is packed without building an argument list first.
        place: Any = state
        self._pack = partial(struct.Struct(f"{self._d}d").pack_into, memoryview(place), _X_AT)

    def _vectors(self) -> dict[str, Array]:
        """Views of the three weight vectors, (d,) each."""
        cap = int(self._state[k.CAP])
        starts = (k.HEADER + i * cap for i in (2, 3, 4))
        return {n: self._state[at : at + self._d] for n, at in zip(_ARRAYS, starts, strict=True)}

    def _rows(self) -> Array:
        """View of the buffer: (size, 1 + d), signs in the first column."""
        cap = int(self._state[k.CAP])
        rows = self._state[k.HEADER + 5 * cap :].reshape(int(self._state[k.SIZE]), 1 + cap)
        return rows[:, : 1 + self._d]

    def _grow(self, new: list[Hashable]) -> None:
        names = self._names + tuple(_features.in_order(new))
        if len(names) > self.max_features:
            raise RecordError(
                f"the record has new feature names, and with them there would be {len(names)}, "
                f"more than max_features={self.max_features}",
                fix="hash or select the features first, or raise max_features",
            )
        vectors, rows, d = self._vectors(), self._rows(), self._d
        capacity = int(self._state[k.CAP])
        if len(names) > capacity:
            # Doubling keeps the copying linear in the number of names; the first record is taken as it is.
            capacity = len(names) if not d else min(max(len(names), 2 * capacity), self.max_features)
        self._allocate(names, self._state[: k.HEADER], capacity)
        for name, view in self._vectors().items():
            view[:d] = vectors[name]
        self._rows()[:, : 1 + d] = rows

    def _pack_slowly(self, x: Any, *, grow: bool) -> None:
        """Check x and pack it: the way of records whose features are not exactly the known ones."""
        if type(x) is dict and x and x.keys() <= self._index.keys():
            get = x.get
            try:
                self._pack(*[get(name, 0.0) for name in self._names])
            except Exception as error:
                raise self._unusable(x) from error
            return
        values = _features.read_record(x)
        if grow:
            new = [name for name in values if name not in self._index]
            if new:
                self._grow(new)
        self._pack(*[values.get(name, 0.0) for name in self._names])

    def _unusable(self, x: Mapping[Any, Any]) -> RecordError:
        try:
            _features.read_record(x)
        except RecordError as error:
            return error
        raise AssertionError("the kernel refused a record that the slow check accepts")

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
            Label; `positive` ranks high, any other ranks low.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        sign = 1.0 if y is self._high else -1.0 if y is self._low else self._sign(y)
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            self._pack_slowly(x, grow=True)
        if ogd_learn(self._state, sign):
            raise self._unusable(x)

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
            self._pack_slowly(x, grow=False)
        score: float = ogd_score(self._state)
        if score != score:
            raise self._unusable(x)
        return score

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{False: 1 - p, True: p}`` with p the sigmoid of the score (see `PairOGD`).

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
            self._pack_slowly(x, grow=False)
        p = ogd_proba(self._state)
        if p != p:
            raise self._unusable(x)
        return {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}

    # ---- many records ----------------------------------------------------------------------------------

    def _learn_rows(self, columns: list[Hashable], rows: Array, signs: Array) -> None:
        new = [name for name in columns if name not in self._index]
        if new:
            self._check_rows(columns, rows)
            self._grow(new)
        if ogd_learn_many(self._state, _features.arrange(columns, rows, self._names, self._index), signs):
            self._check_rows(columns, rows)

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        if any(name not in self._index for name in columns):
            self._check_rows(columns, rows)
        out = np.zeros(len(rows))
        if score_many(self._published(), _features.arrange(columns, rows, self._names, self._index), out):
            self._check_rows(columns, rows)
        return out

    @staticmethod
    def _check_rows(columns: list[Hashable], rows: Array) -> None:
        bad = np.argwhere(~(np.abs(rows) <= k.MAX_ABS))
        if len(bad):
            i, j = (int(v) for v in bad[0])
            raise _features.unusable_value(columns[j], float(rows[i, j]), row=i)

    # ---- what others look at ---------------------------------------------------------------------------

    def _published(self) -> Array:
        return self._vectors()["averaged" if self.average else "w"]

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Known feature names, in the order of the columns."""
        return self._names

    @property
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), in the order of `feature_names`: a copy."""
        return self._published().copy()

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
        values = _features.read_record(x)
        return np.array([values.get(name, 0.0) for name in self._names], dtype=np.float64)

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = _features.packed(self._names, xs)
        if rows is not None:
            return rows
        out = np.empty((len(xs), self._d))
        for i, x in enumerate(xs):
            out[i] = self.design(x)
        return out

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        state = self._state
        return {
            "names": list(self._names),
            "scalars": {name: float(state[getattr(k, name)]) for name in _SCALARS},
            **{name: view.copy() for name, view in self._vectors().items()},
            "rows": self._rows()[: int(state[k.FILLED])].copy(),
            "y_name": self._y_name,
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        """Take what `_export` gave. Checked in full first: kernels trust the counters as indices."""
        names = tuple(saved["names"])
        d = len(names)
        header = self._header()
        size = int(header[k.SIZE])
        for name in _SCALARS:
            value = float(saved["scalars"][name])
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}")
            header[getattr(k, name)] = value
        filled, records = int(header[k.FILLED]), int(header[k.RECORDS])
        expected = min(records, size) if self._policy.code != k.RESERVOIR_REPLACE else min(records, 1) * size
        if filled != expected or header[k.NEXT] not in range(size) or header[k.SEED] >= 2**53:
            raise ValueError("counters that do not fit each other")
        if len(set(names)) != d or d > self.max_features:
            raise ValueError("feature names that occur twice, or too many")
        rows = np.asarray(saved["rows"], dtype=np.float64)
        vectors = {name: np.asarray(saved[name], dtype=np.float64) for name in _ARRAYS}
        if rows.shape != (filled, 1 + d) or any(v.shape != (d,) for v in vectors.values()):
            raise ValueError("arrays of another shape")
        if not all(np.isfinite(a).all() for a in (rows, *vectors.values())):
            raise ValueError("numbers that are not finite")
        y_name = saved["y_name"]
        self._allocate(names, header, capacity=d)
        for name, view in self._vectors().items():
            view[:] = vectors[name]
        self._rows()[:filled] = rows
        self._y_name = y_name

    def to_state(self) -> dict[str, object]:
        """Everything that the learner has learned, as plain values and arrays.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        out = self._checked_export()
        if not isinstance(self._y_name, str):
            out["y_name"] = None
        return out

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue, bit for bit, from what `to_state` of a learner with the same parameters returned.

        Raises
        ------
        SnapshotError
            If the state is of another learner or another version, or damaged; then nothing has changed.
        """
        self._checked_import(state)

    def __getstate__(self) -> dict[str, Any]:
        # Without scratch, spare capacity and the compiled accessors; with what others may have set.
        own = {name: value for name, value in self.__dict__.items() if name not in _DERIVED}
        return {"own": own, "saved": self._export()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self._import(state["saved"])

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> PairOGD:
        """A fresh learner with the same parameters, or with those in `new_params`.

        With `include_attributes` it also takes what this one has learned.
        """
        copy: PairOGD = super().clone(new_params)
        if include_attributes:
            copy._import(self._export())
        return copy
