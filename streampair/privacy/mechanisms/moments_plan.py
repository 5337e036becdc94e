"""Second moments of blocks of records, calibrated (docs/privacy.md 10.1, 4.3, 7).

Every learned record belongs to one block of slots. At the end of a block the sum over its records of

    F(x, s) = (x x', a s x),   |x| <= 1,  |s| <= 1 / a,

is released under Gaussian noise, in the coordinates of the lower triangle in which the norm is Frobenius'
(off-diagonals times sqrt 2). Blocks end at public slots that grow geometrically. The noise of the blocks
is correlated as in docs/privacy.md 4.3, with `c_k = ratio^-k`, so that what is known after any number of
blocks has noise in proportion to the records seen. All else is computed from these releases.

With a horizon the sum over all records is released at its end. A record of a late block is in few releases
before, and has paid less for them: it may count for more in the last one. `anytime` weighs what is known on
the way against what is known at the end.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampair.errors import ConfigError
from streampair.privacy.correlated import BLT
from streampair.privacy.mechanisms.base import ONE_RECORD, Relation, Release, check_cells
from streampair.privacy.mechanisms.moments_entities import placed
from streampair.privacy.sensitivity import grid_step, pattern_sensitivity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["SecondMomentsPlan", "plan_second_moments", "second_moments_diameter"]

RATIO = 1.1
"""How much longer the stream is at each release than at the one before."""

RUNNING_SHARE = 1.0 / 3.0
"""Share of mu^2 for the releases before the horizon; the release at the horizon has the rest."""

_FITTED = ("mu", "base", "grid", "sigma", "sigma_last", "spread")

# One record is in one block.
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
    >>> from streampair.privacy.mechanisms.moments_plan import second_moments_diameter
    >>> round(second_moments_diameter(1.0), 6)
    2.12132
    """
    if not 0.0 <= weight <= math.sqrt(2.0):
        raise ConfigError(f"a weight of {weight!r}", fix="give a weight from 0 to the root of 2")
    return math.sqrt(2.0) * (1.0 + 0.5 * weight * weight)


_DIAMETER = second_moments_diameter()


@functools.lru_cache(maxsize=4096)
def _growth(block: int) -> float:
    """`RATIO^block`, correctly rounded: where a block ends must not depend on a library's power."""
    numerator, denominator = RATIO.as_integer_ratio()
    return float(numerator**block / denominator**block)


ANYTIME = 0.6
"""Default weight of what is known before the horizon: no more noise at the end than a third of mu^2 for the
releases before, and two thirds for a plain sum, left there; a third less on the way."""

UNITS = 64
"""Steps that the weights of blocks in the last release are rounded down to."""


def _strategy(share: float, releases: int | None) -> BLT:
    return BLT(np.array([share]), np.array([1.0 - share]), releases)


@dataclass(frozen=True, eq=False)
class SecondMomentsPlan:
    """The mechanism, calibrated.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record, or entity, over all releases.
    features
        Features d.
    base
        Length that the stream is said to have before the first learned record: block k ends after about
        `base (RATIO^k - 1)` learned slots.
    horizon
        Learning slots, None for no end. With one there is a last release at its end, of the sum over all
        records, with `1 - RUNNING_SHARE` of mu^2 (adaptive composition); the ones before have the rest.
    radius
        Radius R of the weights.
    forks, window
        Windows of `window` slots that may be released twice within the budget (docs/privacy.md 8).
    anytime
        Weight a, above 0 and up to 1, of what is known before the horizon against what is known at its end: a
        record of the first block spends `sqrt(a)` of mu^2 on the releases before, which have `c_k = (.99 -
        .06 a)^k`. Every record spends what it has left on the last release, a sum in which its block has a
        weight of its own. None: `RUNNING_SHARE`, `c_k = RATIO^-k`, and a plain sum, as plans before had it.
        Without a horizon there is no end to weigh against, and this is None.
    strategy
        The matrix C of the releases before the horizon.
    grid
        gamma, a power of two.
    relation
        Which streams are neighbours.
    classes
        Declared classes K of a metric, for which the sum is that of `(x x', e_y (x) x, e_y / 2)`; 0: none.
    sigma, sigma_last
        Noise std, a coordinate, of the releases before the horizon and of the last one; the same number where
        one of them is missing.
    weights
        Of each block in the last release, in steps of one over `units`.
    spread
        Norm to which standardised records are scaled before the unit ball cuts them off, from 1 to 2. Longer
        ones drown the noise, and lose more of what their lengths tell: the more noise there is, the longer.
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

    #: Whether models also use what the warm-up tells of labels and features.
    uses_warmup: ClassVar[bool] = True

    @property
    def FITTED(self) -> tuple[str, ...]:
        """Names of the numbers that are written down."""
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

        def put(**values: object) -> None:
            for name, value in values.items():
                object.__setattr__(self, name, value)

        a = self.anytime
        keep = 1.0 / RATIO if a is None else 0.99 - 0.06 * a
        put(strategy=_strategy(keep, running))
        put(grid=grid_step(_strategy(keep, None), _PATTERN, _DIAMETER, self.rounded))
        before = RUNNING_SHARE if a is None else math.sqrt(a)
        share = 1.0 if running is None else before if running else 0.0
        put(weights=np.ones(1, dtype=np.int64) if a is None else self._weights(share, running or 0))
        left = 1.0 - share if a is None else 1.0
        last = self._last_move / (self.mu * math.sqrt(left)) if left > 0.0 else None
        first = self._running_move(running) / (self.mu * math.sqrt(share)) if share > 0.0 else last
        assert first is not None
        put(sigma=first, sigma_last=first if last is None else last)
        if self.forks:
            # All noise grows alike: what the releases cost, and each second view of a window.
            factor = math.sqrt(1.0 + self.forks * self.fork_mu2(self.window) / self.mu**2)
            put(sigma=factor * self.sigma, sigma_last=factor * self.sigma_last)
        check_cells(20.0 * max(self.sigma, self.sigma_last * self.units) / self.grid, "noise")
        put(spread=self._spread())

    @property
    def dim(self) -> int:
        """Coordinates of a release."""
        d = self.features
        return d * (d + 1) // 2 + d * max(self.classes, 1) + self.classes

    @property
    def steps(self) -> Floats | None:
        """Step of each coordinate; None: the grid for all."""
        return None

    @property
    def rounded(self) -> int:
        """Coordinates of a record's sums that are rounded to the grid; others are whole steps as they are."""
        return self.dim

    @property
    def diameter(self) -> float:
        """Replacement diameter of what is summed of a record, before it is rounded."""
        return _DIAMETER

    @property
    def blank_move(self) -> float:
        """Norm of it, at most."""
        return 1.5 if self.classes else math.sqrt(2.0)

    @property
    def _one_move(self) -> float:
        return self.diameter + self.grid * math.sqrt(self.rounded)

    def _weights(self, share: float, running: int) -> NDArray[np.int64]:
        """What is left of a record's mu^2 after the releases before the horizon: `sqrt(1 - share ...)`."""
        # Products, in one order: a library's powers have other last digits elsewhere.
        square = float(self.strategy.theta[0]) * float(self.strategy.theta[0])
        rows, sums = 1.0, [0.0]
        for _ in range(running):
            sums.append(sums[-1] + rows)
            rows *= square
        total = sums[-1] or 1.0
        left = [math.sqrt(max(1.0 - share * paid / total, 0.0)) for paid in reversed(sums)]
        return np.array([math.floor(UNITS * part) for part in left], dtype=np.int64)

    @property
    def units(self) -> int:
        """Steps in a weight of one."""
        return 1 if self.anytime is None else UNITS

    def weight(self, block: int) -> int:
        """Of block `block = 1, 2, ...` in the last release, in steps of one over `units`."""
        return 1 if self.anytime is None else int(self.weights[min(block, len(self.weights)) - 1])

    def weighed(self, steps: int) -> float:
        """Slots in the last release, by the weights of their blocks."""
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
        """Of the releases of the first blocks; rows: of any so many consecutive ones of these."""
        entity = self.relation.entity
        if entity is None or blocks is None:  # one block far enough from the beginning has room for all
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
        return math.ceil(self.base * (_growth(block) - 1.0)) + block

    def _ends_before(self, slots: int) -> list[int]:
        ends: list[int] = []
        while (end := self.end(len(ends) + 1)) < slots:
            ends.append(end)
        return ends

    def releases(self, steps: int) -> int:
        """Releases in the first `steps` learned slots."""
        if self.horizon is not None and steps >= self.horizon:
            return len(self._ends_before(self.horizon)) + 1
        return len(self._ends_before(steps + 1))

    def mu_spent(self, steps: int) -> float:
        """mu of the releases in the first `steps` learned slots: of a record that they cost most.

        Of an entity that of the worst places its records may have (docs/privacy.md, Lemma 55).
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

        Releases are independent measurements of so many slots as C times the blocks' lengths says, under
        noise of one std; the best unbiased combination adds up their squares.
        """
        slots = total = 0.0
        start = 0
        last = self.horizon is not None and steps >= self.horizon
        for end in self._ends_before(steps if last else steps + 1):
            slots = slots / RATIO if self.anytime is None else slots * float(self.strategy.theta[0])
            slots += end - start
            start = end
            total += (slots / self.sigma) ** 2
        return total + ((self.weighed(steps) / self.sigma_last) ** 2 if last else 0.0)

    @property
    def _told_grid(self) -> float:
        """The step of a coordinate, for the card: the harmonic mean, which floating point depends on."""
        steps = self.steps
        return self.grid if steps is None else float(len(steps) / (1.0 / steps).sum())

    @property
    def lemma(self) -> int:
        """Which one has the diameter."""
        return 42 if self.classes else 31

    @property
    def _alone(self) -> bool:
        return self.relation.entity is None

    def card(self) -> tuple[Release, ...]:
        """What is released, and what it is worth: the sums of blocks, and that of all at the horizon."""
        horizon, dim = self.horizon, self.dim
        running = None if horizon is None else len(self._ends_before(horizon))

        def kind(name: str, move: float, sigma: float, releases: int | None, units: int = 1) -> Release:
            moved = move / sigma
            # Blanking moves a sum by |F| <= sqrt 2, and with the count of a class by 3/2.
            blank = min((self.blank_move + self.grid * math.sqrt(self.rounded)) / self._one_move, 1.0)
            return Release(
                name=name,
                domain="records in the unit ball, with "
                + ("one of the declared classes" if self.classes else "a label weighted into [-1, 1]"),
                relation=self.relation,
                lemma=f"docs/privacy.md, Lemma 16, Lemma {self.lemma} and Lemma "
                + ("32" if self._alone else "55"),
                sensitivity=move,
                sigma=sigma,
                replace=moved,
                blank=blank * moved,
                releases=releases,
                coordinates=dim,
                grid=self._told_grid / units,
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
        """`mu^2` of releasing what falls into `window` consecutive slots once more (docs/privacy.md 8).

        A record that is in the first of the m blocks that end there costs most, and the more the larger m.
        With a horizon the dearest window is the fullest one before it, or the one that it ends.
        """
        if window <= 0:
            return 0.0
        fullest = self._ends_mu2(self._most_ends(window))
        if self.horizon is None:
            return fullest
        if self.anytime is not None:
            # A record of the last block is in no release but the last: as much as a whole run.
            return max(fullest, self.mu_spent(self.horizon) ** 2)
        last = (self._last_move / self.sigma_last) ** 2
        beside = sum(end > self.horizon - window for end in self._ends_before(self.horizon))
        return max(fullest, self._ends_mu2(beside) + last)

    def _ends_mu2(self, ends: int) -> float:
        """`mu^2` of a record in the first of as many consecutive blocks that end before the horizon."""
        blocks = None if self.horizon is None else len(self._ends_before(self.horizon))
        return (self._running_move(blocks, ends) / self.sigma) ** 2

    def _most_ends(self, window: int) -> int:
        """Block ends before the horizon that `window` consecutive slots can hold, at most.

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
    >>> from streampair.privacy.mechanisms.moments_plan import plan_second_moments
    >>> plan = plan_second_moments(mu_from(1.0, 1e-4), features=9, base=200.0, radius=30.0, horizon=1000)
    >>> plan.releases(1000), round(plan.mu_spent(1000) / plan.mu, 12)
    (19, 1.0)
    """
    return SecondMomentsPlan(mu, features, base, horizon, radius, forks, window, relation, anytime=anytime)
