"""Online gradient descent on a metric, with numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from naive.buffers import Buffer
from naive.losses import loss_slope
from naive.symmetric import project_psd


class PairMetric:
    """Online gradient descent on a Mahalanobis metric (Huai et al. 2020, Example 1), with numpy."""

    def __init__(
        self,
        d: int,
        loss: str = "Hinge",
        policy: str = "fifo",
        size: int = 1,
        learning_rate: float | None = None,
        radius: float = 1.0,
        l2: float = 0.0,
        seed: int = 0,
        psd: bool = True,
    ) -> None:
        self.loss, self.learning_rate, self.radius, self.l2, self.psd = loss, learning_rate, radius, l2, psd
        self.buffer = Buffer(policy, size, seed)
        self.iterates = [np.zeros((d, d)), np.zeros((d, d))]
        self.etas: list[float] = []
        self.squares = 0.0
        self.nearest_kink = math.inf
        self.least_gradient = math.inf

    def learn(self, x: list[float], y: Any) -> None:
        w = self.iterates[-1]
        if self.buffer.rows:
            g = self.l2 * w
            for x2, y2 in self.buffer.rows:
                u = np.array(x) - np.array(x2)
                same = 1.0 if y == y2 else -1.0
                m = same * (1.0 - u @ w @ u)
                if u.any():
                    self.nearest_kink = min(self.nearest_kink, abs(m - 1.0))
                g = g - same * loss_slope(self.loss, m) * np.outer(u, u) / len(self.buffer.rows)
            self.squares += float((g**2).sum())
            self.least_gradient = min(self.least_gradient, float(np.linalg.norm(g)) or math.inf)
            if self.learning_rate is not None:
                eta = self.learning_rate / math.sqrt(len(self.etas) + 1)
            else:
                eta = self.radius * math.sqrt(2.0 / self.squares) if self.squares else 0.0
            self.etas.append(eta)
            step = w - eta * g
            if self.psd:
                step = project_psd(step)
            norm = float(np.linalg.norm(step))
            self.iterates.append(step * (self.radius / norm) if norm > self.radius else step)
        self.buffer.append((x, y))

    @property
    def last(self) -> Any:
        return self.iterates[-1]

    @property
    def average(self) -> Any:
        total = math.fsum(self.etas)
        if not total:
            return np.zeros_like(self.last)
        return sum(eta * w for eta, w in zip(self.etas, self.iterates, strict=False)) / total


def map_rows(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.array([matrix @ row for row in rows])
