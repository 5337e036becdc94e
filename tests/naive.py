"""Slow, obvious twins of the compiled kernels and of PairOGD: plain Python, as the papers write it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MASK = 2**64 - 1


def loss_value(name: str, m: float) -> float:
    if name == "Hinge":
        return max(0.0, 1.0 - m)
    if name == "SquaredHinge":
        return max(0.0, 1.0 - m) ** 2
    if name == "Square":
        return (1.0 - m) ** 2
    return math.log1p(math.exp(-m)) if m > 0 else -m + math.log1p(math.exp(m))


def loss_slope(name: str, m: float) -> float:
    if name == "Hinge":
        return -1.0 if m < 1.0 else 0.0
    if name == "SquaredHinge":
        return -2.0 * max(0.0, 1.0 - m)
    if name == "Square":
        return -2.0 * (1.0 - m)
    return -sigmoid(-m)


def entropy(e: float, width: float) -> tuple[float, float]:
    """Value and slope of the minimum error entropy."""
    window = math.exp(-(e**2) / (2 * width**2))
    return width**2 * (1 - window), e * window


def sigmoid(a: float) -> float:
    return 1.0 / (1.0 + math.exp(-a)) if a >= 0 else math.exp(a) / (1.0 + math.exp(a))


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def project_ball(w: list[float], radius: float) -> list[float]:
    norm = math.sqrt(dot(w, w))
    return [v * radius / norm for v in w] if norm > radius else list(w)


def uniform(seed: int, counter: int, lane: int) -> float:
    """SplitMix64 of (seed, counter, lane) in Python integers."""
    z = (seed + 0x9E3779B97F4A7C15 * (counter + 1)) & MASK
    z ^= (0xD1B54A32D192ED03 * (lane + 1)) & MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return (z >> 11) / 2**53


def binomial(u: float, n: int, p: float) -> int:
    """The smallest k with P(Bin(n, p) <= k) > u."""
    total = 0.0
    for k in range(n):
        total += math.comb(n, k) * p**k * (1.0 - p) ** (n - k)
        if u < total:
            return k
    return n


def history_gradient(
    w: list[float], x: list[float], y: float, records: list[Any], loss: str, width: float = 1.0
) -> list[float]:
    """Sum of the pair gradients of (x, y) with all records.

    Records may be shorter than x: features that came later are 0.
    """
    terms: list[list[float]] = []
    for x2, y2 in records:
        u = [a - b for a, b in zip(x, [*x2, *[0.0] * (len(x) - len(x2))], strict=True)]
        if loss == "MinimumErrorEntropy":
            error = y - y2 - dot(w, u)
            slope = -error * math.exp(-(error**2) / (2 * width**2))
        else:
            slope = (y - y2) * loss_slope(loss, (y - y2) * dot(w, u))
        terms.append([slope * v for v in u])
    return [math.fsum(g[i] for g in terms) for i in range(len(x))]


class Buffer:
    """The policies on a plain list of records."""

    def __init__(self, policy: str, size: int, seed: int) -> None:
        self.policy, self.size, self.seed = policy, size, seed
        self.rows: list[Any] = []
        self.classes: dict[bool, list[Any]] = {False: [], True: []}  # all records of the class
        self.t = 0

    def partners(self, y: float) -> list[tuple[Any, float]]:
        """The records that a new one of this label is paired with, and the weight of each pair."""
        if self.policy != "classes":
            return [(row, 1.0 / len(self.rows)) for row in self.rows]
        other = y < 0
        rows = [row for row in self.rows if (row[1] > 0) == other]
        return [(row, len(self.classes[other]) / len(rows) / self.t) for row in rows]

    def append(self, record: Any) -> None:
        self.t += 1
        if self.policy == "fifo":
            self.rows = [*self.rows, record][-self.size :]
        elif self.policy == "full":
            self.rows.append(record)
        elif self.policy == "classes":
            positive = record[1] > 0
            past = self.classes[positive]
            past.append(record)
            own = [i for i, row in enumerate(self.rows) if (row[1] > 0) == positive]
            if len(own) < self.size:
                self.rows.append(record)
            else:
                row = int(uniform(self.seed, len(past), int(positive)) * len(past))
                if row < self.size:
                    self.rows[own[row]] = record
        elif self.policy == "reservoir":
            if self.t <= self.size:
                self.rows.append(record)
            else:
                row = int(uniform(self.seed, self.t, 0) * self.t)
                if row < self.size:
                    self.rows[row] = record
        elif self.t == 1:
            self.rows = [record] * self.size
        elif self.t <= self.size:
            for row in range(self.size):
                if uniform(self.seed, self.t, row) < 1.0 / self.t:
                    self.rows[row] = record
        else:
            count = binomial(uniform(self.seed, self.t, self.size), self.size, 1.0 / self.t)
            for row in range(self.size):
                if uniform(self.seed, self.t, row) < count / (self.size - row):
                    self.rows[row] = record
                    count -= 1


class PairOGD:
    """Yang et al. 2021, Algorithm 2, with the buffers of Kar et al. 2013, on lists of floats."""

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
    ) -> None:
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
            j = len(self.etas) + 1
            self.squares += dot(g, g)
            self.least_gradient = min(self.least_gradient, math.sqrt(dot(g, g)) or math.inf)
            if self.learning_rate is not None:
                eta = self.learning_rate / math.sqrt(j)
            else:
                eta = self.radius * math.sqrt(2.0 / self.squares) if self.squares else 0.0
            self.etas.append(eta)
            step = [a - eta * b for a, b in zip(w, g, strict=True)]
            self.iterates.append(project_ball(step, self.radius))
        self.buffer.append((x, y))

    @property
    def last(self) -> list[float]:
        return self.iterates[-1]

    @property
    def average(self) -> list[float]:
        """sum_j eta_j w_{j-2} / sum_j eta_j; the list of iterates starts with w_{-1}."""
        total = math.fsum(self.etas)
        if not total:
            return [0.0] * len(self.last)
        return [
            math.fsum(eta * w[i] for eta, w in zip(self.etas, self.iterates, strict=False)) / total
            for i in range(len(self.last))
        ]


def normals_from_seed(seed: int, count: int) -> list[float]:
    """Kinderman and Monahan's ratio of uniforms on counter-based coins."""
    out = []
    for i in range(count):
        for attempt in range(0, 1000, 2):
            u = 1.0 - uniform(seed, i, attempt)
            x = (2.0 * uniform(seed, i, attempt + 1) - 1.0) * math.sqrt(2.0 / math.e) / u
            if x * x <= -4.0 * math.log(u):
                out.append(x)
                break
    return out


def fourier(x: list[float], frequencies: list[list[float]]) -> list[float]:
    """Rahimi and Recht's features, a sine and a cosine for each frequency."""
    out = []
    for u in frequencies:
        angle = dot(u, x)
        out += [math.sin(angle) / math.sqrt(len(frequencies)), math.cos(angle) / math.sqrt(len(frequencies))]
    return out


class OAM:
    """Zhao et al. 2011, Algorithms 1, 2 and 4, with margins 2 y w.(x - x'), on the ball."""

    def __init__(self, d: int, c: float, size: int, radius: float, seed: int) -> None:
        self.c, self.size, self.radius = c, size, radius
        self.buffer = Buffer("classes", size, seed)
        self.iterates = [[0.0] * d, [0.0] * d]
        self.nearest_kink = math.inf

    def learn(self, x: list[float], y: float) -> None:
        w = self.iterates[-1]
        if self.buffer.t:
            others = len(self.buffer.classes[y < 0])
            weight = self.c * max(1.0, others / self.size)
            step = list(w)
            for (x2, _), _ in self.buffer.partners(y):
                u = [a - b for a, b in zip(x, x2, strict=True)]
                margin = 2.0 * y * dot(w, u)
                self.nearest_kink = min(self.nearest_kink, abs(margin - 1.0))
                if margin < 1.0:
                    step = [a + 2.0 * y * weight * b for a, b in zip(step, u, strict=True)]
            self.iterates.append(project_ball(step, self.radius))
        self.buffer.append((x, y))

    @property
    def last(self) -> list[float]:
        return self.iterates[-1]

    @property
    def average(self) -> list[float]:
        """The mean of all iterates but the last two; the list starts with w_{-1} and w_0."""
        past = self.iterates[: len(self.iterates) - 2]
        return [math.fsum(w[i] for w in past) / len(past) if past else 0.0 for i in range(len(self.last))]


def spauc_gradient(
    w: list[float], x: list[float], y: float, p: float, high: list[float], low: list[float]
) -> list[float]:
    """Gradient at w of Lei and Ying's f(w; z), with margins 2 w.(x - x') and the share and means given."""
    own, share = (high, 1.0 - p) if y > 0 else (low, p)
    around = [a - b for a, b in zip(x, own, strict=True)]
    apart = [a - b for a, b in zip(low, high, strict=True)]
    first = share * 2.0 * (2.0 * dot(w, around)) * 2.0
    second = p * (1.0 - p) * 2.0 * (1.0 + 2.0 * dot(w, apart)) * 2.0
    return [first * a + second * b for a, b in zip(around, apart, strict=True)]


class SPAUC:
    """Lei and Ying 2021, Algorithm 1, with everything that is estimated computed from scratch."""

    def __init__(self, d: int, learning_rate: float | None, radius: float, l2: float) -> None:
        self.learning_rate, self.radius, self.l2 = learning_rate, radius, l2
        self.records: list[tuple[list[float], float]] = []
        self.iterates = [[0.0] * d, [0.0] * d]
        self.etas: list[float] = []
        self.squares = 0.0
        self.least_gradient = math.inf

    def learn(self, x: list[float], y: float) -> None:
        self.records.append((x, y))
        t = len(self.records)
        if t == 1:
            return
        w = self.iterates[-1]
        means = []
        for sign in (1.0, -1.0):
            own = [r for r, y2 in self.records if y2 == sign]
            means.append([math.fsum(r[i] for r in own) / len(own) if own else 0.0 for i in range(len(x))])
        p = sum(y2 > 0 for _, y2 in self.records) / t
        g = spauc_gradient(w, x, y, p, *means)
        norm = math.sqrt(dot(g, g))
        if norm:
            self.least_gradient = min(self.least_gradient, norm)
        self.squares += dot(g, g)
        if self.learning_rate is not None:
            eta = self.learning_rate / math.sqrt(t - 1)
        else:
            eta = self.radius * math.sqrt(2.0 / self.squares) if self.squares else 0.0
        self.etas.append(eta)
        step = [(a - eta * b) / (1.0 + eta * self.l2) for a, b in zip(w, g, strict=True)]
        self.iterates.append(project_ball(step, self.radius))

    last = PairOGD.last
    average = PairOGD.average


def project_psd(w: Any) -> Any:
    values, vectors = np.linalg.eigh(w)
    return vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T


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
