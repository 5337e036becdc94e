"""The link from score to probability, from the whole history of what was taught."""

from __future__ import annotations

import math

from naive.numerics import sigmoid


class Link:
    """Platt's curve, by Newton's steps: every record that was taught is kept with the weight that it has now.

    Parameters
    ----------
    prior, memory, recent, reach, least
        As in `streampair.kernels.platt`.
    """

    def __init__(
        self,
        prior: float = 1.0,
        memory: float = 100.0,
        recent: float = 0.5,
        reach: float = 10.0,
        least: float = 1 / 16,
    ) -> None:
        self.prior, self.memory, self.recent, self.reach, self.least = prior, memory, recent, reach, least
        self.taught: list[tuple[float, float]] = []  # (weight, score)
        self.offset, self.slope = 0.0, 1.0

    @property
    def information(self) -> float:
        return math.fsum(weight for weight, _ in self.taught)

    @property
    def centre(self) -> float:
        total = self.information
        return math.fsum(w * score for w, score in self.taught) / total if total else 0.0

    @property
    def spread(self) -> float:
        total, centre = self.information, self.centre
        squares = math.fsum(w * (score - centre) ** 2 for w, score in self.taught)
        spread = math.sqrt(squares / total) if total else 0.0
        return spread if spread > 1e-9 * abs(centre) else 0.0  # else rounding alone

    def standard(self, score: float) -> float:
        return (score - self.centre) / self.spread if self.spread else 0.0

    def probability(self, score: float) -> float:
        return sigmoid(self.offset + self.slope * self.standard(score))

    def learn(self, score: float, y: float) -> None:
        r = (1.0 if y > 0.0 else 0.0) - self.probability(score)
        if r == 0.0:
            return
        weight = abs(r) / 2.0
        if self.spread:
            far = self.reach * self.spread
            score = min(max(score, self.centre - far), self.centre + far)
        fades = weight * max(self.recent / (self.information + self.prior), 1.0 / self.memory)
        self.taught = [(w * (1.0 - fades), s) for w, s in self.taught]
        self.taught.append((weight, score))
        step = r / (self.information + self.prior)
        self.offset += step
        if self.spread:
            self.slope = max(self.slope + step * self.standard(score), self.least)


def probabilities(link: Link, scores: list[float]) -> list[float]:
    return [link.probability(score) for score in scores]
