"""What online learning promises: where nothing changes, the average regret falls like 1 / sqrt(t)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streampair import auc, ranking
from streampair.evaluation import Regret

TIMES = (200, 800, 3200, 9600)
#: Slope of the average regret against time, both as logarithms. The bound says -0.5.
STEEP = -0.4


def regret_of(model: Any, seed: int) -> Any:
    """An estimator of the regret of a learner."""
    label = None if model.two_classes else model.label_number
    return Regret(model.pair_loss, model.comparator_radius, label=label, seed=seed)


def averages(make: Callable[[], Any], seed: int) -> list[float]:
    """The average regret at `TIMES` of one stream."""
    rng, n, d = np.random.default_rng(seed), TIMES[-1], 4
    model = make()
    positive = rng.random(n) < 0.4
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    x[:, :2] += np.where(positive, 0.5, -0.5)[:, None]
    labels: list[Any] = positive.tolist()
    if isinstance(model, ranking.PairOGD):
        labels = np.tanh(x[:, 0] + 0.3 * rng.normal(size=n)).tolist()
    names = "abcd"
    regret, out = regret_of(model, seed), []
    for t, (row, y) in enumerate(zip(x.tolist(), labels, strict=True), 1):
        record = dict(zip(names, row, strict=True))
        regret.observe(record, y, model.score_one(record), model.score_one)
        model.learn_one(record, y)
        if t in TIMES:
            out.append(regret.estimate(model.design_many).average)
    return out


def slope(make: Callable[[], Any], seeds: int) -> float:
    """Of a line through the mean average regret over some streams, in the logarithms."""
    mean = np.mean([averages(make, seed) for seed in range(seeds)], axis=0)
    return float(np.polyfit(np.log(TIMES), np.log(np.maximum(mean, 1e-6)), 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "seeds"),
    [
        (lambda: auc.PairOGD(seed=1, scale=None), 3),
        (lambda: auc.PairOGD(learning_rate=None, seed=1, scale=None), 3),
        (lambda: ranking.PairOGD(radius=2.0, seed=1, scale=None), 3),
    ],
    ids=["auc", "auc, self-tuned", "ranking"],
)
def test_the_average_regret_falls_as_the_bound_says(make: Any, seeds: int) -> None:
    """Mutant, below: a learner that forgets never comes to rest."""
    assert slope(make, seeds) <= STEEP


@pytest.mark.slow
def test_a_learner_that_does_not_converge_is_noticed() -> None:
    assert slope(lambda: auc.PairOGD(learning_rate=None, seed=1, scale=None, half_life=30), 3) > STEEP + 0.1
