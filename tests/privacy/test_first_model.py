"""A first model from the warm-up's own release: what it costs, and gives (docs/privacy, Lemma 60)."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from streampair import auc, privacy
from streampair.privacy.mechanisms import second_moments
from streampair.privacy.mechanisms.standardization import (
    CROSS_WEIGHT,
    SQUARE_WEIGHT,
    Warmup,
    WarmupPlan,
    moment_sensitivity,
    plan_warmup,
)

KEY = bytes(range(32))
NAMES = ["a", "b", "c"]
WEIGHTS = np.array([[1.0], [SQUARE_WEIGHT], [CROSS_WEIGHT]])
# Where the label turns, the values that move furthest.
TURN = -0.1825


def moved(first: tuple[np.ndarray, float], second: tuple[np.ndarray, float]) -> float:
    """How far replacing one record (x, y) by another moves what is released."""
    sums = []
    for x, y in (first, second):
        warm = Warmup(plan_warmup(1.0, dim=len(x), slots=9, labels=True, cross=True), len(x))
        warm.add(x[None], np.array([float(not math.isnan(y))]), np.array([y]))
        sums.append(warm.sums.to_state() / WarmupPlan.PER_UNIT)
    return float(np.linalg.norm(WEIGHTS * (sums[0] - sums[1])))


def test_no_replacement_moves_the_warm_up_further() -> None:
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 6):
        bound, worst = moment_sensitivity(d, labels=True, cross=True, grid=1.0 / WarmupPlan.PER_UNIT), 0.0
        places = [(np.full(d, x), y) for x in (1.0, -1.0, TURN, 0.0) for y in (1.0, -1.0, 0.0, math.nan)]
        places += [(rng.uniform(-1, 1, d), rng.uniform(-1, 1)) for _ in range(8)]
        for first, second in itertools.combinations(places, 2):
            worst = max(worst, moved(first, second))
        assert 0.99 * bound < worst <= bound
        # The mutant: the product for nothing, as squares are.
        assert worst > 1.005 * moment_sensitivity(d, labels=True, grid=1.0 / WarmupPlan.PER_UNIT)
    with_product = moment_sensitivity(9, labels=True, cross=True)
    assert with_product == pytest.approx(math.sqrt(45.0))


def test_the_worst_turn_is_where_the_proof_says() -> None:
    u = np.linspace(0.0, 2.0, 200_001)
    adds = u**2 * (1.0 + SQUARE_WEIGHT**2 * (2.0 - u) ** 2) + CROSS_WEIGHT**2 * (2.0 - u) ** 2
    assert 4.156 < adds.max() < 4.157
    assert u[adds.argmax()] == pytest.approx(1.0 - TURN, abs=1e-3)


@pytest.mark.parametrize("features", [NAMES, [*"abcdef"]])
def test_the_audit_reaches_what_the_warm_up_claims(features: list[str]) -> None:
    report = privacy.audit(auc.PairFTRL(delta=1e-3, horizon=10**4, features=features), slots=8, runs=4)
    warm = report.parts[0]
    assert warm.part == "warm-up"
    assert report.holds, report.verdict
    assert 0.98 * warm.claimed < warm.exact <= warm.claimed


def records(count: int) -> list[tuple[dict[str, float], bool]]:
    rng = np.random.default_rng(5)
    x = np.clip(rng.normal(0.1, 0.3, (count, 3)), -1.0, 1.0)
    y = x[:, 0] - 0.5 * x[:, 2] + 0.1 * rng.normal(size=count) > 0.1
    return [
        (dict(zip(NAMES, row, strict=True)), bool(label)) for row, label in zip(x.tolist(), y, strict=True)
    ]


make = partial(auc.PairFTRL, 1.0, 1e-3, 8000, features=NAMES, warmup=1000, noise_key=KEY)


def in_order(model: Any, events: list[tuple[dict[str, float], bool]]) -> float:
    scores = [[model.score_one(x) for x, y in events if y is label] for label in (True, False)]
    return float(np.mean(np.sign(np.subtract.outer(*scores)))) / 2.0 + 0.5


@pytest.mark.parametrize("share", [None, 0.1])
def test_scores_rank_from_the_end_of_the_warm_up_on(
    monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    events = records(1400)
    ours = make(auc_share=share)
    assert "how features go with labels" in ours.privacy.mechanism
    with monkeypatch.context() as patch:
        patch.setattr(second_moments.Moments, "label_cross", False)
        control = make()
    for model in (ours, control):
        for x, y in events[:1000]:
            model.learn_one(x, y)
        assert model.run.state.steps == 0
    assert in_order(ours, events[1000:]) > 0.85
    assert in_order(control, events[1000:]) == 0.5
    # It is computed from what was released: the same with other records behind the same release.
    copy = make(auc_share=share)
    copy.load_state(ours.to_state())
    assert copy.score_one(events[0][0]) == ours.score_one(events[0][0])
