"""Reasons of scores: the largest contributions, of the model that gave the score."""

from __future__ import annotations

import math
from typing import Any

import pytest
from harness import lanes
from harness.driver import Driver
from river import compose, preprocessing

from streampair import auc, losses, metric
from streampair.errors import ConfigError

ROWS = lanes.stream(300)


def forest() -> Any:
    return auc.Forest(trees=5, seed=1)


def largest(parts: dict[str, float], count: int) -> list[tuple[str, float]]:
    return [pair for pair in sorted(parts.items(), key=lambda pair: -abs(pair[1]))[:count] if pair[1] != 0.0]


def test_reasons_are_of_the_model_before_the_event_is_learned() -> None:
    model, wanted = forest(), []
    for x, y in ROWS:
        score = model.score_one(x)
        found = model.explain_one(x)
        assert score == pytest.approx(found.baseline + sum(found.features.values()), abs=1e-9)
        wanted.append((score, largest(found.features, 2)))
        model.learn_one(x, y)
    output = Driver(forest, explain=2, **lanes.OPTIONS).feed(ROWS)
    assert [(scored.score, scored.reasons) for scored in output.scores] == wanted
    assert max(len(reasons) for _, reasons in wanted) == 2


def pipeline() -> Any:
    return compose.Pipeline(preprocessing.StandardScaler(), forest())


@pytest.mark.parametrize("make", [forest, pipeline])
def test_reasons_change_no_score_and_no_model(make: Any) -> None:
    plain, explained = Driver(make, **lanes.OPTIONS), Driver(make, explain=3, **lanes.OPTIONS)
    first, second = plain.feed(ROWS), explained.feed(ROWS)
    assert [scored.score for scored in first.scores] == [scored.score for scored in second.scores]
    assert {scored.reasons for scored in first.scores} == {None}


def test_a_learner_without_reasons_is_refused() -> None:
    with pytest.raises(ConfigError, match="PairOGD does not explain its scores"):
        Driver(lambda: metric.PairOGD(seed=1), explain=1, **lanes.OPTIONS)


def test_reasons_of_a_linear_learner_are_weights_times_scaled_values() -> None:
    model, wanted = auc.PairOGD(seed=1), []
    rows = gaps_and_texts()
    for x, y in rows:
        x = {name: None if value == math.inf else value for name, value in x.items()}  # as JSON has it
        found = model.explain_one(x)
        assert model.score_one(x) == pytest.approx(sum(found.features.values()), abs=1e-9)
        wanted.append(largest(found.features, 2))
        if y is not None:
            model.learn_one(x, y)
    output = Driver(lambda: auc.PairOGD(seed=1), explain=2, **lanes.OPTIONS).feed(rows)
    assert [scored.reasons for scored in output.scores] == wanted
    assert any("=" in name for reasons in wanted for name, _ in reasons)


def gaps_and_texts() -> list[Any]:
    """Events with missing features, with texts, of the other class, without a label, and unusable ones."""
    rows: list[Any] = []
    for i, (x, y) in enumerate(ROWS):
        x = {**x, "country": ["DE", "FR", "XX"][i % 3]} if i % 5 else dict(x)
        if i % 7 == 3:
            x.pop(next(iter(x)))
        if i % 41 == 40:
            x = {name: "1" * 3 if name == "country" else math.inf for name in x}
        rows.append((x, None if i % 11 == 10 else y))
    return rows


@pytest.mark.parametrize(
    "make", [forest, lambda: auc.Forest(trees=5, seed=1, loss=losses.Logistic())], ids=["logistic", "pairs"]
)
@pytest.mark.parametrize("rows", [ROWS, gaps_and_texts()], ids=["plain", "gaps and texts"])
def test_reasons_in_bulk_are_those_of_one_record_after_the_other(make: Any, rows: list[Any]) -> None:
    """Batches of any length give the same scores, reasons, regrets and states."""
    found = []
    for size in (1, 7, 300):
        driver = Driver(make, explain=2, **lanes.OPTIONS)
        outputs = [driver.feed(rows[i : i + size]) for i in range(0, len(rows), size)]
        scores = [scored for output in outputs for scored in output.scores]
        found.append(([(s.score, s.reasons, s.outcome) for s in scores], driver.lane.gauges()))
    assert found[0] == found[1] == found[2]
    assert sum(len(reasons or ()) for _, reasons, _ in found[0][0]) > 400


class OwnReasons(auc.Forest):
    """A user's forest, whose reasons are its own."""

    def explain_one(self, x: Any) -> Any:
        return super().explain_one(x)._replace(features={"mine": 1.0})


def test_who_explains_otherwise_is_taken_one_by_one() -> None:
    assert auc.Forest().explain_rows is not None
    assert auc.MulticlassForest().explain_rows is None
    output = Driver(lambda: OwnReasons(trees=5, seed=1), explain=2, **lanes.OPTIONS).feed(ROWS)
    assert {tuple(scored.reasons or ()) for scored in output.scores} == {(("mine", 1.0),)}
