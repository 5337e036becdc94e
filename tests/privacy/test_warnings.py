"""Promises that are kept and protect nobody, and records that say nothing: somebody is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.learners import KEY, PRIVATE

from streampair import auc, metric, offline, privacy, ranking
from streampair.errors import ConfigError, PrivacyWarning
from streampair.privacy.user_level import EntityLimit

Record = dict[str, float]


def privacy_warnings(call: Callable[[], Any]) -> list[str]:
    """The warnings about privacy that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught if warning.category is PrivacyWarning]


# ---- numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [auc, ranking, metric])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 21.0}, "epsilon is 21"),
        ({"delta": 0.01, "horizon": 5000}, "delta is 0.01, and there are 5,000 records"),
        ({"delta": 0.3}, "delta is 0.3, and no stream is shorter than 100"),
        ({"horizon": 5, "delta": 1e-3, "mechanism": privacy.PairGradients()}, "the horizon is 5"),
    ],
)
def test_numbers_that_protect_nobody(module: Any, options: dict[str, Any], words: str) -> None:
    (text,) = privacy_warnings(lambda: module.PairFTRL(**{"epsilon": 1.0, "delta": 1e-6, **options}))
    assert words in text


def test_a_warning_points_at_the_line_that_makes_the_learner() -> None:
    with pytest.warns(PrivacyWarning, match="protects nobody") as caught:
        auc.PairFTRL(epsilon=21.0)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("module", [auc, ranking, metric])
def test_sound_numbers_are_taken_without_a_word(module: Any) -> None:
    for options in ({}, {"horizon": 20_000, "delta": 1 / 20_000}, {"epsilon": 20.0}, {"horizon": 10}):
        assert privacy_warnings(lambda options=options: module.PairFTRL(**options)) == []


@pytest.mark.parametrize("module", [auc, ranking, metric])
@pytest.mark.parametrize("learner", ["PairFTRL", "OnPairStrC", "OnPairC"])
def test_a_horizon_of_one_record_is_refused(module: Any, learner: str) -> None:
    with pytest.raises(ConfigError, match="one record makes no pair"):
        getattr(module, learner)(epsilon=1.0, delta=1e-6, horizon=1)


def test_tables_know_how_many_records_they_have() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 3)), rng.random(200) < 0.5
    assert privacy_warnings(lambda: offline.DPGDSC(1.0, 1e-4, l2=0.1).fit(x, y)) == []
    (text,) = privacy_warnings(lambda: offline.DPGDSC(1.0, 0.01, l2=0.1).fit(x, y))
    assert "delta is 0.01, and there are 200 records" in text
    (text,) = privacy_warnings(lambda: offline.DPGDC(50.0, 0.0).fit(x, y))
    assert "epsilon is 50" in text


def test_pairs_are_what_a_learner_of_relations_counts() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-0.5, 0.5, size=(200, 3)), rng.random(200) < 0.5
    assert privacy_warnings(lambda: offline.DPPMetricLearner(1.0, 1e-4).fit(x, y)) == []
    (text,) = privacy_warnings(lambda: offline.DPPMetricLearner(1.0, 0.01).fit(x, y))
    assert "delta is 0.01, and there are 400 pairs" in text
    (text,) = privacy_warnings(lambda: offline.DPPMetricLearner(50.0, 0.0).fit(x, y))
    assert "epsilon is 50" in text


def test_an_audit_warns_of_no_horizon_of_its_copies() -> None:
    learner = auc.PairFTRL(1.0, 1e-5, 20_000, features=["a", "b"])
    assert privacy_warnings(lambda: privacy.audit(learner, runs=4)) == []


def test_a_plan_says_it_and_warns_of_no_number_that_it_only_tries() -> None:
    assert privacy_warnings(lambda: privacy.plan(2000, 5)) == []
    found = privacy.plan(2000, 5)
    assert found.doubts == ()
    assert privacy_warnings(lambda: privacy.plan(2000, 5, epsilon=24.0, delta=0.1)) == []
    found = privacy.plan(2000, 5, epsilon=24.0, delta=0.1)
    lines = found.advice()
    assert lines[0].startswith("warning: epsilon is 24")
    assert lines[1].startswith("warning: delta is 0.1, and there are 2,000 records")


# ---- records ---------------------------------------------------------------------------------------------


def stream(n: int, scale: float, seed: int = 1) -> list[tuple[Record, bool]]:
    """Records of two features, `wide` of a scale and `fine` in [-1, 1]."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.5, 1.0, (n, 2)) * rng.choice([-1.0, 1.0], (n, 2)) * [scale, 1.0]
    return [({"wide": float(a), "fine": float(b)}, bool(a > 0.0)) for a, b in rows]


def fed(model: Any, records: list[tuple[Record, bool]]) -> Any:
    for x, y in records:
        model.learn_one(x, y)
    return model


def moments(**options: Any) -> Any:
    return auc.PairFTRL(1.0, 1e-4, 5000, noise_key=KEY, **options)


def test_records_outside_their_bounds_are_reported_once() -> None:
    (text,) = privacy_warnings(lambda: fed(moments(), stream(300, 1000.0)))
    assert "of 'wide' lie outside" in text
    assert "fine" not in text
    assert privacy_warnings(lambda: fed(moments(bounds={"wide": (-1000, 1000)}), stream(300, 1000.0))) == []
    (text,) = privacy_warnings(lambda: fed(moments(bounds={"wide": (-10, 10)}), stream(300, 1000.0)))
    assert "'wide'" in text
    assert privacy_warnings(lambda: fed(moments(), stream(99, 1000.0))) == []


@pytest.mark.parametrize("kind", sorted(name for name in PRIVATE if name.startswith("auc-")))
def test_every_mechanism_is_watched(kind: str) -> None:
    def run() -> None:
        make = PRIVATE[kind]
        horizon = None if len(make.args) < 3 else 500  # those of the list are shorter than what is watched
        fed(make.func(1.0, 1e-3, horizon, noise_key=KEY, **make.keywords), stream(200, 1000.0))

    texts = privacy_warnings(run)
    assert [text for text in texts if "'wide' lie outside" in text], texts


def test_frames_taken_slots_and_entities_are_watched() -> None:
    records = stream(200, 1000.0)
    rows, labels = np.array([list(x.values()) for x, _ in records]), [y for _, y in records]
    assert len(privacy_warnings(lambda: moments(features=[0, 1]).learn_many(rows, np.array(labels)))) == 1

    def scored() -> None:
        model = moments()
        for x, y in records:
            model.take(x, y)

    assert len(privacy_warnings(scored)) == 1

    def entities() -> None:
        model = auc.PairFTRL(1.0, 1e-4, features=["fine", "wide"], entity=EntityLimit(1, 1, field="who"))
        for number, (x, y) in enumerate(records):
            model.learn_one({**x, "who": number}, y)

    assert len(privacy_warnings(entities)) == 1


def test_a_record_that_cannot_be_used_is_not_counted() -> None:
    records = [({"wide": 1e9}, True) for _ in range(300)]  # without the other feature: null records
    assert privacy_warnings(lambda: fed(moments(features=["wide", "fine"]), records)) == []


def test_the_warning_is_the_owners_alone() -> None:
    """No exception where warnings are errors, and the same slots, releases, report and state without it.

    An exception would tell something about the records, and a slot that it costs is a release too few.
    """
    inside, outside = stream(300, 1.0), stream(300, 1000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict = fed(moments(), outside)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = fed(moments(), outside)
    other = fed(moments(), inside)
    assert strict.slots == quiet.slots == other.slots == 300
    assert strict.null_slots == 0
    assert strict.weights_vector.tobytes() == quiet.weights_vector.tobytes()
    assert strict.noise_digest == quiet.noise_digest
    assert str(strict.privacy) == str(quiet.privacy) == str(other.privacy)
    assert strict.to_state().keys() == other.to_state().keys()
    assert "outside" not in str(strict.privacy)
    assert "watch" not in repr(strict.to_state())


def test_what_is_restored_does_not_begin_to_watch_again() -> None:
    model = fed(moments(), stream(50, 1000.0))
    other = moments()
    other.load_state(model.to_state())
    assert privacy_warnings(lambda: fed(other, stream(300, 1000.0))) == []
