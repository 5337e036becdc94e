"""In River's own machinery: pipelines, progressive validation, delayed labels."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random

import pytest
from river import base, compose, datasets, ensemble, evaluate, linear_model, metrics, preprocessing, stream
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses
from streampair import preprocessing as own
from streampair.errors import RecordError

PHISHING = list(datasets.Phishing())


def prequential_auc(model: base.Classifier, data: list[tuple[dict[str, float], bool]]) -> float:
    """Exact; River's own metric has ten thresholds unless told otherwise, too few for scores near 0."""
    labels, scores = [], []
    for x, y in data:
        scores.append(model.predict_proba_one(x)[True])
        labels.append(y)
        model.learn_one(x, y)
    return float(roc_auc_score(labels, scores))


def test_progressive_validation_is_as_good_as_logistic_regression() -> None:
    """Defaults, one pass, the order as shipped and five others."""
    for seed in range(6):
        data = list(PHISHING)
        if seed:
            random.Random(seed).shuffle(data)
        pair = prequential_auc(auc.PairOGD(), data)
        peer = prequential_auc(linear_model.LogisticRegression(), data)
        assert pair > 0.93
        assert pair > peer


def test_in_a_pipeline() -> None:
    model = preprocessing.StandardScaler() | auc.PairOGD(buffer=buffers.FIFO(16))
    assert evaluate.progressive_val_score(PHISHING, model.clone(), metrics.ROCAUC()).get() > 0.93
    assert prequential_auc(model, PHISHING) > 0.95
    assert isinstance(model, compose.Pipeline)
    again = pickle.loads(pickle.dumps(model))
    x, y = PHISHING[0]
    assert again.predict_proba_one(x) == model.predict_proba_one(x)
    again.learn_one(x, y)
    clone = model.clone()
    assert clone["PairOGD"].weights == {}


def test_declared_bounds_in_a_pipeline() -> None:
    names = list(PHISHING[0][0])
    model = own.Bounds(dict.fromkeys(names, (0, 1))) | own.UnitBall() | auc.PairOGD(loss=losses.Logistic())
    assert prequential_auc(model, PHISHING) > 0.93
    with pytest.raises(RecordError, match=f"feature '{names[0]}' is infinite"):
        model.learn_one({**PHISHING[0][0], names[0]: math.inf}, True)


def test_delayed_labels() -> None:
    """Every label 20 events late: River remembers the features."""
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    moments = [start + dt.timedelta(minutes=i) for i in range(len(PHISHING))]
    data = [({**x, "at": moment}, y) for (x, y), moment in zip(PHISHING, moments, strict=True)]
    model = compose.Discard("at") | auc.PairOGD()
    late = evaluate.progressive_val_score(
        data, model, metrics.ROCAUC(), moment="at", delay=dt.timedelta(minutes=20)
    ).get()
    assert late > 0.9

    # The same by hand: nothing but the order of calls matters.
    by_hand, metric, waiting = auc.PairOGD(), metrics.ROCAUC(), []
    for i, (x, y) in enumerate(PHISHING):
        while waiting and waiting[0][0] <= i:
            _, x_past, p, y_past = waiting.pop(0)
            metric.update(y_past, p)
            by_hand.learn_one(x_past, y_past)
        waiting.append((i + 20, x, by_hand.predict_proba_one(x), y))
    for _, x_past, p, y_past in waiting:
        metric.update(y_past, p)
        by_hand.learn_one(x_past, y_past)
    assert metric.get() == pytest.approx(late)
    assert by_hand.weights == model["PairOGD"].weights


def test_simulated_question_and_answer() -> None:
    model = auc.PairOGD()
    questions = 0
    for _, x, y in stream.simulate_qa(PHISHING[:50], moment=None, delay=3):
        if y is None:
            model.predict_proba_one(x)
            questions += 1
        else:
            model.learn_one(x, y)
    assert questions == model.records == 50


def test_in_an_ensemble() -> None:
    model = ensemble.BaggingClassifier(auc.PairOGD(buffer=buffers.Reservoir(10)), n_models=3, seed=1)
    assert prequential_auc(model, PHISHING) > 0.93
