"""Gaussian differential privacy: conversion, calibration and the report (docs/privacy 1).

A mechanism with l2 sensitivity `Delta` and Gaussian noise of standard deviation `sigma`
is mu-GDP with `mu = Delta / sigma` (Dong, Roth & Su 2022). Adaptive composition is
exact, `mu^2 = sum mu_i^2`, and so is the conversion to (epsilon, delta) of Balle & Wang
(2018, Theorem 8). The papers calibrate in zCDP (Bun & Steinke 2016), and Laplace mechanisms have a pure
epsilon; `Spend` composes all three.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy  # its modules are loaded on first use

from streampair.errors import ConfigError, PrivacyWarning
from streampair.privacy._repr_html import collapsed, table

__all__ = [
    "DOUBTFUL_BY",
    "NOT_COVERED",
    "OUTWARD",
    "ROUNDING_SHARE",
    "VOID_BY",
    "PrivacyReport",
    "Spend",
    "compose",
    "delta_from",
    "doubts",
    "epsilon_from",
    "epsilon_from_rho",
    "mu_from",
    "planned_mu",
    "promised_epsilon",
    "rho_from",
    "rounded_to_budget",
    "warn_if_doubtful",
]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_ROOT_HALF_PI = math.sqrt(math.pi / 2.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _check_epsilon(epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.integer, np.floating)):
        raise ConfigError(
            f"epsilon is {epsilon!r}, not a number", fix="give a positive number, for example 1.0"
        )
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon is {epsilon!r}", fix="give a finite number above 0, for example 1.0")
    return float(epsilon)


def _check_delta(delta: float) -> float:
    if isinstance(delta, bool) or not isinstance(delta, (int, float, np.integer, np.floating)):
        raise ConfigError(
            f"delta is {delta!r}, not a number", fix="give a number between 0 and 1, for example 1e-6"
        )
    if not 0.0 < delta < 1.0:
        raise ConfigError(
            f"delta is {delta!r}",
            fix="give a number above 0 and below 1, at most one over the number of records",
        )
    return float(delta)


def _log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of the smallest delta of mu-GDP at epsilon; -inf when it underflows."""
    if mu <= 0.0:
        return -math.inf
    h = 0.5 * mu
    x = epsilon / mu
    if not math.isfinite(x):
        return -math.inf
    near, far = x - h, x + h
    if h < 0.25 and near < 1e7:
        # Both terms are nearly equal. With Mills' ratio R(t) = Phi(-t)/phi(t) the
        # difference is phi(near) (R(near) - R(far)), and R' = t R - 1 is smooth, so the
        # difference of R is integrated instead of subtracted.
        t = x + h * _NODES
        slope = 1.0 - t * _ROOT_HALF_PI * scipy.special.erfcx(t / math.sqrt(2.0))
        # 1 - t R(t) itself cancels for large t; its asymptotic series is exact there.
        large = t > 30.0
        if large.any():
            u = 1.0 / (t[large] * t[large])
            slope[large] = u * (1.0 - u * (3.0 - u * (15.0 - u * (105.0 - 945.0 * u))))
        area = h * float(_WEIGHTS @ slope)
        if area <= 0.0:
            return -math.inf
        return -0.5 * near * near - _HALF_LOG_2PI + math.log(area)
    a = float(scipy.special.log_ndtr(-near))
    b = epsilon + float(scipy.special.log_ndtr(-far))
    if a == -math.inf:
        return -math.inf
    ratio = b - a
    if ratio >= 0.0:  # rounding only: the true difference is positive
        return -math.inf
    return a + math.log(-math.expm1(ratio))


def delta_from(epsilon: float, mu: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    `Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)`, evaluated without
    cancellation (Balle & Wang 2018, Theorem 8).

    Parameters
    ----------
    epsilon
        At least 0.
    mu
        At least 0.

    Examples
    --------
    >>> from streampair.privacy import delta_from
    >>> round(delta_from(1.0, 1.0), 6)
    0.126937
    """
    if not epsilon >= 0.0 or not mu >= 0.0:
        raise ConfigError(
            f"epsilon {epsilon!r} or mu {mu!r} is negative or not a number", fix="give numbers of at least 0"
        )
    if mu == math.inf:
        return 1.0
    return math.exp(_log_delta(float(epsilon), float(mu)))


def mu_from(epsilon: float, delta: float) -> float:
    """The largest mu whose mu-GDP implies (epsilon, delta)-DP.

    Rounded down in the last digits, so that `delta_from(epsilon, mu) <= delta`.

    Parameters
    ----------
    epsilon
        Above 0.
    delta
        Between 0 and 1.

    Raises
    ------
    ConfigError
        If epsilon is not above 0 or delta is not between 0 and 1.

    Examples
    --------
    >>> from streampair.privacy import mu_from
    >>> round(mu_from(1.0, 1e-6), 6)
    0.236704
    """
    return _mu_from(_check_epsilon(epsilon), _check_delta(delta))


@functools.lru_cache(maxsize=256)  # each copy of a learner calls it with the same numbers
def _mu_from(epsilon: float, delta: float) -> float:
    target = math.log(delta)

    def gap(log_mu: float) -> float:
        value = _log_delta(epsilon, math.exp(log_mu))
        return max(value, -1e6) - target

    low, high = math.log(epsilon) - 8.0, 1.0
    while gap(low) > 0.0:
        low -= 4.0
    while gap(high) < 0.0:
        high += 1.0
    root = scipy.optimize.brentq(gap, low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500)
    mu = math.exp(float(root)) * (1.0 - 1e-13)
    while _log_delta(epsilon, mu) > target:
        mu *= 1.0 - 1e-13
    return mu


def epsilon_from(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    Parameters
    ----------
    mu
        At least 0; 0 gives 0.
    delta
        Between 0 and 1.

    Examples
    --------
    >>> from streampair.privacy import epsilon_from, mu_from
    >>> round(epsilon_from(mu_from(2.0, 1e-5), 1e-5), 9)
    2.0
    """
    delta = _check_delta(delta)
    if math.isnan(mu) or mu < 0.0:
        raise ConfigError(f"mu is {mu!r}", fix="give a number of at least 0")
    if mu == 0.0:
        return 0.0
    if mu == math.inf:
        return math.inf
    return _solved_epsilon(mu, delta)


@functools.lru_cache(maxsize=64)  # a lane calls it with each commit, mostly for the same mu
def _solved_epsilon(mu: float, delta: float) -> float:
    target = math.log(delta)
    if _log_delta(0.0, mu) <= target:
        return 0.0

    def gap(epsilon: float) -> float:
        return max(_log_delta(epsilon, mu), -1e6) - target

    high = 0.5 * mu * mu + mu
    while gap(high) > 0.0:
        high *= 2.0
    return float(scipy.optimize.brentq(gap, 0.0, high, xtol=1e-300, rtol=8.9e-16, maxiter=500))


ROUNDING_SHARE = 2.0**-10
"""Part of a promised delta that is kept for the rounding of the noise (docs/privacy, Lemma 21)."""

OUTWARD = 2.0**-30
"""Part of mu that is kept for the rounding of sensitivities and standard deviations, which errs by less."""


def planned_mu(epsilon: float, delta: float) -> float:
    """The mu that noise is calibrated to, so that a computed release keeps (epsilon, delta).

    It is smaller than `mu_from(epsilon, delta)`: part of delta is for the rounding of the noise, and the last
    digits are for the rounding of sensitivities and standard deviations (docs/privacy 7.2).

    Examples
    --------
    >>> from streampair.privacy.accounting import mu_from, planned_mu
    >>> 0.9999 < planned_mu(1.0, 1e-6) / mu_from(1.0, 1e-6) < 1.0
    True
    """
    return mu_from(epsilon, (1.0 - ROUNDING_SHARE) * _check_delta(delta)) * (1.0 - OUTWARD)


def promised_epsilon(mu: float, delta: float) -> float:
    """The epsilon at delta of computed releases whose plans account for mu: the inverse of `planned_mu`.

    Examples
    --------
    >>> from streampair.privacy.accounting import planned_mu, promised_epsilon
    >>> round(promised_epsilon(planned_mu(2.0, 1e-5), 1e-5), 9)
    2.0
    """
    return epsilon_from(mu / (1.0 - OUTWARD), (1.0 - ROUNDING_SHARE) * _check_delta(delta))


def rounded_to_budget(spent: float, budget: float) -> float:
    """The budget, if the spend differs from it by rounding errors alone; else the spend.

    Examples
    --------
    >>> from streampair.privacy.accounting import rounded_to_budget
    >>> rounded_to_budget(0.9999999999999, 1.0), rounded_to_budget(0.999, 1.0)
    (1.0, 0.999)
    """
    return budget if abs(spent - budget) <= 1e-9 * budget else spent


def compose(mus: Iterable[float]) -> float:
    """The mu of several mu-GDP releases about the same record: `sqrt(sum mu^2)`, exact.

    Examples
    --------
    >>> from streampair.privacy import compose
    >>> compose([3.0, 4.0])
    5.0
    """
    return math.hypot(*mus)


def epsilon_from_rho(rho: float, delta: float) -> float:
    """An epsilon for which rho-zCDP implies (epsilon, delta)-DP: `rho + 2 sqrt(rho log(1/delta))`.

    Bun & Steinke (2016), Proposition 1.3: a bound, above the exact epsilon of a Gaussian mechanism, which is
    `epsilon_from(sqrt(2 rho), delta)`. It costs 14 to 48 % more noise where epsilon is .5 to 8 and delta 1e-4
    to 1e-6; the papers calibrate with it.

    Parameters
    ----------
    rho
        At least 0.
    delta
        Between 0 and 1.

    Raises
    ------
    ConfigError
        If one is out of range.

    Examples
    --------
    >>> from streampair.privacy import epsilon_from_rho
    >>> round(epsilon_from_rho(0.01, 1e-6), 6)
    0.753384
    """
    if not rho >= 0.0:
        raise ConfigError(f"rho is {rho!r}", fix="give a number of at least 0")
    return float(rho + 2.0 * math.sqrt(rho * -math.log(_check_delta(delta))))


def rho_from(epsilon: float, delta: float) -> float:
    """The rho that solves `rho + 2 sqrt(rho log(1/delta)) = epsilon` (H20, Algorithm 1, step 3).

    Parameters
    ----------
    epsilon
        Above 0.
    delta
        Between 0 and 1.

    Raises
    ------
    ConfigError
        If one is out of range.

    Examples
    --------
    >>> from streampair.privacy import epsilon_from_rho, rho_from
    >>> round(epsilon_from_rho(rho_from(1.0, 1e-6), 1e-6), 12)
    1.0
    """
    epsilon, log = _check_epsilon(epsilon), -math.log(_check_delta(delta))
    # sqrt(log + epsilon) - sqrt(log), without the cancellation.
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


@dataclass(frozen=True, slots=True)
class Spend:
    """Privacy loss of one record: mu-GDP, rho-zCDP and pure epsilon, each composed by its own rule.

    Parameters
    ----------
    mu
        mu-GDP, of Gaussian mechanisms.
    rho
        rho-zCDP, of mechanisms of which only zCDP is known.
    pure
        Pure epsilon, of Laplace mechanisms.

    Examples
    --------
    Two learners on one topic compose; two lanes hold different records, so the larger spend counts:

    >>> from streampair.privacy import Spend
    >>> Spend(mu=3.0).then(Spend(mu=4.0))
    Spend(mu=5.0, rho=0.0, pure=0.0)
    >>> Spend(mu=3.0).parallel(Spend(mu=4.0))
    Spend(mu=4.0, rho=0.0, pure=0.0)
    """

    mu: float = 0.0
    rho: float = 0.0
    pure: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mu", "rho", "pure"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", fix="give a number of at least 0")

    def then(self, *others: Spend) -> Spend:
        """Adaptive composition: the same record is in all of them. Exact in each of the three measures."""
        every = (self, *others)
        return Spend(
            compose(one.mu for one in every),
            math.fsum(one.rho for one in every),
            math.fsum(one.pure for one in every),
        )

    def parallel(self, *others: Spend) -> Spend:
        """Parallel composition: each record is in one of them only, and which one is not private.

        The larger of each currency: exact if one spend is the largest in all three, else a bound.
        """
        every = (self, *others)
        return Spend(
            max(one.mu for one in every), max(one.rho for one in every), max(one.pure for one in every)
        )

    def epsilon(self, delta: float) -> float:
        """An epsilon at delta for the composition of all three parts.

        The smallest of these bounds: without zCDP, the exact epsilon of the Gaussian part plus the pure
        epsilon (basic composition); that of zCDP, `rho + mu^2/2 + pure^2/2` (Bun & Steinke 2016, Prop. 1.4);
        and that of zCDP for the first two parts plus the pure epsilon. As in `promised_epsilon`, a part of
        delta is for the rounding of noise.
        """
        gaussian = self.rho + 0.5 * self.mu**2
        kept = (1.0 - ROUNDING_SHARE) * _check_delta(delta)
        ways = [
            epsilon_from_rho(gaussian + 0.5 * self.pure**2, kept),
            epsilon_from_rho(gaussian, kept) + self.pure,
        ]
        if self.rho == 0.0:
            ways.append(promised_epsilon(self.mu, delta) + self.pure)
        return min(ways)


Kind = Literal["holds", "void", "unvouched"]

_HEADS: dict[Kind, str] = {
    "holds": "Differential privacy holds",
    "void": "NO GUARANTEE HOLDS",
    "unvouched": "THE GUARANTEE CANNOT BE VOUCHED FOR IN FULL",
}

_OTHER_LEARNERS = "other learners on the same records: their spends add up (mu^2 adds up)"
NOT_COVERED = (
    "the score given to the protected record itself, which depends on its own features: keep the scores as "
    "safe as the features",
    "whether a record exists, and in which slot or partition",
    "metadata: keys, offsets, times, the schema",
    "records of others that depend on it otherwise than by releases of this learner, as where a model "
    "without privacy acts",
    f"several records of one person, as further attempts after a stop, and {_OTHER_LEARNERS}",
)
"""What the guarantee of a report about one record does not cover (docs/privacy 1)."""
VOID_BY = (
    "a fixed seed: whoever knows it can compute the noise",
    "bounds, features or a transformer in front of the learner that were learned from the stream",
    'stopping because of what a record contains (a breaker, or on_bad = "fail")',
)
"""What voids a guarantee, now or before."""
DOUBTFUL_BY = (
    "an older state put back",
    "two copies of one learner that both continue",
    "a process that forks",
)
"""What makes a guarantee `"unvouched"`."""


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """Guarantee and spent budget of a private learner.

    Every number comes from the learner's accountant. `str(report)` has a line each for the promised budget,
    the spent budget, the horizon, and what is not covered; `report.details` has the mechanism and every
    assumption.

    Parameters
    ----------
    epsilon_spent, epsilon_budget
        Spent by the releases so far, and at most, at `delta`.
    delta
        The delta of both.
    mu_spent, mu_budget
        The same in mu-GDP, which composes exactly: `mu^2` adds up.
    unit
        Who or what is protected.
    adjacency
        The neighbouring relation in words.
    releases
        Number of releases so far, that of the warm-up included.
    guarantee
        The state of the guarantee in words. Where it does not hold it starts with "void", "unvouched" or
        "vouched by the operator".
    kind
        The same in one word, such as for the label of a metric: `"holds"`, `"void"` or `"unvouched"`.
    horizon, horizon_left
        Slots that the plan covers, and those of them that can still be learned; None without a horizon.
    noise_std
        Standard deviation, per coordinate, of the independent noise of the releases.
    mechanism
        Description of the mechanism.
    product
        What is released: the kind of the model.
    notes
        Assumptions, restarts and other remarks, a sentence or two each.
    card
        The mechanism card: for each kind of release its domain, sensitivity, sigma, mu^2, what replacing and
        blanking a record cost, the part of delta for the rounding of its noise, and what is assumed of the
        cipher.
    auc
        The private AUC, as the fields of `streampair.privacy.mechanisms.private_auc.PrivateAUC`; None
        without `auc_share`.
    """

    epsilon_spent: float
    epsilon_budget: float
    delta: float
    mu_spent: float
    mu_budget: float
    unit: str
    adjacency: str
    releases: int
    guarantee: str
    kind: Kind
    horizon: int | None
    horizon_left: int | None
    noise_std: float
    mechanism: str = ""
    product: str = ""
    notes: tuple[str, ...] = ()
    card: tuple[Mapping[str, Any], ...] = ()
    auc: Mapping[str, Any] | None = None

    def replace(self, **changes: object) -> PrivacyReport:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def _floating_point(self) -> str:
        if not self.card:
            return ""
        share = sum(float(line["floating_point_delta"]) for line in self.card)
        most = (
            " for the first 1,048,576 releases, and learning ends before it is exceeded"
            if any(line["releases"] is None for line in self.card)
            else ""
        )
        return (
            f" The errors of the noise are charged: {ROUNDING_SHARE * self.delta:.1g} of delta is for them, "
            f"and they need {share:.1g}{most}."
        )

    def _left(self) -> str:
        if self.horizon is None or self.horizon_left is None:
            return "No horizon: the stream may be infinite, and the spend never exceeds the promised budget."
        if self.horizon_left == 0:
            return "The horizon is reached: the model still scores, and learns no more."
        return f"{self.horizon_left:,} of {self.horizon:,} records can be learned before the horizon."

    def _words(self) -> str:
        return (
            "Floating point: values are rounded to a grid and summed as integers, and the noise, computed in "
            "double-double arithmetic, is rounded with the sums (docs/privacy, Lemma 21)."
            + self._floating_point()
        )

    def _repr_html_(self) -> str:
        left, horizon = self.horizon_left, self.horizon
        rows = [
            ("guarantee", self.guarantee),
            ("protected", f"{self.unit}, under {self.adjacency}"),
            ("epsilon promised", f"{self.epsilon_budget:.6g} at delta {self.delta:.3g}"),
            ("epsilon spent", f"{self.epsilon_spent:.6g}"),
            ("mu spent", f"{self.mu_spent:.6g} of {self.mu_budget:.6g}"),
            ("releases", f"{self.releases:,}"),
            ("records until the horizon", "no horizon" if left is None else f"{left:,} of {horizon:,}"),
            ("noise, standard deviation", f"{self.noise_std:.4g}"),
        ]
        details = collapsed("In words", f"{self}\n{self.details}")
        return f"<div>{table(_HEADS[self.kind], rows)}{details}</div>"

    def _auc(self) -> str:
        if self.auc is None:
            return ""
        if self.auc["too_few"]:
            return "Private AUC: too few records of a class so far, compared with the noise."
        return f"Private AUC: {self.auc['value']:.4f}, with a standard error of {self.auc['stderr']:.4f}."

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee does not cover; that of an entity covers all of its records."""
        return (*NOT_COVERED[:-1], _OTHER_LEARNERS) if "entity" in self.unit else NOT_COVERED

    @property
    def details(self) -> str:
        """Mechanism, assumptions and remarks, a line each."""
        parts = (
            self.mechanism,
            self._words(),
            "The guarantee is computational: it assumes that the keystream of the cipher behind the noise is "
            "indistinguishable from random bits. Normals end at 11.6 standard deviations.",
            *self.notes,
            self._auc(),
        )
        return "\n".join(part for part in parts if part)

    def __str__(self) -> str:
        lines = (
            (
                "Promised",
                f"epsilon {self.epsilon_budget:.6g} at delta {self.delta:.3g} (mu {self.mu_budget:.6g} in "
                f"Gaussian differential privacy) for {self.unit}, under {self.adjacency}. An observer may "
                "see every released model and everything computed from the models.",
            ),
            (
                "Spent",
                f"epsilon {self.epsilon_spent:.6g} of {self.epsilon_budget:.6g} (mu {self.mu_spent:.6g} of "
                f"{self.mu_budget:.6g}) in {self.releases:,} releases.",
            ),
            ("Left", self._left()),
            ("Not covered", f"{'; '.join(self.not_covered)}."),
            ("Void by", f"{'; '.join(VOID_BY)}."),
            ("Details", "see `details`: the mechanism, and what is assumed."),
        )
        width = max(len(name) for name, _ in lines) + 2
        head = f"{_HEADS[self.kind]}: {self.guarantee}."
        return "\n".join([head, *(f"{name + ':':<{width}}{text}" for name, text in lines)])


_MOST_EPSILON = 20.0
_LEAST_RECORDS = 10
# Assumed length of a stream without a horizon: no useful one is shorter.
_RECORDS = 100


def doubts(epsilon: float, delta: float, records: int | None, unit: str = "records") -> list[str]:
    """Return warnings about a budget, each with its fix; computed from public numbers alone.

    Parameters
    ----------
    epsilon, delta
        The promised budget of a record.
    records
        Number of records; None: unknown.
    unit
        Name of the unit that is counted, in the plural.

    Examples
    --------
    >>> from streampair.privacy.accounting import doubts
    >>> doubts(1.0, 1e-6, 100_000)
    []
    >>> [text.partition(":")[0] for text in doubts(50.0, 0.01, 1000)]
    ['epsilon is 50', 'delta is 0.01, and there are 1,000 records']
    """
    found = []
    if epsilon > _MOST_EPSILON:
        found.append(
            f"epsilon is {epsilon:g}: one record may change the odds of any conclusion by a factor of "
            f"e^{epsilon:g}, which protects nobody; use 10 or less, better 1"
        )
    known = _RECORDS if records is None else records
    if delta * known > 1.0 + 1e-9:
        count = f"there are {known:,} {unit}" if records is not None else f"no stream is shorter than {known}"
        found.append(
            f"delta is {delta:g}, and {count}: publishing one record in full has a delta of one over their "
            f"number, so this much permits it; use {1.0 / known:.1g} or less"
        )
    if records is not None and records < _LEAST_RECORDS:
        found.append(
            f"the horizon is {records}: with so few records a model is mostly noise; "
            "streampair.privacy.plan estimates how many are needed"
        )
    return found


def warn_if_doubtful(
    epsilon: float, delta: float, records: int | None, unit: str = "records", *, stacklevel: int
) -> None:
    """Issue each of the `doubts` as a warning; `stacklevel` as in `warnings.warn`, from the caller."""
    for text in doubts(epsilon, delta, records, unit):
        warnings.warn(text, PrivacyWarning, stacklevel=stacklevel + 1)
