"""Models of lanes as messages, and their average: by slots, of scores, from released numbers only."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from streampair_connectors.worker.merged_models import LaneModel, decode_model, encode_model, merge, model_of

from streampair import auc, metric, privacy, ranking
from streampair.errors import ConfigError, RecordError
from streampair.privacy import NoiseKey

BOUNDS = {"a": (0.0, 10.0), "b": (-5.0, 5.0), "c": (0.0, 1.0)}
EPSILON = {"epsilon": 4.0, "delta": 1e-4}


def record(coin: random.Random, shift: float = 0.0) -> tuple[dict[str, float], bool]:
    y = coin.random() < 0.4
    x = {"a": coin.gauss(5 + y + shift, 1.0), "b": coin.gauss(y - shift, 2.0), "c": coin.random()}
    return x, y


def private(seed: int, slots: int, **options: Any) -> auc.PairFTRL:
    learner = auc.PairFTRL(
        **EPSILON, features=list(BOUNDS), bounds=BOUNDS, noise_key=NoiseKey(bytes([seed]) * 32), **options
    )
    coin = random.Random(seed)
    for _ in range(slots):
        learner.learn_one(*record(coin, shift=seed / 4))
    return learner


def published(learner: Any, partition: int, slots: int = 0, topic: str = "events") -> LaneModel:
    model = model_of(learner, app="fraud", name="L", topic=topic, partition=partition, offset=7, slots=slots)
    assert model is not None
    return model


def naive(learners: list[Any], slots: list[int], x: dict[str, float]) -> float:
    """What the merged model is: the lanes' own scores, each as often as it has slots."""
    scores = [learner.score_one(x) for learner, n in zip(learners, slots, strict=True) for _ in range(n)]
    return math.fsum(scores) / len(scores)


@pytest.mark.parametrize(
    ("warmup", "mechanism"),
    [(0, privacy.PairGradients()), (100, privacy.PairGradients()), (100, privacy.SecondMoments())],
)
def test_the_merged_score_is_the_average_of_the_lanes_scores_by_slots(warmup: int, mechanism: Any) -> None:
    slots = [400, 150, 260]
    learners = [
        private(seed, n, warmup=warmup, horizon=500, mechanism=mechanism) for seed, n in enumerate(slots, 1)
    ]
    models = [decode_model(encode_model(published(lane, p))) for p, lane in enumerate(learners)]
    merged = merge(models)
    assert (merged.slots, [lane.slots for lane in merged.lanes]) == (sum(slots), slots)
    coin = random.Random(9)
    twins = {"weights": 0, "equal": 0}
    for _ in range(50):
        x, _ = record(coin, shift=coin.choice([0.0, 8.0]))  # some far beyond the bounds
        expected = naive(learners, slots, x)
        assert merged.score_one(x) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        if warmup:  # the weights of lanes that scale for themselves cannot be averaged
            mean = np.average([m.weights for m in models], axis=0, weights=slots)
            twin = float(mean @ learners[0].design(x))
            twins["weights"] += not math.isclose(twin, expected, rel_tol=1e-3)
        equal = naive(learners, [1, 1, 1], x)
        twins["equal"] += not math.isclose(equal, expected, rel_tol=1e-3)
    assert twins["equal"] > 25
    assert (merged.weights is None) == (warmup > 0)
    if warmup:
        assert twins["weights"] > 25
    else:
        weights = np.average([m.weights for m in models], axis=0, weights=slots)
        assert merged.weights == pytest.approx(dict(zip(models[0].features, weights, strict=True)))
    x = {"a": 3.0}  # missing features are neutral, as in a lane
    assert merged.score_one(x) == pytest.approx(naive(learners, slots, x))


@pytest.mark.parametrize("kind", [auc.PairOGD, ranking.PairOGD])
def test_learners_that_are_not_private(kind: type) -> None:
    """Each lane knows the features that its own records had."""
    learners = []
    for seed in (1, 2):
        learner = kind(seed=seed)
        coin = random.Random(seed)
        for _ in range(50):
            x, y = record(coin)
            learner.learn_one({**x, f"only {seed}": 1.0}, float(y) if kind is ranking.PairOGD else y)
        learners.append(learner)
    models = [published(learner, p, slots=50 + p) for p, learner in enumerate(learners)]
    assert models[0].privacy is models[0].scale is merge(models).total is None
    for x in ({"a": 1.0, "b": 2.0, "c": 0.5}, {"a": 1.0, "only 1": 3.0, "only 2": -3.0, "new": 9.0}):
        assert merge(models).score_one(x) == pytest.approx(naive(learners, [50, 51], x))


def test_lanes_count_by_slots_and_not_by_what_was_learned() -> None:
    """Half of the records are refused: a lane says as much as it would if they had been good ones."""
    good, bad = private(1, 0, horizon=300, warmup=0), private(1, 0, horizon=300, warmup=0)
    coin = random.Random(1)
    for number in range(200):
        x, y = record(coin)
        good.learn_one(x, y)
        bad.learn_one({**x, "a": math.nan} if number % 2 else x, y)
    one, other = published(good, 0, slots=200), published(bad, 0, slots=100)
    assert bad.null_slots == 100
    for name in ("slots", "features", "privacy", "offset", "scale"):
        assert getattr(one, name) == getattr(other, name), name


def test_a_message_changes_only_when_something_is_released() -> None:
    """Between two releases of the moments a lane takes records, and its model does not move by a bit."""
    learner = private(3, 150, horizon=1000, warmup=100, mechanism=privacy.SecondMoments())
    before, releases = published(learner, 0), learner.privacy.releases
    coin, quiet = random.Random(5), 0
    for _ in range(200):
        learner.learn_one(*record(coin))
        after = published(learner, 0)
        if learner.privacy.releases == releases:
            quiet += 1
            assert (after.weights, after.scale) == (before.weights, before.scale)
        before, releases = after, learner.privacy.releases
    assert quiet > 100


def test_what_is_in_a_message() -> None:
    """Nothing but these keys: a state would hold raw records and the memory of the noise."""
    told = json.loads(encode_model(published(private(1, 150, horizon=300, warmup=100), 2)))
    assert set(told) == {
        *("format", "app", "learner", "topic", "partition", "offset", "slots"),
        *("features", "weights", "scale", "privacy"),
    }
    assert set(told["scale"]) == {"bounds", "mean", "factor", "cap"}
    assert set(told["privacy"]) == {
        *("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "unit", "kind", "guarantee"),
    }
    assert published(private(1, 10, horizon=300), 2).key == b"fraud:events-2"


def test_the_total_of_a_merged_model() -> None:
    learners = [private(seed, 200, horizon=300, warmup=0) for seed in (1, 2)]
    merged = merge(published(lane, p) for p, lane in enumerate(learners))
    assert merged.total is not None
    assert merged.total.over_lanes == "maximum"
    assert merged.total.spend.mu == max(lane.privacy.mu_spent for lane in learners)
    together = merge([published(learners[0], 0), published(learners[1], 0, topic="other")]).total
    assert together is not None
    assert together.over_lanes == "maximum"


def damaged(change: dict[str, Any]) -> bytes:
    told = json.loads(encode_model(published(private(1, 150, horizon=300, warmup=100), 0)))
    for path, value in change.items():
        *parts, last = path.split(".")
        place = told
        for part in parts:
            place = place[part]
        place[last] = value
    return json.dumps(told).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"weights": [1.0]},
        {"features": ["a", "a", "b"]},
        {"slots": -1},
        {"scale.mean": None},
        {"scale.bounds": [[1, 0], [0, 1], [0, 1]]},
        {"scale.factor": [1.0]},
        {"weights": ["high", 1, 2]},
        {"state": "raw"},
    ],
)
def test_what_is_no_model_is_refused(change: dict[str, Any]) -> None:
    assert decode_model(damaged({}))
    with pytest.raises(RecordError, match="not a model of a lane"):
        decode_model(damaged(change))


def test_bytes_that_are_no_model() -> None:
    for data in (b"", b"{}", b"\xff\x00", b"[1]", b'{"format": 1}'):
        with pytest.raises(RecordError):
            decode_model(data)


def test_features_in_another_order_are_refused() -> None:
    model = published(private(1, 10, horizon=300, warmup=0), 0)
    turned = msgspec.structs.replace(model, features=tuple(reversed(model.features)))
    with pytest.raises(RecordError, match="not in order"):
        merge([turned])


def test_what_cannot_be_merged_or_published() -> None:
    model = published(private(1, 10, horizon=300), 0)
    with pytest.raises(ConfigError, match="no lane has published"):
        merge([msgspec.structs.replace(model, slots=0)])
    with pytest.raises(ConfigError, match="twice"):
        merge([model, model])
    with pytest.raises(ConfigError, match="of several applications"):
        merge([model, msgspec.structs.replace(model, partition=1, learner="other")])
    with pytest.raises(ConfigError, match="no weights that a model topic could hold"):
        published(metric.PairOGD(), 0)
    # The weights of a forest are a part of its score: what reads them would rank otherwise.
    forest = auc.PrivateForest(**EPSILON, horizon=100, features=["a", "b"])
    with pytest.raises(ConfigError, match="no weights that a model topic could hold"):
        model_of(forest, app="a", name="n", topic="t", partition=0, offset=None, slots=0)
    unknown = auc.PairFTRL(**EPSILON, horizon=100)
    assert model_of(unknown, app="a", name="n", topic="t", partition=0, offset=None, slots=0) is None
