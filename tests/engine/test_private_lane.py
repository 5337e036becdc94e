"""A private learner in a lane: one slot a record whatever is in it, and no step that spoils the guarantee."""

from __future__ import annotations

import importlib
import json
import math
from typing import Any

import pytest
from harness import lanes
from harness.driver import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from river import base, compose, ensemble, feature_selection, linear_model, preprocessing, stats

from streampair import auc, metric, privacy, ranking
from streampair.engine import LaneId, Monitoring, RegretConfig
from streampair.engine.lane import Breaker, Event, Lane, Record
from streampair.errors import PrivacyError
from streampair.preprocessing import Bounds, Guarded, Hashing, OneHot, RandomFourier, UnitBall
from streampair.privacy import check_pipeline, pipeline_check
from streampair.privacy.user_level import Admission

GOOD = ({"a": 0.1, "b": -0.4, "c": 0.3}, True)

#: Everything that one record may hold in place of a good one.
CONTENTS: list[Any] = [
    GOOD,
    ({"a": -1.0, "b": 1.0, "c": 1.0}, False),
    (GOOD[0], None),
    (GOOD[0], "neither"),
    ({}, True),
    ({"a": 1.0}, True),
    ({"a": "text", "b": 0.0, "c": 0.0}, True),
    ({"a": 1e308, "b": -1e308, "c": 1e300}, False),
    ({"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}, True),
    b"\xff not JSON",
    b"",
    None,
]


def private() -> Any:
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=30, features=list("abc"), seed=5)


def released() -> Any:
    return auc.OnPairStrC(1.0, 1e-4, 30, l2=0.1, releases=30, features=list("abc"), seed=5)


def ranked() -> Any:
    return ranking.OnPairC(1.0, 1e-4, 30, releases=30, features=list("abc"), seed=5)


def measured() -> Any:
    return metric.PairFTRL(epsilon=1.0, delta=1e-4, horizon=30, features=list("abc"), seed=5)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([private, released, ranked, measured]),
    slot=st.integers(0, 39),
    content=st.sampled_from(CONTENTS),
    other=st.sampled_from(CONTENTS),
    batch=st.sampled_from([1, 7, 40]),
)
def test_counts_slots_and_reports_do_not_depend_on_content(
    kind: Any, slot: int, content: Any, other: Any, batch: int
) -> None:
    """Neighbouring streams (docs/privacy 9.7): all but scores and the own outcome is equal."""
    observed = []
    for replaced in (content, other):
        events: list[Any] = list(lanes.stream(40))
        events[slot] = replaced
        driver = Driver(kind)
        outputs = [driver.feed(events[i : i + batch]) for i in range(0, 40, batch)]
        learner = driver.lane.learner
        observed.append(
            {
                "scores a batch": [len(output.scores) for output in outputs],
                "offsets": [scored.offset for output in outputs for scored in output.scores],
                "next": [output.next_offset for output in outputs],
                "outcomes of others": [
                    scored.outcome for output in outputs for scored in output.scores if scored.offset != slot
                ],
                "slots": learner.slots,
                "buffer": driver.lane.gauges().buffer_records,
                "report": driver.lane.privacy,
                "state": len(driver.lane.learner.to_state()),
            }
        )
    assert observed[0] == observed[1]
    # A run without noise makes no step in its first slot, and releases nothing there.
    assert observed[0]["report"].releases == (29 if kind in (released, ranked) else 30)
    assert observed[0]["report"].horizon_left == 0


def test_a_lane_that_drops_bad_events_would_not_pass() -> None:
    """The mutant: without the null step the number of slots tells how many events were bad."""
    learner = private()
    for event in [*lanes.stream(10), None, *lanes.stream(5)]:
        if event is not None:
            learner.learn_one(*event)
    driver = Driver(private)
    driver.feed([*lanes.stream(10), b"junk", *lanes.stream(5)])
    assert driver.lane.learner.slots == 16 != learner.slots


def test_past_the_horizon_it_goes_on_scoring() -> None:
    for batch in (1, 4, 50):
        driver = Driver(private)
        events = lanes.stream(50)
        scores = []
        for start in range(0, 50, batch):
            scores += driver.feed(events[start : start + batch]).scores
        assert [scored.outcome for scored in scores] == ["learned"] * 30 + ["scored"] * 20
        assert None not in [scored.score for scored in scores]
        assert driver.lane.gauges().events["scored"] == 20


def test_bulk_and_one_by_one_give_the_same_model() -> None:
    """Also around a bad event and past the horizon; the learner has a fixed seed here."""
    events: list[Any] = [*lanes.stream(20), b"junk", *lanes.stream(25, seed=2)]
    final = []
    for batch in (1, 3, 46):
        driver = Driver(private, monitoring=Monitoring(regret=RegretConfig(pairs=16, exact=4)))
        scores = []
        for start in range(0, len(events), batch):
            scores += driver.feed(events[start : start + batch]).scores
        final.append((scores, driver.lane.learner.weights, driver.lane.regret()))
    assert final[0] == final[1] == final[2]


@pytest.mark.parametrize(
    "front",
    [
        lambda: preprocessing.StandardScaler(),
        lambda: preprocessing.MinMaxScaler(),
        lambda: preprocessing.StatImputer(("a", stats.Mean())),
        lambda: preprocessing.OneHotEncoder(),
        lambda: feature_selection.VarianceThreshold(),
        lambda: compose.Select("a") + preprocessing.StandardScaler(),
        lambda: compose.Select("a", "b", "c") | preprocessing.StandardScaler(),
        lambda: compose.Grouper(preprocessing.StandardScaler(), by="a"),
        lambda: compose.TransformerProduct(compose.Select("a"), preprocessing.MinMaxScaler()),
    ],
)
def test_steps_that_learn_from_the_stream_are_refused(front: Any) -> None:
    with pytest.raises(PrivacyError, match=r"learn from the stream in front.*Bounds"):
        Driver(lambda: front() | private())
    with pytest.raises(PrivacyError, match=r"learn from the stream in front.*Bounds"):
        check_pipeline(front() | private())
    assert check_pipeline(front() | private(), trust_preprocessing=True)


#: Functions of one record that raise on some.
PARTIAL: list[Any] = [
    lambda: compose.Select("a", "b", "c") | preprocessing.Normalizer(),
    lambda: compose.FuncTransformer(dict) | compose.Discard("d"),
    lambda: compose.Select("a") + compose.Select("b", "c"),
    lambda: preprocessing.Binarizer(),
    lambda: preprocessing.FeatureHasher(n_features=3, seed=1),
]


@pytest.mark.parametrize(
    "front",
    [
        lambda: Bounds({"a": (-1, 1), "b": (-1, 1), "c": (-1, 1)}),
        lambda: Bounds({"a": (-1, 1), "b": (-1, 1), "c": (-1, 1)}) | UnitBall(),
        lambda: OneHot({"d": ["x", "y"]}) | UnitBall(),
        lambda: Hashing(size=3),
        lambda: RandomFourier(components=4, gamma=1.0, seed=1),
        *(lambda front=front: Guarded(front()) for front in PARTIAL),  # type: ignore[misc]
    ],
)
def test_functions_of_one_record_are_fine(front: Any) -> None:
    assert check_pipeline(front() | private()) == ()
    in_a_lane(front)


@pytest.mark.parametrize("front", PARTIAL)
def test_steps_that_raise_are_fine_in_a_lane_alone(front: Any) -> None:
    with pytest.raises(PrivacyError, match=r"raises on some records in front.*Guarded\("):
        check_pipeline(front() | private())
    assert all(
        "raises on some" in why for why in check_pipeline(front() | private(), trust_preprocessing=True)
    )
    assert check_pipeline(front() | private(), one_by_one=True) == ()
    assert "raises on some" in privacy.pipeline_report(front() | private()).guarantee
    in_a_lane(front)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_record_on_which_a_step_raises_costs_itself_alone(content: Any) -> None:
    """Also where it asks for all the memory that there is; the error says nothing of its values."""

    def front() -> Any:
        return compose.Select("a", "b", "c") | compose.FuncTransformer(greedy)

    observed = []
    for replaced in (GOOD, content, ({"a": "secret", "b": 10**17, "c": 1}, True)):
        events: list[Any] = list(lanes.stream(20))
        events[4] = replaced

        def decode(record: Record, events: list[Any] = events) -> Event:
            return Event(*events[record.offset])

        lane = Lane(front() | private(), decode, LaneId("a", "t", 0))
        output = lane.process([Record(i, None) for i in range(20)])
        assert not any("secret" in letter.error for letter in output.dead_letters)
        observed.append(
            (lane.learner.slots, [scored.outcome for scored in output.scores if scored.offset != 4])
        )
    assert observed[0] == observed[1] == observed[2]


def greedy(x: dict[str, Any]) -> dict[str, Any]:
    return {**x, "product": x["a"] * x["b"]}


def in_a_lane(front: Any) -> None:
    driver = Driver(lambda: front() | private())
    driver.feed([*lanes.stream(20), b"junk"])
    assert driver.lane.privacy.kind != "void" or "seed" in driver.lane.privacy.guarantee
    assert driver.lane.learner.slots == 21
    driver.commit()
    driver.crash()
    assert driver.lane.next_offset == 21


@pytest.mark.parametrize(
    "model",
    [
        lambda: ensemble.BaggingClassifier(private(), n_models=3, seed=1),
        lambda: ensemble.VotingClassifier([private(), linear_model.LogisticRegression()]),
    ],
)
def test_a_wrapped_private_learner_is_refused(model: Any) -> None:
    with pytest.raises(PrivacyError, match="wraps the private learner PairFTRL"):
        Driver(model)


def test_a_hash_that_changes_with_every_start_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"no seed.*Hashing"):
        check_pipeline(preprocessing.FeatureHasher() | private())


def test_a_model_without_a_private_learner_is_not_called_safe() -> None:
    for model in (linear_model.LogisticRegression(), preprocessing.Binarizer() | lanes.pair_ogd()):
        with pytest.raises(PrivacyError, match="no private learner"):
            check_pipeline(model)
    assert check_pipeline(private()) == ()


def test_a_private_learner_that_is_not_last_is_refused() -> None:
    class Odd(base.Transformer):
        def __init__(self) -> None:
            self.learner = private()

        def learn_null(self) -> None: ...

        def transform_one(self, x: dict[str, float]) -> dict[str, float]:
            return x

    with pytest.raises(PrivacyError, match="not the last step"):
        Driver(lambda: Odd() | lanes.pair_ogd())


def keyed() -> Any:
    """As in production: noise from the operating system."""
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=30, features=list("abc"))


def test_trusted_preprocessing_is_void_and_loud() -> None:
    options = {"trust_preprocessing": True, "saving": lanes.SAVING}
    with pytest.warns(UserWarning, match="StandardScaler learns from the stream in front of PairFTRL"):
        driver = Driver(lambda: preprocessing.StandardScaler() | keyed(), **options)
    output = driver.feed(
        [*lanes.stream(10), b"junk", ({"a": "text", "b": 1, "c": 1}, True), *lanes.stream(5)]
    )
    assert [scored.outcome for scored in output.scores].count("dead_letter") == 2
    assert driver.lane.learner.slots == 17
    report = driver.lane.privacy
    assert report.kind == "void"
    assert "StandardScaler learns" in report.guarantee
    assert driver.lane.gauges().privacy == report


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"on_bad": "fail"}, "on_bad='fail'"), ({"breaker": Breaker()}, "a breaker stops the lane")],
)
def test_stopping_because_of_content_is_void(options: dict[str, Any], reason: str) -> None:
    with pytest.warns(UserWarning, match="void"):
        driver = Driver(keyed, **options)
    assert driver.lane.privacy.kind == "void"
    assert reason in driver.lane.privacy.guarantee


def test_without_them_the_guarantee_holds_and_no_breaker_trips() -> None:
    driver = Driver(keyed)
    driver.feed([b"junk"] * 1500)
    assert driver.lane.privacy.kind == "holds"
    assert driver.lane.privacy.horizon_left == 0
    assert driver.lane.gauges().events["dead_letter"] == 1500
    assert driver.lane.gauges().null_slots == 30


def test_a_tombstone_takes_its_slot_as_a_null_record() -> None:
    """All at once and one by one: how many slots there are depends on no content."""
    for batch in (12, 1):
        driver = Driver(keyed)
        driver.topic = [
            Record(i, None if i % 3 == 0 else b'{"x": {"a": 1, "b": 0, "c": 0}, "y": true}')
            for i in range(12)
        ]
        assert [s.outcome for s in driver.catch_up(batch).scores] == ["tombstone", "learned", "learned"] * 4
        assert driver.lane.learner.slots == 12
        assert driver.lane.gauges().null_slots == 4
        assert driver.lane.privacy.kind == "holds"


def test_a_nan_from_the_decoder_takes_a_slot_and_leaves_a_dead_letter() -> None:
    def decode(record: Record) -> Event:
        return Event(
            {"a": math.nan if record.offset == 3 else 0.1, "b": 0.2, "c": 0.3}, record.offset % 2 == 0
        )

    lane = Lane(keyed(), decode, LaneId("a", "t", 0))
    output = lane.process([Record(i, b"") for i in range(6)])
    assert [scored.outcome for scored in output.scores].count("dead_letter") == 1
    assert lane.learner.slots == 6


def test_a_foreign_lane_has_no_privacy_report() -> None:
    assert Driver(linear_model.LogisticRegression, saving=None).lane.privacy is None


@pytest.mark.parametrize("name", sorted(pipeline_check.STATELESS))
def test_the_steps_known_to_be_stateless_exist_under_their_names(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert f"{getattr(importlib.import_module(module), kind).__module__}.{kind}" == name


@pytest.mark.parametrize("mechanism", [privacy.PairGradients(), privacy.SecondMoments()], ids=str)
@pytest.mark.parametrize("content", CONTENTS)
def test_an_entity_is_the_key_of_the_message_whatever_is_in_it(content: Any, mechanism: Any) -> None:
    """Damage to one record changes nothing about what is learned of its entity, or of others."""

    def keyed_by_entity() -> Any:
        limit = privacy.EntityLimit(records=2, separation=3)
        return auc.PairFTRL(horizon=40, features=list("abc"), entity=limit, seed=1, mechanism=mechanism)

    observed = []
    for replaced in (GOOD, content):
        events: list[Any] = list(lanes.stream(40))
        events[4] = replaced
        driver = Driver(keyed_by_entity)
        values = []
        for event in events:
            writer = Driver(lanes.pair_ogd)
            writer.feed([event])
            values.append(writer.topic[0].value)
        records = [Record(i, value, key=f"p{i % 5}".encode()) for i, value in enumerate(values)]
        for start in range(0, 40, 8):
            driver.lane.process(records[start : start + 8])
        learner = driver.lane.learner
        table = learner.to_state()["entities"]
        observed.append(
            (learner.slots, learner.refused_records, table["last"].tolist(), table["count"].tolist())
        )
    assert observed[0] == observed[1]
    assert observed[0][1] == 40 - 5 * 2


def test_a_lane_needs_keys_for_entities() -> None:
    limit = privacy.EntityLimit(records=2)
    driver = Driver(lambda: auc.PairFTRL(horizon=40, features=list("abc"), entity=limit, seed=1))
    driver.feed(lanes.stream(10))
    assert driver.lane.learner.refused_records == driver.lane.learner.null_slots == 10


@pytest.mark.parametrize("batch", [1, 4])
def test_keys_that_spell_one_text_are_one_entity(batch: int) -> None:
    """Producers of two systems may compose a letter or not; other bytes are compared as they are."""
    lane, write = entity_lane()
    keys = ["Jos\u00e9".encode(), "Jose\u0301".encode(), b"\xff", b"\xff"]
    lane.process([write(i, "", i % 2 == 0, keys[i % 4]) for i in range(batch)])
    lane.process([write(i, "", i % 2 == 0, keys[i % 4]) for i in range(batch, 20)])
    assert lane.learner.to_state()["entities"]["count"].tolist() == [2, 2]
    assert lane.learner.refused_records == 16


def entity_lane(**options: Any) -> tuple[Any, Any]:
    """A lane that decodes on its own, and names the entity in the value as well; and a writer of records."""
    limit = privacy.EntityLimit(records=2, separation=3, field="who")
    learner = auc.PairFTRL(
        1.0, 1e-4, 40, features=["a"], entity=limit, seed=1, mechanism=privacy.PairGradients(), warmup=0
    )

    def decode(record: Record) -> Event:
        value: Any = json.loads(record.value or b"")
        return Event({"a": value["a"], "who": value["who"]}, value["y"])

    def write(offset: int, who: str, y: Any, key: bytes | None) -> Record:
        return Record(offset, json.dumps({"a": 0.3, "who": who, "y": y}).encode(), key=key)

    return Lane(learner, decode, LaneId("a", "t", 0), **options), write


@pytest.mark.parametrize("batch", [1, 5, 20])
def test_an_entity_that_only_the_value_names_is_nobody(batch: int) -> None:
    """Read from the value, a change of content would move what is learned of others (docs/privacy 8)."""
    lane, write = entity_lane()
    records = [write(i, f"p{i}", i % 2 == 0, None) for i in range(20)]
    for start in range(0, 20, batch):
        lane.process(records[start : start + batch])
    assert lane.learner.refused_records == lane.learner.null_slots == lane.learner.slots == 20
    assert len(lane.learner.to_state()["entities"]["keys"]) == 0
    # A direct user of the learner may name the entity in the record.
    alone, _ = entity_lane()
    for i in range(4):
        alone.learner.learn_one({"a": 0.3, "who": f"p{i}"}, True)
    assert alone.learner.refused_records == 0


@pytest.mark.parametrize("regret", [None, RegretConfig(pairs=16, exact=4)])
@pytest.mark.parametrize("batch", [1, 5, 20])
def test_a_record_that_its_entity_may_not_have_learned_is_scored(batch: int, regret: Any) -> None:
    """By entity and slot alone: the outcome is the same whatever the record holds."""
    admission = Admission(privacy.EntityLimit(records=2, separation=3))
    keys = [None if i == 7 else b"p%d" % (i % 4 if i < 10 else i % 7) for i in range(20)]
    expected = [
        "learned" if key is not None and admission.admit(key, slot) else "scored"
        for slot, key in enumerate(keys, start=1)
    ]
    assert {"learned", "scored"} == set(expected)
    for y in (True, False):
        lane, write = entity_lane(monitoring=Monitoring(regret=regret))
        records = [write(i, "x", y if i == 3 else i % 2 == 0, key) for i, key in enumerate(keys)]
        scores = []
        for start in range(0, 20, batch):
            scores += lane.process(records[start : start + batch]).scores
        assert [scored.outcome for scored in scores] == expected
        events = lane.gauges().events
        assert (events["learned"], events["scored"]) == (expected.count("learned"), expected.count("scored"))
        assert lane.learner.refused_records == expected.count("scored")
        # The slow way, past an unlabelled record, says the same.
        slow, write = entity_lane(monitoring=Monitoring(regret=regret))
        slow_scores = slow.process([*records[:19], write(19, "x", None, b"new")]).scores
        assert [scored.outcome for scored in slow_scores] == [*expected[:19], "scored"]


BOUNDS = {"a": (-1.0, 1.0), "b": (-1.0, 1.0), "c": (-1.0, 1.0)}


@pytest.mark.parametrize("batch", [1, 12])
def test_a_first_record_that_lacks_a_feature_with_bounds_stops_nothing(batch: int) -> None:
    """It is a null record, as it would be anywhere else, and its feature is known from the bounds."""
    first = ({"b": 0.1, "d": 0.2}, True)
    events = [first, *(({**x, "d": 0.5}, y) for x, y in lanes.stream(11))]
    driver = Driver(lambda: auc.PairFTRL(1.0, 1e-4, 30, bounds=BOUNDS, seed=1))
    with pytest.warns(UserWarning, match="bounds names 'a', 'c', which the first record lacks"):
        driver.feed(events[:batch])
    for start in range(batch, 12, batch):
        driver.feed(events[start : start + batch])
    learner = driver.lane.learner
    assert learner.feature_names == ("a", "b", "c", "d")
    assert (learner.slots, learner.null_slots) == (12, 1)
    driver.commit()
    driver.crash()
    assert driver.lane.learner.feature_names == ("a", "b", "c", "d")
    # With the features declared, nothing is left to the first record.
    declared = Driver(lambda: auc.PairFTRL(1.0, 1e-4, 30, bounds=BOUNDS, features=list("abcd"), seed=1))
    declared.feed(events)
    assert declared.lane.learner.weights == learner.weights


def test_a_first_record_with_too_many_features_stops_nothing() -> None:
    driver = Driver(lambda: metric.PairFTRL(1.0, 1e-4, 30, seed=1))
    output = driver.feed([({f"f{i}": 0.0 for i in range(300)}, True), *lanes.stream(5)])
    assert [scored.outcome for scored in output.scores] == ["dead_letter", *["learned"] * 5]
    assert "300 features, more than 256" in output.dead_letters[0].error
    assert (driver.lane.learner.slots, driver.lane.learner.feature_names) == (6, ("a", "b", "c"))
