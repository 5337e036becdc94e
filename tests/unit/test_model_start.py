"""Learners that begin with a model file: the same scores at first, and then they learn on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness.learners import LEARNERS, NAMES, name_of, stream, taught
from river import datasets
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses, metric, models, ranking, schedules
from streampair.errors import ConfigError

PHISHING = [(x, bool(y)) for x, y in datasets.Phishing()]
HALF = 600


def model_of(learner: Any, records: Any) -> models.Model:
    for x, y in records:
        learner.learn_one(x, y)
    return models.loads(models.dumps(learner))


@pytest.fixture(scope="module")
def phishing() -> models.Model:
    return model_of(auc.PairOGD(seed=1), PHISHING[:HALF])


@pytest.mark.parametrize(
    "source", [auc.PairOGD(seed=1), auc.OAM(seed=1), auc.SPAUC(), auc.PairMoments()], ids=name_of
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"average": False, "learning_rate": 0.1},
        {"half_life": 200},
        {"average": "linear", "l2": 0.01, "learning_rate": None},
        {"buffer": buffers.Reservoir(8), "loss": losses.Logistic()},
        {"buffer": buffers.FullHistory(), "loss": losses.Square()},
        {"buffer": buffers.ClassReservoir(8), "learning_rate": schedules.InverseSqrt(0.1)},
    ],
    ids=str,
)
def test_the_first_scores_are_those_of_the_model(source: Any, more: dict[str, Any]) -> None:
    """On a real stream: bits of scores and probabilities, for as long as nothing is learned."""
    model = model_of(source.clone(), PHISHING[:HALF])
    learner = model.to_online(auc.PairOGD(seed=2, **more))
    rest = [x for x, _ in PHISHING[HALF:]]
    rest += [{**rest[0], "new": 1.0}, dict(list(rest[1].items())[:4])]
    assert [learner.score_one(x) for x in rest] == [model.score_one(x) for x in rest]
    assert [learner.predict_proba_one(x) for x in rest] == [model.predict_proba_one(x) for x in rest]
    assert (learner.records, learner.feature_names) == (0, model.features)
    before = learner.score_one(rest[0])
    for x, y in PHISHING[HALF:]:
        learner.learn_one(x, y)
    assert learner.score_one(rest[0]) != before
    assert model.score_one(rest[0]) == before


def test_what_was_learned_counts(phishing: models.Model) -> None:
    """The AUC of the next records is that of a learner that never stopped, and not that of a new one."""
    rows, labels = [x for x, _ in PHISHING[HALF:]], [y for _, y in PHISHING[HALF:]]

    def progressive(learner: Any) -> tuple[float, float]:
        scores, likelihood = [], 0.0
        for x, y in zip(rows, labels, strict=True):
            scores.append(learner.score_one(x))
            likelihood += np.log(max(learner.predict_proba_one(x)[y], 1e-12))
            learner.learn_one(x, y)
        return roc_auc_score(labels, scores), likelihood / len(rows)

    kept = auc.PairOGD(seed=1)
    for x, y in PHISHING[:HALF]:
        kept.learn_one(x, y)
    went_on, begun = progressive(kept), progressive(phishing.to_online(auc.PairOGD(seed=1)))
    assert begun[0] == pytest.approx(went_on[0], abs=0.001)
    assert begun[1] == pytest.approx(went_on[1], abs=0.01)
    alone = roc_auc_score(labels, [phishing.score_one(x) for x in rows])
    assert begun[0] > alone - 0.002


def test_columns_stay_in_the_order_of_the_model() -> None:
    """Features that come one after the other: sums of sorted ones would be rounded otherwise."""
    rng = random.Random(4)
    names = [f"f{i}" for i in range(40)]
    rng.shuffle(names)
    learner = auc.PairOGD(seed=1)
    for k in range(1, 41):
        for y in (True, False):
            learner.learn_one({name: rng.gauss(float(y), 1.0) for name in names[:k]}, y)
    model = models.loads(models.dumps(learner))
    assert model.features == tuple(names)
    online = model.to_online(auc.PairOGD(seed=1))
    xs = [{name: rng.gauss(0.0, 1.0) for name in names} for _ in range(50)]
    assert [online.score_one(x) for x in xs] == [model.score_one(x) for x in xs]
    online.learn_one({**xs[0], "new": 1.0}, True)
    assert online.feature_names == (*names, "new")


def test_whole_records_are_scored_before_any_is_learned() -> None:
    """Rows of the buffer have room for a record whose last features came with a score only."""
    learner = auc.PairOGD(seed=1)
    for i in range(60):
        learner.learn_one({f"f{i % 9}": float(i % 5)}, i % 2 == 0)
    whole = {f"f{i}": 1.0 for i in range(9)}
    begun = models.loads(models.dumps(learner)).to_online(auc.PairOGD(seed=1))
    restored = auc.PairOGD(seed=1)
    restored.load_state(learner.to_state())
    for each in (begun, restored):
        assert each.score_one(whole) == learner.score_one(whole)
        each.learn_one(whole, True)
    learner.learn_one(whole, True)
    assert restored.score_one(whole) == learner.score_one(whole)


def test_relevances() -> None:
    learner = taught(ranking.PairOGD(seed=1), 100)
    model = models.loads(models.dumps(learner))
    online = model.to_online(ranking.PairOGD(seed=1))
    xs = [x for x, _ in stream(learner, 20, seed=3)]
    assert [online.score_one(x) for x in xs] == [model.score_one(x) for x in xs]


def test_labels_come_with_the_model() -> None:
    records = [(x, "bad" if y else "good") for x, y in PHISHING[:100]]
    model = model_of(auc.PairOGD(positive="bad"), records)
    online = model.to_online(auc.PairOGD(positive="bad"))
    x = PHISHING[200][0]
    assert online.predict_proba_one(x) == model.predict_proba_one(x)
    assert set(online.predict_proba_one(x)) == {"bad", "good"}
    declared = model.to_online(auc.PairOGD(positive="bad", negative="good"))
    assert declared.predict_proba_one(x) == model.predict_proba_one(x)


def test_a_model_of_any_size_counts_for_its_records(phishing: models.Model) -> None:
    """Neither memory nor time follows the number in a file."""
    for rate in (None, 0.1, schedules.Constant(0.1), schedules.InverseSqrt(0.1)):
        online = phishing.to_online(auc.PairOGD(learning_rate=rate), 2**62)
        before = online.linear_columns().weights
        for x, y in PHISHING[:20]:
            online.learn_one(x, y)
        assert online.linear_columns().weights == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize(
    "schedule", [schedules.Constant(0.1), schedules.InverseSqrt(0.1), schedules.InverseTime(0.5)]
)
def test_the_sum_of_many_steps_is_that_of_each(schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from streampair.base import online

    monkeypatch.setattr(online, "_MOST_ADDED", 100)
    assert online._sum_of_steps(schedule, 5000) == pytest.approx(schedule.sizes(1, 5000).sum(), rel=1e-6)
    assert online._sum_of_steps(schedule, 0) == 0.0


@pytest.mark.parametrize("learner", LEARNERS, ids=[f"{name_of(m)}-{i}" for i, m in enumerate(LEARNERS)])
def test_a_learner_that_cannot_begin_with_a_model_says_what_else_to_do(
    learner: Any, phishing: models.Model
) -> None:
    """It is as it was: each learner either begins with the bits of the model, or refuses."""
    learner = learner.clone()
    before = learner.to_state() if learner.privacy is None else None
    if isinstance(learner, auc.PairOGD) and learner.scale is not None:
        x = PHISHING[0][0]
        assert phishing.to_online(learner).score_one(x) == phishing.score_one(x)
        return
    with pytest.raises(
        ConfigError, match=r"(?s)(cannot begin|other labels|is not private|has scale=None).*Fix: "
    ):
        phishing.to_online(learner)
    if before is not None and learner.seed is not None:
        assert learner.feature_names == ()


def test_refusals(phishing: models.Model) -> None:
    private = taught(auc.PairFTRL(features=NAMES, seed=1), 50)
    forest = taught(auc.Forest(3, 31, seed=1), 50)
    used = taught(auc.PairOGD(), 5)
    relevances = models.export(taught(ranking.PairOGD(seed=1), 20))
    bad = model_of(auc.PairOGD(positive="bad"), [(x, "bad" if y else "good") for x, y in PHISHING[:50]])
    refused: list[tuple[models.Model, Any, str]] = [
        (models.export(private), auc.PairOGD(), "model of a private learner.*auc.PairFTRL.*Fix: give the"),
        (models.export(forest), auc.PairOGD(), "not: auc.Forest. Fix: give the model of an auc.PairOGD"),
        (models.export(taught(metric.PairOGD(), 9)), auc.PairOGD(), "not: metric.PairOGD. Fix"),
        (models.export(auc.PairOGD()), auc.PairOGD(), "learned nothing. Fix: begin without it"),
        (
            relevances,
            auc.PairOGD(),
            "ranking.PairOGD. has other labels than auc.PairOGD learns. Fix: make a new ranking.P",
        ),
        (phishing, ranking.PairOGD(), "other labels than ranking.PairOGD.*Fix: make a new auc.PairOGD"),
        (phishing, used, "only as a new PairOGD. Fix"),
        (phishing, auc.PairOGD(radius=1e-3), "beyond the radius 0.001. Fix: make the learner with radius="),
        (phishing, auc.PairOGD(max_features=4), "more than max_features=4. Fix: make the learner"),
        (phishing, auc.PairOGD(positive=False), "ranks the label True high.*Fix: .*positive=True"),
        (bad, auc.PairOGD(), "ranks the label 'bad' high.*Fix: make the learner with positive='bad'"),
        (bad, auc.PairOGD(positive="bad", negative="fine"), "'good' low, .*'fine'. Fix: .*negative='good'"),
        (phishing, auc.OAM(), "a OAM cannot begin.*Fix: make a new auc.PairOGD"),
        (phishing, auc.PrivateForest(), "a PrivateForest cannot begin.*leaves.*Fix: make a new auc.PairFTRL"),
        (phishing, auc.Forest(), "sums that it learns by. Fix: go on with the state"),
        (phishing, metric.PairOGD(), "not its matrix. Fix: begin without the model"),
        (phishing, object(), "a object cannot begin"),
    ]
    for model, learner, message in refused:
        names = getattr(learner, "feature_names", None)
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            model.to_online(learner)
        assert getattr(learner, "feature_names", None) == names
