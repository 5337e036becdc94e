"""What every private learner shares: slots, null records, warm-up, noise, report, copies and snapshots.

A mechanism (`_pairftrl`, `_pairdescent`) brings the update rule and its calibrated noise, a family
(`_families`) the labels and River's interface (PRIVACY.md 3, 4.4, 7, 8).
"""

from __future__ import annotations

import abc
import hashlib
import inspect
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import _features, buffers, kernels, losses
from streampair._design import Design, check_scored
from streampair._learner import PairLearner
from streampair._private import MAX_FEATURES, Settings, build_report, check_bounds_known
from streampair._private_buffer import PairBuffer
from streampair._rule import Rule
from streampair._updates import Moments
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import (
    Admission,
    ChainedNoise,
    EntityLimit,
    NoiseKey,
    NormalStream,
    PrivacyReport,
    plan_moments,
)

__all__ = ["PrivateBase"]

Array = NDArray[np.float64]

_CHUNK = 1024


class PrivateBase(PairLearner):
    """A learner that takes every record as a slot and releases models under calibrated noise.

    A subclass stores its parameters under their names and calls `_init_private()`; a mechanism provides
    `_make_rule` and `_describe`.
    """

    epsilon: float
    delta: float
    horizon: int | None
    loss: losses.PairLoss | None
    buffer: buffers.Buffer | None
    max_uses: int | None
    clip: float | None
    radius: float | None
    features: Sequence[Hashable] | None
    bounds: Mapping[Hashable, tuple[float, float]] | None
    warmup: int | None
    noise_key: Any
    seed: int | None
    forks: int = 0
    window: int = 4096
    entity: EntityLimit | None = None

    # A cell that is no number makes a null slot, not an error.
    _strict_frames = False
    # What the kernels know the pairs of the family by.
    _pairs: ClassVar[int] = kernels.LINEAR_PAIRS
    _most_features: ClassVar[int] = MAX_FEATURES
    # Whether the buffer must bound how often a record is used.
    _bounded_uses: ClassVar[bool] = True
    # Radius of the weights without and with a warm-up.
    _radii: ClassVar[tuple[float, float]] = (3.0, 30.0)

    # ---- what a mechanism provides ---------------------------------------------------------------------

    @abc.abstractmethod
    def _make_rule(self, dim: int, features: int, saved: Mapping[str, Any] | None) -> Rule:
        """The rule for weights of `dim` coordinates; `saved`: the state of a run that it continues."""

    @abc.abstractmethod
    def _describe(self) -> str:
        """What is done, for the report."""

    def _notes(self) -> list[str]:
        """What the report has to say besides."""
        return []

    def _default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """What `warmup=None` means; None: by the horizon. `features`: how many, once they are known."""
        return None

    @property
    def _centres_labels(self) -> bool:
        """Whether the warm-up releases the mean of the labels too."""
        return False

    def _use_moments(self, design: Design, rule: Any, mean: Array, factor: Array, label: float) -> None:
        """Standardise with what the warm-up has released."""
        design.standardise(mean, factor)

    @property
    def _default_clip(self) -> float:
        """What `clip=None` means."""
        return 1.0

    # ---- construction ----------------------------------------------------------------------------------

    def _init_private(self) -> None:
        """Check the parameters, and start without a record."""
        # The one parameter that is not stored as it came: bytes would show in a repr.
        self.noise_key = NoiseKey.of(self.noise_key)
        self._settings = Settings.of(self)
        self._stream: NormalStream | ChainedNoise | None = None
        self._noise_name = ""
        self._context: bytes | None = None  # of the next record
        self._folded = b""  # of the null slots before the feature set was known
        self._chained: Mapping[str, Any] | None = None  # a chain to continue
        self._digests: list[bytes] | None = None
        self._design: Design | None = None
        self._rule: Rule | None = None
        self._moments: Moments | None = None
        self._slots = 0
        self._pending = 0  # null slots from before the feature set was known
        self.null_slots = 0
        self.ignored_features = 0
        self._continued = False  # from a copy or a snapshot, and nobody has said yet how it ended
        self._restarts = [0, 0]  # clean, unclean
        self._charged = 0  # forks
        self._admission = None if self._settings.entity is None else Admission(self._settings.entity)
        self._who: Any = None  # the entity of the next record
        self.refused_records = 0
        if self.features is not None:
            self._set_names(self.features)

    def _fingerprint(self) -> dict[str, object]:
        """As in the base, without the key: a lane may get another one, and goes on."""
        told = super()._fingerprint()
        del told["noise_key"]
        return told

    @staticmethod
    def _coordinates(d: int) -> int:
        """Coordinates of the weights for d features."""
        return d

    def _coins(self) -> int | None:
        """Seed of the buffer's coins: with a noise key a function of it, for a replay must toss the same."""
        if self.noise_key is None:
            return self.seed
        return int.from_bytes(self.noise_key.mac()(b"coins")[:8], "big")

    def _pair_buffer(self, features: int) -> PairBuffer:
        """An empty buffer, as the settings say."""
        asked = self._settings
        return PairBuffer(
            asked.buffer,
            features,
            asked.learning,
            family=self._pairs,
            loss_code=asked.loss.code,
            tangent=asked.tangent,
            seed=self._coins(),
        )

    def _set_names(
        self, names: Sequence[Hashable], saved: Mapping[str, Any] | None = None
    ) -> tuple[Design, Rule]:
        """Fix the feature set, and with it the dimension and the noise; `saved`: the rule of a saved run."""
        if len(names) > self._most_features:
            raise ConfigError(
                f"there are {len(names)} features, more than {self._most_features}",
                fix="select or hash the features first",
            )
        asked = self._settings = Settings.of(self, len(names))
        check_bounds_known(asked.bounds, names, "the first record")
        design, d = Design(names, asked.bounds), len(names)
        rule = self._make_rule(self._coordinates(d), d, saved)
        self._moments = None
        if asked.warmup:
            labels = self._centres_labels
            mu = self._mu_moments(rule) / asked.moments_records
            self._moments = Moments(plan_moments(mu, dim=d, slots=asked.warmup, labels=labels), d)
        self._rule = rule
        self._design = design
        return design, rule

    def _mu_moments(self, rule: Rule | None) -> float:
        """mu of one release of the moments."""
        asked = self._settings
        if rule is None or not asked.forks:
            return asked.mu_moments(None)
        return asked.mu_moments(rule.plan.fork_mu2(asked.window))

    # ---- labels ----------------------------------------------------------------------------------------

    def _label_or_null(self, y: Any) -> float:
        """The label's number, NaN for a label that is absent or cannot be used. Never raises."""
        if y is self._high:
            return 1.0
        if y is self._low:
            return -1.0
        try:
            return self._label(y)
        except Exception:
            return math.nan

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        try:
            return super()._labels(y)
        except Exception:  # one of them cannot be used: which, must not show
            labels = y if isinstance(y, list) else y.tolist()
            return np.array([self._label_or_null(label) for label in labels], dtype=np.float64)

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
        label = self._label_or_null(y)
        if self._design is None and isinstance(x, Mapping) and x:
            self._start(list(x))
        if self._design is None:
            self.learn_null()
            return
        self.ignored_features += self._design.read_learned(x)
        self._design.label[0] = label
        if self._admission is not None and self._who is None:
            self._who = self._named(x)
        self._slot()

    def learn_null(self) -> None:
        """Take one slot without a record: noise, no gradient, a null record (PRIVACY.md 3.3)."""
        if self._design is None:
            if self._settings.horizon is None or self._pending < self._settings.horizon:
                self._pending += 1
                self._folded = hashlib.blake2b(self._folded + (self._context or b"")).digest()
            self._context = None
            return
        self._design.raw.fill(math.nan)
        self._design.label[0] = math.nan
        self._slot()

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame or array in order, each a slot: see the base.

        Raises
        ------
        ConfigError
            If entities are declared: whose a row is must be told row by row.
        """
        if self._admission is not None:
            raise ConfigError("learn_many does not know entities", fix="use learn_one")
        super().learn_many(X, y)

    def _named(self, x: Any) -> Any:
        """The entity that a record names; None if it names none."""
        field = self._settings.entity.field if self._settings.entity is not None else None
        if field is None or not isinstance(x, Mapping):
            return None
        if field in x:
            self.ignored_features -= 1  # it was counted as a feature that nobody knows
        return x.get(field)

    def next_entity(self, entity: Hashable) -> None:
        """Say whose the record of the next slot is: text, bytes or a whole number; None: not known.

        A record of which that is not known takes its slot as a null record.
        """
        self._who = entity

    def _admit(self, admission: Admission, design: Design) -> None:
        """Blank the record in the scratch if its entity has had enough, by entity and slot alone."""
        who, self._who = self._who, None
        try:
            admitted = who is not None and admission.admit(who, self._slots + 1)
        except TypeError:  # it names nobody that could be told apart
            admitted = False
        if not admitted:
            self.refused_records += 1
            design.raw.fill(math.nan)
            design.label[0] = math.nan

    def _start(self, names: Sequence[Hashable]) -> Design:
        """Fix an undeclared feature set, then take the null slots that came before it was known."""
        design, _ = self._set_names(names)
        context, self._context = self._context, self._folded if self._pending else self._context
        while self._pending:
            count = min(self._pending, _CHUNK)
            self._pending -= count
            self._run(np.full((count, len(names)), math.nan), np.full(count, math.nan))
        self._context = context
        return design

    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        design = self._start(columns) if self._design is None else self._design
        known = sum(name in design.index for name in columns)
        self.ignored_features += (len(columns) - known) * len(rows)
        self._run(design.arranged(columns, rows), labels)

    def _run(self, raw: Array, given: Array) -> None:
        """Take a slot for each row, up to the horizon: the prefix first, then learning (PRIVACY.md 4.4)."""
        design, rule, moments = self._design, self._rule, self._moments
        assert design is not None
        assert rule is not None
        stream = self._open_stream(design, rule) if self._stream is None else self._stream
        if isinstance(stream, ChainedNoise):
            # The noise of a step depends on the step before it: one by one.
            for row, label in zip(raw, given, strict=True):
                design.raw[0] = row
                design.label[0] = label
                self._slot()
            return
        horizon, warmup = self._settings.horizon, self._settings.warmup
        n = len(raw) if horizon is None else min(len(raw), horizon - self._slots)
        at = 0
        while at < n:
            prefix = moments if self._slots < warmup else None
            count = min(n - at, _CHUNK if prefix is None else warmup - self._slots)
            part = raw[at : at + count]
            ready, good = np.empty(part.shape), np.empty(count)
            (design.prepare if prefix is None else design.clip)(part, ready, good)
            labels = np.where(good == 1.0, given[at : at + count], math.nan)
            if prefix is None:
                rule.learn(ready, labels, stream)
            else:
                prefix.add(ready, good, labels)
            self.null_slots += int(np.count_nonzero(np.isnan(labels)))
            self._slots += count
            at += count
            if prefix is not None and self._slots == warmup:
                self._use_moments(design, rule, *prefix.release(stream))
        self._context = None

    def _slot(self) -> None:
        """`_run` of the one record in the scratch of the design: the hot path."""
        design, rule, asked = self._design, self._rule, self._settings
        assert design is not None
        assert rule is not None
        if asked.horizon is not None and self._slots >= asked.horizon:
            self._context = self._who = None
            return
        stream = self._open_stream(design, rule) if self._stream is None else self._stream
        chain = stream if isinstance(stream, ChainedNoise) else None
        label, ready, good = design.label, design.ready, design.good
        if chain is not None:
            self._tell(chain, design.raw, label)
        if self._admission is not None:
            self._admit(self._admission, design)
        learning = self._slots >= asked.warmup
        (design.prepare if learning else design.clip)(design.raw, ready, good)
        if good.item() != 1.0:
            label[0] = math.nan
        given = label.item()
        if given != given:
            self.null_slots += 1
        if learning:
            if chain is None:
                rule.learn(ready, label, stream)
            else:
                rule.learn_chained(ready, label, chain)
            self._slots += 1
        else:
            prefix = self._moments
            assert prefix is not None
            prefix.add(ready, good, label)
            self._slots += 1
            ends = self._slots == asked.warmup
            if chain is not None:
                chain.advance(prefix.cells() if ends else b"")
            if ends:
                self._use_moments(design, rule, *prefix.release(stream))
        self._context = None

    # ---- noise -----------------------------------------------------------------------------------------

    def _open_stream(self, design: Design, rule: Rule) -> NormalStream | ChainedNoise:
        """Open the stream with the first record: the chain has to know what is planned."""
        if self.noise_key is None:
            self._stream = NormalStream(self.seed)
            return self._stream
        # Everything that scales the noise is in it: two learners with the same noise under different scales
        # could be subtracted. Twelve digits: the last ones differ between processors.
        numbers = rule.numbers()
        if self._moments is not None:
            numbers += [self._moments.plan.sigma_sum, self._moments.plan.sigma_squares]
        told = [self._noise_name, sorted(self._fingerprint().items()), [repr(name) for name in design.names]]
        told.append([f"{number:.12e}" for number in numbers])
        chain = ChainedNoise(self.noise_key, repr(told).encode())
        if self._chained is not None:
            chain.load_state(self._chained)
            self._chained = None
        chain.digests = self._digests
        self._stream = chain
        return chain

    def _tell(self, chain: ChainedNoise, row: Array, label: Array) -> None:
        """Tell the chain what identifies the record: what the caller said, or else its own bytes."""
        if self._context is None:
            chain.record(b"own" + row.tobytes() + label.tobytes())
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

    # ---- records as vectors ----------------------------------------------------------------------------

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

    def _prepared(self, columns: list[Hashable], rows: Array) -> Array:
        """Designs (n, d) of raw rows that are not learned; no columns until the features are known.

        Raises
        ------
        RecordError
            If a known feature is not finite.
        """
        design = self._design
        known = [j for j, name in enumerate(columns) if design is None or name in design.index]
        if kernels.unusable_row(rows, kernels.MAX_FINITE):  # there is one, if only of an unknown feature
            bad = np.argwhere(~np.isfinite(rows[:, known]))
            if len(bad):
                i, j = int(bad[0][0]), known[int(bad[0][1])]
                raise _features.unusable_value(columns[j], float(rows[i, j]), row=i)
        if design is None:
            return np.empty((len(rows), 0))
        raw = design.arranged(columns, rows)
        ready = np.empty(raw.shape)
        design.prepare(raw, ready, np.empty(len(raw)))
        return ready

    # ---- what others look at ---------------------------------------------------------------------------

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the features, in the order of the columns; empty until they are known."""
        return () if self._design is None else self._design.names

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
    def slots_waiting(self) -> int:
        """Of these, null slots that will be released once the features are known."""
        return self._pending

    @property
    def records(self) -> int:
        """The same as `slots`."""
        return self.slots

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        return 0 if self._rule is None else self._settings.buffer.filled(self._rule.steps)

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
            mechanism=self._describe(),
            remarks=self._notes(),
            mu_learning=0.0 if rule is None else rule.plan.mu_spent(steps),
            mu_moments=self._mu_moments(rule),
            fork_mu2=0.0 if rule is None or not self._charged else rule.plan.fork_mu2(self._settings.window),
            charged=self._charged,
            releases=0 if rule is None else rule.releases,
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

    def charge(self, forks: int, *, vouched: bool = False) -> None:
        """Say how often a ledger has charged a second view of a window (PRIVACY.md 8).

        Parameters
        ----------
        forks
            Altogether.
        vouched
            Whether the ledger knows of every release by any continuation of this learner.
        """
        self._charged = forks
        if vouched:
            self._continued = False

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
            "charged": self._charged,
            "entities": None if self._admission is None else self._admission.to_state(),
            "refused_records": self.refused_records,
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
            design, rule = self._set_names(saved["names"], saved["rule"])
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
        self._charged = int(saved["charged"])
        self.refused_records = int(saved["refused_records"])
        if self._admission is not None:
            self._admission.load_state(saved["entities"])
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
