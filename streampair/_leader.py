"""The leader of the squared pair loss, from moments released at public slots (privacy/plan_leader.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.privacy import BLTNoise, ChainedNoise, LeaderPlan
from streampair.privacy.noise import Stream

__all__ = ["Leader", "leader_of"]

Floats = NDArray[np.float64]

# Of the label mean that is released with the moments: beyond it a class is too rare to be seen.
MOST_CENTRE = 0.98


def leader_of(second: Floats, cross: Floats, rate: float, ridge: float) -> Floats:
    """Weights (d,) of the least squared pair loss `(1 - 2 w.(x - x'))^2`, from moments.

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

    Notes
    -----
    Where the classes share their covariance S, the mean of x x' is `S + rate (1 - rate) u u'` with u the
    difference of the class means, so the pairs' `2 S + u u'` and their leader follow from the regression of
    b on x: the same direction, another length (Sherman-Morrison). Without the assumption it is that
    regression, of which the order is used.
    """
    values, vectors = np.linalg.eigh(second)
    w: Floats = vectors @ ((vectors.T @ cross) / (np.maximum(values, 0.0) + ridge))
    spread = rate * (1.0 - rate)
    explained = min(max(float(w @ cross) / spread, 0.0), 0.999)
    distance = explained / (1.0 - explained) / spread
    w *= (1.0 + spread * distance) / (spread * (4.0 + 2.0 * distance))
    return w


class Leader:
    """State of one run: the sums of the open block, what the releases say, and the noise memory.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    def __init__(self, plan: LeaderPlan) -> None:
        self.plan = plan
        self.steps = 0
        self.releases = 0
        self._centre = 0.0
        self._sums = np.zeros(plan.dim, dtype=np.int64)
        # The sums of all blocks, for the release at the horizon.
        self._total = np.zeros(plan.dim if plan.horizon is not None else 0, dtype=np.int64)
        self._running = np.zeros(plan.dim)  # C times the released sums
        self._weighted = np.zeros(plan.dim)  # best unbiased combination of all releases, times `_known`
        self._last = np.zeros(plan.dim if plan.horizon is not None else 0)
        self._numbers = np.zeros(3)  # running slots, `_known`, start of the open block
        self._noise = BLTNoise(plan.strategy.omega.copy(), plan.strategy.theta, plan.dim, plan.sigma)
        self._w = np.zeros(plan.features)
        self._due = self._next_end()  # slot of the next release

    @property
    def average(self) -> Floats:
        """The published weights, shape (d,): a view."""
        return self._w

    def centre(self, mean: float) -> None:
        """Use a released mean of the labels -1 and 1, before the first record."""
        self._centre = min(max(mean, -MOST_CENTRE), MOST_CENTRE)

    @property
    def _weight(self) -> float:
        # With it |weight (y - centre)| <= 1 for |y| <= 1.
        return 1.0 / (1.0 + abs(self._centre))

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan = self.plan
        return [plan.sigma, plan.sigma_last, plan.grid, plan.base, plan.radius]

    @property
    def released(self) -> Floats:
        """The noisy values that are out: C times the blocks' sums, and the sum at the horizon."""
        return np.concatenate((self._running, self._last))

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: it counts, and adds nothing."""
        at = 0
        while at < len(rows):
            count = min(self._due - self.steps, len(rows) - at)
            self._add(rows[at : at + count], labels[at : at + count])
            at += count
            if self.steps == self._due:
                self._release(stream)

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        self._add(row, label)
        if self.steps == self._due:
            chain.advance((self._total if self._at_horizon() else self._sums).tobytes())
            self._release(chain)
        else:
            chain.advance(b"")

    def _add(self, rows: Floats, labels: Floats) -> None:
        kernels.leader_sums(rows, labels, self._centre, self._weight, self.plan.grid, self._sums)
        self.steps += len(rows)
        if self._at_horizon():
            self._total += self._sums

    def _next_end(self) -> int:
        end, horizon = self.plan.end(self.releases + 1), self.plan.horizon
        return end if horizon is None else min(end, horizon)

    def _at_horizon(self) -> bool:
        return self.steps == self.plan.horizon

    def _release(self, stream: Stream) -> None:
        """One noisy sum, and the leader of all sums so far."""
        plan, grid = self.plan, self.plan.grid
        if self._at_horizon():
            noise = plan.sigma_last * stream.take(plan.dim)
            value = self._last
            value[:] = grid * (self._total + np.floor(noise / grid + 0.5).astype(np.int64))
            slots, std = float(self.steps), plan.sigma_last
        else:
            noise = self._noise.rows(1, stream)[0]
            noisy = grid * (self._sums + np.floor(noise / grid + 0.5).astype(np.int64))
            keep = float(plan.strategy.theta[0])
            value = self._running
            value *= keep
            value += noisy
            slots = self._numbers[0] = keep * self._numbers[0] + (self.steps - self._numbers[2])
            std = plan.sigma
            if plan.horizon is not None:
                self._total += self._sums
        # The values are independent measurements of `slots` times the mean record.
        self._weighted += (slots / std**2) * value
        self._numbers[1] += (slots / std) ** 2
        self._numbers[2] = self.steps
        self._sums[:] = 0
        self.releases += 1
        self._due = self._next_end()
        self._solve()

    def _solve(self) -> None:
        d = self.plan.features
        known = self._numbers[1]
        mean = self._weighted / known
        second = np.zeros((d, d))
        second[np.tril_indices(d)] = mean[:-d]
        second = second + second.T
        second /= math.sqrt(2.0)
        second[np.diag_indices(d)] /= math.sqrt(2.0)
        # The kernel's weight times (y - centre) is twice the weight times (b - rate).
        cross = mean[-d:] / (2.0 * self._weight)
        # The noise of the matrix has a norm of about sqrt(2 d) std; the ridge is of that order.
        ridge = math.sqrt(d / known)
        self._w = leader_of(second, cross, 0.5 * (1.0 + self._centre), ridge)
        kernels.project_ball(self._w, self.plan.radius)

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the noise memory among them is as secret as the data."""
        return {
            "steps": self.steps,
            "centre": self._centre,
            "weights": self._w.copy(),
            "sums": self._sums.copy(),
            "total": self._total.copy(),
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
            ("weights", self._w),
            ("sums", self._sums),
            ("total", self._total),
            ("running", self._running),
            ("weighted", self._weighted),
            ("numbers", self._numbers),
        ):
            if state[name].shape != own.shape:
                raise ValueError(f"{name} of another shape")
            own[:] = state[name]
        self._noise.load_state(state["noise"])
        self._centre = float(state["centre"])
        self.steps = steps
        self.releases = self.plan.releases(steps)
        self._due = self._next_end()
