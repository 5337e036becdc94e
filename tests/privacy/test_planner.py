"""The planner: what it says before there is data, against runs on data of the kind that it assumes."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from streampair import auc, privacy
from streampair.errors import ConfigError

BEST = 0.85


def measured(mechanism: str, settings: dict[str, Any], n: int, d: int, rate: float, seed: int) -> float:
    """AUC that the learned direction has on the reference task."""
    rng = np.random.default_rng(seed)
    gap = math.sqrt(2) * NormalDist().inv_cdf(BEST)
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    y = rng.random(n) < rate
    x = rng.normal(size=(n, d)) + np.outer(y - rate, gap * u)
    model = getattr(auc, mechanism)(
        features=list(range(d)), bounds=dict.fromkeys(range(d), (-4, 4)), **settings
    )
    model.learn_many(x, y)
    w = model.weights_vector * model.run.design.factor
    return NormalDist().cdf(gap / math.sqrt(2) * float(w @ u / np.linalg.norm(w)))


@pytest.mark.parametrize(
    ("n", "d", "rate", "epsilon"), [(2000, 8, 0.5, 1.0), (6000, 20, 0.2, 1.0), (20_000, 12, 0.5, 0.3)]
)
def test_what_it_expects_is_what_runs_measure(n: int, d: int, rate: float, epsilon: float) -> None:
    found = privacy.plan(n, d, epsilon=epsilon, positive_rate=rate, auc=BEST)
    for forecast in found.forecasts:
        if forecast.mechanism == "NoisyOGD":
            continue  # all noise here
        runs = [measured(forecast.mechanism, forecast.settings, n, d, rate, seed) for seed in range(4)]
        # Within .05, or a third of what is lost and four standard errors: a forecast, not a bound.
        room = max(0.05, found.auc_without_privacy - forecast.auc)
        assert abs(float(np.mean(runs)) - forecast.auc) <= room + 4 * np.std(runs) / 2


def test_more_budget_and_more_records_are_never_worse() -> None:
    found = privacy.plan(20_000, 20, positive_rate=0.1)
    for forecast in found.forecasts:
        values = [value for _, value in forecast.curve]
        assert values == sorted(values)
        assert 0.0 <= forecast.loss <= 0.5
    assert [f.auc for f in found.forecasts] == sorted((f.auc for f in found.forecasts), reverse=True)
    assert found.best.mechanism == "PairFTRL"
    assert found.best.settings == {"epsilon": 1.0, "delta": 1 / 20_000, "horizon": 20_000}
    more = privacy.plan(200_000, 20, delta=1 / 20_000, positive_rate=0.1)
    rarer = privacy.plan(20_000, 20, positive_rate=0.01)
    assert more.best.auc > found.best.auc > rarer.best.auc
    assert more.best.useful_from == found.best.useful_from
    assert rarer.best.useful_from > found.best.useful_from  # type: ignore[operator]
    assert "recommended: auc.PairFTRL(epsilon=1.0" in str(found)


def test_the_claimed_threshold_is_where_the_loss_becomes_small() -> None:
    found = privacy.plan(10_000, 10, delta=1e-4)
    for forecast in found.forecasts:
        start = forecast.useful_from
        if start is None or forecast.settings.get("l2"):
            continue
        again = privacy.plan(start, 10, delta=1e-4)
        (same,) = [
            f
            for f in again.forecasts
            if (f.mechanism, f.settings.get("solver"), "horizon" in f.settings)
            == (forecast.mechanism, forecast.settings.get("solver"), "horizon" in forecast.settings)
        ]
        assert same.loss <= 0.02


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n": 5}, "n is 5"),
        ({"n": 1e6}, "n is"),
        ({"d": 0}, "d is 0"),
        ({"positive_rate": 0.0}, "positive_rate"),
        ({"auc": 0.4}, "auc is"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        privacy.plan(**{"n": 1000, "d": 5, **options})
