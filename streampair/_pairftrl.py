"""`auc.PairFTRL`: the private online learner (PRIVACY.md 3, 4.3, 4.4, 7, 8)."""

from __future__ import annotations

import hashlib
import inspect
import math
import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from streampair import _features, _kernels, buffers, losses
from streampair._design import Design, check_scored
from streampair._families import AUCLearner
from streampair._private import MAX_FEATURES, Settings, build_report, check_bounds_known
from streampair._updates import FTRL, Moments, strategy_from_state, strategy_numbers
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import ChainedNoise, NoiseKey, NormalStream, PrivacyReport, plan_ftrl, plan_moments

__all__ = ["PairFTRL"]

Array = NDArray[np.float64]

_CHUNK = 1024
_SIGN = struct.Struct("d").pack


class PairFTRL(AUCLearner):
    """Private online ranking: follow the regularised leader on pairs, with correlated noise.

    Each record is paired with the last records in a FIFO buffer. The clipped gradients, averaged over the
    places of the buffer, are summed under noise that is correlated over time, so that every prefix sum has
    little of it, and the model is read off the noisy sum. All models of the run together are
    (epsilon, delta)-differentially private for each record.

    Parameters
    ----------
    epsilon, delta
        Budget of one record over the whole run. Take delta at most one over the number of records.
    horizon
        Number of records after which the learner stops learning (it keeps scoring). None: no end; the
        spend stays within the budget on an infinite stream, at a little more noise.
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        ``buffers.FIFO(s)``; None is ``FIFO(32)``. Other buffers are refused, with the reason.
    clip
        Radius of the ball that each pair's gradient is clipped into; None is 1. It is the ball around 0, or,
        after a warm-up, one that touches 0 (see `streampair.privacy.FTRLPlan`).
    radius
        Radius of the ball of the weights; None is 3, or 30 with a warm-up.
    features
        Names of the features. Without it they are the keys of the first record, which the report then calls
        public. Other features are ignored and counted.
    bounds
        Declared public ``{name: (low, high)}``, scaled to [-1, 1]. Features without bounds are taken as
        scaled already (with a warm-up values beyond are clipped). Never compute them from the stream.
    warmup
        Number of first records that are spent on private means and variances only, which the later ones are
        standardised with. None: a tenth of a horizon of at least 5000, nothing for a shorter one, 2000
        without a horizon. 0: none. Until it is over every score is 0.
    positive
        The label that ranks high; any other ranks low.
    noise_key
        A `streampair.privacy.NoiseKey`, or its at least 32 bytes. The noise is then a function of the key and
        of all records so far: a replay of the same records after a crash repeats the same releases to the
        byte, and discloses nothing new; any other record gives fresh noise. None: noise from the operating
        system, fresh after every start.
    seed
        None draws the noise from the operating system. An integer gives fixed noise, for tests: the report
        then says that nothing is guaranteed.
    strategy
        ``"toeplitz"`` (square root; needs a horizon), ``"blt"``, or ``"auto"``.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Attributes
    ----------
    slots
        Records taken so far, null ones too.
    null_slots, ignored_features
        Slots without a usable record, and features that are not in the set. Both are functions of raw
        data: for the operator's eyes only.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.3, 4.4): mu-GDP under replacement of one record's content, label included, with
    ``mu`` exact for (epsilon, delta). The observer may see every model; the score of the protected record
    itself is not covered. `privacy` tells what is spent, by the releases so far.

    A record that cannot be used (a feature missing, not finite or not a number, no label) takes its slot as a
    null record and raises nothing: whether a slot was null must not show. A score is given for a record
    with features missing (they count as neutral), and refused for one with text or numbers not finite.

    Copies, unpickled learners and restored ones draw noise of their own, and keep the spend. Their report
    says that it cannot vouch for the releases of the other copies, until `mark_restarted` says more.

    `predict_proba_one` is a fixed sigmoid of the score, from the first record on: it ranks, uncalibrated.

    References
    ----------
    Kairouz, P. et al. (2021). Practical and private (deep) learning without sampling or shuffling. ICML.

    Denisov, S. et al. (2022). Improved differential privacy for SGD via optimal private linear operators on
    adaptive streams. NeurIPS.

    Dvijotham, K. et al. (2024). Efficient and near-optimal noise generation for streaming differential
    privacy. FOCS.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> model = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1250)
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> report = model.privacy
    >>> report.kind, report.releases, round(report.epsilon_spent, 6), report.horizon_left
    ('holds', 1250, 1.0, 0)
    """

    # Its public home, which pickles and snapshots name.
    __module__ = "streampair.auc"
    # A cell that is no number makes a null slot, not an error.
    _strict_frames = False

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        horizon: int | None = None,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        clip: float | None = None,
        radius: float | None = None,
        features: Sequence[Hashable] | None = None,
        bounds: Mapping[Hashable, tuple[float, float]] | None = None,
        warmup: int | None = None,
        positive: Any = True,
        noise_key: Any = None,
        seed: int | None = None,
        strategy: str = "auto",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.horizon = horizon
        self.loss = loss
        self.buffer = buffer
        self.clip = clip
        self.radius = radius
        self.features = features
        self.bounds = bounds
        self.warmup = warmup
        self.positive = positive
        # The one parameter that is not stored as it came: bytes would show in a repr.
        self.noise_key = NoiseKey.of(noise_key)
        self.seed = seed
        self.strategy = strategy

        self._init_labels(positive)
        self._settings = Settings.of(self)
        self._stream: NormalStream | ChainedNoise | None = None
        self._noise_name = ""
        self._context: bytes | None = None  # of the next record
        self._folded = b""  # of the null slots before the feature set was known
        self._chained: Mapping[str, Any] | None = None  # a chain to continue
        self._digests: list[bytes] | None = None
        self._design: Design | None = None
        self._rule: FTRL | None = None
        self._moments: Moments | None = None
        self._slots = 0
        self._pending = 0  # null slots from before the feature set was known
        self.null_slots = 0
        self.ignored_features = 0
        self._continued = False  # from a copy or a snapshot, and nobody has said yet how it ended
        self._restarts = [0, 0]  # clean, unclean
        if features is not None:
            self._set_names(features)

    def _set_names(
        self, names: Sequence[Hashable], strategy: Mapping[str, Any] | None = None
    ) -> tuple[Design, FTRL]:
        """Fix the feature set, and with it the dimension and the noise; `strategy` is that of a saved run."""
        if len(names) > MAX_FEATURES:
            raise ConfigError(
                f"there are {len(names)} features, more than {MAX_FEATURES}",
                fix="select or hash the features first",
            )
        asked = self._settings
        check_bounds_known(asked.bounds, names, "the first record")
        design, d = Design(names, asked.bounds), len(names)
        plan = plan_ftrl(
            asked.mu,
            dim=d,
            size=asked.size,
            diameter=asked.loss.diameter(1.0, asked.radius, asked.clip),
            clip=asked.clip,
            radius=asked.radius,
            tangent=asked.tangent,
            horizon=asked.learning,
            strategy=self.strategy if strategy is None else strategy_from_state(strategy, asked.learning),  # type: ignore[arg-type]
        )
        self._moments = (
            Moments(plan_moments(asked.mu, dim=d, slots=asked.warmup), d) if asked.warmup else None
        )
        self._rule = FTRL(plan, asked.loss.code)
        self._design = design
        return design, self._rule

    # ---- labels ----------------------------------------------------------------------------------------

    def _sign_or_null(self, y: Any) -> float:
        """+1, -1, or 0 for a label that is absent or cannot be used. Never raises."""
        if y is self._high:
            return 1.0
        if y is self._low:
            return -1.0
        try:
            return self._label(y)
        except Exception:
            return 0.0

    def _labels(self, y: nw.Series[Any]) -> Array:
        if y.dtype == nw.Boolean and not y.null_count():
            return super()._labels(y)
        return np.array([self._sign_or_null(label) for label in y.to_list()], dtype=np.float64)

    # ---- learning --------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Take one slot: pair the record with the buffer, draw noise, release a model.

        A record that cannot be used makes a null slot (see the notes of the class). After the horizon
        nothing happens.

        Parameters
        ----------
        x
            Real numbers by feature name.
        y
            Label; `positive` ranks high, any other low; None and NaN: no label, a null slot.
        """
        sign = self._sign_or_null(y)
        if self._design is None and isinstance(x, Mapping) and x:
            self._start(list(x))
        if self._design is None:
            self.learn_null()
            return
        self.ignored_features += self._design.read_learned(x)
        self._design.label[0] = sign
        self._run(self._design.raw, self._design.label)

    def learn_null(self) -> None:
        """Take one slot without a record: noise, no gradient, a null record (PRIVACY.md 3.3)."""
        if self._design is None:
            if self._settings.horizon is None or self._pending < self._settings.horizon:
                self._pending += 1
                self._folded = hashlib.blake2b(self._folded + (self._context or b"")).digest()
            self._context = None
            return
        self._design.raw.fill(math.nan)
        self._design.label[0] = 0.0
        self._run(self._design.raw, self._design.label)

    def _start(self, names: Sequence[Hashable]) -> Design:
        """Fix an undeclared feature set, then take the null slots that came before it was known."""
        design, _ = self._set_names(names)
        context, self._context = self._context, self._folded if self._pending else self._context
        while self._pending:
            count = min(self._pending, _CHUNK)
            self._pending -= count
            self._run(np.full((count, len(names)), math.nan), np.zeros(count))
        self._context = context
        return design

    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        design = self._start(columns) if self._design is None else self._design
        known = sum(name in design.index for name in columns)
        self.ignored_features += (len(columns) - known) * len(rows)
        self._run(design.arranged(columns, rows), labels)

    def _run(self, raw: Array, signs: Array) -> None:
        """Take a slot for each row, up to the horizon: the prefix first, then learning (PRIVACY.md 4.4)."""
        design, rule, moments = self._design, self._rule, self._moments
        assert design is not None
        assert rule is not None
        stream = self._stream
        if stream is None:
            stream = self._stream = self._open_stream(design, rule)
        chain = stream if isinstance(stream, ChainedNoise) else None
        horizon, warmup = self._settings.horizon, self._settings.warmup
        n = len(raw) if horizon is None else min(len(raw), horizon - self._slots)
        at = 0
        while at < n:
            prefix = moments if self._slots < warmup else None
            count = min(n - at, _CHUNK if prefix is None else warmup - self._slots)
            if chain is not None:
                count = 1
                self._tell(chain, raw[at], signs[at])
            part, labels = raw[at : at + count], signs[at : at + count]
            if count == 1:
                ready, good = design.ready, design.good
            else:
                ready, good = np.empty(part.shape), np.empty(count)
            if prefix is None:
                design.prepare(part, ready, good)
                if chain is None:
                    rule.learn(ready, labels * good, stream)
                else:
                    rule.learn_chained(ready, labels * good, chain)
            else:
                design.clip(part, ready, good)
                prefix.add(ready, good)
                if chain is not None:
                    chain.advance(prefix.cells() if self._slots + 1 == warmup else b"")
            self.null_slots += count - int(np.count_nonzero(labels * good))
            self._slots += count
            at += count
            if prefix is not None and self._slots == warmup:
                design.standardise(*prefix.release(stream))
        self._context = None

    # ---- noise -----------------------------------------------------------------------------------------

    def _open_stream(self, design: Design, rule: FTRL) -> NormalStream | ChainedNoise:
        if self.noise_key is None:
            return NormalStream(self.seed)
        # Everything that scales the noise is in it: two learners with the same noise under different scales
        # could be subtracted. Twelve digits: the last ones differ between processors.
        plan = rule.plan
        numbers = [plan.sigma, plan.grid, plan.clip, plan.radius, *strategy_numbers(plan.strategy)]
        if self._moments is not None:
            numbers += [self._moments.plan.sigma_sum, self._moments.plan.sigma_squares]
        told = [self._noise_name, sorted(self._fingerprint().items()), [repr(name) for name in design.names]]
        told.append([f"{number:.12e}" for number in numbers])
        chain = ChainedNoise(self.noise_key, repr(told).encode())
        if self._chained is not None:
            chain.load_state(self._chained)
            self._chained = None
        chain.digests = self._digests
        return chain

    def _tell(self, chain: ChainedNoise, row: Array, sign: float) -> None:
        """Tell the chain what identifies the record: what the caller said, or else its own bytes."""
        if self._context is None:
            chain.record(b"own" + row.tobytes() + _SIGN(sign))
        else:
            chain.record(b"told" + self._context)
            self._context = None

    def bind_noise(self, name: str, digests: list[bytes] | None = None) -> None:
        """Say which learner this is, before it takes a record or once its state is loaded.

        Parameters
        ----------
        name
            Goes into the chain of `noise_key`: learners of different lanes never share noise.
        digests
            A list that gets the digest of every slot; see `streampair.privacy.ChainedNoise`.
        """
        self._noise_name = name
        self._digests = digests

    def next_record(self, context: bytes) -> None:
        """Say what identifies the record of the next slot, such as its place and a digest of its bytes.

        Without it the record's own values do.
        """
        self._context = context

    @property
    def _moments_released(self) -> bool:
        return self._design is not None and self._design.standardised

    # ---- scoring ---------------------------------------------------------------------------------------

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published model: higher ranks higher.

        Missing features count as neutral, unknown ones are ignored. 0 until the warm-up is over.

        Raises
        ------
        RecordError
            If a feature is text, None, NaN or infinite, or the record is empty.
        """
        if self._design is None or self._rule is None:
            check_scored(x)
            return 0.0
        return float(_kernels.dot(self._rule.average, self._design.of(x)))

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) that the published weights multiply: scaled, standardised, in the unit ball."""
        if self._design is None:
            check_scored(x)
            return np.empty(0)
        return self._design.of(x).copy()

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = None if self._design is None else _features.packed(self.feature_names, xs)
        if rows is not None:
            out = np.empty(rows.shape)
            self._design.prepare(rows, out, np.empty(len(rows)))  # type: ignore[union-attr]
            return out
        out = np.empty((len(xs), len(self.feature_names)))
        for i, x in enumerate(xs):
            out[i] = self.design(x)
        return out

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        design = self._design
        known = [j for j, name in enumerate(columns) if design is None or name in design.index]
        bad = np.argwhere(~np.isfinite(rows[:, known]))
        if len(bad):
            i, j = int(bad[0][0]), known[int(bad[0][1])]
            raise _features.unusable_value(columns[j], float(rows[i, j]), row=i)
        out = np.zeros(len(rows))
        if design is not None and self._rule is not None and len(rows):
            raw = design.arranged(columns, rows)
            ready = np.empty(raw.shape)
            design.prepare(raw, ready, np.empty(len(raw)))
            _kernels.score_many(self._rule.average, ready, out)
        return out

    # ---- what others look at ---------------------------------------------------------------------------

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the features, in the order of the columns; empty until they are known."""
        return () if self._design is None else self._design.names

    @property
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), for the vectors of `design`: a copy."""
        return np.empty(0) if self._rule is None else self._rule.average.copy()

    @property
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""
        return self._settings.loss

    @property
    def comparator_radius(self) -> float:
        """Radius of the ball of the weights."""
        return self._settings.radius

    @property
    def slots(self) -> int:
        """Records taken so far, null ones too."""
        return self._slots + self._pending

    @property
    def records(self) -> int:
        """The same as `slots`."""
        return self.slots

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        return 0 if self._rule is None else min(self._rule.steps, self._settings.size)

    @property
    def horizon_left(self) -> int | None:
        """Slots until the learner stops learning; None without a horizon."""
        horizon = self._settings.horizon
        return None if horizon is None else max(horizon - self.slots, 0)

    @property
    def privacy(self) -> PrivacyReport:
        """What is guaranteed, for whom, and what the releases so far have spent."""
        rule = self._rule
        steps = 0 if rule is None else rule.steps
        return build_report(
            self._settings,
            mu_learning=0.0 if rule is None else rule.plan.mu_spent(steps),
            steps=steps,
            moments_released=self._moments_released,
            horizon_left=self.horizon_left,
            noise_std=0.0 if rule is None else rule.plan.sigma,
            clean_restarts=self._restarts[0],
            unclean_restarts=self._restarts[1],
            continued=self._continued,
            declared=self.features is not None,
            seeded=self.seed is not None,
        )

    # ---- copies and state ------------------------------------------------------------------------------

    def mark_restarted(self, clean: bool) -> None:
        """Say how the run ended that this learner was restored from.

        Parameters
        ----------
        clean
            True: the snapshot held every release that was made, and nothing else continues from it. False:
            releases may have been made after it; the report then says that it cannot vouch for them, and
            keeps saying so.
        """
        self._continued = False
        self._restarts[0 if clean else 1] += 1

    def _export(self) -> dict[str, Any]:
        design, rule = self._design, self._rule
        return {
            "names": None if design is None else list(design.names),
            "slots": self._slots,
            "pending": self._pending,
            "null_slots": self.null_slots,
            "ignored_features": self.ignored_features,
            "restarts": list(self._restarts),
            "continued": self._continued,
            "standardised": self._moments_released,
            "sums": None if self._moments is None else self._moments.sums.copy(),
            "mean": None if design is None else design.mean.copy(),
            "factor": None if design is None else design.factor.copy(),
            "rule": None if rule is None else rule.to_state(),
            "y_name": self._y_name if isinstance(self._y_name, str) else None,
            "folded": self._folded,
            "chain": self._stream.to_state() if isinstance(self._stream, ChainedNoise) else self._chained,
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        if saved["names"] is not None:
            design, rule = self._set_names(saved["names"], dict(saved["rule"]["strategy"]))
            mean = np.array(saved["mean"], dtype=np.float64)
            factor = np.array(saved["factor"], dtype=np.float64)
            if (
                list(design.names) != list(saved["names"])
                or not mean.shape == factor.shape == design.mean.shape
            ):
                raise ValueError("features or moments of another shape")
            if self._moments is not None:
                if saved["sums"].shape != self._moments.sums.shape:
                    raise ValueError("sums of another shape")
                self._moments.sums = np.array(saved["sums"], dtype=np.int64)
            rule.load_state(saved["rule"])
            if saved["standardised"]:
                design.standardise(mean, factor)
        self._slots = int(saved["slots"])
        self._pending = int(saved["pending"])
        self.null_slots = int(saved["null_slots"])
        self.ignored_features = int(saved["ignored_features"])
        self._restarts = [int(count) for count in saved["restarts"]]
        self._y_name = saved["y_name"]
        # Nothing was released by a learner without slots, so its copy is simply another new one.
        used = self.slots > 0
        self._continued = bool(saved["continued"]) or used
        self._folded = bytes(saved["folded"])
        self._chained = saved["chain"]
        # Fresh also where the original's came from a fixed seed.
        self._stream = NormalStream() if used and self.noise_key is None else None

    def to_state(self) -> dict[str, object]:
        """Everything but the noise to come, as plain values and arrays.

        It holds raw records and the memory of the noise: keep it as safe as the data.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        return self._checked_export()

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue from what `to_state` of a learner with the same parameters returned, with fresh noise.

        The report says "unvouched" from here on, until `mark_restarted(clean=True)`.

        Raises
        ------
        SnapshotError
            If the state is of another learner or version, or damaged, or if this learner is not new; its
            account is as before.
        """
        if self.slots:
            # Its spend would be forgotten.
            raise SnapshotError(
                "the learner has taken records already", fix="load the state into a newly made learner"
            )
        try:
            self._checked_import(state)
        except SnapshotError:
            self.__init__(**{name: getattr(self, name) for name in self._params_names()})  # type: ignore[misc]
            raise

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._params_names()}
        return {"params": own, "saved": self._export()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["params"])  # type: ignore[misc]
        self._import(saved["saved"])

    @classmethod
    def _params_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
