"""PairFTRL by moments: the leader of the squared pair loss, from noisy sums (docs/privacy.md 10.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import kernels, losses
from streampair.privacy.mechanisms.base import ExactSums, Mechanism, Release, Settings
from streampair.privacy.mechanisms.fitted import under
from streampair.privacy.mechanisms.leader import leader_of, noise_of_leader, unpacked
from streampair.privacy.mechanisms.link import Link, normal_link, rate_link
from streampair.privacy.mechanisms.moments_plan import (
    ANYTIME,
    SecondMomentsPlan,
    plan_second_moments,
)
from streampair.privacy.mechanisms.run import Asked, Run
from streampair.privacy.noise import BLTNoise, ChainedNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream
    from streampair.records.design import Design

    Floats = NDArray[np.float64]

__all__ = ["LEAST_HORIZON", "MOST_FEATURES", "Moments", "MomentsRun"]

LEAST_HORIZON = 100
"""Shorter streams are too short for two stages."""

MOST_FEATURES = 512
"""A release has d^2 / 2 coordinates."""

# What the mechanism fixes, chosen on generated streams, where all of it is flat around these values.
_MOST_SLOTS = 2.0**40
_CAP = 3.0  # standard deviations, where standardised values end
_SHARES = (0.1, 0.25)  # least and most of a horizon that the warm-up takes
_MANY = 7.0  # root of the number of features from where on the warm-up without a horizon is no longer

# Of the mean squared length of records, as it is released: they are in the unit ball, and not all at 0.
_LENGTHS = (0.1, 1.0)

# Of a first model's covariances, at least so much is taken for no noise: it always ranks somehow.
_SURE = 0.05

# Of the label mean that is released with the warm-up: beyond it a class is too rare to be seen.
MOST_CENTRE = 0.98


class MomentsRun(Run):
    """State of one run: the sums of the open block, what the releases say, and the noise memory.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: SecondMomentsPlan

    def __init__(self, plan: SecondMomentsPlan) -> None:
        self.plan = plan
        self.steps = 0
        self.spread = plan.spread
        self.cap = _CAP * plan.spread / math.sqrt(plan.features)
        self._releases = 0
        self._put_centre(0.0)
        # What the warm-up tells of labels and features: covariances, and the variances of their noise.
        self._start: Floats = np.zeros((2, plan.features if plan.uses_warmup else 0))
        self._card = plan.card()
        steps = self._grids()
        self.block = ExactSums(self._card[0], (plan.dim,), steps)
        # The sums of all blocks, for the release at the horizon.
        last = None if steps is None or plan.horizon is None else steps / plan.units
        self.total = ExactSums(self._card[-1], (plan.dim if plan.horizon is not None else 0,), last)
        self._running = np.zeros(plan.dim)  # C times the released sums
        self._weighted = np.zeros(plan.dim)  # best unbiased combination of all releases, times `_known`
        self._last = np.zeros(plan.dim if plan.horizon is not None else 0)
        self._numbers = np.zeros(3)  # running slots, `_known`, start of the open block
        self._noise = BLTNoise(plan.strategy.omega.copy(), plan.strategy.theta, plan.dim, plan.sigma)
        self._w = np.zeros(plan.features)
        self._noises: tuple[int, Floats | None] = (-1, None)  # of the weights of a release
        self.fits_model = True  # an audit, which looks at the releases alone, turns it off
        self._told = 0.0  # of a label, 1 or 0, in a unit of the score: of the last model that was computed
        self._due = self._next_end()  # slot of the next release
        # `leader_slot` is for the sums of this class.
        self._own_sums = type(self)._sum_up is MomentsRun._sum_up

    @property
    def link(self) -> Link:
        """Log-odds of the equal-covariance normal model that the releases describe."""
        return self._link

    @property
    def prior(self) -> float:
        """Log-odds of the released share of positives."""
        return rate_link(0.5 * (1.0 + self._centre)).offset

    @property
    def average(self) -> Floats:
        """The published weights, shape (d,): a view."""
        return self._w

    @property
    def noise(self) -> Floats | None:
        """From the moments that are released and what noise they are under: about, to first order in it."""
        if self._noises[0] != self._releases:
            self._noises = (self._releases, self._noise_of_weights())
        return self._noises[1]

    @property
    def releases(self) -> int:
        """Models released so far."""
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
        """Make a first model of what the warm-up has released, which later ones take into account."""
        self._start[:] = cross
        self._solve()

    def _put_centre(self, centre: float) -> None:
        self._centre = centre
        # With it |weight (y - centre)| <= 1 for |y| <= 1.
        self._weight = 1.0 / (1.0 + abs(centre))
        self._how = np.array([self.cap, centre, self._weight, self.plan.grid])  # as `leader_slot` wants them
        self._link = rate_link(0.5 * (1.0 + centre))

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan = self.plan
        numbers = [plan.sigma, plan.sigma_last, plan.grid, plan.base, plan.radius]
        return numbers if plan.anytime is None else [*numbers, plan.anytime]

    @property
    def released(self) -> Floats:
        """The noisy values that are out: C times the blocks' sums, and the sum at the horizon."""
        return np.concatenate((self._running, self._last))

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: it counts, and adds nothing."""
        self.take(rows, labels, stream, (), None)

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        self._add(row, label)
        if self.steps == self._due:
            chain.advance(self._leaving())
            self._release(chain)
        else:
            chain.advance(b"")

    @property
    def quiet(self) -> bool:
        """Whether the block goes on after the next slot, which is not the first."""
        return 0 < self.steps < self._due - 1 and self._own_sums

    def learn_quietly(self, design: Design) -> None:
        """`learn` of one slot, from the raw record on, in one call of compiled code."""
        self.block.add(kernels.leader_slot, design.cells, design.how, design.standardised, self._how)
        self.steps += 1

    @property
    def steady(self) -> int:
        """Up to the next release."""
        return max(1, self._due - self.steps)

    def take(
        self, rows: Floats, labels: Floats, stream: Stream, records: Sequence[bytes], asked: Asked | None
    ) -> None:
        """As of a run, in one go from one release to the next: nothing is published between them."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        at, n = 0, len(rows)
        while at < n:
            end = min(at + self._due - self.steps, n)
            if asked is not None:
                kernels.score_many(self._w, asked.rows[at:end], asked.scores[at:end])
            self._add(rows[at:end], labels[at:end])
            released = self.steps == self._due
            if chain is not None:
                chain.skip(records[at : end - released])
                if released:
                    chain.record(records[end - 1])
                    chain.advance(self._leaving())
            if released:
                self._release(stream)
            at = end

    def _leaving(self) -> bytes:
        """What the noise of the release that is due will be added to."""
        return (self.total if self._at_horizon() else self.block).cells()

    def _add(self, rows: Floats, labels: Floats) -> None:
        self._sum_up(rows, labels)
        self.steps += len(rows)
        if self._at_horizon():
            self.total.absorb(self.block, self.plan.weight(self._releases + 1))

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        """Add what is summed of each record to the open block."""
        self.block.add(kernels.leader_sums, rows, labels, self._centre, self._weight, self.plan.grid)

    def _grids(self) -> Floats | None:
        """Step of each coordinate of a release; None: the grid for all."""
        return None

    def _packed(self) -> int:
        """The first coordinates of a release, which hold the second moments and those with the label."""
        return int(self.plan.dim)

    def _next_end(self) -> int:
        end, horizon = self.plan.end(self._releases + 1), self.plan.horizon
        return end if horizon is None else min(end, horizon)

    def _at_horizon(self) -> bool:
        return self.steps == self.plan.horizon

    def _release(self, stream: Stream) -> None:
        """One noisy sum, and the leader of all sums so far."""
        plan = self.plan
        if self._at_horizon():
            value = self._last
            value[:] = self.total.emit(plan.sigma_last * stream.take(plan.dim))
            slots, std = plan.weighed(self.steps), plan.sigma_last
        else:
            noisy = self.block.emit(self._noise.rows(1, stream)[0])
            keep = float(plan.strategy.theta[0])
            value = self._running
            value *= keep
            value += noisy
            slots = self._numbers[0] = keep * self._numbers[0] + (self.steps - self._numbers[2])
            std = plan.sigma
            if plan.horizon is not None:
                self.total.absorb(self.block, plan.weight(self._releases + 1))
        # The values are independent measurements of `slots` times the mean record.
        # Products, not powers: those of a library may have other last digits elsewhere.
        self._weighted += (slots / (std * std)) * value
        self._numbers[1] += (slots / std) * (slots / std)
        self._numbers[2] = self.steps
        self.block.clear()
        self._releases += 1
        self._due = self._next_end()
        self._solve()

    def _means(self) -> tuple[Floats, Floats, float]:
        """Means of `x x'` and of `weight (y - centre) x`, and the variance of the noise in a cell of that.

        Of the latter there is a measurement by the blocks and, with other noise in each cell, one by the
        warm-up, of the records before they were cut to the unit ball: by as much as they have become shorter
        it is too long. Both are weighed by their noise.
        """
        d, known = self.plan.features, self._numbers[1]
        start, noise = self._start
        if known == 0.0:
            # Standardised records, and no covariances but those with the labels, of which noise makes most.
            length = float(kernels.dot(start, start))
            sure = 1.0 - float(kernels.dot(noise, np.ones(d))) / length if length > 0.0 else 0.0
            return np.diag(np.full(d, 1.0 / d)), max(sure, _SURE) * self._weight * start, 0.0
        second, cross = unpacked(self._weighted[: self._packed()] / known, d)
        if not len(noise) or not noise[0] > 0.0:
            return second, cross, 1.0 / known
        length = self._length(second)
        told = 1.0 / (self._weight * self._weight * length * noise)
        cross = (known * cross + told * (self._weight * math.sqrt(length) * start)) / (known + told)
        return second, cross, float(kernels.dot(1.0 / (known + told), np.ones(d))) / d

    def _length(self, second: Floats) -> float:
        """Mean squared length of a record, as the releases tell it."""
        least, most = _LENGTHS
        return min(max(float(kernels.dot(second.diagonal().copy(), np.ones(len(second)))), least), most)

    def _leader(self) -> tuple[Floats, Link]:
        """Weights and link from all releases so far."""
        d, known = self.plan.features, self._numbers[1]
        second, cross, left = self._means()
        # The kernel's weight times (y - centre) is twice the weight times (b - rate).
        cross = cross / (2.0 * self._weight)
        rate = 0.5 * (1.0 + self._centre)
        # The noise of the matrix has a norm of about sqrt(2 d) std; the ridge is of that order.
        ridge = math.sqrt(d / known) if known else 0.0
        given = (1.0 / known,) if known else ()
        w, noise = leader_of(second, cross, rate, ridge, *given)
        length = math.sqrt(float(kernels.dot(w, w)))
        if length > self.plan.radius:
            kernels.project_ball(w, self.plan.radius)
            noise *= self.plan.radius / length
        # The ridge belongs to the variance: w leans towards where noise has made the matrix too small.
        rows = np.array([kernels.dot(row, w) for row in second])
        variance = float(kernels.dot(w, rows)) + ridge * float(kernels.dot(w, w))
        # Weights that follow the noise of `cross` agree with it: that is no difference of the classes.
        along = float(kernels.dot(w, cross)) - noise * left / (4.0 * self._weight * self._weight)
        self._told = max(along, 0.0) / variance if variance > 0.0 else 0.0
        link = normal_link(along, variance, rate) if variance > 0.0 else rate_link(rate)
        return w, link

    def _noise_of_weights(self) -> Floats | None:
        known = self._numbers[1]
        if not known:
            return None
        second, cross, _ = self._means()
        return noise_of_leader(
            second,
            cross / (2.0 * self._weight),
            math.sqrt(self.plan.features / known),
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
        if self.fits_model:
            self._w, self._link = self._leader()

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the noise memory among them is as secret as the data."""
        return {
            "steps": self.steps,
            "centre": self._centre,
            "weights": self._w.copy(),
            "link": [self._link.slope, self._link.offset],
            **({"start": self._start.copy()} if self._start.size else {}),
            "sums": self.block.to_state(),
            "total": self.total.to_state(),
            "running": self._running.copy(),
            "weighted": self._weighted.copy(),
            "numbers": self._numbers.copy(),
            "noise": self._noise.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        steps = int(state["steps"])
        if steps < 0:
            raise ValueError("slots below 0")
        for name, own in (
            *((("start", self._start),) if self._start.size else ()),
            ("weights", self._w),
            ("running", self._running),
            ("weighted", self._weighted),
            ("numbers", self._numbers),
        ):
            if state[name].shape != own.shape:
                raise ValueError(f"{name} of another shape")
            own[:] = state[name]
        self.block.load_state(state["sums"])
        self.total.load_state(state["total"])
        self._noise.load_state(state["noise"])
        self._put_centre(float(state["centre"]))
        self.steps = steps
        self._releases = self.plan.releases(steps)
        self._due = self._next_end()
        if "link" in state:
            slope, offset = (float(value) for value in state["link"])
            if not (0.0 < slope < math.inf and math.isfinite(offset)):
                raise ValueError("a link that is none")
            self._link = Link(slope, offset)
        elif self._numbers[1] > 0.0:  # a state of 0.1
            self._link = self._leader()[1]


@dataclass(frozen=True)
class Moments(Mechanism):
    """The leader of the squared loss over all pairs, computed from second moments of blocks of records.

    Parameters
    ----------
    anytime
        Weight of what is known before the horizon, as of `SecondMomentsPlan`. None: `ANYTIME` where there is
        a horizon, and no entities, of which an account is not known, and no room for forks, of which each
        would cost as much as the run; else none.
    """

    anytime: float | None = None

    label_mean: ClassVar[bool] = True
    label_cross: ClassVar[bool] = True
    #: What a run is, and what the warm-up releases, in words.
    run: ClassVar[type[MomentsRun]] = MomentsRun
    prefix: ClassVar[str] = "means, variances and the share of labels"

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """Least squares, whatever was asked for: `choose` sees to it that nothing else was."""
        return losses.Square()

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """As many slots as the noise of the means needs, which is `2 sqrt(d + 1) / mu` over their number."""
        root = math.sqrt(features or 1)
        if horizon is None:
            # Without a horizon it has to last, but many features drown in the moments' noise before.
            return math.ceil(min(100.0 * min(root, _MANY) / mu, _MOST_SLOTS))
        least, most = _SHARES
        within = 18.0 * (root + 1.0) / mu
        return max(int(min(most * horizon, max(least * horizon, within))), 1)

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> MomentsRun:
        """A run; nothing is drawn, and what was fitted for a saved one is taken from it."""
        return self.run(under(self.planned(settings), saved))

    def planned(self, settings: Settings) -> SecondMomentsPlan:
        """The plan, fitted here."""
        assert settings.features is not None
        anytime = self.anytime
        if anytime is None and not settings.forks and settings.entity is None:
            anytime = ANYTIME
        if settings.learning is None:
            anytime = None
        return plan_second_moments(
            settings.mu_learning,
            features=settings.features,
            base=float(settings.warmup),
            radius=settings.radius,
            horizon=settings.learning,
            forks=settings.forks,
            window=settings.window,
            relation=settings.relation,
            anytime=anytime,
        )

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        also = ", and of how features go with labels" if self.label_cross else ""
        return (
            "Mechanism: second moments of the records, and of their labels with them, are summed over "
            "blocks of records; each block's sum is released once, under Gaussian noise that is "
            "correlated over the blocks, and every model is computed from these releases. The first "
            f"{settings.warmup} records are used for one release only, of {self.prefix}{also}; the later "
            "ones for learning only, so each has "
            + ("half of mu^2." if settings.composes else "the whole budget (parallel composition).")
        )
