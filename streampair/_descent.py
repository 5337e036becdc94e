"""Private gradient descent: noise in every gradient, or in every release (PRIVACY.md 4.1, 4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels as k
from streampair._private_buffer import PairBuffer
from streampair.privacy import ChainedNoise, NoisyPlan, OutputPlan
from streampair.privacy.noise import Stream

__all__ = ["NoisyDescent", "OutputPerturbation"]

Floats = NDArray[np.float64]

_CHUNK = 1024


class NoisyDescent:
    """State of a run with noise in every gradient; the noisy iterate is all that it knows (4.2).

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    l2
        Strength of the ridge term, which depends on no data.
    """

    def __init__(self, plan: NoisyPlan, buffer: PairBuffer, l2: float = 0.0) -> None:
        self.plan = plan
        self.steps = 0
        self.buffer = buffer
        self._scalars = np.array([plan.clip, plan.radius, plan.grid, l2])
        self._vectors = np.zeros((3, plan.dim))

    @property
    def average(self) -> Floats:
        """The published weights, the t-weighted average of the iterates, shape (p,): a view."""
        view: Floats = self._vectors[1]
        return view

    @property
    def releases(self) -> int:
        """Models released so far."""
        return self.steps

    @property
    def released(self) -> Floats:
        """The noisy gradient of the last slot, (p,), before the projection: for the audit."""
        noisy: Floats = self._vectors[2].copy()
        return noisy

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan = self.plan
        return [plan.sigma, plan.grid, plan.clip, plan.radius, float(self._scalars[3])]

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        b = self.buffer
        cells = np.empty(self.plan.dim, dtype=np.int64)
        k.gradient_cells(
            row, label, self.steps, b.ints, self._scalars, self._vectors, b.rows, b.labels, cells
        )
        chain.advance(cells.tobytes())
        self.learn(row, label, chain)

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: noise, no gradient, a null record."""
        dim, b = self.plan.dim, self.buffer
        for at in range(0, len(rows), _CHUNK):
            part, y = rows[at : at + _CHUNK], labels[at : at + _CHUNK]
            etas = self.plan.rates(self.steps, len(part))
            noise = self.plan.sigma * stream.take(len(part) * dim).reshape(len(part), dim)
            k.noisy_steps(
                part, y, noise, etas, self.steps, b.ints, self._scalars, self._vectors, b.rows, b.labels,
                b.ages,
            )  # fmt: skip
            self.steps += len(part)

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the buffer among them holds raw records."""
        return {
            "steps": self.steps,
            "vectors": self._vectors[:2].copy(),
            "buffer": self.buffer.to_state(self.steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, steps = state["vectors"], int(state["steps"])
        if vectors.shape != (2, self.plan.dim) or steps < 0:
            raise ValueError("weights of another shape")
        self.buffer.load_state(state["buffer"], steps)
        self.steps = steps
        self._vectors[:2] = vectors


class OutputPerturbation:
    """State of a run whose iterates are without noise and secret, and of their noisy releases (4.1).

    Published is the average of the releases, weighted by their precision: post-processing, so free, and much
    better than the last one. With the paper's calibration it is the last one, as there.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    last
        Publish the last release.
    scattered
        Start at a random point w_0 of the ball, which the ridge term pulls to (H20, Algorithm 2).
    """

    secret_iterate = True

    def __init__(
        self, plan: OutputPlan, buffer: PairBuffer, *, last: bool = False, scattered: bool = False
    ) -> None:
        self.plan = plan
        self.steps = 0
        self.buffer = buffer
        self._last = last
        self._scattered = scattered
        self._scalars = np.array([plan.clip, plan.radius, plan.alpha])
        self._vectors = np.zeros((3, plan.dim))  # iterate, w_0, gradient
        self._average = np.zeros(plan.dim)
        self._published = np.zeros(plan.dim)
        self._weight = 0.0

    @property
    def average(self) -> Floats:
        """The published weights, shape (p,): a view."""
        return self._published

    @property
    def releases(self) -> int:
        """Models released so far, without the random ones."""
        return self.plan.releases(self.steps)

    @property
    def released(self) -> Floats:
        """The average of the releases, (p,), before the projection: for the audit."""
        return self._average.copy()

    def _scatter(self, stream: Stream) -> Floats:
        """A uniform point of the ball: d coordinates of one on the sphere in d + 2 dimensions."""
        z = stream.take(self.plan.dim + 2)
        point: Floats = z[: self.plan.dim] * (self.plan.radius / math.sqrt(float(z @ z)))
        return point

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan, ends = self.plan, slice(None, None, max(self.plan.horizon - 1, 1))
        return [
            plan.radius, plan.clip, plan.alpha, plan.diameter, float(plan.horizon), float(plan.warmup),
            *plan.etas[ends].tolist(), *plan.sigmas[ends].tolist(), *plan.grids[ends].tolist(),
            float(plan.releases(plan.horizon)),
        ]  # fmt: skip

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        self._take(row, label, chain, chain)

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: a step of the ridge term, and a release."""
        for at in range(0, len(rows), _CHUNK):
            self._take(rows[at : at + _CHUNK], labels[at : at + _CHUNK], stream, None)

    def _take(self, rows: Floats, labels: Floats, stream: Stream, chain: ChainedNoise | None) -> None:
        plan, dim, b, n = self.plan, self.plan.dim, self.buffer, len(rows)
        span = slice(self.steps, self.steps + n)
        sigmas, gammas = plan.sigmas[span], plan.grids[span]
        shown = plan.releases(self.steps + n) - plan.releases(self.steps)
        random = max(min(plan.warmup - self.steps, n), 0)
        centre = self._scattered and self.steps == 0
        if chain is not None and (random or centre):
            chain.advance(b"")  # these slots make no step and release nothing of the data
            chain = None
        if centre:
            self._vectors[0] = self._vectors[1] = self._scatter(stream)
        for _ in range(random):
            self._vectors[0] = self._published[:] = self._scatter(stream)
        cells = np.empty((n, dim), dtype=np.int64)
        k.output_steps(
            rows, labels, plan.etas[span], gammas, self.steps, b.ints, self._scalars, self._vectors, b.rows,
            b.labels, b.ages, cells,
        )  # fmt: skip
        if chain is not None:
            chain.advance(cells.tobytes() if shown else b"")
        if shown:
            self._weight = k.output_releases(
                cells, stream.take(shown * dim), sigmas, gammas, self._last, plan.radius, self._weight,
                self._average, self._published,
            )  # fmt: skip
        self.steps += n

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the iterate without noise among them is as secret as the data."""
        return {
            "steps": self.steps,
            "vectors": self._vectors[:2].copy(),
            "outputs": np.array([self._average, self._published]),
            "weight": self._weight,
            "buffer": self.buffer.to_state(self.steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, outputs, steps = state["vectors"], state["outputs"], int(state["steps"])
        if not vectors.shape == outputs.shape == (2, self.plan.dim) or not 0 <= steps <= self.plan.horizon:
            raise ValueError("weights of another shape")
        self.buffer.load_state(state["buffer"], steps)
        self.steps = steps
        self._vectors[:2] = vectors
        self._average[:], self._published[:] = outputs
        self._weight = float(state["weight"])
