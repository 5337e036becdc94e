"""What privacy will cost, before there is any data: noise, expected AUC and settings of each mechanism.

The noise is that of the learners themselves, as they would be built. The AUC is that of a reference task,
which needs no data: two classes of normal records whose features are independent and equally telling, with
the AUC that the best scorer would reach. There a mechanism's weights are the right direction plus noise, and
the AUC follows from the ratio of the two. Real features are correlated and not normal, so a real stream does
better or worse; which mechanism wins, and from how many records on, carries over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from streampair import auc as learners
from streampair.errors import ConfigError
from streampair.learners.private import PrivateLearner
from streampair.privacy.accounting import mu_from
from streampair.privacy.mechanisms.ftrl import FTRLPlan
from streampair.privacy.mechanisms.moments_plan import SecondMomentsPlan
from streampair.privacy.mechanisms.noisy import NoisyPlan
from streampair.privacy.mechanisms.output_plan import LONGEST_OUTPUT, OutputPlan

__all__ = ["Forecast", "PrivacyPlan", "plan"]

USEFUL = 0.02
"""Expected AUC loss at which a mechanism counts as useful."""

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_MOST_RECORDS = 10**8
# Beyond it the noise of the gradients is taken from the plan of a stream without end: 4 % more, and one fit.
_LONGEST_FIT = 4096


@dataclass(frozen=True)
class Forecast:
    """One mechanism's.

    Parameters
    ----------
    mechanism, settings
        Class of `streampair.auc`, and the parameters to give it.
    noise
        Standard deviation of its noise in units of what it measures, over all coordinates: 1 means that
        there is as much noise as signal in the weights.
    auc, loss
        Expected AUC, and what is missing to the AUC without privacy from as many records.
    useful_from
        Records from which the loss is at most .02; None: beyond 1e8, or beyond what the mechanism takes.
    curve
        (epsilon, expected AUC), the other settings equal.
    """

    mechanism: str
    settings: dict[str, Any]
    noise: float
    auc: float
    loss: float
    useful_from: int | None
    curve: tuple[tuple[float, float], ...]

    def call(self) -> str:
        """The recommended call."""
        return f"auc.{self.mechanism}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"


@dataclass(frozen=True)
class PrivacyPlan:
    """What `plan` found; the mechanisms with the highest expected AUC come first."""

    n: int
    d: int
    epsilon: float
    delta: float
    positive_rate: float
    mu: float
    auc_best: float
    auc_without_privacy: float
    forecasts: tuple[Forecast, ...]

    @property
    def best(self) -> Forecast:
        """The mechanism with the highest expected AUC."""
        return self.forecasts[0]

    def __str__(self) -> str:
        lines = [
            f"{self.n} records, {self.d} features, {self.positive_rate:g} positive; epsilon {self.epsilon:g} "
            f"at delta {self.delta:.3g} (mu {self.mu:.4g})",
            f"expected AUC without privacy {self.auc_without_privacy:.3f}",
            f"{'mechanism':<44}{'noise':>8}{'AUC':>8}{'loss':>8}{'useful from':>14}",
        ]
        for f in self.forecasts:
            start = "-" if f.useful_from is None else f"{f.useful_from:.0e}"
            name = f.mechanism + "".join(f", {k}={v}" for k, v in f.settings.items() if k in _TELLING)
            lines.append(f"{name:<44}{f.noise:>8.2g}{f.auc:>8.3f}{f.loss:>8.3f}{start:>14}")
        lines.append(f"recommended: {self.best.call()}")
        return "\n".join(lines)


_TELLING = ("horizon", "solver", "l2")


@dataclass(frozen=True)
class _Task:
    """The reference task: `best` is the AUC of the right direction."""

    d: int
    rate: float
    best: float

    @property
    def gap(self) -> float:
        """Distance of the class means, in standard deviations of a score in the right direction."""
        return math.sqrt(2.0) * NormalDist().inv_cdf(self.best)

    def auc(self, error: float) -> float:
        """AUC of the right direction plus a perpendicular error, `error` times as long."""
        return NormalDist().cdf(self.gap / math.sqrt(2.0) / math.sqrt(1.0 + error * error))

    def sampling(self, n: float) -> float:
        """Squared error of the best direction from n records."""
        spread = self.rate * (1.0 - self.rate)
        return (self.d - 1) * (1.0 / spread + self.gap**2) / (n * self.gap**2)


# ---- squared errors in the weights, noise only ---------------------------------------------------------
#
# Designs have norm about `reach`, so each coordinate has variance `v = reach^2 / d`, and the class means
# are `gap sqrt(v)` apart. No constant is fitted: benchmarks/planner.py says how far they are off.


def _moments_error(task: _Task, plan: SecondMomentsPlan, steps: int) -> float:
    known = plan.information(steps)
    if known == 0.0:
        return math.inf
    v, std = 1.0 / task.d, 1.0 / math.sqrt(known)
    signal = task.rate * (1.0 - task.rate) * task.gap * math.sqrt(v)
    weight = 1.0 + abs(2.0 * task.rate - 1.0)
    vector = (task.d - 1) * (0.5 * weight * std / signal) ** 2
    matrix = 0.5 * task.d * (std / (v + math.sqrt(task.d) * std)) ** 2
    return vector + matrix


def _gradient(task: _Task, reach: float, clip: float, tangent: bool, slope: float) -> float:
    """Size of the mean gradient at 0: a share `2 p (1 - p)` of pairs, clipped, in the right direction."""
    length = math.sqrt(2.0) * reach
    each = min(slope, 1.0 if tangent else clip / length)
    return 2.0 * task.rate * (1.0 - task.rate) * each * task.gap * reach / math.sqrt(task.d)


def _ftrl_error(task: _Task, plan: FTRLPlan, steps: int, reach: float) -> float:
    noise = plan.sigma * plan.strategy.error(steps)
    return (task.d - 1) * (noise / (steps * _gradient(task, reach, plan.clip, plan.tangent, 2.0))) ** 2


def _noisy_error(task: _Task, plan: NoisyPlan, steps: int, reach: float) -> float:
    noise = plan.sigma * math.sqrt(steps)
    return (task.d - 1) * (noise / (steps * _gradient(task, reach, plan.clip, False, 2.0))) ** 2


def _output_error(task: _Task, plan: OutputPlan, steps: int, reach: float) -> float:
    precision = float(np.sum(1.0 / plan.sigmas[np.isfinite(plan.sigmas)] ** 2))
    force = _gradient(task, reach, plan.clip, False, 1.0)
    each = min(1.0, plan.clip / (math.sqrt(2.0) * reach))
    bend = 4.0 * task.rate * (1.0 - task.rate) * each * reach**2 / task.d
    weight = min(force / (plan.alpha + bend), plan.radius)
    return (task.d - 1) / (precision * weight**2)


def _error(task: _Task, model: PrivateLearner, n: int) -> float:
    """Squared error of a learner's weights by its noise, after n records."""
    run = model.run
    assert run is not None
    warmup = run.settings.warmup
    steps = n - warmup
    if steps <= 0:
        return math.inf
    # Standardised records have length 1; bounds of four standard deviations make shorter ones.
    reach = 1.0 if warmup else min(1.0, math.sqrt(task.d) / 4.0)
    match run.rule.plan:
        case SecondMomentsPlan() as moments:
            return _moments_error(task, moments, steps)
        case FTRLPlan() as gradients:
            return _ftrl_error(task, gradients, steps, reach)
        case OutputPlan() as output:
            return _output_error(task, output, steps, reach)
        case NoisyPlan() as noisy:
            return _noisy_error(task, noisy, steps, reach)
        case other:
            raise TypeError(f"no forecast for {type(other).__name__}")


# ---- mechanisms ----------------------------------------------------------------------------------------

Maker = Callable[[int, _Task], dict[str, Any]]

_CHOICES: tuple[tuple[str, Maker], ...] = (
    ("PairFTRL", lambda n, task: {"horizon": n}),
    ("PairFTRL", lambda n, task: {}),
    ("PairFTRL", lambda n, task: {"horizon": n, "solver": "gradients"}),
    # A ridge term in proportion to the share of pairs that have a gradient.
    ("OnPairStrC", lambda n, task: {"horizon": n, "l2": float(f"{0.4 * task.rate * (1 - task.rate):.2g}")}),
    ("OnPairC", lambda n, task: {"horizon": n}),
    ("NoisyOGD", lambda n, task: {"horizon": n}),
)


def _expected(
    task: _Task, mechanism: str, settings: dict[str, Any], n: int, eps: float, delta: float
) -> float:
    """Squared error by the noise of a mechanism; infinite where it cannot run."""
    given = dict(settings)
    if mechanism.startswith("OnPair") and n > LONGEST_OUTPUT:
        return math.inf
    if given.get("solver") == "gradients" and n > _LONGEST_FIT:
        # The warm-up is that of the horizon; the fit is one for all.
        given["warmup"] = learners.PairFTRL(eps, delta, horizon=n, solver="gradients").settings.warmup
        del given["horizon"]
    names = [f"x{i}" for i in range(task.d)]
    try:
        model = getattr(learners, mechanism)(epsilon=eps, delta=delta, features=names, **given)
    except ConfigError:
        return math.inf
    return _error(task, model, n)


def _useful_from(task: _Task, mechanism: str, maker: Maker, eps: float, delta: float) -> int | None:
    """The smallest of 1, 1.5, 2, 3, 5, 7 times a power of ten from which the loss stays small."""
    grid = [int(k * 10**p) for p in range(2, 8) for k in (1, 1.5, 2, 3, 5, 7)] + [_MOST_RECORDS]

    def useful(n: int) -> bool:
        sampling = task.sampling(n)
        error = _expected(task, mechanism, maker(n, task), n, eps, delta)
        return task.auc(math.sqrt(sampling)) - task.auc(math.sqrt(sampling + error)) <= USEFUL

    if mechanism.startswith("OnPair"):
        grid = [n for n in grid if n <= LONGEST_OUTPUT]
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if useful(grid[middle]) else (middle + 1, high)
    return grid[low] if low < len(grid) else None


def plan(
    n: int,
    d: int,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    positive_rate: float = 0.5,
    auc: float = 0.85,
) -> PrivacyPlan:
    """What each private learner of `streampair.auc` will cost on a stream, before it is seen.

    Nothing here reads data: a search over settings on a private stream would leak.

    Parameters
    ----------
    n, d
        Records and features.
    epsilon, delta
        Budget of a record; delta None is ``1 / n``.
    positive_rate
        Guessed share of positives.
    auc
        Guessed AUC of the best linear scorer.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> from streampair import privacy
    >>> found = privacy.plan(20_000, 20, epsilon=1.0)
    >>> found.best.call()
    'auc.PairFTRL(epsilon=1.0, delta=5e-05, horizon=20000)'
    >>> found.best.loss < 0.01
    True
    """
    for name, value, least, most in (
        ("n", n, 10, _MOST_RECORDS),
        ("d", d, 1, 10_000),
        ("positive_rate", positive_rate, 1e-6, 1 - 1e-6),
        ("auc", auc, 0.501, 0.9999),
    ):
        whole = name in ("n", "d")
        if (whole and not isinstance(value, int)) or not least <= value <= most:
            raise ConfigError(f"{name} is {value!r}", fix=f"give a number from {least:g} to {most:g}")
    chosen = 1.0 / n if delta is None else delta
    mu = mu_from(epsilon, chosen)
    task = _Task(d, positive_rate, auc)
    sampling = task.sampling(n)
    reachable = task.auc(math.sqrt(sampling))
    forecasts = []
    for mechanism, maker in _CHOICES:
        settings = maker(n, task)
        error = _expected(task, mechanism, settings, n, epsilon, chosen)
        expected = task.auc(math.sqrt(sampling + error))
        curve = tuple(
            (e, task.auc(math.sqrt(sampling + _expected(task, mechanism, settings, n, e, chosen))))
            for e in EPSILONS
        )
        forecasts.append(
            Forecast(
                mechanism,
                {"epsilon": epsilon, "delta": chosen, **settings},
                math.sqrt(error),
                expected,
                reachable - expected,
                _useful_from(task, mechanism, maker, epsilon, chosen),
                curve,
            )
        )
    forecasts.sort(key=lambda f: -f.auc)
    return PrivacyPlan(n, d, epsilon, chosen, positive_rate, mu, auc, reachable, tuple(forecasts))
