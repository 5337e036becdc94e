"""Update rules that the learner families share. Here: FTRL with correlated noise (PRIVACY.md 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import _kernels
from streampair.privacy import BLT, BLTNoise, FTRLPlan, NormalStream, Toeplitz, ToeplitzNoise

__all__ = ["FTRL", "strategy_from_state", "strategy_to_state"]

Floats = NDArray[np.float64]

_CHUNK = 1024


def strategy_to_state(strategy: Toeplitz | BLT) -> dict[str, Any]:
    """The matrix C as plain values: a fit must not change under a running mechanism."""
    if isinstance(strategy, BLT):
        return {"kind": "blt", "omega": strategy.omega.copy(), "decay": strategy.decay.copy()}
    return {"kind": "square_root"}


def strategy_from_state(state: Mapping[str, Any], horizon: int | None) -> Toeplitz | BLT:
    """The matrix C that `strategy_to_state` wrote down."""
    if state["kind"] == "blt":
        return BLT(
            np.array(state["omega"], dtype=np.float64), np.array(state["decay"], dtype=np.float64), horizon
        )
    if state["kind"] != "square_root" or horizon is None:
        raise ValueError(f"noise strategy {state['kind']!r}")
    return Toeplitz.square_root(horizon)


class FTRL:
    """State of one run: noisy sum, iterates, buffer and noise memory (PRIVACY.md 4.3, 7).

    Parameters
    ----------
    plan
        The calibrated mechanism.
    loss_code
        The pair loss, as the kernels know it.
    """

    def __init__(self, plan: FTRLPlan, loss_code: int) -> None:
        self.plan = plan
        self.steps = 0
        self._scalars = np.array([float(loss_code), plan.clip, plan.radius, plan.grid])
        self._vectors = np.zeros((3, plan.dim))
        self._total = np.zeros(plan.dim, dtype=np.int64)
        self._buffer = np.zeros((plan.size, plan.dim))
        self._signs = np.zeros(plan.size)
        strategy = plan.strategy
        self._noise: BLTNoise | ToeplitzNoise
        if isinstance(strategy, BLT):
            self._noise = BLTNoise(strategy.omega.copy(), strategy.theta, plan.dim, plan.sigma)
        else:
            self._noise = ToeplitzNoise(strategy.inverse, plan.dim, plan.sigma)
        self._rates = np.empty(0)
        self._rates_from = 0

    @property
    def average(self) -> Floats:
        """The published weights, the t-weighted average of the iterates, shape (d,): a view."""
        view: Floats = self._vectors[1]
        return view

    def learn(self, rows: Floats, labels: Floats, stream: NormalStream) -> None:
        """Take one slot a row. Label 0 makes it a null slot: noise, no gradient, a null record."""
        for at in range(0, len(rows), _CHUNK):
            part = rows[at : at + _CHUNK]
            count = len(part)
            noise = self._noise.rows(count, stream)
            _kernels.ftrl_steps(
                part,
                labels[at : at + count],
                noise,
                self._eta(count),
                self.steps,
                self._scalars,
                self._vectors,
                self._total,
                self._buffer,
                self._signs,
            )
            self.steps += count

    def _eta(self, count: int) -> Floats:
        """Step sizes of the next slots, computed in blocks that do not depend on how slots are asked for."""
        first = self.steps - self._rates_from
        if first < 0 or first + count > len(self._rates):
            self._rates_from = self.steps // _CHUNK * _CHUNK
            self._rates = self.plan.rates(self._rates_from, 2 * _CHUNK)
            first = self.steps - self._rates_from
        return self._rates[first : first + count]

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the noise memory among them is as secret as the data."""
        return {
            "steps": self.steps,
            "strategy": strategy_to_state(self.plan.strategy),
            "vectors": self._vectors[:2].copy(),
            "total": self._total.copy(),
            "buffer": self._buffer.copy(),
            "signs": self._signs.copy(),
            "noise": self._noise.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, total = state["vectors"], state["total"]
        if vectors.shape != (2, self.plan.dim) or total.shape != (self.plan.dim,):
            raise ValueError("weights of another shape")
        if state["buffer"].shape != self._buffer.shape or state["signs"].shape != self._signs.shape:
            raise ValueError("a buffer of another shape")
        steps = int(state["steps"])
        if steps < 0 or (isinstance(self._noise, ToeplitzNoise) and len(state["noise"]) != steps):
            raise ValueError("as many rows of noise as steps are needed")
        self._noise.load_state(state["noise"])
        self.steps = steps
        self._vectors[:2] = vectors
        self._total[:] = total
        self._buffer[:] = state["buffer"]
        self._signs[:] = state["signs"]
