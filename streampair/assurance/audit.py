"""Canary audit: measures how much a private learner's releases disclose about one record (docs/privacy 9.5).

The audit compares the releases on two streams that differ in one record, the canary. A release is a linear
function of the normals that the learner draws, so mu can be computed and measured:

- *exactly*: with zeros in place of the normals, and then a single 1 at each index in turn. The responses give
  the distance between the two streams' releases in units of the noise that is really added. This is the mu of
  the best possible attack on this canary; it must not exceed the claim;
- *by experiment*, with the learner's own noise: the best attack is run many times on each stream. Its success
  gives a lower bound of mu, and its variance shows whether the noise has the right size.

An audit can refute a claim, never prove it: another canary might disclose more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.assurance.canary import PUSH, Content, Impulses, Scene, Trial, slots_of
from streampair.base.private import PrivateLearner
from streampair.errors import ConfigError
from streampair.privacy.mechanisms.dp_forest import DPForest
from streampair.privacy.mechanisms.output_perturbation import OutputPerturbation
from streampair.privacy.mechanisms.private_auc import WithPrivateAUC
from streampair.privacy.pipeline_check import class_name

__all__ = ["AuditPart", "AuditReport", "audit"]

Floats = NDArray[np.float64]

_Z = NormalDist().inv_cdf(1.0 - 1e-4)  # a correct learner exceeds it once in 1e4 measurements
_TOLERANCE = 1e-6
_IMPULSE = 64.0
_CONSTANT = 1e-9  # relative: outcomes that differ by less are equal up to rounding
_FOREST_SLOTS = 8  # fewer slots for a forest, whose releases have many numbers


@dataclass(frozen=True)
class AuditPart:
    """Result of the audit of one part of a learner.

    Parameters
    ----------
    part
        "warm-up", "learning" or "auc".
    slots, runs
        Slots of a run, and runs on each of the two streams.
    canary
        Contents of the canary's slot in the two streams, in words.
    claimed
        mu that the configuration promises for one record.
    planned
        mu of the learner's account at the end of a run.
    accounted
        mu of the account for the slots of this canary.
    exact
        mu of the best attack on this canary, from the response of the releases to each single normal;
        infinite if the canary changes a part of the releases that has no noise.
    measured, stderr
        mu measured by the attack with the learner's own noise, and its standard error; infinite and 0 if all
        runs on each stream had the same outcome, and the two streams' outcomes differ.
    lower
        Lower bound of mu at confidence 1 - 1e-4.
    noise
        Standard deviation of the attack's outcome relative to its expected value; 0 if the attack is on a
        part without noise.
    noise_stderr
        Standard error of `noise`.
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
        """Contradictions to the claim, a sentence each; empty if there are none."""
        found = []
        if not self.planned <= self.claimed * (1.0 + _TOLERANCE):
            found.append(f"the account has mu {self.planned:.4g}, more than the claimed {self.claimed:.4g}")
        if not self.exact <= self.accounted * (1.0 + _TOLERANCE):
            found.append(f"the canary shows mu {self.exact:.4g}, and {self.accounted:.4g} is accounted for")
        if not self.lower <= self.accounted:
            found.append(f"mu is at least {self.lower:.4g}, and {self.accounted:.4g} is accounted for")
        if self.noise == 0.0:
            found.append("the attack saw no noise: all runs on one stream had the same outcome")
        elif not self.noise >= 1.0 - _Z * self.noise_stderr:
            found.append(f"the noise has only {self.noise:.3f} of the size that it should have")
        return tuple(found)


@dataclass(frozen=True)
class AuditReport:
    """Result of `audit`: one `AuditPart` for each part of the learner."""

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
        """The result in one sentence."""
        broken = [f"{part.part}: {failure}" for part in self.parts for failure in part.failures]
        if broken:
            return "VIOLATED: " + "; ".join(broken)
        return "nothing contradicts the claim"


def _silent(part: str, done: int, of: int) -> None:
    """Show no progress."""


def _best(trial: Trial) -> tuple[float, int, Scene, Content, Content, Floats, Floats]:
    """Find the slot, the scene and the pair of canaries with the largest mu, and the best attack on them.

    Returns exact mu, slot, scene, the two contents, the midpoint of their releases, and the weights of the
    attack on all releases. Releases before the canary have weights too, since their noise is correlated with
    that of later ones.
    """
    counter = Impulses()
    trial.dry(0, next(trial.contents()), counter)
    runs: dict[tuple[int, Scene, Content], Floats] = {
        (spot, scene, content): trial.dry(spot, content, Impulses(), scene)
        for spot in trial.spots()
        for scene in trial.scenes()
        for content in trial.contents(scene)
    }
    spot, scene, content = next(iter(runs))
    base = runs[spot, scene, content]
    first = {around: next(trial.contents(around)) for around in trial.scenes()}
    if all(np.array_equal(run, runs[slot, around, first[around]]) for (slot, around, _), run in runs.items()):
        raise ConfigError(
            "nothing that the learner releases depends on the canary",
            fix="give it more slots",
        )
    # Counts are rounded to integers: the impulse must be large against that.
    size = _IMPULSE if trial.part != "auc" else 2.0**20
    response = np.array(
        [(trial.dry(spot, content, Impulses(i, size)) - base) / size for i in range(counter.drawn)]
    ).T
    inverse = np.linalg.pinv(response, rcond=1e-10)
    best = (-1.0, spot, scene, content, content, base, base)
    for spot, scene in itertools.product(trial.spots(), trial.scenes()):
        contents = list(trial.contents(scene))
        releases = np.array([runs[spot, scene, one] for one in contents]).T
        # One attack per content; the attack on a pair is the difference of two.
        attacks = inverse @ (releases - releases[:, :1])
        without = response @ attacks - (releases - releases[:, :1])
        for i, j in itertools.combinations(range(len(contents)), 2):
            attack, gap = attacks[:, i] - attacks[:, j], releases[:, i] - releases[:, j]
            mu = float(np.linalg.norm(attack))
            bare = without[:, j] - without[:, i]
            if np.linalg.norm(bare) > 1e-6 * np.linalg.norm(gap):
                mu = math.inf  # a part of the release has no noise: the attack uses that part
            if mu > best[0]:
                middle = (releases[:, i] + releases[:, j]) / 2
                if math.isinf(mu):
                    weights = bare / float(np.linalg.norm(bare))
                else:
                    weights = attack / max(float(np.linalg.norm(attack)), 1e-300) @ inverse
                best = (mu, spot, scene, contents[i], contents[j], middle, weights)
    return best


def _outcome(sides: Floats) -> tuple[float, float, float]:
    """Return noise, mu and its standard error from the outcomes of an attack on two streams, (2, runs)."""
    runs = sides.shape[1]
    noise = math.sqrt(float(sides.var(axis=1, ddof=1).mean()))
    gap = float(sides[0].mean() - sides[1].mean())
    if noise <= _CONSTANT * float(np.abs(sides).max()):
        return 0.0, math.inf if abs(gap) > noise else 0.0, 0.0
    measured = gap / noise
    return noise, measured, math.sqrt(2.0 / runs + measured**2 / (4.0 * runs))


def _part(
    learner: Any, part: str, slots: int, runs: int | None, progress: Callable[[str, int, int], object]
) -> AuditPart:
    trial = Trial(learner, part, slots)
    state = trial.make().run.state
    if part == "learning" and getattr(state.mechanism_plan, "warmup", False):
        raise ConfigError(
            f"{type(learner).__name__} releases {state.mechanism_plan.warmup} random points before any model",
            fix="audit it with calibration='tight'",
        )
    exact, spot, scene, one, other, middle, weights = _best(trial)
    if runs is None:
        # Enough runs for a lower bound of about half of mu.
        runs = int(min(max(110.0 / trial.claimed**2, 200.0), 4000.0))
    planned, accounted = trial.account(spot)

    def attacked(first: int) -> AuditPart:
        sides = np.empty((2, runs))
        for i in range(runs):
            for side, content in enumerate((one, other)):
                sides[side, i] = weights @ (trial.wet(spot, content, 2 * (first + i) + side, scene) - middle)
            progress(part, i + 1, runs)
        noise, measured, stderr = _outcome(sides)
        return AuditPart(
            part=part,
            slots=trial.slots,
            runs=runs,
            canary=f"{one.name} or {other.name} in {slots_of(trial.places(spot))}",
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

    found = attacked(0)
    # A correct learner exceeds each of the two bounds once in 10,000 measurements: measure again then.
    return attacked(runs) if found.failures else found


def audit(
    learner: Any,
    *,
    slots: int | None = None,
    runs: int | None = None,
    progress: Callable[[str, int, int], object] = _silent,
) -> AuditReport:
    """Attack copies of a private learner with a canary, and compare the result with its claim.

    All parameters that set the noise stay as configured: budget, loss, clip, buffer, strategy, noise key. The
    following changes make the attack as strong as possible:

    - the copies have only the first features (at most four);
    - where noise moves the weights, their radius is tiny, so that no pair is satisfied and every gradient has
      its largest norm;
    - a horizon beyond `slots` is shortened to it, with the noise of that horizon;
    - a half-life is shortened to that of blocks of one slot;
    - a forest has its first two features, and two trees of two splits.

    The warm-up is audited with as many slots after it, which must not depend on its records; learning and the
    histograms of a private AUC are audited separately, the latter for fixed weights. With `entity` the canary
    is an entity with as many records as are admitted. Some canaries are beyond the bounds.

    Parameters
    ----------
    learner
        A private learner of this package; it is not changed, and none of its budget is spent.
    slots
        Slots of a run; None: twice the buffer and 32 more (160 for metrics and output perturbation; 8 for a
        forest), at most the horizon.
    runs
        Runs on each of the two streams; None: by the claimed mu, 200 to 4000.
    progress
        Called after each pair of runs with the part, the number of pairs done, and their total.

    Returns
    -------
    AuditReport
        Claimed mu, the exact mu of the best attack, the measured lower bound, and the verdict. A part that
        contradicts the claim is measured twice, with fresh noise, and the second measurement is reported:
        with the default number of runs fewer than one audit in a million is a false positive.

    Raises
    ------
    ConfigError
        If the learner is not private, or releases random points before any model (the papers' calibration).

    References
    ----------
    docs/privacy 9.5. Jagielski, M., Ullman, J. and Oprea, A. (2020). Auditing differentially private
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
            f"{type(learner).__name__} is not private, so it makes no claim to audit",
            fix="configure a private learner, such as streampair.auc.PairFTRL",
        )
    for name, value in (("slots", slots), ("runs", runs)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 4):
            raise ConfigError(f"{name} is {value!r}", fix="give an integer of at least 4, or None")
    settings = learner.settings
    if slots is None:
        size = settings.buffer.influence.size
        # A metric is first moved away from 0; with output perturbation late records cost more.
        late = hasattr(type(learner), "metric_") or isinstance(settings.mechanism, OutputPerturbation)
        slots = 2 * size + (32 + 2 * PUSH if late else 32)
        if isinstance(settings.mechanism, DPForest):
            slots = _FOREST_SLOTS
    if settings.horizon is not None:
        slots = min(slots, settings.horizon)
    parts = []
    if settings.warmup:
        parts.append(_part(learner, "warm-up", 4, runs, progress))
    parts.append(_part(learner, "learning", slots, runs, progress))
    if any(isinstance(companion, WithPrivateAUC) for companion in settings.companions):
        parts.append(_part(learner, "auc", slots, runs, progress))
    return AuditReport(
        learner=class_name(learner),
        epsilon=float(settings.epsilon),
        delta=float(settings.delta),
        parts=tuple(parts),
    )
