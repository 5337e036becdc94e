"""Probabilities of private learners are computed from releases alone (docs/privacy 10.9)."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampair import auc, privacy
from streampair.errors import SnapshotError
from streampair.kernels import numerics
from streampair.privacy.mechanisms import second_moments
from streampair.privacy.mechanisms.base import Link, normal_link, rate_link, unit_link

NAMES = ["a", "b", "c"]


def stream(n: int, rate: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two normal classes of one covariance, with the true log-odds."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < rate
    gap = np.array([0.3, -0.2, 0.0])
    x = 0.2 * rng.normal(size=(n, 3)) + np.outer(y - 0.5, gap)
    odds = x @ gap / 0.04 + math.log(rate / (1.0 - rate))
    return np.clip(x, -1.0, 1.0), y, odds


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    return -float(np.mean(np.log(np.where(y, p, 1.0 - p))))


def learner(n: int, **options: Any) -> Any:
    options = {"epsilon": 1.0, "delta": 1e-5, "horizon": n, "features": NAMES, **options}
    return auc.PairFTRL(**options)


def probabilities(model: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict_proba_many(pd.DataFrame(x, columns=NAMES))[True])


# ---- the links -----------------------------------------------------------------------------------------


def test_the_normal_link_is_the_log_odds_of_two_normal_classes() -> None:
    """By Bayes, for class means (1 - r) g and -r g and the variance v within."""
    for rate in (0.03, 0.5, 0.8):
        for gap, within in ((0.7, 0.2), (3.0, 1.0)):
            link = normal_link(
                rate * (1 - rate) * gap, variance=within + rate * (1 - rate) * gap * gap, rate=rate
            )
            for score in (-2.0, 0.0, 0.5):
                high = -((score - (1 - rate) * gap) ** 2) / (2 * within)
                low = -((score + rate * gap) ** 2) / (2 * within)
                odds = high - low + math.log(rate / (1 - rate))
                assert link.slope * score + link.offset == pytest.approx(odds)


@pytest.mark.parametrize("along", [0.0, -1.0, 1e-12, 0.1, 1e9])
def test_every_link_rises(along: float) -> None:
    link = normal_link(along, variance=1e-4, rate=0.3)
    assert 0.0 < link.slope < math.inf
    assert math.isfinite(link.offset)
    assert unit_link(np.zeros(3), 1.0) == Link()
    assert unit_link(np.full(3, 1e-9), 1.0).slope == pytest.approx(1e9)
    assert rate_link(0.25).one(0.0) == pytest.approx(0.25)


def test_one_and_many_are_the_same_bits() -> None:
    link, scores = normal_link(0.1, 0.4, 0.2), np.random.default_rng(0).normal(size=50)
    assert link.many(scores).tolist() == [link.one(score) for score in scores.tolist()]


# ---- moments -------------------------------------------------------------------------------------------


def test_the_true_probabilities_are_found_under_noise() -> None:
    """At epsilon 1 within .03 nats of the truth; the mutants, a fixed sigmoid and a constant, are not."""
    n = 20_000
    x, y, _ = stream(n)
    model = learner(n)
    model.learn_many(pd.DataFrame(x, columns=NAMES), pd.Series(y))
    x, y, odds = stream(4000, seed=1)
    scores = model.score_many(pd.DataFrame(x, columns=NAMES)).to_numpy()
    p, best = model._probas(scores), log_loss(1.0 / (1.0 + np.exp(-odds)), y)
    assert log_loss(p, y) < best + 0.03
    fixed = np.empty(len(scores))
    numerics.sigmoid_many(scores, fixed)
    assert log_loss(fixed, y) > best + 0.1
    assert log_loss(np.full(len(y), 0.2), y) > best + 0.1
    assert np.array_equal(np.argsort(p, kind="stable"), np.argsort(scores, kind="stable"))


def beyond_a_coin(seed: int) -> float:
    """Log loss beyond that of a fair coin, of a learner whose labels have nothing to do with its records."""
    rng = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(10)]
    x, y = np.clip(0.3 * rng.normal(size=(1500, 10)), -1.0, 1.0), rng.random(1000) < 0.5
    model = auc.PairFTRL(0.3, 1e-5, 1000, features=names, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn_many(pd.DataFrame(x[:1000], columns=names), pd.Series(y))
    p = np.asarray(model.predict_proba_many(pd.DataFrame(x[1000:], columns=names))[True])
    with np.errstate(divide="ignore"):
        return -float(np.mean(np.log(p) + np.log(1.0 - p))) / 2.0 - math.log(2.0)


@pytest.mark.parametrize("mutant", [False, True])
def test_noise_that_weights_follow_is_no_difference_of_the_classes(
    mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all is noise the weights agree with it: the mutant takes that for knowledge and is sure of it.

    Losses of the mutant have no mean: .02 is usual, and a few of a hundred have no bound.
    """
    if mutant:
        true = second_moments.ridge_of
        monkeypatch.setattr(second_moments, "ridge_of", lambda *args: (true(*args)[0], 0.0))
    losses = [beyond_a_coin(seed) for seed in range(40)]
    assert (float(np.median(losses)) < 0.008) is not mutant
    assert mutant or np.mean(losses) < 0.1


def test_from_the_warm_up_on_probabilities_are_around_the_released_rate() -> None:
    x, y, _ = stream(400)
    model = learner(4000, warmup=300, seed=1)
    rows = [dict(zip(NAMES, row, strict=True)) for row in x.tolist()]
    for row, label in zip(rows[:299], y.tolist(), strict=False):
        model.learn_one(row, bool(label))
        assert model.predict_proba_one(row) == {False: 0.5, True: 0.5}
    model.learn_one(rows[299], bool(y[299]))
    released = model.run.warmup.released[3]  # of labels -1 and 1
    rate = 0.5 * (1.0 + min(max(released, -0.98), 0.98))
    p = [model.predict_proba_one(row)[True] for row in rows]
    assert np.std(p) > 0.0  # there is a model
    assert float(np.mean(p)) == pytest.approx(rate, abs=0.1)


def test_a_restored_learner_gives_the_same_probabilities() -> None:
    x, y, _ = stream(600)
    model = learner(600)
    model.learn_many(pd.DataFrame(x, columns=NAMES), pd.Series(y))
    wanted = probabilities(model, x[:40])
    assert probabilities(copy.deepcopy(model), x[:40]).tolist() == wanted.tolist()
    former = model.to_state()
    other = learner(600)
    other.load_state(former)
    assert probabilities(other, x[:40]).tolist() == wanted.tolist()
    rule = dict(former["mechanism"])
    with pytest.raises(SnapshotError):
        learner(600).load_state({**former, "mechanism": {**rule, "link": [0.0, 1.0]}})
    del rule["link"]
    with pytest.raises(SnapshotError):
        learner(600).load_state({**former, "mechanism": rule})


@pytest.mark.parametrize(
    "model",
    [
        auc.PairFTRL(horizon=500, mechanism=privacy.PairGradients(), features=NAMES),
        auc.OnPairC(1.0, 1e-4, 500, features=NAMES),
        auc.OnPairStrC(1.0, 1e-4, 500, l2=0.1, features=NAMES),
    ],
    ids=lambda model: type(model).__name__,
)
def test_without_a_released_rate_the_report_says_uncalibrated(model: Any) -> None:
    assert "Probabilities are uncalibrated" in model.privacy.details
    assert "Probabilities are uncalibrated" not in str(learner(500).privacy)
