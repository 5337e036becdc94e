"""Online gradient descent on pairs, on lists of floats."""

from __future__ import annotations

import math

from naive.buffers import Buffer
from naive.losses import entropy, loss_slope
from naive.numerics import sigmoid
from naive.vectors import dot, project_ball


class PairOGD:
    """Yang et al. 2021, Algorithm 2, with the buffers of Kar et al. 2013, on lists of floats.

    With the schedule "adagrad" each weight has a step size of its own, and there is no average.
    """

    keep = 1.0  # of the sums, from one record to the next
    schedule, linear = "sqrt", False

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
        width: float = 0.0,
        keep: float = 1.0,
        schedule: str = "sqrt",
        linear: bool = False,
    ) -> None:
        self.schedule, self.linear = schedule, linear
        self.keep, self.norms = keep, [0.0]
        self.gradients: list[list[float]] = []
        self.width = width
        self.loss, self.learning_rate, self.radius, self.l2 = loss, learning_rate, radius, l2
        self.buffer = Buffer(policy, size, seed)
        self.iterates = [[0.0] * d, [0.0] * d]  # w_{-1}, w_0
        self.etas: list[float] = []
        self.squares = 0.0
        self.nearest_kink = math.inf  # how close a margin came to where the slope jumps
        self.least_gradient = math.inf  # the smallest norm above 0

    def learn(self, x: list[float], y: float) -> None:
        w = self.iterates[-1]
        if self.buffer.rows:
            g = [self.l2 * v for v in w]
            for (x2, y2), weight in self.buffer.partners(y):
                m = (y - y2) * dot(w, [a - b for a, b in zip(x, x2, strict=True)])
                if y != y2:
                    self.nearest_kink = min(self.nearest_kink, abs(m - 1.0))
                if self.loss == "MinimumErrorEntropy":
                    score = dot(w, [a - b for a, b in zip(x, x2, strict=True)])
                    slope = -entropy((y - y2) - score, self.width)[1]
                else:
                    slope = loss_slope(self.loss, m) * (y - y2)
                for i in range(len(w)):
                    g[i] += slope * (x[i] - x2[i]) * weight
            if self.schedule == "adagrad":
                self.gradients.append(g)
                step = [self._own_step(i, w[i]) for i in range(len(w))]
                self.iterates.append(project_ball(step, self.radius))
                self.buffer.append((x, y))
                return
            j = len(self.etas) + 1
            self.squares += dot(g, g)
            self.least_gradient = min(self.least_gradient, math.sqrt(dot(g, g)) or math.inf)
            self.norms.append(dot(g, g))
            if self.keep < 1.0:  # all sums anew, by age
                self.squares = math.fsum(n * self.keep**age for age, n in enumerate(reversed(self.norms)))
                j = math.fsum(self.keep**age for age in range(j))
            if self.learning_rate is not None:
                shrunk = {"sqrt": math.sqrt(j), "constant": 1.0, "time": j + 1.0}
                eta = self.learning_rate / shrunk[self.schedule]
            else:
                eta = self.radius * math.sqrt(2.0 / self.squares) if self.squares else 0.0
            self.etas.append(eta)
            step = [a - eta * b for a, b in zip(w, g, strict=True)]
            self.iterates.append(project_ball(step, self.radius))
        self.buffer.append((x, y))

    def _own_step(self, i: int, weight: float) -> float:
        """Weight i after a step by its gradients so far, the latest of which counts in full."""
        assert self.learning_rate is not None
        ages = enumerate(reversed(self.gradients))
        squares = math.fsum(g[i] ** 2 * self.keep**age for age, g in ages)
        step = self.learning_rate * self.gradients[-1][i] / math.sqrt(squares) if squares else 0.0
        return weight - step

    @property
    def last(self) -> list[float]:
        return self.iterates[-1]

    @property
    def average(self) -> list[float]:
        """sum_j eta_j w_{j-2} / sum_j eta_j; the list of iterates starts with w_{-1}."""
        etas = self.etas
        if self.keep < 1.0:
            etas = [self.keep**age for age in reversed(range(len(etas)))]
        if self.linear:
            etas = [j + 1.0 for j in range(len(etas))]
        total = math.fsum(etas)
        if not total:
            return [0.0] * len(self.last)
        return [
            math.fsum(eta * w[i] for eta, w in zip(etas, self.iterates, strict=False)) / total
            for i in range(len(self.last))
        ]


def score(w: list[float], x: list[float]) -> float:
    return dot(w, x)


def probability(w: list[float], x: list[float], link: list[float]) -> float:
    """By the centre and the spread of the scores, and offset and slope of the log-odds."""
    centre, spread, offset, slope = link
    return sigmoid(offset + slope * (dot(w, x) - centre) / spread)
