"""Canary audit: what a private learner's releases disclose of one record, measured (docs/privacy 9.5).

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

_Z = NormalDist().inv_cdf(1.0 - 1e-4)  # of a true learner one number in 1e4 is beyond it
_TOLERANCE = 1e-6
_IMPULSE = 64.0
_CONSTANT = 1e-9  # of its size: outcomes that differ by less differ by rounding alone
_WOODED = 8  # slots of a forest, whose releases have many numbers


@dataclass(frozen=True)
class AuditPart:
    """The audit of one part of a run.

    Parameters
    ----------
    part
        "warm-up", "learning" or "auc".
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
        mu of the best attack on this canary, from the releases' response to each single normal; infinite if a
        part of what the canary moves has no noise at all.
    measured, stderr
        mu as the attack shows it with the learner's own noise, and its standard error; infinite and 0 if the
        runs on each stream all had one outcome, and not the same.
    lower
        What mu is at least, at confidence 1 - 1e-4.
    noise
        Standard deviation of the attack's outcome over what it should be (0 where the attack is on what has
        no noise), and
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
        if self.noise == 0.0:
            found.append("the attack saw no noise: all runs on one stream had the same outcome")
        elif not self.noise >= 1.0 - _Z * self.noise_stderr:
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


def _silent(part: str, done: int, of: int) -> None:
    """Show no progress."""


def _best(trial: Trial) -> tuple[float, int, Scene, Content, Content, Floats, Floats]:
    """The spot, the scene and the pair of canaries that disclose most, with the attack on them.

    Returns exact mu, spot, scene, the two contents, what is in the middle of their releases, and the weights
    of the attack on all releases: also on those before the canary, which tell of the noise that comes back
    later.
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
    # Counts are rounded to whole numbers, which must not show.
    size = _IMPULSE if trial.part != "auc" else 2.0**20
    response = np.array(
        [(trial.dry(spot, content, Impulses(i, size)) - base) / size for i in range(counter.drawn)]
    ).T
    inverse = np.linalg.pinv(response, rcond=1e-10)
    best = (-1.0, spot, scene, content, content, base, base)
    for spot, scene in itertools.product(trial.spots(), trial.scenes()):
        contents = list(trial.contents(scene))
        releases = np.array([runs[spot, scene, one] for one in contents]).T
        # All attacks at once: that on a pair is the difference of two.
        attacks = inverse @ (releases - releases[:, :1])
        without = response @ attacks - (releases - releases[:, :1])
        for i, j in itertools.combinations(range(len(contents)), 2):
            attack, gap = attacks[:, i] - attacks[:, j], releases[:, i] - releases[:, j]
            mu = float(np.linalg.norm(attack))
            bare = without[:, j] - without[:, i]
            if np.linalg.norm(bare) > 1e-6 * np.linalg.norm(gap):
                mu = math.inf  # a part of the release has no noise at all: the attack looks there
            if mu > best[0]:
                middle = (releases[:, i] + releases[:, j]) / 2
                if math.isinf(mu):
                    weights = bare / float(np.linalg.norm(bare))
                else:
                    weights = attack / max(float(np.linalg.norm(attack)), 1e-300) @ inverse
                best = (mu, spot, scene, contents[i], contents[j], middle, weights)
    return best


def _outcome(sides: Floats) -> tuple[float, float, float]:
    """Noise, mu and its standard error by the outcomes of an attack on two streams, (2, runs)."""
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
    rule = trial.make().run.state
    if part == "learning" and getattr(rule.plan, "warmup", False):
        raise ConfigError(
            f"{type(learner).__name__} releases {rule.plan.warmup} random points before anything of the data",
            fix="audit it with calibration='tight'",
        )
    exact, spot, scene, one, other, middle, weights = _best(trial)
    if runs is None:
        # Enough for a lower bound of about half of mu.
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
    # By chance alone each of the two bounds is passed once in 10,000 measurements.
    return attacked(runs) if found.failures else found


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
    long as it can be), a horizon beyond `slots` is shortened to it, with the noise of so short a run, and a
    half-life to that of blocks of one slot; a forest has its first two features, and two trees of two splits,
    by the same code. A warm-up is audited with as many slots behind it, which must not
    know its records; what is learned, by itself. Where `entity` protects all records of a person, the canary
    is a person with as many as are admitted. Records beyond the bounds are among the canaries. What a private
    AUC is computed from is audited by itself, for weights that stay.

    Parameters
    ----------
    learner
        A private learner of this package; it is not changed, and nothing of its budget is spent.
    slots
        Slots of a run; None: twice the buffer and 32 more (160 for metrics and output perturbation; 8 for a
        forest), at most the horizon.
    runs
        Runs on each of the two streams; None: by the claimed mu, 200 to 4000.
    progress
        Called after each pair of runs with the part, how many are done, and of how many.

    Returns
    -------
    AuditReport
        Claimed mu, the exact one of the best attack, the measured lower bound, and the verdict. A part that
        contradicts the claim is measured twice, with fresh noise, and the second measurement is reported:
        with the default number of runs fewer than one audit in a million is a false positive.

    Raises
    ------
    ConfigError
        If the learner is not private, or releases random points before anything of the data (the
        papers' calibration).

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
        late = hasattr(type(learner), "metric_") or isinstance(settings.mechanism, OutputPerturbation)
        slots = 2 * size + (32 + 2 * PUSH if late else 32)
        if isinstance(settings.mechanism, DPForest):
            slots = _WOODED
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
