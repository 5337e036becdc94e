"""Canary audit: what a private learner's releases disclose of one record, measured (docs/privacy.md 9.5).

Two streams that differ in one record, the canary, and everything that the learner releases on each. A
release is a linear function of the normals that the learner draws, so two things can be found:

- *exactly*, by letting the learner draw zeros, and then a single 1 in each place in turn: how far the canary
  moves the releases, in units of the noise that is really added. That is the mu of the best possible attack
  on this canary; it must not exceed the claim;
- *by experiment*, with the learner's own noise: the best attack is carried out many times on either stream.
  Its success gives a lower bound of mu, and its scatter says whether the noise has the size it should.

An audit can show that a promise is broken, never that it holds: another canary might disclose more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError
from streampair.learners.private import PrivateLearner
from streampair.privacy.mechanisms.moments import Moments
from streampair.privacy.mechanisms.output import Output
from streampair.privacy.origin import Origin

__all__ = ["AuditPart", "AuditReport", "audit"]

Floats = NDArray[np.float64]

_Z = NormalDist().inv_cdf(1.0 - 1e-4)  # a true learner fails one audit in 1e4
_TOLERANCE = 1e-6
_FEATURES = 4
_IMPULSE = 64.0
_FOREVER = 10**9
_WARMUP = 8
_FAR = 8.0  # times the bound: what is not cut shows
_PUSH = 64  # slots, at most, that bring a metric to where pairs of one class are active
_SURE = 4.0  # standard deviations that it is then away from where they are not


@dataclass(frozen=True)
class AuditPart:
    """The audit of one part of a run.

    Parameters
    ----------
    part
        "warm-up" or "learning".
    slots, runs
        Slots of a run, and runs on each of the two streams.
    canary
        What the two streams have in the canary's slot.
    claimed
        mu that the configuration promises for one record.
    planned
        mu that the learner's account comes to at the end of its run.
    accounted
        mu that it comes to for the slots that this canary is in.
    exact
        mu of the best attack on this canary, from the releases' response to each single normal.
    measured, stderr
        mu as the attack shows it with the learner's own noise, and its standard error.
    lower
        What mu is at least, at confidence 1 - 1e-4.
    noise
        Standard deviation of the attack's outcome over what it should be, and
    noise_stderr
        its standard error.
    """

    part: str
    slots: int
    runs: int
    canary: str
    claimed: float
    planned: float
    accounted: float
    exact: float
    measured: float
    stderr: float
    lower: float
    noise: float
    noise_stderr: float

    @property
    def failures(self) -> tuple[str, ...]:
        """What contradicts the claim; empty if nothing does."""
        found = []
        if not self.planned <= self.claimed * (1.0 + _TOLERANCE):
            found.append(f"the account comes to mu {self.planned:.4g}, more than {self.claimed:.4g}")
        if not self.exact <= self.accounted * (1.0 + _TOLERANCE):
            found.append(f"the canary shows mu {self.exact:.4g}, and {self.accounted:.4g} is accounted for")
        if not self.lower <= self.accounted:
            found.append(f"mu is at least {self.lower:.4g}, and {self.accounted:.4g} is accounted for")
        if not self.noise >= 1.0 - _Z * self.noise_stderr:
            found.append(f"the noise has only {self.noise:.3f} of the size that it should have")
        return tuple(found)


@dataclass(frozen=True)
class AuditReport:
    """What `audit` found."""

    learner: str
    epsilon: float
    delta: float
    parts: tuple[AuditPart, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not any(part.failures for part in self.parts)

    @property
    def verdict(self) -> str:
        """One sentence."""
        broken = [f"{part.part}: {failure}" for part in self.parts for failure in part.failures]
        if broken:
            return "VIOLATED: " + "; ".join(broken)
        return "nothing contradicts the claim"


class _Impulses:
    """Zeros in place of normals, but for one; counts how many were asked for."""

    def __init__(self, at: int = -1, size: float = 0.0) -> None:
        self.at, self.size, self.drawn = at, size, 0

    def take(self, count: int) -> Floats:
        out = np.zeros(count)
        if self.drawn <= self.at < self.drawn + count:
            out[self.at - self.drawn] = self.size
        self.drawn += count
        return out


@dataclass(frozen=True)
class _Content:
    """A record's content: scaled features, and a label."""

    name: str
    x: tuple[float, ...]
    y: Any


class _Trial:
    """Copies of one learner, run on a null stream with a canary in it."""

    def __init__(self, learner: Any, part: str, slots: int) -> None:
        self.learner, self.part, self.slots = learner, part, slots
        settings = learner.settings
        names = list(learner.feature_names or learner.features or ["canary", "other"])[:_FEATURES]
        self.names: list[Hashable] = names
        self.bounds: dict[Hashable, tuple[float, float]] = {
            name: settings.bounds[name] for name in names if name in settings.bounds
        }
        self.claimed: float = settings.mu
        self.entity = settings.entity
        self.metric = hasattr(type(learner), "metric_")
        self.moments = isinstance(settings.mechanism, Moments)
        self.size = settings.buffer.influence.size
        self.high, self.low = _two_labels(learner)
        # Whether the rule's own iterate has no noise.
        self.secret = True
        rule = self.make().run.rule
        self.secret = rule.secret_iterate
        self.push = self._pushed(rule.plan) if part == "learning" and self.metric and not self.secret else 0

    def _pushed(self, plan: Any) -> int:
        """Slots of pairs of two classes that bring a metric away from 0, further than the noise; 0: too many.

        Each moves it by half the clip, once the buffer is full.
        """
        most = min(_PUSH, self.slots // 2 - self.size)
        strategy = getattr(plan, "strategy", None)
        spread = math.sqrt(max(most, 0)) if strategy is None else strategy.error(self.slots)
        needed = self.size + math.ceil(2.0 * _SURE * plan.sigma * spread / plan.clip)
        return needed if needed <= most else 0

    def make(self) -> Any:
        """A fresh learner, with fixed coins and noise still to be chosen."""
        asked = self.learner.settings
        warmup = self.slots if self.part == "warm-up" else min(asked.warmup, _WARMUP)
        # What the warm-up took must not show in what comes after it: as many slots again.
        after = self.slots
        changes = {
            "features": self.names,
            "bounds": self.bounds,
            "warmup": warmup,
            "horizon": None if asked.horizon is None else warmup + after,
            "seed": 0,
            "noise_key": None,
        }
        if "solver" in self.learner._get_params():
            # "auto" might choose another one for so short a run.
            changes["solver"] = "moments" if self.moments else "gradients"
        if self.part == "learning" and not self.secret:
            # Where noise moves the iterate, one far from 0 would satisfy pairs, whose gradient then is 0.
            changes["radius"] = min(1e-6, asked.radius)
        model = self.learner.clone(changes)
        if self.part == "learning":
            # As if the warm-up were over, and had found the features as they should be.
            model.run.skip_warmup()
        return model

    def contents(self) -> Iterator[_Content]:
        """What the canary's slot may hold; the first leaves pairs active, whatever the noise."""
        d = len(self.names)
        labels = [(self.high, "high"), (self.low, "low")]
        if self.part == "warm-up":
            for value, (label, word) in itertools.product((1.0, -1.0, 0.25, -0.25, 0.0, _FAR, -_FAR), labels):
                yield _Content(f"(every feature at {value:+g}, {word})", (value,) * d, label)
            return
        first, corner = (1.0,) + (0.0,) * (d - 1), (1.0,) * d
        places = [("+B", first), ("-B", _times(-1.0, first)), ("0", _times(0.0, first))]
        if self.metric:
            other = (0.0,) * (d - 1) + (1.0,)
            places = [places[0], places[2], ("+B along another feature", other)]
            labels = labels if self.push or self.secret else labels[:1]
        if self.moments:
            # Two records of one class at t = -1/2 reach D (docs/privacy.md, Lemma 31).
            third = (-0.5, math.sqrt(0.75), *first[2:]) if d > 1 else (-0.5,)
            places.append(("B at 120 degrees", third))
        places.append((f"{_FAR:+g} B in all", _times(_FAR, corner)))
        for (place, x), (label, word) in itertools.product(places, labels):
            yield _Content(f"({place}, {word})", x, label)

    def spots(self) -> Sequence[int]:
        """Slots that the canary is tried in."""
        if self.part == "warm-up":
            return [0, self.slots - 1]
        size, n = self.size, self.slots
        tried = {1, 2, 3, size, size + 1, n // 2}
        if self.metric and not self.secret:
            tried = {self.push + size} if self.push else tried
        elif self.secret:
            # The account is that of the worst record, which may be a late one.
            tried |= {n // 8, n // 4, 3 * n // 4, n - size - 2}
        return sorted(at for at in tried if 0 < at < n)

    def places(self, spot: int) -> Sequence[int]:
        """Slots of the canary: all that its entity may have, if entities are protected."""
        if self.entity is None:
            return range(spot, spot + 1)
        step, most = self.entity.separation, self.entity.records
        return range(spot, min(spot + most * step, self.slots), step)

    def background(self, t: int) -> _Content:
        """What all other slots hold: null records, where noise does not decide which pairs are active.

        A pair of one class sits on the kink of the hinge at W = 0. Pairs of two classes bring W away from it,
        further than the noise; then partners for the canary fill the buffer.
        """
        if not (self.part == "learning" and self.metric and (self.push or self.secret)):
            return _Content("null", (0.0,) * len(self.names), self.low)
        place = (-1.0,) + (0.0,) * (len(self.names) - 1)
        if t < self.push and t % 2:
            return _Content("push", _times(-1.0, place), self.high)
        return _Content("partner", place, self.low)

    def released(self, model: Any, spot: int, canary: _Content) -> Floats:
        """Everything that a run releases: after every slot of learning, and what the warm-up gives.

        What is learned after a warm-up is standardised as if it had released zeros and ones: given its
        release, nothing that follows may depend on its records.
        """
        places = self.places(spot)
        shown = []
        for t in range(self.slots):
            content = canary if t in places else self.background(t)
            origin = Origin(entity="canary" if t in places else f"other {t}")
            model.learn_one(self._record(content), content.y, origin)
            if self.part == "learning":
                shown.append(model.run.released)
        if self.part == "warm-up":
            shown.append(model.run.warmup.released)
            d = len(self.names)
            model.run.as_released(np.zeros(d), np.full(d, 1.0 / math.sqrt(d)), 0.0)
            for t in range(self.slots):
                content = self.background(t)
                model.learn_one(self._record(content), content.y, Origin(entity=f"after {t}"))
                shown.append(model.run.released)
        return np.concatenate([np.ravel(values) for values in shown])

    def account(self, spot: int) -> tuple[float, float]:
        """mu by the account: at the end of the run, and for a record of this slot."""
        model = self.make()
        if self.part == "warm-up":
            plan = model.run.warmup.plan
            return plan.mu, plan.mu
        plan = model.run.rule.plan
        # Where noise is correlated over slots, all that counts is how many follow; else the worst record is
        # meant.
        stationary = hasattr(plan, "strategy") and hasattr(plan, "influence")
        seen = self.slots - spot if stationary else self.slots
        return plan.mu_spent(_FOREVER if model.horizon is None else self.slots), plan.mu_spent(seen)

    def _record(self, content: _Content) -> dict[Hashable, float]:
        out = {}
        for name, value in zip(self.names, content.x, strict=True):
            low, high = self.bounds.get(name, (-1.0, 1.0))
            out[name] = (low + high) / 2 + value * (high - low) / 2
        return out

    def dry(self, spot: int, canary: _Content, stream: _Impulses) -> Floats:
        """The releases with chosen numbers in place of normals."""
        model = self.make()
        model.run.use(stream)
        return self.released(model, spot, canary)

    def wet(self, spot: int, canary: _Content, number: int) -> Floats:
        """The releases with the learner's own noise."""
        model = self.make()
        # The coins of the buffer are drawn already; the noise comes from where the learner takes it.
        model.run.draw_from(self.learner.noise_key)
        model.bind_noise(f"audit {number}")
        return self.released(model, spot, canary)


def _times(factor: float, x: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(factor * value for value in x)


def _slots(places: Sequence[int]) -> str:
    first = f"slot {places[0] + 1}"
    return first if len(places) == 1 else f"{len(places)} slots of one entity from {first} on"


def _silent(part: str, done: int, of: int) -> None:
    """Show no progress."""


def _two_labels(learner: Any) -> tuple[Any, Any]:
    """The label that ranks high and one that ranks low; for metrics two different ones."""
    if hasattr(learner, "relevance"):
        low, high = learner.relevance
        return float(high), float(low)
    high = getattr(learner, "positive", True)
    return high, (not high) if isinstance(high, bool) else f"not {high!r}"


def _best(trial: _Trial) -> tuple[float, int, _Content, _Content, Floats, Floats]:
    """The spot and the pair of canaries that disclose most, with the attack on them.

    Returns exact mu, spot, the two contents, what is in the middle of their releases, and the weights of the
    attack on all releases: also on those before the canary, which tell of the noise that comes back later.
    """
    counter = _Impulses()
    trial.dry(0, next(trial.contents()), counter)
    runs: dict[tuple[int, _Content], Floats] = {
        (spot, content): trial.dry(spot, content, _Impulses())
        for spot in trial.spots()
        for content in trial.contents()
    }
    spot, content = trial.spots()[0], next(trial.contents())
    base = runs[spot, content]
    if all(np.array_equal(runs[at, other], runs[at, content]) for at, other in runs):
        raise ConfigError(
            "nothing that the learner releases depends on the canary",
            fix="give it more slots",
        )
    response = np.array(
        [(trial.dry(spot, content, _Impulses(i, _IMPULSE)) - base) / _IMPULSE for i in range(counter.drawn)]
    ).T
    inverse = np.linalg.pinv(response, rcond=1e-10)
    best = (-1.0, spot, content, content, base, base)
    for spot in trial.spots():
        for one, other in itertools.combinations(trial.contents(), 2):
            gap = runs[spot, one] - runs[spot, other]
            attack = inverse @ gap
            mu = float(np.linalg.norm(attack))
            if np.linalg.norm(response @ attack - gap) > 1e-6 * np.linalg.norm(gap):
                mu = math.inf  # a part of the release has no noise at all
            if mu > best[0]:
                middle = (runs[spot, one] + runs[spot, other]) / 2
                unit = attack / max(float(np.linalg.norm(attack)), 1e-300)
                best = (mu, spot, one, other, middle, unit @ inverse)
    return best


def _part(
    learner: Any, part: str, slots: int, runs: int | None, progress: Callable[[str, int, int], object]
) -> AuditPart:
    trial = _Trial(learner, part, slots)
    rule = trial.make().run.rule
    if part == "learning" and getattr(rule.plan, "warmup", False):
        raise ConfigError(
            f"{type(learner).__name__} releases {rule.plan.warmup} random points before anything of the data",
            fix="audit it with calibration='tight'",
        )
    exact, spot, one, other, middle, weights = _best(trial)
    if runs is None:
        # Enough for a lower bound of about half of mu.
        runs = int(min(max(110.0 / trial.claimed**2, 200.0), 4000.0))
    sides = np.empty((2, runs))
    for i in range(runs):
        for side, content in enumerate((one, other)):
            sides[side, i] = weights @ (trial.wet(spot, content, 2 * i + side) - middle)
        progress(part, i + 1, runs)
    noise = math.sqrt(float(sides.var(axis=1, ddof=1).mean()))
    measured = float(sides[0].mean() - sides[1].mean()) / noise
    stderr = math.sqrt(2.0 / runs + measured**2 / (4.0 * runs))
    planned, accounted = trial.account(spot)
    return AuditPart(
        part=part,
        slots=slots,
        runs=runs,
        canary=f"{one.name} or {other.name} in {_slots(trial.places(spot))}",
        claimed=trial.claimed,
        planned=planned,
        accounted=accounted,
        exact=exact,
        measured=measured,
        stderr=stderr,
        lower=max(measured - _Z * stderr, 0.0),
        noise=noise,
        noise_stderr=1.0 / math.sqrt(4.0 * (runs - 1)),
    )


def audit(
    learner: Any,
    *,
    slots: int | None = None,
    runs: int | None = None,
    progress: Callable[[str, int, int], object] = _silent,
) -> AuditReport:
    """Attack copies of a private learner with a canary, and compare with what it claims.

    Everything that sets the noise stays as configured: budget, loss, clip, buffer, strategy, noise key. To
    make the attack as strong as it can be, the copies are audited on their first features (four at most), the
    radius of the weights is tiny (where noise moves them: then no pair is satisfied, and every gradient is as
    long as it can be), and a horizon beyond `slots` is shortened to it, with the noise of so short a run. A
    warm-up is audited with as many slots behind it, which must not know its records; what is learned, by
    itself. Where `entity` protects all records of a person, the canary is a person with as many as are
    admitted. Records beyond the bounds are among the canaries.

    Parameters
    ----------
    learner
        A private learner of this package; it is not changed, and nothing of its budget is spent.
    slots
        Slots of a run; None: twice the buffer and 32 more (160 for metrics and output perturbation), at most
        the horizon.
    runs
        Runs on each of the two streams; None: by the claimed mu, 200 to 4000.
    progress
        Called after each pair of runs with the part, how many are done, and of how many.

    Returns
    -------
    AuditReport
        Claimed mu, the exact one of the best attack, the measured lower bound, and the verdict.

    Raises
    ------
    ConfigError
        If the learner is not private, or releases random points before anything of the data (the
        papers' calibration).

    References
    ----------
    docs/privacy.md 9.5. Jagielski, M., Ullman, J. and Oprea, A. (2020). Auditing differentially private
    machine learning: how private is private SGD? NeurIPS.

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> report = privacy.audit(auc.PairFTRL(epsilon=8.0, horizon=50), runs=100)
    >>> report.verdict
    'nothing contradicts the claim'
    """
    if not isinstance(learner, PrivateLearner):
        raise ConfigError(
            f"{type(learner).__name__} is not private, so it claims nothing that could be audited",
            fix="configure a private learner, such as streampair.auc.PairFTRL",
        )
    for name, value in (("slots", slots), ("runs", runs)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 4):
            raise ConfigError(f"{name} is {value!r}", fix="give an integer of at least 4, or None")
    settings = learner.settings
    if slots is None:
        size = settings.buffer.influence.size
        # A metric is brought away from 0 first; output perturbation costs late records more.
        late = hasattr(type(learner), "metric_") or isinstance(settings.mechanism, Output)
        slots = 2 * size + (32 + 2 * _PUSH if late else 32)
    if settings.horizon is not None:
        slots = min(slots, settings.horizon)
    parts = []
    if settings.warmup:
        parts.append(_part(learner, "warm-up", 4, runs, progress))
    parts.append(_part(learner, "learning", slots, runs, progress))
    return AuditReport(
        learner=f"{type(learner).__module__}.{type(learner).__qualname__}",
        epsilon=float(settings.epsilon),
        delta=float(settings.delta),
        parts=tuple(parts),
    )
