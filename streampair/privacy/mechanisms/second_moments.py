"""Private means and second moments of the classes: plan, state, and the model that solves for them."""

from __future__ import annotations

import bisect
import copy
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import losses
from streampair.errors import ConfigError
from streampair.kernels import dp_steps, symmetric, vectors
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    FittedPlan,
    Link,
    Mechanism,
    MechanismState,
    ModelFit,
    NoisySums,
    Relation,
    Release,
    Settings,
    SlotBatch,
    check_memory,
    check_overflow,
    normal_link,
    rate_link,
    unit_link,
)
from streampair.privacy.mechanisms.start_moments import MOST_CENTRE
from streampair.privacy.noise import BLTNoise, ChainedNoise
from streampair.privacy.sensitivity import BLT, LONGEST, grid_step, pattern_sensitivity
from streampair.privacy.user_level import EntityLimit, pairs_apart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from streampair.privacy.mechanisms.base import Link
    from streampair.privacy.mechanisms.start_moments import StartMoments
    from streampair.privacy.noise import Stream
    from streampair.records.features import Design

__all__ = [
    "LEAST_HORIZON",
    "MOST_FEATURES",
    "Moments",
    "MomentsState",
    "RankingMoments",
    "RankingMomentsState",
    "SecondMomentsPlan",
    "noise_of_weights",
    "placed",
    "plan_second_moments",
    "projected",
    "ridge_of",
    "second_moments_diameter",
    "unpacked",
]

RATIO = 1.1
"""How much longer the stream is at each release than at the one before."""

RUNNING_SHARE = 1.0 / 3.0
"""Share of mu^2 for the releases before the horizon; the release at the horizon has the rest."""

_FITTED = ("mu", "base", "grid", "sigma", "sigma_last", "spread")

# Each record is in one block.
_PATTERN = np.ones(1)


def second_moments_diameter(weight: float = 1.0) -> float:
    """Replacement diameter of `F(x, s) = (x x', s x)` for `|x| <= 1` and `|s| <= weight <= sqrt(2)`, exact.

    For records x, z with `t = x.z` and numbers s, r the squared distance of F is
    `|x|^4 + |z|^4 - 2 t^2 + s^2 |x|^2 + r^2 |z|^2 - 2 s r t`. As `-2 t^2 - 2 s r t <= s^2 r^2 / 2`, it is at
    most `2 + s^2 + r^2 + s^2 r^2 / 2 <= 2 (1 + weight^2 / 2)^2`. Two records of one class reach it on the
    unit sphere at `t = -s r / 2`, which is an angle because `|s r| <= 2`. A null record has F = 0, at a
    distance of at most `sqrt(1 + weight^2)`. Relation: one record's content is replaced.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.second_moments import second_moments_diameter
    >>> round(second_moments_diameter(1.0), 6)
    2.12132
    """
    if not 0.0 <= weight <= math.sqrt(2.0):
        raise ConfigError(f"a weight of {weight!r}", fix="give a weight from 0 to the root of 2")
    return math.sqrt(2.0) * (1.0 + 0.5 * weight * weight)


_DIAMETER = second_moments_diameter()


@functools.lru_cache(maxsize=4096)
def _growth(block: int) -> float:
    """`RATIO^block`, correctly rounded, so that block ends are the same on every processor."""
    numerator, denominator = RATIO.as_integer_ratio()
    return float(numerator**block / denominator**block)


def _block_end(base: float, block: int) -> int:
    return math.ceil(base * (_growth(block) - 1.0)) + block


@functools.lru_cache(maxsize=64)  # a plan asks many times where its blocks end
def _block_ends(base: float, slots: int) -> tuple[int, ...]:
    """The ends of blocks 1, 2, ... that are below `slots`."""
    ends: list[int] = []
    while (end := _block_end(base, len(ends) + 1)) < slots:
        ends.append(end)
    return tuple(ends)


ANYTIME = 0.6
"""Weight of what is known before the horizon: no more noise at the end than a third of mu^2 for the
releases before, and two thirds for a plain sum, left there; a third less on the way."""

UNITS = 64
"""Steps that the weights of blocks in the last release are rounded down to."""


def _weights(keep: float, share: float, running: int) -> NDArray[np.int64]:
    """Weights of blocks in the last release: the root of a record's share of mu^2 that is left.

    Parameters
    ----------
    keep
        Factor by which a block counts less in each release after its own.
    share
        Share of mu^2 for the releases before the horizon.
    running
        Number of these.
    """
    # Products in a fixed order: a library's powers differ in the last digits between processors.
    square = keep * keep
    rows, sums = 1.0, [0.0]
    for _ in range(running):
        sums.append(sums[-1] + rows)
        rows *= square
    total = sums[-1] or 1.0
    left = [math.sqrt(max(1.0 - share * paid / total, 0.0)) for paid in reversed(sums)]
    return np.array([math.floor(UNITS * part) for part in left], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SecondMomentsPlan(FittedPlan):
    """Calibrated plan of second moments, summed over blocks of slots.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record, or entity, over all releases.
    features
        Features d.
    base
        Nominal length of the stream before the first learned record: block k ends after about
        `base (RATIO^k - 1)` learned slots.
    horizon
        Learning slots, None for no end. With one there is a last release at its end, of the sum over all
        records, with `1 - RUNNING_SHARE` of mu^2 (adaptive composition); the ones before have the rest.
    radius
        Radius R of the weights.
    forks, window
        Number of forks that the budget covers, and the slots of each (docs/privacy 8).
    anytime
        Weight a, above 0 and up to 1, of the accuracy before the horizon against that at its end. A record
        of the first block spends `sqrt(a)` of mu^2 on the releases before the end, which have
        `c_k = (.99 - .06 a)^k`. Every record spends the rest of its budget on the last release, in which
        its block has its own weight. None, as always without a horizon: `RUNNING_SHARE`,
        `c_k = RATIO^-k` and an unweighted sum.
    strategy
        The matrix C of the releases before the horizon.
    grid
        gamma, a power of two.
    relation
        The neighbouring relation.
    classes
        Declared classes K of a metric, for which the sum is that of `(x x', e_y (x) x, e_y / 2)`; 0: none.
    sigma, sigma_last
        Noise std of each coordinate, of the releases before the horizon and of the last one; equal if
        one of them does not exist.
    weights
        Weight of each block in the last release, in units of `1 / units`.
    spread
        Norm of standardised records before they are clipped to the unit ball, from 1 to 2. A larger norm
        raises the signal over the noise, but loses the lengths of records: more noise calls for a larger one.
    """

    mu: float
    features: int
    base: float
    horizon: int | None
    radius: float
    forks: int = 0
    window: int = 4096
    relation: Relation = ONE_RECORD
    classes: int = 0
    anytime: float | None = None
    strategy: BLT = field(init=False)
    grid: float = field(init=False)
    sigma: float = field(init=False)
    sigma_last: float = field(init=False)
    spread: float = field(init=False)
    weights: NDArray[np.int64] = field(init=False)

    #: Whether models also use the warm-up's covariances of labels and features.
    uses_warmup: ClassVar[bool] = True

    @property
    def FITTED(self) -> tuple[str, ...]:
        """Names of the fitted numbers, which a state keeps."""
        return _FITTED if self.anytime is None else (*_FITTED, "anytime")

    def __post_init__(self) -> None:
        if self.anytime is not None and (self.horizon is None or not 0.0 < self.anytime <= 1.0):
            raise ConfigError(
                f"anytime is {self.anytime!r}, with a horizon of {self.horizon}",
                fix="give a number above 0 and up to 1, and a horizon",
            )
        if self.anytime is not None and self.relation.entity is not None:
            raise ConfigError(
                f"anytime is {self.anytime!r}, of the records of an entity, whose account is not known",
                fix="leave it out",
            )
        running = None if self.horizon is None else len(self._ends_before(self.horizon))
        put = functools.partial(object.__setattr__, self)
        a, rounded = self.anytime, self.rounded
        keep = 1.0 / RATIO if a is None else 0.99 - 0.06 * a
        strategy = BLT(np.array([keep]), np.array([1.0 - keep]), running)
        put("strategy", strategy)
        put("grid", grid_step(replace(strategy, horizon=None), _PATTERN, _DIAMETER, rounded))
        before = RUNNING_SHARE if a is None else math.sqrt(a)
        share = 1.0 if running is None else before if running else 0.0
        weights = np.ones(1, dtype=np.int64)
        put("weights", weights if a is None else _weights(float(strategy.theta[0]), share, running or 0))
        left = 1.0 - share if a is None else 1.0
        last = self._last_move / (self.mu * math.sqrt(left)) if left > 0.0 else None
        first = self._running_move(running) / (self.mu * math.sqrt(share)) if share > 0.0 else last
        assert first is not None
        put("sigma", first)
        put("sigma_last", first if last is None else last)
        if self.forks:
            # One factor scales all noise: the releases and each fork must fit the budget.
            factor = math.sqrt(1.0 + self.forks * self.fork_mu2(self.window) / self.mu**2)
            put("sigma", factor * self.sigma)
            put("sigma_last", factor * self.sigma_last)
        put("spread", self._spread())
        check_memory(strategy, self.dim, self.mu)
        check_overflow(20.0 * max(self.sigma, self.sigma_last * self.units) / self.grid, "noise")

    @functools.cached_property
    def dim(self) -> int:
        """Number of coordinates of a release."""
        d = self.features
        return d * (d + 1) // 2 + d * max(self.classes, 1) + self.classes

    @property
    def steps(self) -> Floats | None:
        """Step of each coordinate; None: the grid for all."""
        return None

    @functools.cached_property
    def rounded(self) -> int:
        """Number of coordinates that are rounded to the grid; the others are whole steps already."""
        return self.dim

    @functools.cached_property
    def diameter(self) -> float:
        """Replacement diameter of a record's summand, before rounding."""
        return _DIAMETER

    @property
    def blank_move(self) -> float:
        """Largest norm of a record's summand."""
        return 1.5 if self.classes else math.sqrt(2.0)

    @property
    def _one_move(self) -> float:
        return self.diameter + self.grid * math.sqrt(self.rounded)

    @property
    def units(self) -> int:
        """Units in a weight of one."""
        return 1 if self.anytime is None else UNITS

    def weight(self, block: int) -> int:
        """Weight of block `block = 1, 2, ...` in the last release, in units of `1 / units`."""
        return 1 if self.anytime is None else int(self.weights[min(block, len(self.weights)) - 1])

    def weighed(self, steps: int) -> float:
        """Weighted number of slots in the last release."""
        if self.anytime is None:
            return float(steps)
        lengths = np.diff([0, *self._ends_before(steps), steps])
        return float(int(self.weights @ lengths)) / self.units

    @property
    def _last_move(self) -> float:
        entity, horizon = self.relation.entity, self.horizon
        if entity is None or horizon is None:
            return self._one_move
        return entity.within(horizon) * self._one_move

    def _running_move(self, blocks: int | None, rows: int | None = None) -> float:
        """Sensitivity of the releases of the first blocks; rows: of any so many consecutive ones of these."""
        entity = self.relation.entity
        if entity is None or blocks is None:  # a late block has room for all records of the entity
            single = pattern_sensitivity(
                self.strategy,
                _PATTERN,
                self.diameter,
                grid=self.grid,
                dim=self.rounded,
                steps=blocks if rows is None else rows,
            )
            return single if entity is None else entity.records * single
        ends = tuple(self.end(block + 1) for block in range(blocks))
        return self._one_move * placed(ends, entity, 1.0 / RATIO, blocks if rows is None else rows)

    def _spread(self) -> float:
        """The noise is measured against the mean eigenvalue of the second moments, at the horizon, or without
        one when the stream is ten times as long as its warm-up.
        """
        steps = math.ceil(10.0 * self.base) if self.horizon is None else self.horizon
        noise = math.sqrt(2.0 * self.features**3 / max(self.information(steps), 1e-300))
        return min(1.0 + 1.25 * math.sqrt(noise), 2.0)

    def end(self, block: int) -> int:
        """Learned slots after which block `block = 1, 2, ...` ends and is released."""
        return _block_end(self.base, block)

    def _ends_before(self, slots: int) -> tuple[int, ...]:
        ends = _block_ends(self.base, max(slots, self.horizon or 0))
        return ends[: bisect.bisect_left(ends, slots)]

    def releases(self, steps: int) -> int:
        """Releases in the first `steps` learned slots."""
        if self.horizon is not None and steps >= self.horizon:
            return len(self._ends_before(self.horizon)) + 1
        return len(self._ends_before(steps + 1))

    def mu_spent(self, steps: int) -> float:
        """mu of the releases in the first `steps` learned slots, for the record that spends most.

        For an entity: at the worst places of its records (docs/privacy, Lemma 55).
        """
        last = self.horizon is not None and steps >= self.horizon
        running = self.releases(steps) - last
        if last and self.anytime is not None:
            return math.sqrt(max(self._paid(block, running) for block in range(1, running + 2)))
        return math.hypot(
            self._running_move(running) / self.sigma, self._last_move / self.sigma_last if last else 0.0
        )

    def _paid(self, block: int, running: int) -> float:
        """mu^2 of a record of a block over all releases."""
        last = self.weight(block) / self.units * self._last_move / self.sigma_last
        return self._ends_mu2(running + 1 - block) + last * last

    def information(self, steps: int) -> float:
        """Precision of the mean record's estimate after `steps` learned slots: one over its noise variance.

        Releases are independent measurements of C times the blocks' lengths of slots, with
        noise of one std; the precisions of the best unbiased combination add up.
        """
        slots = total = 0.0
        start = 0
        last = self.horizon is not None and steps >= self.horizon
        keep = float(self.strategy.theta[0])
        for end in self._ends_before(steps if last else steps + 1):
            slots = slots / RATIO if self.anytime is None else slots * keep
            slots += end - start
            start = end
            total += (slots / self.sigma) ** 2
        return total + ((self.weighed(steps) / self.sigma_last) ** 2 if last else 0.0)

    def effective_records(self, steps: int) -> float:
        """How many records of equal weight have a mean that varies as the releases' best combination does.

        The combination, after `steps` learned slots, is that of `information`, of records that are
        independent draws.
        """
        last = self.horizon is not None and steps >= self.horizon
        ends = self._ends_before(steps if last else steps + 1)
        lengths = np.diff([0, *ends, *([steps] if last else [])]).astype(np.float64)
        keep = float(self.strategy.theta[0])
        slots, seen = 0.0, []
        for length in lengths[: len(ends)].tolist():
            slots = keep * slots + length
            seen.append(slots / (self.sigma * self.sigma))
        # A record of a block counts in the block's own release, and less in each one after it.
        weights, later = np.zeros(len(lengths)), 0.0
        for block in reversed(range(len(ends))):
            later = seen[block] + keep * later
            weights[block] = later
        if last:
            share = self.weighed(steps) / (self.sigma_last * self.sigma_last)
            weights += [share * self.weight(block + 1) / self.units for block in range(len(lengths))]
        total = vectors.dot(lengths, weights)
        return float(total * total / vectors.dot(lengths, weights * weights))

    @property
    def _mean_grid(self) -> float:
        """Harmonic mean of the coordinates' steps, for the card: it bounds floating-point errors."""
        steps = self.steps
        return self.grid if steps is None else float(len(steps) / (1.0 / steps).sum())

    @property
    def lemma(self) -> int:
        """Number of the lemma that proves the diameter."""
        return 42 if self.classes else 31

    @property
    def _alone(self) -> bool:
        return self.relation.entity is None

    def card(self) -> tuple[Release, ...]:
        """Releases and their cost: the sums of blocks, and that of all records at the horizon."""
        horizon, dim = self.horizon, self.dim
        running = None if horizon is None else len(self._ends_before(horizon))
        ends = len(_block_ends(self.base, LONGEST)) if horizon is None else 0

        def kind(name: str, move: float, sigma: float, releases: int | None, units: int = 1) -> Release:
            moved = move / sigma
            # Blanking moves a sum by |F| <= sqrt 2, and with the count of a class by 3/2.
            blank = min((self.blank_move + self.grid * math.sqrt(self.rounded)) / self._one_move, 1.0)
            return Release(
                name=name,
                domain="records in the unit ball, with "
                + ("one of the declared classes" if self.classes else "a label weighted into [-1, 1]"),
                relation=self.relation,
                lemma=f"docs/privacy, Lemma 16, Lemma {self.lemma} and Lemma "
                + ("32" if self._alone else "55"),
                sensitivity=move,
                sigma=sigma,
                replace=moved,
                blank=blank * moved,
                releases=releases,
                coordinates=dim,
                grid=self._mean_grid / units,
                draws=(ends if releases is None else releases)
                * dim
                * (sigma / (self._mean_grid / units) + 1.0),
            )

        kinds = []
        if running is None or running:
            kinds.append(kind("second moments of a block", self._running_move(running), self.sigma, running))
        if horizon is not None:
            kinds.append(
                kind(
                    "second moments of all records, at the horizon",
                    *(self._last_move, self.sigma_last, 1, self.units),
                )
            )
        return tuple(kinds)

    def fork_mu2(self, window: int) -> float:
        """`mu^2` of releasing what falls into `window` consecutive slots once more (docs/privacy 8).

        A record in the first of the m blocks that end there costs most, and more for larger m.
        With a horizon the most expensive window is the fullest one before it, or the last one.
        """
        if window <= 0:
            return 0.0
        fullest = self._ends_mu2(self._most_ends(window))
        if self.horizon is None:
            return fullest
        if self.anytime is not None:
            # A record of the last block is only in the last release, which costs as much as a whole run.
            return max(fullest, self.mu_spent(self.horizon) ** 2)
        last = (self._last_move / self.sigma_last) ** 2
        others = sum(end > self.horizon - window for end in self._ends_before(self.horizon))
        return max(fullest, self._ends_mu2(others) + last)

    def _ends_mu2(self, ends: int) -> float:
        """`mu^2` of a record in the first of as many consecutive blocks that end before the horizon."""
        blocks = None if self.horizon is None else len(self._ends_before(self.horizon))
        return (self._running_move(blocks, ends) / self.sigma) ** 2

    def _most_ends(self, window: int) -> int:
        """Largest number of block ends before the horizon in `window` consecutive slots.

        Counted from one end after the other: ends are rounded up, so a later block can be shorter than the
        first. From where on any m blocks are at least 2 slots longer than the m first ones, rounding cannot
        make up for it.
        """
        most, block, behind, grown = 0, 1, 1, 0.0
        while grown < 3.0 and block <= 1000 and (self.horizon is None or self.end(block) < self.horizon):
            stop = self.end(block) + window
            stop = stop if self.horizon is None else min(stop, self.horizon)
            while self.end(behind) < stop:
                behind += 1
            most = max(most, behind - block)
            grown = self.base * RATIO * (RATIO - 1.0) * (_growth(block) - 1.0)
            block += 1
        return most


def plan_second_moments(
    mu: float,
    *,
    features: int,
    base: float,
    radius: float,
    horizon: int | None = None,
    forks: int = 0,
    window: int = 4096,
    relation: Relation = ONE_RECORD,
    anytime: float | None = None,
) -> SecondMomentsPlan:
    """Calibrate the noise for a budget; parameters as in `SecondMomentsPlan`.

    Examples
    --------
    >>> from streampair.privacy import mu_from
    >>> from streampair.privacy.mechanisms.second_moments import plan_second_moments
    >>> plan = plan_second_moments(mu_from(1.0, 1e-4), features=9, base=200.0, radius=30.0, horizon=1000)
    >>> plan.releases(1000), round(plan.mu_spent(1000) / plan.mu, 12)
    (19, 1.0)
    """
    return SecondMomentsPlan(mu, features, base, horizon, radius, forks, window, relation, anytime=anytime)


def unpacked(mean: Floats, d: int) -> tuple[Floats, Floats]:
    """The symmetric matrix (d, d) and the vector (d,) of a released mean.

    Parameters
    ----------
    mean
        Lower triangle, row by row, the entries off the diagonal times sqrt(2); then the vector.
    d
        Features.
    """
    second: Floats = mean[_places(d)]
    diagonal = second.reshape(d * d)[:: d + 1]
    diagonal *= 2.0
    second /= math.sqrt(2.0)
    diagonal /= math.sqrt(2.0)
    return second, mean[-d:]


@functools.lru_cache(maxsize=8)
def _places(d: int) -> NDArray[np.intp]:
    """Index in a packed triangle of each cell of the matrix (d, d); cached, as every release uses it."""
    i, j = np.indices((d, d))
    row, column = np.maximum(i, j), np.minimum(i, j)
    places: NDArray[np.intp] = row * (row + 1) // 2 + column
    return places


def solve_towards(
    start: Floats, second: Floats, cross: Floats, ridge: float, noise: float, cross_noise: float
) -> tuple[Floats, float]:
    """Regression weights (d,) from moments, with a ridge towards a multiple of a start vector.

    Parameters
    ----------
    start
        The start vector w_0, (d,), not 0.
    second, cross, ridge, noise
        As of `ridge_of`.
    cross_noise
        Variance of the noise in a coordinate of `cross`.

    Returns
    -------
    tuple
        The weights, and the mean of what noise of variance 1 in each cell of `cross` adds to `w . cross`.

    Notes
    -----
    The scale of w_0 is unknown, so its multiple `g w_0` is about that of the least squared error, given that
    `g` is above 0 and `cross` has noise: the mean `z + phi(z) / Phi(z)` of a positive normal, in its noise,
    with an algebraic function in place of phi and Phi. What is left of `cross`, `r = cross - g S w_0`, is
    regressed with the ridge, and that part is shrunk by the share of `|r|^2` that noise explains, one
    standard deviation of it included (James-Stein with a pretest): releases that are noise alone leave the
    ranking of the start vector, and in the limit of many records it makes no difference. A function of
    releases and w_0.
    """
    d = len(cross)
    length = float(vectors.dot(start, start))
    moved = np.array([vectors.dot(row, start) for row in second])
    # The records' mean squared length is at least `_LENGTHS[0]`; noise can make less of the matrix.
    size = max(float(vectors.dot(start, moved)), length * _LENGTHS[0] / d)
    fitted, noise_of_fit = float(vectors.dot(start, cross)) / size, math.sqrt(cross_noise * length) / size
    gain = 0.5 * (fitted + math.sqrt(fitted * fitted + _POSITIVE * noise_of_fit * noise_of_fit))
    gain = max(gain, _LEAST_GAIN / math.sqrt(length))
    rest = cross - gain * moved
    square = float(vectors.dot(rest, rest))
    noisy = (d + math.sqrt(2.0 * d)) * (cross_noise + 0.5 * noise * gain * gain * length)
    share = max(1.0 - noisy / square, 0.0) if square > 0.0 else 0.0
    w = np.empty(d)
    trace = float(symmetric.ridge_solution(second, rest, ridge, noise, w))
    w *= share
    w += gain * start
    return w, length / size + share * trace


def ridge_of(
    second: Floats,
    cross: Floats,
    rate: float,
    ridge: float,
    noise: float = 0.0,
    start: Floats | None = None,
    cross_noise: float = 0.0,
) -> tuple[Floats, float]:
    """Weights (d,) of the least squared pair loss `(1 - 2 w.(x - x'))^2`, from moments.

    Also returns the mean of what noise of variance 1 in each cell of `cross` adds to `w . cross`.

    Parameters
    ----------
    second
        Mean of x x' over centred records, (d, d), symmetric; with noise, so eigenvalues may be negative.
    cross
        Mean of `(b - rate) x`, with b = 1 for a positive and 0 for a negative, (d,).
    rate
        Share of positives.
    ridge
        Added to every eigenvalue, at least 0, which are floored at 0 before.
    noise
        Variance of the noise in a packed coordinate of `second`: the eigenvalues are shrunk accordingly
        first (`kernels.ridge_solution`).
    start, cross_noise
        As of `solve_towards`; None: the ridge is towards 0.

    Notes
    -----
    Where the classes share their covariance S, the mean of x x' is `S + rate (1 - rate) u u'` with u the
    difference of the class means, so the pairs' `2 S + u u'` and their minimiser follow from the
    regression of b on x: the same direction, another length (Sherman-Morrison). Without the assumption
    the result is that regression, whose ranking is used.
    """
    # No library of linear algebra: its last digits differ between processors, and so would the scores.
    if start is None:
        w = np.empty(len(cross))
        trace = float(symmetric.ridge_solution(second, cross, ridge, noise, w))
    else:
        w, trace = solve_towards(start, second, cross, ridge, noise, cross_noise)
    spread = rate * (1.0 - rate)
    explained = min(max(float(vectors.dot(w, cross)) / spread, 0.0), 0.999)
    distance = explained / (1.0 - explained) / spread
    length = (1.0 + spread * distance) / (spread * (4.0 + 2.0 * distance))
    w *= length
    return w, length * trace


def projected(moves: Floats, w: Floats, radius: float) -> Floats:
    """Derivative of the projection of w (d,) to the ball, along the moves of w, (d, k)."""
    length = math.sqrt(float(w @ w))
    if length <= radius:
        return moves
    unit = w / length
    return np.asarray((radius / length) * (moves - np.outer(unit, unit @ moves)))


def noise_of_weights(
    second: Floats,
    cross: Floats,
    ridge: float,
    matrix_noise: float,
    cross_noise: Floats,
    radius: float,
    *,
    rate: float | None = None,
) -> Floats:
    """Standard deviation (d,) of the weights' noise, to first order in the noise of the moments.

    Parameters
    ----------
    second, cross, ridge
        As of `ridge_of`: the weights solve `(second+ + ridge I) w = cross`.
    matrix_noise
        Variance of the noise in a coordinate of `second`, packed.
    cross_noise
        Variance of the noise in each coordinate of `cross`, (d,).
    radius
        Radius of the ball that the weights are projected to.
    rate
        Share of positives, by which `ridge_of` scales the solution; None: it is not scaled.

    Notes
    -----
    With `M = (second+ + ridge I)^-1` and `v = M cross`, noise E in the matrix and e in the vector move v by
    `M (e - E v)`. Cells of E off the diagonal have half of the variance s of a packed coordinate, so
    `h'E v` has the variance `s (|h|^2 |v|^2 + (h.v)^2) / 2`. No model depends on it, so NumPy is used.
    """
    values, vectors = np.linalg.eigh(second)
    gaps = values[:, None] - values[None, :]
    values = values - matrix_noise * (gaps / (gaps * gaps + 0.5 * matrix_noise)).sum(axis=1)
    values = np.maximum(values, 0.0) + ridge
    inverse = (vectors / values) @ vectors.T
    v = inverse @ cross
    by_vector = by_matrix = inverse
    w = v
    if rate is not None:
        spread = rate * (1.0 - rate)
        explained = float(v @ cross) / spread
        odds = min(max(explained, 0.0), 0.999)
        odds /= 1.0 - odds
        length = (1.0 + odds) / (4.0 * spread + 2.0 * odds)
        slope = 0.0
        if 0.0 < explained < 0.999:
            slope = (4.0 * spread - 2.0) / (4.0 * spread + 2.0 * odds) ** 2 * (1.0 + odds) ** 2 / spread
        # `v . cross` moves by `2 v.e - v'E v`, and so does the length.
        along = slope * np.outer(v, v)
        by_vector, by_matrix, w = length * inverse + 2.0 * along, length * inverse + along, length * v
    by_vector, by_matrix = (projected(moves, w, radius) for moves in (by_vector, by_matrix))
    variance = (by_vector * by_vector) @ cross_noise
    squares = (by_matrix * by_matrix).sum(axis=1)
    variance += 0.5 * matrix_noise * (squares * float(v @ v) + (by_matrix @ v) ** 2)
    out: Floats = np.sqrt(variance)
    return out


@functools.lru_cache(maxsize=256)
def placed(ends: tuple[int, ...], limit: EntityLimit, share: float, rows: int) -> float:
    """Upper bound of `||C n||` over `rows` consecutive releases, n being an entity's records by block.

    Records in blocks `p <= q` of R move the releases `q, q + 1, ...` together, by `share^(q - p)` times
    `1, share^2, share^4, ...`, the products of their moves. Two records that j others separate are at least
    `(j + 1) separation` slots apart, so p is at most the block that lies as far before the end of q. The sum
    of the largest products bounds the square of the norm. It is exact where the best block for one record has
    room for all.

    Relation: all records of an entity are replaced, each of which moves its block's sum by at most 1.

    Parameters
    ----------
    ends
        Slot that each block ends with, growing.
    limit
        Limits of the entity's contributions.
    share
        Factor of a block's weight at the next one: `c_k = share^k`.
    rows
        Number of consecutive releases that count, at any place.

    Examples
    --------
    >>> from streampair.privacy import EntityLimit
    >>> from streampair.privacy.mechanisms.second_moments import placed
    >>> round(placed((5, 10), EntityLimit(3, 1), 0.5, 2), 6)  # three in the first block: 3 and 1.5
    3.354102
    """
    if not ends or rows <= 0:
        return 0.0
    last = np.array(ends, dtype=np.int64)
    block = np.arange(len(ends))
    decay = np.cumprod(np.concatenate([[1.0], np.full(len(ends), share)]))
    energy = np.concatenate([[0.0], np.cumsum(decay * decay)])
    later = energy[np.minimum(rows, len(ends) - block)]
    count = limit.within(ends[-1])
    total = count * float(later.max())
    for between, pairs in pairs_apart(count):
        first = last - between * limit.separation
        fits = first >= 1
        apart = (block - np.searchsorted(last, first))[fits]
        total += pairs * float((decay[apart] * later[fits]).max())
    return math.sqrt(total)


LEAST_HORIZON = 100
"""Shorter streams are too short for two stages."""

MOST_FEATURES = 512
"""A release has d^2 / 2 coordinates."""

# Constants chosen on generated streams, where the accuracy is flat around these values.
_MOST_SLOTS = 2.0**40
_CAP = 3.0  # standard deviations at which standardised values are clipped
_SHARES = (0.1, 0.25)  # least and most of a horizon that the warm-up takes
_MANY = 7.0  # largest root of the number of features that the warm-up without a horizon grows with

# Range of the released mean squared length of records: they are in the unit ball, and not all 0.
_LENGTHS = (0.1, 1.0)

# Least share of a first model's covariances that is taken for signal, so that the model is not 0.
_SURE = 0.05

# Least norm of the part of regression weights along a start vector: it ranks where there is no other.
_LEAST_GAIN = 1e-6

# `(z + sqrt(z^2 + c)) / 2` is at 0 what `z + phi(z) / Phi(z)` is: c is 8 / pi.
_POSITIVE = 8.0 / math.pi


class MomentsState(MechanismState):
    """State of second moments: sums of the open block, combined releases, and the noise memory.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: SecondMomentsPlan

    #: Whether a model takes so long to compute that `defer_fits` defers it.
    slow_fits: ClassVar[bool] = False
    pools: ClassVar[bool] = True

    def __init__(self, plan: SecondMomentsPlan) -> None:
        self.plan = plan
        self.steps = 0
        self.spread = plan.spread
        self.cap = _CAP * plan.spread / math.sqrt(plan.features)
        self._releases = 0
        self._stale = False  # whether the model lacks the latest releases
        self._deferred = False  # whether models are computed elsewhere
        self._wanted: frozenset[int] = frozenset()  # releases whose models will be adopted
        self._inputs: dict[int, MomentsState] = {}  # copies of earlier releases whose models may be adopted
        # Of the warm-up: covariances of labels and features, and the variances of their noise.
        self._start: Floats = np.zeros((2, plan.features if plan.uses_warmup else 0))
        self._card = plan.card()
        self._due = self._next_end()  # slot of the next release
        steps = self._grids()
        self._put_centre(0.0)
        self.block = NoisySums(self._card[0], (plan.dim,), steps)
        # The sums of all blocks, for the release at the horizon.
        last = None if steps is None or plan.horizon is None else steps / plan.units
        self.total = NoisySums(self._card[-1], (plan.dim if plan.horizon is not None else 0,), last)
        self._running = np.zeros(plan.dim)  # C times the released sums
        self._weighted = np.zeros(plan.dim)  # best unbiased combination of all releases, times `_known`
        self._last = np.zeros(plan.dim if plan.horizon is not None else 0)
        self._numbers = np.zeros(3)  # running slots, `_known`, start of the open block
        self._noise = BLTNoise(plan.strategy.omega.copy(), plan.strategy.theta, plan.dim, 1.0)
        self._w = np.zeros(plan.features)
        self._origin: Floats | None = None  # weights of the start model
        self._table: StartMoments | None = None  # moments that it began with
        self._pooled = False  # whether they still count
        self._noises: tuple[int, Floats | None] = (-1, None)  # of the weights of a release
        self.fits_model = True  # an audit turns it off: it looks at the releases alone
        self._label_slope = 0.0  # of the label (1 or 0) on the score, under the last model computed
        # `second_moment_slot` is for the sums of this class.
        self._compiled_sums = type(self)._sum_up is MomentsState._sum_up

    @property
    def link(self) -> Link:
        """Log-odds of the equal-covariance normal model (LDA) of the releases."""
        self._update()
        return self._link

    @property
    def prior(self) -> float:
        """Log-odds of the released share of positives."""
        return rate_link(0.5 * (1.0 + self._centre)).offset

    @property
    def average(self) -> Floats:
        """The published weights, shape (d,): a view."""
        self._update()
        return self._w

    @property
    def noise(self) -> Floats | None:
        """Approximate noise std of the weights, to first order, from the released moments and their noise."""
        if self._noises[0] != self._releases:
            self._noises = (self._releases, self._noise_of_weights())
        return self._noises[1]

    @property
    def releases(self) -> int:
        """Number of models released so far."""
        return self._releases

    @property
    def buffer_records(self) -> int:
        """Moments need no buffer."""
        return 0

    def card(self) -> tuple[Release, ...]:
        """The sums of blocks, and that of all records at the horizon."""
        return self._card

    def centre(self, mean: float) -> None:
        """Use a released mean of the labels -1 and 1, before the first record."""
        self._put_centre(min(max(mean, -MOST_CENTRE), MOST_CENTRE))

    def begin_with(self, cross: Floats) -> None:
        """Compute a first model from the warm-up's release, which later models also use."""
        self._start[:] = cross
        self._solve()

    def begin_at(self, weights: Floats) -> None:
        """Use the weights of a start model until the first release, and in every later model."""
        if weights.any():
            self._origin, self._w = weights.copy(), weights.copy()
            self._link = Link(unit_link(weights, self.spread).slope, self.prior)

    def begin_with_moments(self, moments: StartMoments) -> None:
        """Pool the moments of a table with its own, in the standardisation of the table."""
        self._table, self._pooled = moments, True
        self.cap = moments.cap
        self._put_centre(moments.centre)
        self._solve()

    @property
    def pooled(self) -> bool | None:
        """Whether the moments of a table are still pooled with its own; None: it has not begun with any."""
        return None if self._table is None else self._pooled

    def _put_centre(self, centre: float) -> None:
        self._centre = centre
        # With it |weight (y - centre)| <= 1 for |y| <= 1.
        self._weight = 1.0 / (1.0 + abs(centre))
        # As `second_moment_slot` takes them.
        self._slot_numbers = np.array([self.cap, centre, self._weight, self.plan.grid])
        self._link = rate_link(0.5 * (1.0 + centre))

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        plan = self.plan
        numbers = [plan.sigma, plan.sigma_last, plan.grid, plan.base, plan.radius]
        return numbers if plan.anytime is None else [*numbers, plan.anytime]

    @property
    def released(self) -> Floats:
        """The released values: C times the blocks' sums, and the sum at the horizon."""
        return np.concatenate((self._running, self._last))

    @property
    def releases_nothing(self) -> bool:
        """Whether the block goes on after the next slot, and the slot is not the first one."""
        return 0 < self.steps < self._due - 1 and self._compiled_sums

    def accumulate(self, design: Design) -> None:
        """`learn` of one slot from the raw record, in one compiled call."""
        self.block.add(
            dp_steps.second_moment_slot, design.cells, design.scaling, design.standardised, self._slot_numbers
        )
        self.steps += 1

    @property
    def slots_until_release(self) -> int:
        """Number of slots until the next release."""
        return max(1, self._due - self.steps)

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """As in the base class, in one go from one release to the next: nothing is published between them."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        start, n = 0, len(batch.rows)
        while start < n:
            part = batch.part(start, min(start + self._due - self.steps, n))
            start += len(part.rows)
            if len(part.scores):
                self._score(part.scored, part.scores)
            self._add(part.rows, part.labels)
            released = self.steps == self._due
            if chain is not None:
                chain.skip(part.records[:-1] if released else part.records)
                if released:
                    chain.record(part.records[-1])
                    chain.advance((self.total if self._at_horizon() else self.block).cells())
            if released:
                self._release(stream)

    def _score(self, rows: Floats, scores: Floats) -> None:
        """Write scores (n,) of designs under the published weights."""
        vectors.score_many(self.average, rows, scores)

    def _add(self, rows: Floats, labels: Floats) -> None:
        self._sum_up(rows, labels)
        self.steps += len(rows)
        if self._at_horizon():
            self.total.absorb(self.block, self.plan.weight(self._releases + 1))

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        """Add each record's summand to the open block."""
        self.block.add(dp_steps.second_moment_sums, rows, labels, self._centre, self._weight, self.plan.grid)

    def _grids(self) -> Floats | None:
        """Step of each coordinate of a release; None: the grid for all."""
        return None

    def _packed(self) -> int:
        """Number of leading coordinates of a release: second moments, and those with the label."""
        return int(self.plan.dim)

    def _next_end(self) -> int:
        end, horizon = self.plan.end(self._releases + 1), self.plan.horizon
        return end if horizon is None else min(end, horizon)

    def _at_horizon(self) -> bool:
        return self.steps == self.plan.horizon

    def _release(self, stream: Stream) -> None:
        """Release one noisy sum; the model of all sums so far is computed on demand."""
        plan = self.plan
        if self._at_horizon():
            value = self._last
            value[:] = self.total.privatize(self.total.noise(stream.take(plan.dim), plan.sigma_last))
            slots, std = plan.weighed(self.steps), plan.sigma_last
        else:
            rows = self._noise.rows(1, stream)[:, 0]  # of std 1: the coordinates have steps of their own
            noisy = self.block.privatize(self.block.noise(rows, plan.sigma))
            keep = float(plan.strategy.theta[0])
            value = self._running
            value *= keep
            value += noisy
            slots = self._numbers[0] = keep * self._numbers[0] + (self.steps - self._numbers[2])
            std = plan.sigma
            if plan.horizon is not None:
                self.total.absorb(self.block, plan.weight(self._releases + 1))
        # The values are independent measurements of `slots` times the mean record.
        # Products, not powers: those of a library differ in the last digits between processors.
        self._weighted += (slots / (std * std)) * value
        self._numbers[1] += (slots / std) * (slots / std)
        self._numbers[2] = self.steps
        self.block.clear()
        self._releases += 1
        self._due = self._next_end()
        if self._pooled:
            self._compare()
        self._solve()

    def _compare(self) -> None:
        """Drop the moments of the table, and its weights, for good if those released are of another one."""
        assert self._table is not None
        # The warm-up has made the first comparison.
        self._keep_pooled(
            self._is_of(
                self._table,
                1.0 / float(self._numbers[1]),
                self.plan.effective_records(self.steps),
                self._releases + 1,
            )
        )

    def _is_of(self, table: StartMoments, noise: float, records: float, look: int) -> bool:
        """Whether the releases are of the table's distribution: parameters as of `StartMoments.is_of`."""
        return table.is_of(*self._own_means(), noise, records, look)

    def _keep_pooled(self, pooled: bool) -> None:
        self._pooled = pooled
        if self._table is not None and not pooled:
            self._origin = None  # it follows from the same moments

    def _own_means(self) -> tuple[Floats, Floats]:
        """Means of `x x'` and of `weight (y - centre) x` by the releases alone."""
        return unpacked(self._weighted[: self._packed()] / self._numbers[1], self.plan.features)

    @property
    def _known(self) -> float:
        """Precision of a packed coordinate of the means that models are computed from."""
        released: float = self._numbers[1]
        if not self._pooled or self._table is None:
            return released
        table, rest = self._shares(self._table)
        return 1.0 / (table * table * self._table.noise + (rest * rest / released if released else 0.0))

    def _shares(self, table: StartMoments) -> tuple[float, float]:
        """Weights of the moments of the table, and of those released."""
        known, slots = float(self._numbers[1]), int(self._numbers[2])
        return table.shares(1.0 / known if known else math.inf, slots, self.plan.horizon)

    @property
    def _towards(self) -> Floats | None:
        """Weights that the ridge goes to; None: 0. With the moments of a table they are not needed."""
        return None if self._pooled else self._origin

    def _means(self) -> tuple[Floats, Floats, float]:
        """Means of `x x'` and of `weight (y - centre) x`, and the variance of the noise in a cell of that.

        The latter is measured by the blocks and, with other noise in each cell, by the
        warm-up, on records before clipping to the unit ball: it is scaled by how much clipping has shortened
        them. Both are weighted by their precision.
        """
        d, known = self.plan.features, self._numbers[1]
        start, noise = self._start
        if self._pooled and self._table is not None:
            table, rest = self._shares(self._table)
            second, cross = table * self._table.second, table * self._table.cross
            if known:
                second_released, cross_released = self._own_means()
                second, cross = second + rest * second_released, cross + rest * cross_released
            return second, cross, 1.0 / self._known
        if known == 0.0:
            # Standardised records without correlations, and noisy covariances with the labels.
            length, total = float(vectors.dot(start, start)), float(vectors.dot(noise, np.ones(d)))
            if self._origin is not None:  # `solve_towards` shrinks them
                left = self._weight * self._weight * total / d
                return np.diag(np.full(d, 1.0 / d)), self._weight * start, left
            sure = 1.0 - total / length if length > 0.0 else 0.0
            return np.diag(np.full(d, 1.0 / d)), max(sure, _SURE) * self._weight * start, 0.0
        second, cross = self._own_means()
        if not len(noise) or not noise[0] > 0.0:
            return second, cross, 1.0 / known
        length = self._length(second)
        precision = 1.0 / (self._weight * self._weight * length * noise)
        cross = (known * cross + precision * (self._weight * math.sqrt(length) * start)) / (known + precision)
        return second, cross, float(vectors.dot(1.0 / (known + precision), np.ones(d))) / d

    def _length(self, second: Floats) -> float:
        """Mean squared length of a record, from the releases."""
        least, most = _LENGTHS
        return min(max(float(vectors.dot(second.diagonal().copy(), np.ones(len(second)))), least), most)

    @property
    def _ridge(self) -> float:
        """Ridge strength of the model: of the order of the norm of the matrix's noise, sqrt(2 d) std."""
        known = self._known
        return math.sqrt(self.plan.features / known) if known else 0.0

    def _compute_model(self) -> tuple[Floats, Link]:
        """Weights and link from all releases so far."""
        known = self._known
        second, cross, left = self._means()
        # The kernel's weight times (y - centre) is twice the weight times (b - rate).
        cross = cross / (2.0 * self._weight)
        cross_noise = left / (4.0 * self._weight * self._weight)
        rate = 0.5 * (1.0 + self._centre)
        ridge = self._ridge
        matrix_noise = 1.0 / known if known else 0.0
        w, noise = ridge_of(second, cross, rate, ridge, matrix_noise, self._towards, cross_noise)
        length = math.sqrt(float(vectors.dot(w, w)))
        if length > self.plan.radius:
            vectors.project_ball(w, self.plan.radius)
            noise *= self.plan.radius / length
        # The ridge counts as variance: w leans to directions in which noise made the matrix too small.
        rows = np.array([vectors.dot(row, w) for row in second])
        variance = float(vectors.dot(w, rows)) + ridge * float(vectors.dot(w, w))
        # Subtract the agreement of the weights with the noise of `cross`, which is no class difference.
        along = float(vectors.dot(w, cross)) - noise * cross_noise
        self._label_slope = max(along, 0.0) / variance if variance > 0.0 else 0.0
        link = normal_link(along, variance, rate) if variance > 0.0 else rate_link(rate)
        return w, link

    def _noise_of_weights(self) -> Floats | None:
        known = self._numbers[1]
        if not known or self._origin is not None:
            return None
        second, cross, _ = self._means()
        cross = cross / (2.0 * self._weight)
        return noise_of_weights(
            second,
            cross,
            self._ridge,
            1.0 / known,
            self._noise_of_cross() / (4.0 * self._weight * self._weight),
            self.plan.radius,
            rate=0.5 * (1.0 + self._centre),
        )

    def _noise_of_cross(self) -> Floats:
        """Variance of the noise in each cell of the second of `_means`, (d,)."""
        known, noise = self._numbers[1], self._start[1]
        if not len(noise) or not noise[0] > 0.0:
            return np.full(self.plan.features, 1.0 / known)
        length = self._length(self._means()[0])
        return np.asarray(1.0 / (known + 1.0 / (self._weight * self._weight * length * noise)))

    def _solve(self) -> None:
        self._stale = self.fits_model
        self._keep_wanted()

    def _update(self) -> None:
        """Compute the model of the last release, unless it is known or deferred.

        It is a function of the releases, so the time of the call does not change its bits; most models of a
        stream that is only learned are never needed.
        """
        if self._stale and not self._deferred:
            self._w, self._link = self._compute_model()
            self._stale = False

    def _copy_of_releases(self) -> MomentsState:
        """A copy without the exact sums and the noise memory: `_compute_model` needs releases alone."""
        other = copy.copy(self)
        del other.block, other.total, other._noise
        other._inputs = {}
        for name in ("_running", "_weighted", "_numbers", "_start"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def defer_fits(self, releases: Collection[int] = ()) -> None:
        """As of `PrivateLearner.defer_fits`, if fits are slow."""
        if self.slow_fits:
            self._deferred, self._wanted = True, frozenset(releases)
            self._keep_wanted()

    def _keep_wanted(self) -> None:
        if self._stale and self._releases in self._wanted:
            self._inputs[self._releases] = self._copy_of_releases()

    def fit_due(self, release: int | None = None) -> ModelFit | None:
        """As of `PrivateLearner.fit_due`."""
        if not self._deferred or (release is None and not self._stale):
            return None
        release = self._releases if release is None else release
        if release == self._releases and release not in self._inputs:
            self._inputs[release] = self._copy_of_releases()
        inputs = self._inputs.get(release)
        return None if inputs is None else ModelFit(release, inputs._compute_model)

    def adopt(self, release: int, model: tuple[Floats, Link]) -> None:
        """As of `PrivateLearner.adopt`."""
        self._w, self._link = model
        self._stale = self._stale and release < self._releases
        self._inputs = {number: inputs for number, inputs in self._inputs.items() if number > release}

    def _unfitted(self) -> dict[str, Any]:
        """For a state, while the last release has no model: earlier releases whose models may be adopted."""
        return {
            str(number): {
                "weighted": inputs._weighted.copy(),
                "numbers": inputs._numbers.copy(),
                **({"pooled": inputs._pooled} if self._table is not None else {}),
            }
            for number, inputs in self._inputs.items()
            if number < self._releases
        }

    def _load_unfitted(self, saved: Mapping[str, Any]) -> None:
        for number, arrays in saved.items():
            inputs = self._copy_of_releases()
            for name, array in (("weighted", inputs._weighted), ("numbers", inputs._numbers)):
                if arrays[name].shape != array.shape:
                    raise ValueError(f"{name} of another shape")
                array[:] = arrays[name]
            inputs._pooled = bool(arrays.get("pooled", False))
            self._inputs[int(number)] = inputs

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the noise memory among them is as secret as the data."""
        return {
            "steps": self.steps,
            "centre": self._centre,
            "weights": self.average.copy(),
            "link": [self.link.slope, self.link.offset],
            **({"start": self._start.copy()} if self._start.size else {}),
            "sums": self.block.to_state(),
            "total": self.total.to_state(),
            "running": self._running.copy(),
            "weighted": self._weighted.copy(),
            "numbers": self._numbers.copy(),
            "noise": self._noise.to_state(),
            **({"pooled": self._pooled} if self._table is not None else {}),
            **({"unfitted": self._unfitted()} if self._deferred and self._stale else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        steps = int(state["steps"])
        if steps < 0:
            raise ValueError("slots below 0")
        if ("pooled" in state) != (self._table is not None):
            raise ValueError("moments of a table, or none, unlike the learner")
        self._keep_pooled(bool(state.get("pooled", False)))
        for name, array in (
            *((("start", self._start),) if self._start.size else ()),
            ("weights", self._w),
            ("running", self._running),
            ("weighted", self._weighted),
            ("numbers", self._numbers),
        ):
            if state[name].shape != array.shape:
                raise ValueError(f"{name} of another shape")
            array[:] = state[name]
        self.block.load_state(state["sums"])
        self.total.load_state(state["total"])
        self._noise.load_state(state["noise"])
        self._put_centre(float(state["centre"]))
        self.steps = steps
        self._releases = self.plan.releases(steps)
        self._due = self._next_end()
        slope, offset = (float(value) for value in state["link"])
        if not (0.0 < slope < math.inf and math.isfinite(offset)):
            raise ValueError("a link that is none")
        self._link = Link(slope, offset)
        self._stale = "unfitted" in state
        self._load_unfitted(state.get("unfitted", {}))


@dataclass(frozen=True)
class Moments(Mechanism):
    """The minimiser of the squared loss over all pairs, computed from second moments of blocks of records.

    With a horizon the plan has the weight `ANYTIME` for what is known before it, if there are no entities,
    whose account is not known, and no forks, each of which would cost as much as the run.
    """

    label_mean: ClassVar[bool] = True
    label_cross: ClassVar[bool] = True
    #: Class of the state, and the warm-up's release in words.
    run: ClassVar[type[MomentsState]] = MomentsState
    warmup_release: ClassVar[str] = "means, variances and the share of labels"

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """Least squares; the selection of the mechanism refuses any other loss."""
        return losses.Square()

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int:
        """Slots by the noise of the means, which is `2 sqrt(d + 1) / mu` over their number."""
        root = math.sqrt(features or 1)
        if horizon is None:
            # Without a horizon the warm-up serves for ever, but many features are lost in the moments' noise.
            return math.ceil(min(100.0 * min(root, _MANY) / mu, _MOST_SLOTS))
        least, most = _SHARES
        within = 18.0 * (root + 1.0) / mu
        return max(int(min(most * horizon, max(least * horizon, within))), 1)

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> MomentsState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        return self.run(self.planned(settings).with_fitted(saved))

    def planned(self, settings: Settings) -> SecondMomentsPlan:
        """The plan for these settings."""
        assert settings.features is not None
        weighted = settings.learning is not None and not settings.forks and settings.entity is None
        return plan_second_moments(
            settings.mu_learning,
            features=settings.features,
            base=float(settings.warmup),
            radius=settings.radius,
            horizon=settings.learning,
            forks=settings.forks,
            window=settings.window,
            relation=settings.relation,
            anytime=ANYTIME if weighted else None,
        )

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        also = ", and of how features go with labels" if self.label_cross else ""
        return (
            "Mechanism: second moments of the records, and of their labels with them, are summed over "
            "blocks of records; each block's sum is released once, under Gaussian noise that is "
            f"correlated over the blocks, and every model is computed from these releases. The first "
            f"{settings.warmup} records are used for one release only, of {self.warmup_release}{also}; the "
            "later ones for learning only, so each has "
            + ("half of mu^2." if settings.composes else "the whole budget (parallel composition).")
        )


class RankingMomentsState(MomentsState):
    """State for relevances in [-1, 1]: the same sums with another model."""

    def _compute_model(self) -> tuple[Floats, Link]:
        """Weights of the least loss `(c - w.(x - x'))^2` over all pairs, c the difference of relevances.

        Over all pairs that is twice the squared error of centred relevances regressed on centred records.
        """
        second, cross, left = self._means()
        w = np.empty(self.plan.features)
        ridge = self._ridge
        towards = self._towards
        if towards is None:
            symmetric.ridge_solution(second, cross / self._weight, ridge, 0.0, w)
        else:
            noise = left / (self._weight * self._weight)
            w, _ = solve_towards(towards, second, cross / self._weight, ridge, 0.0, noise)
        vectors.project_ball(w, self.plan.radius)
        # A ranking has no probabilities.
        return w, self._link

    def _noise_of_weights(self) -> Floats | None:
        known = self._numbers[1]
        if not known or self._origin is not None:
            return None
        second, cross, _ = self._means()
        return noise_of_weights(
            second,
            cross / self._weight,
            self._ridge,
            1.0 / known,
            self._noise_of_cross() / (self._weight * self._weight),
            self.plan.radius,
        )


@dataclass(frozen=True)
class RankingMoments(Moments):
    """The minimiser of the squared error of differences, from second moments of blocks of records."""

    run: ClassVar[type[MomentsState]] = RankingMomentsState
    warmup_release: ClassVar[str] = "means, variances and the mean relevance"
