"""Update rules that the learner families share.

Here: FTRL with correlated noise (PRIVACY.md 4.3), and the private moments before it (PRIVACY.md 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair._private_buffer import PairBuffer
from streampair.privacy import (
    BLT,
    BLTNoise,
    ChainedNoise,
    FTRLPlan,
    MomentsPlan,
    Toeplitz,
    ToeplitzNoise,
)
from streampair.privacy.noise import Stream

__all__ = [
    "FTRL",
    "Moments",
    "shrunk_variances",
    "strategy_from_state",
    "strategy_numbers",
    "strategy_to_state",
]

Floats = NDArray[np.float64]

_CHUNK = 1024


def strategy_to_state(strategy: Toeplitz | BLT) -> dict[str, Any]:
    """The matrix C as plain values: a fit must not change under a running mechanism."""
    if isinstance(strategy, BLT):
        return {"kind": "blt", "omega": strategy.omega.copy(), "decay": strategy.decay.copy()}
    return {"kind": "square_root"}


def strategy_numbers(strategy: Toeplitz | BLT) -> list[float]:
    """What a strategy is given by."""
    if isinstance(strategy, BLT):
        return [*strategy.omega.tolist(), *strategy.decay.tolist()]
    return [float(len(strategy.column))]


def strategy_from_state(state: Mapping[str, Any], horizon: int | None) -> Toeplitz | BLT:
    """The matrix C that `strategy_to_state` wrote down."""
    if state["kind"] == "blt":
        return BLT(
            np.array(state["omega"], dtype=np.float64), np.array(state["decay"], dtype=np.float64), horizon
        )
    if state["kind"] != "square_root" or horizon is None:
        raise ValueError(f"noise strategy {state['kind']!r}")
    return Toeplitz.square_root(horizon)


def shrunk_variances(mean: Floats, square: Floats, mean_std: float, square_std: float) -> Floats:
    """Variances from noisy means of x and of x^2, pulled to their average as far as the noise says.

    Post-processing of a release, so free. The noise makes `mean^2` too large by its variance, which is
    given back. Then each variance is a noisy measurement of one among d that scatter around their average:
    the empirical Bayes estimate keeps the share of the scatter that noise does not explain (Efron & Morris
    1973). Floored at 1e-3.

    Parameters
    ----------
    mean, square
        Released means of x and of x^2, shape (d,).
    mean_std, square_std
        Standard deviations of their noise.
    """
    raw = square - mean * mean + mean_std**2
    noise = square_std**2 + 4.0 * mean * mean * mean_std**2 + 2.0 * mean_std**4
    pooled = max(float(raw.mean()), 1e-3)
    scatter = max(float(((raw - pooled) ** 2 - noise).sum()) / max(len(raw) - 1, 1), 0.0)
    share = scatter / np.maximum(scatter + noise, 1e-300)
    result: Floats = np.maximum(pooled + (raw - pooled) * share, 1e-3)
    return result


class Moments:
    """The prefix of PRIVACY.md 4.4: sums of x and x^2 over the first slots, released once with noise.

    Parameters
    ----------
    plan
        The calibrated release.
    dim
        Coordinates d.
    """

    def __init__(self, plan: MomentsPlan, dim: int) -> None:
        self.plan = plan
        # Sums of x and of x^2, and where they are released that of the labels behind the first.
        self.sums = np.zeros((2, dim + plan.labels), dtype=np.int64)
        self._dim = dim
        self.released: Floats = np.empty(0)  # the noisy means, for the audit

    def add(self, rows: Floats, usable: Floats, labels: Floats) -> None:
        """Add rows (n, d) in [-1, 1]; those that are not usable are null records and add 0.

        So do labels that are NaN; others are -1 or 1, where they are released.
        """
        kernels.moment_sums(rows, usable, float(MomentsPlan.PER_UNIT), self.sums)
        if self.plan.labels:
            self.sums[0, self._dim] += MomentsPlan.PER_UNIT * int(np.nansum(labels))

    def cells(self) -> bytes:
        """What noise will be added to, as bytes."""
        return self.sums.tobytes()

    def release(self, stream: Stream) -> tuple[Floats, Floats, float]:
        """Means (d,), what centred values are multiplied with (d,) for `E |x|^2 = 1`, and the label mean."""
        d = self._dim
        unit, slots = MomentsPlan.PER_UNIT, self.plan.slots
        std = np.array([[self.plan.sigma_sum], [self.plan.sigma_squares]])
        noise = stream.take(self.sums.size).reshape(self.sums.shape) * std
        mean, square = (self.sums + np.floor(noise * unit + 0.5).astype(np.int64)) / (unit * slots)
        self.sums = np.zeros_like(self.sums)
        self.released = np.concatenate((mean, square))
        label = float(mean[d]) if self.plan.labels else 0.0
        mean = np.clip(mean[:d], -1.0, 1.0)
        variances = shrunk_variances(
            mean, square[:d], self.plan.sigma_sum / slots, self.plan.sigma_squares / slots
        )
        return mean, 1.0 / np.sqrt(variances * d), label


class FTRL:
    """State of one run: noisy sum, iterates, buffer and noise memory (PRIVACY.md 4.3, 7).

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    """

    def __init__(self, plan: FTRLPlan, buffer: PairBuffer) -> None:
        self.plan = plan
        self.steps = 0
        self._scalars = np.array([plan.clip, plan.radius, plan.grid, plan.sigma])
        self._vectors = np.zeros((3, plan.dim))
        self._total = np.zeros(plan.dim, dtype=np.int64)
        self.buffer = buffer
        self._cells = np.zeros(plan.dim, dtype=np.int64)
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

    @property
    def releases(self) -> int:
        """Models released so far."""
        return self.steps

    @property
    def released(self) -> Floats:
        """The noisy sum of the gradients, (d,), before the projection: for the audit."""
        return np.asarray(self._total * self.plan.grid, dtype=np.float64)

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan = self.plan
        return [plan.sigma, plan.grid, plan.clip, plan.radius, *strategy_numbers(plan.strategy)]

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        b = self.buffer
        kernels.gradient_cells(
            row, label, self.steps, b.ints, self._scalars, self._vectors, b.rows, b.labels, self._cells
        )
        chain.advance(self._cells.tobytes())
        noise = self._noise
        if not isinstance(noise, BLTNoise):
            self.learn(row, label, chain)
            return
        first = self.steps - self._rates_from
        if not 0 <= first < len(self._rates):
            self._eta(1)
            first = self.steps - self._rates_from
        kernels.ftrl_keyed(
            row,
            label,
            chain.words(self.plan.dim),
            noise.shape,
            noise.memory,
            self._cells,
            self._rates[first],
            self.steps,
            b.ints,
            self._scalars,
            self._vectors,
            self._total,
            b.rows,
            b.labels,
            b.ages,
        )
        self.steps += 1

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: noise, no gradient, a null record."""
        for at in range(0, len(rows), _CHUNK):
            part = rows[at : at + _CHUNK]
            count = len(part)
            noise = self._noise.rows(count, stream)
            kernels.ftrl_steps(
                part,
                labels[at : at + count],
                noise,
                self._eta(count),
                self.steps,
                self.buffer.ints,
                self._scalars,
                self._vectors,
                self._total,
                self.buffer.rows,
                self.buffer.labels,
                self.buffer.ages,
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
            "buffer": self.buffer.to_state(self.steps),
            "noise": self._noise.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, total = state["vectors"], state["total"]
        if vectors.shape != (2, self.plan.dim) or total.shape != (self.plan.dim,):
            raise ValueError("weights of another shape")
        steps = int(state["steps"])
        if steps < 0 or (isinstance(self._noise, ToeplitzNoise) and len(state["noise"]) != steps):
            raise ValueError("as many rows of noise as steps are needed")
        self.buffer.load_state(state["buffer"], steps)
        self._noise.load_state(state["noise"])
        self.steps = steps
        self._vectors[:2] = vectors
        self._total[:] = total
