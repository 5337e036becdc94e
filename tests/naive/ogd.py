"""Online gradient descent on pairs, on dicts and lists of floats."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from naive.buffers import Buffer
from naive.losses import entropy, loss_slope
from naive.numerics import sigmoid
from naive.scaling import Columns, Record, as_record
from naive.vectors import dot, project_ball


class Linear:
    """What the learners of a linear score have in common: columns, iterates, and the average of these.

    Weights, gradients and steps are in scaled units. A record is a list, or a dict of the features that it
    has by their places.
    """

    keep = 1.0  # of the sums, from one record to the next
    linear = False
    etas: list[float]

    def __init__(self, d: int, columns: Columns, start: Sequence[float] = ()) -> None:
        self.d, self.columns = d, columns
        self.iterates = [list(start) or [0.0] * d for _ in range(2)]  # w_{-1}, w_0
        self.gradients: list[list[float]] = []  # in units of the scaled features

    def observe(self, x: Sequence[float] | Mapping[int, float]) -> Record:
        """The record as it is learned; where a column has changed its kind, weight over spread stays."""
        record = self.columns.observe(as_record(x))
        for i, factor in self.columns.factors().items():
            for w in self.iterates:
                w[i] *= factor
            for g in self.gradients:
                g[i] /= factor
        return record

    def standard(self, x: Record) -> list[float]:
        return self.columns.standard(x, self.d)

    def score(self, x: Sequence[float] | Mapping[int, float], *, average: bool = False) -> float:
        return dot(self.average if average else self.last, self.standard(as_record(x)))

    def ridge(self, l2: float) -> list[float]:
        """Gradient of the ridge term; a feature without a spread has none."""
        return [l2 * v if self.columns.unit(i) else 0.0 for i, v in enumerate(self.last)]

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


class PairOGD(Linear):
    """Yang et al. 2021, Algorithm 2, with the buffers of Kar et al. 2013.

    With the schedule "adagrad" each weight has a step size of its own, and there is no average. With `scale`
    features are scaled by `naive.scaling.Columns`, of which `fixed` are indicators.
    """

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
        *,
        scale: bool = False,
        fixed: Collection[int] = (),
        first: float = 0.0,
        start: Sequence[float] = (),
        ends: bool = False,
    ) -> None:
        super().__init__(d, Columns(scale, keep, fixed, range(len(start)), ends=ends), start)
        self.schedule, self.linear, self.first = schedule, linear, first
        self.keep, self.norms = keep, [0.0]
        self.width = width
        self.loss, self.learning_rate, self.radius, self.l2 = loss, learning_rate, radius, l2
        self.buffer = Buffer(policy, size, seed)
        self.etas: list[float] = []
        self.squares = 0.0
        self.nearest_kink = math.inf  # how close a margin came to where the slope jumps
        self.least_gradient = math.inf  # the smallest norm above 0

    def learn(self, x: Sequence[float] | Mapping[int, float], y: float) -> None:
        record = self.observe(x)
        if self.buffer.policy == "full":  # whole records are kept
            record = self.columns.without_gaps(record)
        if self.buffer.rows:
            g = self._gradient(record, y)
            step = self._own_steps(g) if self.schedule == "adagrad" else self._step(g)
            self.iterates.append(project_ball(step, self.radius))
        self.buffer.append((record, y))

    def _gradient(self, record: Record, y: float) -> list[float]:
        w, x = self.last, self.standard(record)
        g = self.ridge(self.l2)
        for (kept, y2), weight in self.buffer.partners(y):
            x2 = self.standard(kept)
            score = dot(w, [a - b for a, b in zip(x, x2, strict=True)])
            if y != y2:
                self.nearest_kink = min(self.nearest_kink, abs((y - y2) * score - 1.0))
            if self.loss == "MinimumErrorEntropy":
                slope = -entropy((y - y2) - score, self.width)[1]
            else:
                slope = loss_slope(self.loss, (y - y2) * score) * (y - y2)
            for i in range(len(w)):
                g[i] += slope * (x[i] - x2[i]) * weight
        return g

    def _step(self, g: list[float]) -> list[float]:
        """The weights after a step of one size for all of them."""
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
        return [a - eta * b for a, b in zip(self.last, g, strict=True)]

    def _own_steps(self, g: list[float]) -> list[float]:
        """The weights after a step of each by its gradients so far, the latest of which counts in full."""
        assert self.learning_rate is not None
        self.gradients.append(g)
        step = list(self.last)
        for i in range(len(step)):
            ages = enumerate(reversed(self.gradients))
            squares = self.first + math.fsum(past[i] ** 2 * self.keep**age for age, past in ages)
            step[i] -= self.learning_rate * g[i] / math.sqrt(squares) if squares else 0.0
        return step


def score(model: Linear, x: Sequence[float] | Mapping[int, float]) -> float:
    """Score of a record under the averaged weights."""
    return model.score(x, average=True)


def score_rows(model: Linear, rows: Sequence[Mapping[int, float]]) -> list[float]:
    return [score(model, x) for x in rows]


def probability(model: Linear, x: Sequence[float] | Mapping[int, float], link: list[float]) -> float:
    """By the centre and the spread of the scores, and offset and slope of the log-odds."""
    centre, spread, offset, slope = link
    return sigmoid(offset + slope * (score(model, x) - centre) / spread)


def first_large(rows: list[list[float]], limit: float) -> int:
    """1 + the flat index of the first value beyond the limit, else 0; NaN is none."""
    flat = [v for row in rows for v in row]
    return next((i + 1 for i, v in enumerate(flat) if abs(v) > limit), 0)
