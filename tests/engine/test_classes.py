"""Outputs of a classifier of several classes: the probability of each, beside the score of `positive`."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from harness.driver import Driver, decode_json
from river import compose, dummy, forest, linear_model, naive_bayes, preprocessing, tree

from streampair import auc
from streampair.engine import Lane, LaneId, Record

WHERE: dict[str, Any] = {"identity": LaneId("a", "t", 0), "saving": None, "breaker": None}
MAKES = {
    "forest": lambda: auc.MulticlassForest(3, 31, positive="b", seed=1),
    "river": lambda: forest.ARFClassifier(2, seed=1),
    "tree": lambda: tree.HoeffdingTreeClassifier(),
    "pipeline": lambda: compose.Pipeline(preprocessing.StandardScaler(), naive_bayes.GaussianNB()),
}


def rows(count: int, classes: Any = "abc") -> list[tuple[dict[str, float], Any]]:
    draw = random.Random(0)
    made = []
    for _ in range(count):
        index = draw.randrange(len(classes))
        made.append(({"x": draw.gauss(index, 0.5), "z": draw.random()}, classes[index]))
    return made


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_probabilities_are_those_before_the_record_is_learned(make: Any) -> None:
    events, reference = rows(150), make()
    driver = Driver(make, saving=None, positive="b", classes=True)
    outputs = [
        scored for start in range(0, 150, 50) for scored in driver.feed(events[start : start + 50]).scores
    ]
    for (x, y), scored in zip(events, outputs, strict=True):
        if scored.score is not None:  # a scaler has seen too little for the first record
            wanted = reference.predict_proba_one(x)
            assert scored.probabilities == wanted
            is_ours = hasattr(reference, "score_one") and isinstance(reference, auc.MulticlassForest)
            assert scored.score == (reference.score_one(x) if is_ours else wanted.get("b", 0.0))
        reference.learn_one(x, y)
    assert set(outputs[-1].probabilities or ()) == {"a", "b", "c"}
    assert sum((outputs[-1].probabilities or {}).values()) == pytest.approx(1.0)


def test_the_lane_learns_the_same_with_and_without() -> None:
    events = rows(600)
    drivers = [
        Driver(MAKES["forest"], saving=None, positive="b", classes=classes) for classes in (True, False)
    ]
    scores = [[scored.score for scored in driver.feed(events).scores] for driver in drivers]
    assert scores[0] == scores[1]
    states = [driver.lane.learner.to_state() for driver in drivers]
    assert states[0]["leaves"].tobytes() == states[1]["leaves"].tobytes()
    assert drivers[0].lane.auc == drivers[1].lane.auc


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        (lambda: auc.PairOGD(positive="b", seed=1), True),
        (linear_model.LogisticRegression, True),
        (MAKES["forest"], False),
    ],
)
def test_others_have_a_score_alone(make: Any, classes: bool) -> None:
    driver = Driver(make, saving=None, positive=getattr(make(), "positive", True), classes=classes)
    labels = "ab" if driver.lane.positive == "b" else (False, True)
    output = driver.feed(rows(10, labels))
    assert [scored.outcome for scored in output.scores] == ["learned"] * 10
    assert {scored.probabilities for scored in output.scores} == {None}


def test_a_vote_is_a_probability_of_one() -> None:
    class Votes(dummy.NoChangeClassifier):
        predict_proba_one = dummy.base.Classifier.predict_proba_one

    driver = Driver(Votes, saving=None, positive="b", classes=True)
    outputs = driver.feed([({"x": 1.0}, y) for y in "abbc"]).scores
    assert [scored.probabilities for scored in outputs] == [{}, {"a": 1.0}, {"b": 1.0}, {"b": 1.0}]
    assert [scored.score for scored in outputs] == [0.0, 0.0, 1.0, 1.0]


def test_a_probability_that_is_no_number_is_a_dead_letter() -> None:
    class Broken(tree.HoeffdingTreeClassifier):
        def predict_proba_one(self, x: Any) -> Any:
            return {"a": math.nan, "b": 1.0}

    lane = Lane(Broken(), decode_json, positive="b", classes=True, **WHERE)
    output = lane.process([Record(0, b'{"x": {"x": 1.0}, "y": "a"}')])
    assert [letter.stage for letter in output.dead_letters] == ["learn"]
    assert output.scores[0].probabilities is None
