"""OAM and SPAUC, with everything that is estimated computed from scratch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from naive.buffers import Buffer
from naive.ogd import Linear
from naive.scaling import Columns, Record
from naive.vectors import dot, project_ball


class OAM(Linear):
    """Zhao et al. 2011, Algorithms 1, 2 and 4, with margins 2 y w.(x - x'), on the ball."""

    def __init__(
        self,
        d: int,
        c: float,
        size: int,
        radius: float,
        seed: int,
        *,
        scale: bool = False,
        fixed: Collection[int] = (),
    ) -> None:
        super().__init__(d, Columns(scale, fixed=fixed))
        self.c, self.size, self.radius = c, size, radius
        self.buffer = Buffer("classes", size, seed)
        self.nearest_kink = math.inf

    def learn(self, x: Sequence[float] | Mapping[int, float], y: float) -> None:
        record = self.observe(x)
        if self.buffer.t:
            w, z = self.last, self.standard(record)
            others = len(self.buffer.classes[y < 0])
            weight = self.c * max(1.0, others / self.size)
            step = list(w)
            for (kept, _), _ in self.buffer.partners(y):
                u = [a - b for a, b in zip(z, self.standard(kept), strict=True)]
                margin = 2.0 * y * dot(w, u)
                self.nearest_kink = min(self.nearest_kink, abs(margin - 1.0))
                if margin < 1.0:
                    step = [a + 2.0 * y * weight * b for a, b in zip(step, u, strict=True)]
            self.iterates.append(project_ball(step, self.radius))
        self.buffer.append((record, y))

    @property
    def average(self) -> list[float]:
        """The mean of all iterates but the last two; the list starts with w_{-1} and w_0."""
        past = self.iterates[: len(self.iterates) - 2]
        return [math.fsum(w[i] for w in past) / len(past) if past else 0.0 for i in range(len(self.last))]


def spauc_gradient(
    w: list[float], x: list[float], y: float, p: float, high: list[float], low: list[float]
) -> list[float]:
    """Gradient at w of Lei and Ying's f(w; z), with margins 2 w.(x - x') and the share and means given."""
    class_mean, share = (high, 1.0 - p) if y > 0 else (low, p)
    around = [a - b for a, b in zip(x, class_mean, strict=True)]
    apart = [a - b for a, b in zip(low, high, strict=True)]
    first = share * 2.0 * (2.0 * dot(w, around)) * 2.0
    second = p * (1.0 - p) * 2.0 * (1.0 + 2.0 * dot(w, apart)) * 2.0
    return [first * a + second * b for a, b in zip(around, apart, strict=True)]


class SPAUC(Linear):
    """Lei and Ying 2021, Algorithm 1, with everything that is estimated computed from scratch."""

    def __init__(
        self,
        d: int,
        learning_rate: float | None,
        radius: float,
        l2: float,
        *,
        scale: bool = False,
        fixed: Collection[int] = (),
    ) -> None:
        super().__init__(d, Columns(scale, fixed=fixed))
        self.learning_rate, self.radius, self.l2 = learning_rate, radius, l2
        self.records: list[tuple[Record, float]] = []  # a gap is what the centre was
        self.etas: list[float] = []
        self.squares = 0.0
        self.least_gradient = math.inf

    def mean(self, sign: float) -> list[float]:
        """The mean record of a class, scaled."""
        rows = [r for r, y in self.records if y == sign]
        raw = {i: math.fsum(r.get(i, 0.0) for r in rows) / max(len(rows), 1) for i in range(self.d)}
        return self.standard(raw)

    def learn(self, x: Sequence[float] | Mapping[int, float], y: float) -> None:
        record = self.columns.without_gaps(self.observe(x))
        self.records.append((record, y))
        t = len(self.records)
        if t == 1:
            return
        w = self.last
        p = sum(y2 > 0 for _, y2 in self.records) / t
        g = spauc_gradient(w, self.standard(record), y, p, self.mean(1.0), self.mean(-1.0))
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
