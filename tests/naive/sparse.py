"""Records that have few of many features, as dicts by place: the zeros are written out."""

from __future__ import annotations

from naive import ogd, vectors


def scatter(values: dict[int, float], fill: float, d: int) -> list[float]:
    """A row of d values, of which only some are given, by their places."""
    return [values.get(i, fill) for i in range(d)]


class SparsePairOGD(ogd.PairOGD):
    """`PairOGD`, whose records are given by their places."""

    def learn_few(self, values: dict[int, float], y: float) -> None:
        self.learn(scatter(values, 0.0, len(self.last)), y)


def probability_few(w: list[float], values: dict[int, float], link: list[float]) -> float:
    return ogd.probability(w, scatter(values, 0.0, len(w)), link)


def score_few(w: list[float], values: dict[int, float]) -> float:
    return vectors.dot(w, scatter(values, 0.0, len(w)))
