"""Reasons of scores: the largest contributions, of the model that gave the score."""

from __future__ import annotations

from typing import Any

import pytest
from harness import lanes
from river import compose, preprocessing

from streampair import auc
from streampair.engine.testing import Driver
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
        Driver(lanes.pair_ogd, explain=1, **lanes.OPTIONS)
