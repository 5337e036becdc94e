"""River's own checks, every one of them, on an estimator of each base class; with ``--everything`` on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.learners import LEARNERS, by_base
from river import base, checks

from streampair import auc, buffers, losses, metric, preprocessing, ranking

ESTIMATORS: list[base.Estimator] = [
    auc.PairOGD(),
    auc.PairOGD(loss=losses.Logistic(), buffer=buffers.Reservoir(20), l2=0.01, average=False),
    auc.PairOGD(loss=losses.SquaredHinge(), buffer=buffers.Reservoir(20, replacement=True), seed=1),
    auc.PairOGD(loss=losses.Square(), buffer=buffers.FIFO(16), learning_rate=0.1, radius=5.0),
    auc.OAM(size=20),
    auc.SPAUC(l2=0.01),
    auc.Forest(5, 63, seed=1),
    auc.MulticlassForest(5, 63, seed=1),
    auc.PairFTRL(horizon=5000, delta=1e-4),
    auc.PairFTRL(),
    auc.PrivateForest(),
    auc.OnPairStrC(1.0, 1e-4, 5000, l2=0.1),
    auc.OnPairC(1.0, 1e-4, 3000, buffer=buffers.Reservoir(8), releases=10, seed=1),
    preprocessing.RandomFourier(6),
    preprocessing.Hashing(8),
    preprocessing.OneHot({"empty_server_form_handler": [0, 1], "is_popular": [1]}),
    ranking.PairOGD(),
    ranking.PairOGD(losses.MinimumErrorEntropy(0.5), buffers.Reservoir(20), l2=0.01, average=False),
    ranking.PairOGD(relevance=(0, 100)),
    ranking.Forest(5, 63, seed=1),
    ranking.Forest(5, 63, relevance=(0, 100), seed=1),
    # Private ones declare the range. The checks' regression data is an approval in per cent.
    ranking.PairFTRL(horizon=5000, relevance=(0, 100)),
    ranking.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, relevance=(0, 100)),
    ranking.OnPairC(1.0, 1e-4, 3000, buffer=buffers.FullHistory(), relevance=(0, 100), seed=1),
    metric.PairOGD(),
    metric.PairOGD(losses.Logistic(), buffers.Reservoir(20), l2=0.01, average=False, psd=False),
    metric.PairFTRL(warmup=0),
    metric.OnPairStrC(1.0, 1e-4, 5000, l2=0.1),
    metric.OnPairC(1.0, 1e-4, 3000, releases=10, seed=1),
    preprocessing.Bounds({"gallup": (0, 100), "ipsos": (20, 60)}),
    preprocessing.UnitBall(),
]
# And the first of each class that is not among them.
for learner in LEARNERS:
    if all(type(model) is not type(learner) for model in ESTIMATORS):
        ESTIMATORS.append(learner.clone({"noise_key": None} if hasattr(learner, "noise_key") else None))


def _cases() -> Iterator[Any]:
    for number, (model, marks) in enumerate(by_base(ESTIMATORS)):
        for place, check in enumerate(checks.yield_checks(model)):
            name = getattr(check, "__name__", str(check))
            yield pytest.param(
                model, check, marks=marks, id=f"{type(model).__name__}-{number}-{name}-{place}"
            )


@pytest.mark.parametrize(("model", "check"), list(_cases()))
def test_check(model: base.Estimator, check: Callable[[base.Estimator], None]) -> None:
    check(model.clone())


@pytest.mark.parametrize("model", ESTIMATORS, ids=lambda m: type(m).__name__)
def test_nothing_is_skipped(model: base.Estimator) -> None:
    assert model._unit_test_skips() == set()
    names = {getattr(check, "__name__", "") for check in checks.yield_checks(model)}
    # River drops these without a word when pandas is absent.
    if isinstance(model, base.MiniBatchClassifier):
        assert {
            "check_learn_many_matches_learn_one",
            "check_predict_proba_many_matches_predict_proba_one",
        } <= names
    elif isinstance(model, base.MiniBatchRegressor):
        assert {"check_learn_many_matches_learn_one", "check_predict_many_matches_predict_one"} <= names
    else:
        assert "check_transform_many_matches_transform_one" in names
