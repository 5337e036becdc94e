"""One lane: every record accounted for, bad events without a trace in the model, order, counts, gauges."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from harness import lanes
from harness.driver import Driver, decode_json
from hypothesis import given, settings
from hypothesis import strategies as st
from river import anomaly, base, dummy, evaluate, linear_model, metrics, naive_bayes, preprocessing

from streampair import auc, losses, metric, privacy, ranking
from streampair.engine import LaneId, Monitoring, RegretConfig, Saving, pipeline
from streampair.engine.lane import Breaker, Event, Lane, Record
from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.records import EventRows
from streampair.errors import ConfigError, LaneStoppedError, PrivacyError, RecordError, SnapshotError

LANE = LaneId("a", "t", 0)

POISON: dict[str, tuple[Any, str]] = {
    "not JSON": (b"\x00\x01", "decode"),
    "empty object": (b"{}", "decode"),
    "a list": (b"[]", "decode"),
    "text feature": (({"a": "much", "b": 1.0, "c": 0.0}, True), "features"),
    "null feature": (({"a": None, "b": 1.0, "c": 0.0}, True), "features"),
    "a list as a feature": (({"a": [1.0], "b": 1.0, "c": 0.0}, True), "features"),
    "beyond floating point": (b'{"x": {"a": 1e999, "b": 0.0, "c": 0.0}, "y": true}', "decode"),
    "too large": (b'{"x": {"a": 1e300, "b": 0.0, "c": 0.0}, "y": true}', "features"),
    "no features": (({}, True), "features"),
    "a megabyte": (b'{"x": {"a": "' + b"z" * 1_000_000 + b'"}, "y": true}', "features"),
    "huge integer": (b'{"x": {"a": 1' + b"0" * 400 + b', "b": 0, "c": 0}, "y": true}', "features"),
}


@pytest.mark.parametrize("make", [lanes.pair_ogd, linear_model.LogisticRegression], ids=["ours", "foreign"])
def test_scores_come_before_learning(make: Callable[[], Any]) -> None:
    """Of a learner of ours a kernel sees to it; with an estimator that takes no batches, the lane does."""
    rows = lanes.stream(50)
    model, scores = PipelineAdapter(make(), positive=True), []
    for x, y in rows:
        scores.append(model.score(x))
        model.learn(x, y)
    output = Driver(make, **lanes.OPTIONS).feed(rows)
    assert [scored.score for scored in output.scores] == scores
    assert [scored.offset for scored in output.scores] == list(range(50))
    assert {scored.outcome for scored in output.scores} == {"learned"}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name in ("PairOGD", "Bounds|UnitBall|PairOGD", "union|PairOGD")
        for what in POISON
        if (name, what) != ("Bounds|UnitBall|PairOGD", "too large")  # the bounds clip it, so it is not bad
        and (name == "union|PairOGD" or what not in ("text feature", "null feature", "a megabyte"))
    ],
)
def test_a_bad_event_leaves_no_trace_in_the_model(name: str, what: str) -> None:
    bad, stage = POISON[what]
    rows = lanes.stream(30)
    without = Driver(lanes.MODELS[name], **lanes.OPTIONS)
    expected = [scored.score for scored in without.feed(rows).scores]
    driver = Driver(lanes.MODELS[name], **lanes.OPTIONS)
    output = driver.feed([*rows[:17], bad, *rows[17:]])
    letter = output.scores.pop(17)
    assert [scored.score for scored in output.scores] == expected
    assert (letter.offset, letter.score, letter.outcome) == (17, None, "dead_letter")
    (dead,) = output.dead_letters
    assert (dead.offset, dead.value) == (17, driver.topic[17].value)
    if name != "union|PairOGD":  # in front of it stands code that raises what it likes
        assert dead.stage == stage
        assert "Fix:" in dead.error
    assert len(dead.error) < 2000
    assert repr(driver.lane.learner.to_state()) == repr(without.lane.learner.to_state())
    events = driver.lane.gauges().events
    assert events == {"learned": 30, "scored": 0, "dead_letter": 1, "tombstone": 0, "ignored": 0}
    assert sum(driver.lane.gauges().dead_letters.values()) == 1


@pytest.mark.parametrize("on_bad", ["dlq", "skip", "fail"])
@pytest.mark.parametrize(
    "name", ["PairOGD", "Bounds|UnitBall|PairOGD", "union|PairOGD", "LogisticRegression"]
)
def test_a_tombstone_is_no_dead_letter_and_leaves_no_trace(name: str, on_bad: Any) -> None:
    """It says that a key was deleted: nobody has made a mistake."""
    rows = lanes.stream(30)
    without = Driver(lanes.MODELS[name], **lanes.OPTIONS)
    expected = [scored.score for scored in without.feed(rows).scores]
    driver = Driver(lanes.MODELS[name], on_bad=on_bad, breaker=Breaker(2, 0.5), **lanes.OPTIONS)
    output = driver.feed([*rows[:17], None, None, *rows[17:]])
    gone = [output.scores.pop(17), output.scores.pop(17)]
    assert [(s.offset, s.score, s.outcome) for s in gone] == [
        (17, None, "tombstone"),
        (18, None, "tombstone"),
    ]
    assert [scored.score for scored in output.scores] == expected
    assert output.dead_letters == []
    events, stages = driver.lane.gauges().events, driver.lane.gauges().dead_letters
    assert events == {"learned": 30, "scored": 0, "dead_letter": 0, "tombstone": 2, "ignored": 0}
    assert not any(stages.values())
    assert repr(driver.lane.learner.weights) == repr(without.lane.learner.weights)


@pytest.mark.parametrize("way", ["whole batches", "rows", "one by one", "a foreign learner"])
def test_values_beyond_their_bounds_are_counted(way: str) -> None:
    """Of what is a usable record; over a crash and in a snapshot as the other counts."""
    events: list[Any] = [(dict(x), y) for x, y in lanes.stream(40)]
    for index in (3, 17, 18, 39):
        events[index][0]["a"] = 7.0
    events[20][0]["b"] = -99.0
    events[5] = ({"a": 50.0, "b": [1.0], "c": 0.0}, True)
    events[6] = b"junk"
    events[7] = None
    events[8] = ({"a": 50.0, "b": 0.0, "c": 0.0}, None)
    make: Any = linear_model.LogisticRegression if way == "a foreign learner" else lanes.pair_ogd
    decode: Any = functools.partial(decode_json)
    if way == "rows":
        decode.many = rows_of
    source = Driver(lanes.pair_ogd)
    source.feed(events)
    bounds = {"a": (-5.0, 5.0), "b": (-5.0, 5.0)}
    options = {**lanes.OPTIONS, "monitoring": dataclasses.replace(lanes.OPTIONS["monitoring"], bounds=bounds)}
    driver = Driver(make, decode, **options)
    size = 1 if way == "one by one" else None
    for until, snapshot in ((19, True), (30, False)):
        driver.topic = source.topic[:until]
        driver.catch_up(size)
        driver.commit(snapshot=snapshot)
    driver.crash()
    driver.topic = source.topic
    driver.catch_up(size)
    assert driver.lane.gauges().outside == {"a": 5, "b": 1}


def rows_of(records: Any) -> Any:
    """As the decoders of connectors do: rows that are refused hold numbers that mean nothing."""
    values, labels, refused = np.full((len(records), 3), 1e9), [], {}
    for index, record in enumerate(records):
        try:
            event = decode_json(record)
            values[index] = [event.x[name] for name in "abc"]
            labels.append(event.y)
        except Exception as error:
            refused[index] = RecordError(str(error), fix="none")
            labels.append(None)
    return EventRows(list("abc"), values, labels, None, refused)


class Fragile(base.Classifier):
    """Half-way through a change it fails on what it was told to fail on."""

    def __init__(self, fail: tuple[float, ...] = ()) -> None:
        self.fail = fail
        self.started = 0
        self.finished = 0

    def learn_one(self, x: dict[str, float], y: Any) -> None:
        self.started += 1
        if x["a"] in self.fail:
            raise ArithmeticError("half-way")
        self.finished += 1

    def predict_proba_one(self, x: dict[str, float]) -> dict[bool, float]:
        if x["a"] < 0:
            self.started += 100  # not even scoring may leave a trace when it fails
            raise KeyError("negative")
        return {True: float(self.finished) / 1000}


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.integers(-1, 3), max_size=25), size=st.integers(1, 25), relearned=st.integers(1, 25)
)
def test_a_foreign_model_is_rolled_back(values: list[int], size: int, relearned: int) -> None:
    with mock.patch.object(pipeline, "_RELEARNED", relearned):  # how old the copy is that it goes back to
        roll_back(values, size)


def test_a_foreign_model_is_copied_now_and_then() -> None:
    copies: list[int] = []

    class Counting(Fragile):
        def __deepcopy__(self, memo: Any) -> Any:
            copies.append(self.finished)
            other = Counting(self.fail)
            other.__dict__.update(self.__dict__)
            return other

    lane = Lane(Counting(), decode_json, LANE, saving=None)
    value = msgspec.json.encode({"x": {"a": 0.0}, "y": True})
    for start in range(0, 2000, 10):
        lane.process([Record(start + i, value) for i in range(10)])
    assert len(copies) <= 5


def roll_back(values: list[int], size: int) -> None:
    lane = Lane(Fragile(fail=(2.0, 3.0)), decode_json, LANE, breaker=None, saving=None)
    records = [
        Record(i, msgspec.json.encode({"x": {"a": float(value)}, "y": True}))
        for i, value in enumerate(values)
    ]
    scores, dead = [], []
    for start in range(0, len(records), size):
        output = lane.process(records[start : start + size])
        scores += output.scores
        dead += output.dead_letters
    good = 0
    for value, scored in zip(values, scores, strict=True):
        if value in (0, 1):
            assert scored.score == good / 1000
            good += 1
        else:
            assert scored.score is None
    assert lane.learner.started == lane.learner.finished == good
    assert [letter.stage for letter in dead] == [
        "features" if v < 0 else "learn" for v in values if v not in (0, 1)
    ]


def test_nan_never_reaches_a_foreign_model() -> None:
    def decode(record: Record) -> Event:
        return Event({"a": math.nan if record.offset == 1 else 1.0}, True)

    lane = Lane(linear_model.LogisticRegression(), decode, LANE, saving=None)
    output = lane.process([Record(i, b"") for i in range(4)])
    assert [scored.outcome for scored in output.scores] == ["learned", "dead_letter", "learned", "learned"]
    assert "'a' is nan" in output.dead_letters[0].error
    assert math.isfinite(lane.learner.weights["a"])


def test_a_model_that_gives_nan_is_a_dead_letter_each_time_and_then_the_breaker() -> None:
    class Broken(base.Regressor):
        def learn_one(self, x: Any, y: Any) -> None: ...

        def predict_one(self, x: Any) -> float:
            return math.nan

    driver = Driver(Broken, saving=None, breaker=Breaker(window=10, share=0.5))
    assert driver.feed([({"a": 1.0}, 1.0)] * 4).dead_letters[0].stage == "learn"
    with pytest.raises(LaneStoppedError, match="5 of the last 5 records"):
        driver.feed([({"a": 1.0}, 1.0)])


def test_any_exception_of_the_users_decoder_is_a_dead_letter() -> None:
    def decode(record: Record) -> Event:
        return Event({"a": 1.0 / record.offset}, True)

    lane = Lane(lanes.pair_ogd(), decode, LANE)
    output = lane.process([Record(0, b"x", b"k", 99), Record(1, b"y")])
    assert output.dead_letters[0].error == "ZeroDivisionError: float division by zero"
    assert (output.dead_letters[0].key, output.dead_letters[0].timestamp) == (b"k", 99)
    assert [scored.outcome for scored in output.scores] == ["dead_letter", "learned"]


def test_running_out_of_memory_is_not_the_fault_of_the_event() -> None:
    def decode(record: Record) -> Event:
        raise MemoryError

    lane = Lane(lanes.pair_ogd(), decode, LANE)
    with pytest.raises(MemoryError):
        lane.process([Record(0, b"")])
    with pytest.raises(LaneStoppedError, match="middle of an earlier batch"):
        lane.process([Record(1, b"")])
    with pytest.raises(SnapshotError, match="middle of a batch"):
        lane.snapshot()


def test_a_label_that_cannot_be_used_is_a_dead_letter() -> None:
    driver = Driver(lanes.pair_ogd)
    for bad in ([1], "bad", 2):
        output = driver.feed([({"a": 1.0}, True), ({"a": 2.0}, bad), ({"a": 1.5}, False)])
        assert [scored.outcome for scored in output.scores] == ["learned", "dead_letter", "learned"]
        assert [letter.stage for letter in output.dead_letters] == ["label"]
        assert "positive=True and negative=False" in output.dead_letters[0].error
    output = driver.feed([({"a": 1.0}, float("nan"))])  # JSON has no NaN: null, no label
    assert output.scores[0].outcome == "scored"

    lane = Lane(lanes.pair_ogd(), lambda record: Event({"a": 1.0}, np.array([0, 1])), LANE)
    assert lane.process([Record(0, b"")]).dead_letters[0].stage == "label"


def test_unlabelled_events_are_scored_and_not_learned() -> None:
    rows = lanes.stream(20)
    driver = Driver(lanes.pair_ogd)
    output = driver.feed([(x, None if i % 3 else y) for i, (x, y) in enumerate(rows)])
    assert [scored.outcome for scored in output.scores] == [
        "scored" if i % 3 else "learned" for i in range(20)
    ]
    assert None not in [scored.score for scored in output.scores]
    assert driver.lane.learner.records == 7


def test_skip_counts_and_says_nothing() -> None:
    driver = Driver(lanes.pair_ogd, on_bad="skip")
    output = driver.feed([b"junk", *lanes.stream(3)])
    assert output.dead_letters == []
    assert output.scores[0].outcome == "dead_letter"
    assert driver.lane.gauges().dead_letters["decode"] == 1


def test_fail_stops_and_names_the_record() -> None:
    driver = Driver(lanes.pair_ogd, on_bad="fail")
    with pytest.raises(LaneStoppedError, match=r"events\[0\] offset 2 cannot be used \(decode") as caught:
        driver.feed([*lanes.stream(2), b"junk"])
    assert isinstance(caught.value.__cause__, RecordError)
    driver.crash()
    assert driver.lane.next_offset is None


def test_the_breaker_waits_for_its_share_and_forgets_what_is_old() -> None:
    rows: list[Any] = list(lanes.stream(400))
    for i in range(0, 400, 3):
        rows[i] = b"junk"
    Driver(lanes.pair_ogd, breaker=Breaker(window=30, share=0.5)).feed(rows)
    with pytest.raises(LaneStoppedError, match=r'turn it off: in a .* worker\.on_bad = "skip"'):
        Driver(lanes.pair_ogd, breaker=Breaker(window=30, share=0.3)).feed(rows)
    Driver(lanes.pair_ogd, breaker=None).feed([b"junk"] * 2000)


def test_the_breaker_remembers_over_a_restart() -> None:
    driver = Driver(lanes.pair_ogd, breaker=Breaker(window=20, share=0.5))
    driver.feed([b"junk"] * 6)
    driver.commit()
    driver.crash()
    with pytest.raises(LaneStoppedError, match="10 of the last 10"):
        driver.feed([b"junk"] * 4)


@pytest.mark.parametrize(
    "make",
    [
        linear_model.LogisticRegression,
        lambda: preprocessing.StandardScaler() | linear_model.LogisticRegression(),
        lambda: (preprocessing.StandardScaler() + preprocessing.MinMaxScaler()) | naive_bayes.GaussianNB(),
        lambda: preprocessing.StandardScaler() | (preprocessing.MinMaxScaler() | lanes.pair_ogd()),
        lambda: (
            anomaly.QuantileFilter(anomaly.HalfSpaceTrees(seed=1), q=0.9) | linear_model.LogisticRegression()
        ),
    ],
)
def test_pipelines_learn_as_they_do_in_river(make: Any) -> None:
    rows = lanes.stream(200)
    lane = Lane(make(), decode_json, LANE, saving=None)
    output = lane.process([Record(i, msgspec.json.encode({"x": x, "y": y})) for i, (x, y) in enumerate(rows)])
    model, expected = make(), []
    ours = "PairOGD" in repr(model)
    for x, y in rows:
        try:
            score = model.score_one(x) if ours else model.predict_proba_one(x).get(True, 0.0)
        except RecordError:
            score = math.nan
        expected.append(score if math.isfinite(score) else None)
        model.learn_one(x, y)
    if ours:
        expected[0] = None  # a gap to the learner; to the lane the scalers have learned too little
    assert expected.count(None) <= 1
    assert output.dead_letters == []
    assert [scored.score for scored in output.scores] == expected


def test_the_auc_is_that_of_rivers_progressive_validation() -> None:
    rows = lanes.stream(300)
    driver = Driver(linear_model.LogisticRegression, saving=None, monitoring=Monitoring(auc_window=300))
    driver.feed(rows)
    river = evaluate.progressive_val_score(
        rows, linear_model.LogisticRegression(), metrics.RollingROCAUC(300)
    )
    assert driver.lane.gauges().auc == pytest.approx(river.get(), abs=1e-12)


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (lambda: linear_model.LinearRegression(), [0.3, -0.2, 1.5]),
        (lambda: anomaly.HalfSpaceTrees(seed=1), [True, False, True]),
        (lambda: dummy.PriorClassifier(), ["yes", "no", "yes"]),
        (lambda: linear_model.PAClassifier(), [True, False, True]),
    ],
)
def test_every_kind_of_river_estimator_gets_a_score(make: Any, labels: list[Any]) -> None:
    driver = Driver(make, saving=None, positive="yes" if "yes" in labels else True)
    output = driver.feed([({"a": 0.1 * i}, y) for i, y in enumerate(labels)])
    assert [scored.outcome for scored in output.scores] == ["learned"] * 3


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (linear_model.LogisticRegression(), {}, "allow_pickle is off"),
        (linear_model.LogisticRegression(), {"saving": Saving(allow_pickle=True)}, "no key to sign it with"),
        (preprocessing.StandardScaler(), {}, "gives no score"),
        (anomaly.GaussianScorer(), {}, "needs the label to give a score"),
        (object(), {}, "no learn_one"),
        (auc.PairOGD(positive="yes"), {}, "ranks True high, its learner 'yes'"),
        (auc.PairOGD(), {"on_bad": "panic"}, "on_bad='panic'"),
        (auc.PairOGD(), {"monitoring": Monitoring(auc_window=0)}, "window=0"),
        (auc.PairOGD(), {"monitoring": Monitoring(regret=RegretConfig(pairs=1))}, "pairs=1"),
    ],
)
def test_what_cannot_work_is_refused_at_once(model: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Lane(model, decode_json, LANE, **options)


def test_a_breaker_that_can_never_trip_is_refused() -> None:
    with pytest.raises(ConfigError, match="share"):
        Breaker(share=1.5)


def test_gauges() -> None:
    driver = Driver(lanes.pair_ogd, monitoring=Monitoring(regret=RegretConfig(exact=64)))
    empty = driver.lane.gauges()
    assert math.isnan(empty.auc)
    assert empty.regret is None
    assert empty.state_bytes is None
    driver.feed(lanes.stream(40))
    driver.commit()
    gauges = driver.lane.gauges(solve=True)
    assert 0.5 < gauges.auc <= 1.0
    assert gauges.regret is not None
    assert gauges.regret.exact
    norm = math.sqrt(sum(w * w for w in driver.lane.learner.scaled_weights.values()))
    assert gauges.weight_norm == pytest.approx(norm)
    assert gauges.weight_noise is None  # no noise is added
    assert gauges.buffer_records == 16
    (saved,) = driver.store.snapshots.values()
    assert gauges.state_bytes == len(saved)
    assert gauges.privacy is None
    driver.feed(lanes.stream(3))
    last = driver.lane.gauges(solve=False)
    assert (last.regret, last.quality) == (gauges.regret, gauges.quality)
    fresh = driver.lane.gauges(solve=True)
    assert fresh.regret is not None
    assert fresh.quality is not None
    assert fresh.regret.n == fresh.quality.events == 43


@pytest.mark.parametrize(
    ("model", "loss"), [(auc.OAM(seed=1), losses.Hinge()), (auc.SPAUC(), losses.Square())], ids=str
)
def test_regret_is_that_of_the_loss_which_the_learner_minimises(model: Any, loss: losses.PairLoss) -> None:
    rows = lanes.stream(40)
    driver = Driver(model.clone, monitoring=Monitoring(regret=RegretConfig(exact=64)))
    driver.feed(rows)
    suffered = 0.0
    for t, (x, y) in enumerate(rows):
        margins = [
            (2 * y - 2 * y2) * (model.score_one(x) - model.score_one(x2)) for x2, y2 in rows[:t] if y2 != y
        ]
        suffered += sum(loss.value(margin) for margin in margins) / max(t, 1)
        model.learn_one(x, y)
    estimate = driver.lane.regret()
    assert estimate is not None
    assert estimate.pair_loss * 39 == pytest.approx(suffered, rel=1e-12)
    assert estimate.comparator_loss < estimate.pair_loss


@pytest.mark.parametrize("other", [RegretConfig(seed=1), RegretConfig(pairs=64)])
def test_a_regret_that_was_sampled_otherwise_is_refused(other: RegretConfig) -> None:
    driver = Driver(auc.SPAUC, identity=LANE, monitoring=Monitoring(regret=RegretConfig()))
    driver.feed(lanes.stream(20))
    lane = Lane(auc.SPAUC(), decode_json, LANE, monitoring=Monitoring(regret=other))
    with pytest.raises(SnapshotError, match=r"the regret in the snapshot.*put the old settings back"):
        lane.restore(driver.lane.snapshot())


def test_regret_of_a_model_on_text_says_nothing_rather_than_something_wrong() -> None:
    driver = Driver(naive_bayes.BernoulliNB, saving=None, monitoring=Monitoring(regret=RegretConfig()))
    driver.feed([({"a": "text"}, True), ({"a": "word"}, False), ({"a": "text"}, True)])
    assert driver.lane.gauges(solve=True).regret is None


def test_a_linear_learner_takes_texts_and_gaps_in_batches_with_numbers() -> None:
    """As it takes them one by one, and with a regret; partners of its sample have them, too."""
    rng = random.Random(3)
    rows: list[tuple[dict[str, Any], Any]] = []
    for i, (x, y) in enumerate(lanes.stream(300)):
        texts = {"kind": rng.choice("de")} if i % 100 > 60 else {}
        gap = {"a": None} if i % 100 > 80 else {}
        rows.append(({**x, **gap, **texts}, y))
    make = functools.partial(auc.PairOGD, seed=1)
    driver, model = Driver(make, monitoring=Monitoring(regret=RegretConfig(exact=8, pairs=64))), make()
    scores = []
    for x, y in rows:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    got = [
        scored.score for start in range(0, 300, 50) for scored in driver.feed(rows[start : start + 50]).scores
    ]
    assert got == scores
    assert {"kind=d", "kind=e", "a="} < {*model.feature_names}
    estimate = driver.lane.regret()
    assert estimate is not None
    assert estimate.n == 300


def test_a_lane_without_snapshots_says_so() -> None:
    driver = Driver(linear_model.LogisticRegression, saving=None)
    with pytest.raises(SnapshotError, match="saving=None"):
        driver.commit()


def test_the_outputs_are_a_function_of_the_records() -> None:
    """In every process, whatever Python's hash seed."""
    code = (
        "import hashlib\nfrom harness import lanes\n"
        "from harness.driver import Driver\n"
        "driver = Driver(lanes.MODELS['union|PairOGD'], **lanes.OPTIONS)\n"
        "out = driver.feed([*lanes.stream(60), b'junk', *lanes.stream(60, seed=1, names='bcd')])\n"
        "print(hashlib.sha256(repr((out, lanes.content(driver.lane.snapshot()))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[1],  # where the harness is
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_privacy_errors_are_never_swallowed() -> None:
    def decode(record: Record) -> Event:
        raise PrivacyError("no", fix="yes")

    with pytest.raises(PrivacyError):
        Lane(lanes.pair_ogd(), decode, LANE).process([Record(0, b"")])


# ---- learners of ranking and of metrics --------------------------------------------------------------------


def test_ranking_learns_relevances() -> None:
    rows: list[tuple[dict[str, float], Any]] = [(x, 0.5 * x["a"]) for x, _ in lanes.stream(60)]
    make = functools.partial(ranking.PairOGD, relevance=(-1, 1), seed=1)
    driver, model = Driver(make), make()
    scores = []
    for x, y in rows:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    output = driver.feed(rows)
    assert [scored.score for scored in output.scores] == scores
    assert {scored.outcome for scored in output.scores} == {"learned"}
    bad = driver.feed([({"a": 1.0, "b": 0.0, "c": 0.0}, 1.5)])
    assert bad.dead_letters[0].stage == "label"
    assert "not a number from -1 to 1" in bad.dead_letters[0].error


def test_a_metric_learns_classes_and_its_scores_are_distances() -> None:
    rows: list[tuple[dict[str, float], Any]] = [
        (x, "abc"[i % 3]) for i, (x, _) in enumerate(lanes.stream(60))
    ]
    driver, model = Driver(lambda: metric.PairOGD(seed=1)), metric.PairOGD(seed=1)
    scores = []
    for x, y in rows:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    assert [scored.score for scored in driver.feed(rows).scores] == scores
    gauges = driver.lane.gauges()
    assert math.isnan(gauges.auc)  # distances rank nothing
    assert gauges.weight_norm == pytest.approx(np.linalg.norm(model.metric_))
    assert gauges.buffer_records == 1


RELEVANT: dict[str, Any] = {
    "ranking": lambda: ranking.PairOGD(radius=2.0, seed=1),
    "private ranking": lambda: ranking.PairFTRL(
        1.0, 1e-3, 500, mechanism=privacy.PairGradients(), warmup=0, seed=1
    ),
    "metric": lambda: metric.PairOGD(seed=1),
    "private metric": lambda: metric.PairFTRL(
        1.0, 1e-3, 500, mechanism=privacy.PairGradients(), warmup=0, seed=1
    ),
}


@pytest.mark.filterwarnings("ignore:the seed:UserWarning")
@pytest.mark.parametrize("name", RELEVANT)
def test_the_regret_of_relevances_and_of_metrics(name: str) -> None:
    """Pair by pair, with the weights of that moment; a null record of a private learner makes no pair."""
    model = RELEVANT[name]()
    of_metric = hasattr(model, "metric_")
    rows: list[tuple[dict[str, float], Any]] = [
        (x, "abc"[i % 3] if of_metric else 0.5 * x["a"]) for i, (x, _) in enumerate(lanes.stream(50))
    ]
    if "private" in name:
        rows[20] = (rows[20][0], [])

    def decode(record: Record) -> Event:
        x, y = rows[record.offset]
        return Event(dict(x), y)

    lane, again = (
        Lane(RELEVANT[name](), decode, LANE, monitoring=Monitoring(regret=RegretConfig())) for _ in range(2)
    )
    lane.process([Record(i, b"") for i in range(30)])
    if "private" not in name:  # whose noise would be another after a restore
        again.restore(lane.snapshot())
        lane = again
    lane.process([Record(i, b"") for i in range(30, 50)])
    estimate = lane.regret()
    assert estimate is not None
    assert (estimate.exact, estimate.n) == (True, 50)
    suffered = 0.0
    for t, (x, y) in enumerate(rows):
        for x2, y2 in rows[:t]:
            if [] in (y, y2) or (y == y2 and not of_metric):
                continue
            if of_metric:
                u = model.design(x).copy() - model.design(x2)
                margin = (1.0 if y == y2 else -1.0) * (1.0 - u @ model.metric_ @ u)
            else:
                margin = (y - y2) * (model.score_one(x) - model.score_one(x2))
            suffered += model.pair_loss.value(float(margin)) / t
        model.learn_one(x, y)
    assert estimate.pair_loss * 49 == pytest.approx(suffered, rel=1e-9)
    assert estimate.comparator_loss < estimate.pair_loss + 1e-9


def test_a_learner_without_pairs_has_no_regret() -> None:
    class Odd(auc.PairOGD):
        two_classes, pair_form = False, None  # type: ignore[assignment]

    with pytest.warns(UserWarning, match="no regret is estimated for Odd"):
        lane = Lane(Odd(), decode_json, LANE, monitoring=Monitoring(regret=RegretConfig()), saving=None)
    assert lane.regret() is None
