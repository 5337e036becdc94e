"""Events that are let pass although their scores would stop them: coins, weights, changes of settings."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from harness.driver import decode_json
from sklearn.metrics import roc_auc_score

from streampair import auc
from streampair.engine import ExternalState, LaneId, LoggedLane, Monitoring, OrderedRecord
from streampair.engine.delays import ScoreSample
from streampair.engine.exploration import Exploration, weight_of
from streampair.engine.records import LABEL_LATER, LABEL_STOPPED
from streampair.evaluation import quality_of

CODES = (None, False, True, None, None)
KEY, OTHER = b"k" * 32, b"o" * 32
LEAST, SHARE = 0.4, 0.25


def event(number: int, place: tuple[int, int], label: int) -> OrderedRecord:
    """A record whose features and id are functions of its place: it is the same when it is due."""
    rng = np.random.default_rng([*place])
    value = {"x": {"a": float(rng.normal())}, "id": f"id-{place}"}
    partition, position = place
    return OrderedRecord(
        *(number, json.dumps(value).encode(), b"k", 1_700_000_000_000 + number),
        partition=partition,
        position=position,
        label=label,
    )


def lane(*settings: Any) -> LoggedLane:
    """A lane whose scores never change: it has learned nothing, but for its first weights."""
    explore = Exploration(*settings, "t") if settings else None
    monitoring = Monitoring(exploration=explore, threshold=LEAST, auc_window=10_000)
    made = LoggedLane(
        auc.PairOGD(seed=1, learning_rate=0.5),
        decode_json,
        LaneId("a", "t"),
        labels=CODES,
        monitoring=monitoring,
    )
    return made


class Life:
    """A log, and lanes that take it over one after the other."""

    def __init__(self) -> None:
        self.log, self.snapshots, self.records = b"", dict[str, bytes](), list[OrderedRecord]()
        self.scores: dict[tuple[int, int], float] = {}
        self.lane = lane()

    def start(self, *settings: Any) -> None:
        """Start a lane after the one before has died, if there was one."""
        self.lane = lane(*settings)
        request = self.lane.read(self.log)
        snapshot = None if request.content is None else self.snapshots[request.content]
        spans = dict.fromkeys((0, 1), (0, 10000))
        appends, _ = self.lane.start(ExternalState(registers=False, spans=spans), snapshot)
        if self.lane.replay_until is not None:
            first = self.lane.next_offset or 0
            self.lane.replay(self.records[first : self.lane.replay_until])
            self.lane.replayed()
        self.log += b"".join(frame for append in appends for frame in append.frames)

    def take(self, places: list[tuple[int, int]], label: Any, *, snapshot: bool = False) -> None:
        """Take events that are new, or due with a label."""
        codes = [label(place) if callable(label) else label for place in places]
        begin = len(self.records)
        new = [
            event(begin + n, place, code) for n, (place, code) in enumerate(zip(places, codes, strict=True))
        ]
        output = self.lane.process(new)
        if output.line is not None:
            self.log += b"".join(output.line.frames)
        if label == LABEL_LATER:
            self.scores |= {
                place: each.score
                for place, each in zip(places, output.scores, strict=True)
                if each.score is not None
            }
        self.records += new
        commit = self.lane.commit(snapshot=snapshot)
        if commit.content is not None and commit.snapshot is not None:
            self.snapshots[commit.content] = commit.snapshot
        self.log += b"".join(commit.frames)
        self.lane.committed()


def places(begin: int, end: int) -> list[tuple[int, int]]:
    return [(n % 2, n // 2) for n in range(begin, end)]


def outcome(place: tuple[int, int]) -> int:
    """The code of the label of an event, whatever becomes of it."""
    return 1 + bool(np.random.default_rng([7, *place]).random() < 0.3)


def test_the_coin_is_a_function_of_secret_topic_and_place_alone() -> None:
    """The same in every worker and after every start; a sender chooses neither partition nor offset."""
    explore = Exploration(LEAST, SHARE, KEY, "t")
    where = [(partition, offset) for partition in range(3) for offset in range(20_000)]
    marks = np.array([explore.marks(1.0, *place) for place in where])
    for other, same in (
        (Exploration(LEAST, SHARE, KEY, "t"), True),
        (Exploration(0.9, SHARE, KEY, "t"), True),
        (Exploration(LEAST, SHARE, OTHER, "t"), False),
        (Exploration(LEAST, SHARE, KEY, "u"), False),
    ):
        found = np.array([other.marks(1.0, *place) for place in where])
        if same:
            assert (found == marks).all()
        else:  # independent: 60,000 pairs, within 5 standard errors
            assert abs((found & marks).mean() - SHARE**2) < 5 * SHARE / np.sqrt(len(where))
    assert abs(marks.mean() - SHARE) < 5 * np.sqrt(SHARE * (1 - SHARE) / len(where))
    for part in (marks[:20_000], marks[20_000:40_000], marks[40_000:]):
        assert abs((part[1:] & part[:-1]).mean() - SHARE**2) < 0.02  # neighbours, too
    assert abs((marks[:20_000] & marks[20_000:40_000]).mean() - SHARE**2) < 0.02  # and partitions
    more = np.array([Exploration(LEAST, 0.5, KEY, "t").marks(1.0, *place) for place in where])
    assert (more | ~marks).all()
    assert not any(explore.marks(score, *where[n]) for n in range(999) for score in (LEAST - 1e-9, None))
    assert "k" * 8 not in repr(vars(explore)["now"]) + repr(explore)
    # A message of a score may say anything: a weight that no figure can use is 0.
    shares = (0.0, None, 1.0, 5e-324, 1e-151, -0.5, 2.0, np.nan, np.inf)
    assert [weight_of(1.0, 0.5, share, explored=True) for share in shares] == [0.0, 1.0, 1.0, *[0.0] * 6]
    assert weight_of(1.0, np.nan, 0.5, explored=False) == 1.0  # and no score is stopped by NaN


@pytest.mark.parametrize("crash", [False, True])
def test_an_outcome_weighs_what_the_score_that_acted_says(crash: bool) -> None:
    """Whatever threshold, share and secret are when the label comes, and if a lane died in between."""
    life, settings = Life(), [(LEAST, SHARE, KEY), (0.1, 0.5, KEY), (0.1, 0.5, OTHER), ()]
    life.start(*settings[0])
    life.take(places(0, 40), LABEL_LATER)
    life.take(places(0, 40), outcome, snapshot=True)  # the model has weights from here on
    learned, weights = places(40, 640), dict[tuple[int, int], float]()
    for number, each in enumerate(settings):
        part = places(40 + 150 * number, 190 + 150 * number)
        if number:
            life.start(*each)
        life.take(part, LABEL_LATER, snapshot=not crash)
        for place in part:
            acted = each and life.scores[place] >= each[0]
            weights[place] = (
                1.0 if not acted else weight_of(1.0, 0.0, each[1], explored=explored(each, place))
            )
    life.start(*settings[0])
    before = life.lane.gauges().late
    assert before is not None

    def stopped(place: tuple[int, int]) -> bool:  # also a few that were to be let pass
        return place[1] % 2 == 1 if weights[place] == 0.0 else weights[place] > 1.0 and place[1] % 7 == 0

    life.take(learned, lambda place: LABEL_STOPPED if stopped(place) else outcome(place))
    late = life.lane.gauges().late
    assert late is not None
    # After a crash the coins of another secret cannot be tossed again: these outcomes are left out.
    lost = {place for place in places(340, 490) if crash and weights[place] > 1.0}
    ignored = {place for place, w in weights.items() if stopped(place) and w and place not in lost}
    lost = {place for place in lost if not stopped(place)}
    used = {place: w for place, w in weights.items() if w and place not in lost and not stopped(place)}
    assert len(ignored) > 5
    assert sum(w > 1.0 for w in used.values()) > 30
    unmarked = [place for place, w in weights.items() if not w and not place[1] % 2]
    assert Counter(late.explored) - Counter(before.explored) == {
        "yes": sum(w > 1.0 for w in used.values()),
        "no": len(unmarked) + len(lost),
        "stopped": len(ignored),
    }
    assert late.stopped == sum(map(stopped, weights))
    first = [(place, w) for place in places(0, 40) if (w := first_weight(life, place))]
    rows = [(life.scores[place], outcome(place) == 2, w) for place, w in [*first, *used.items()]]
    scores, labels, every = (np.array(column) for column in zip(*rows, strict=True))
    wanted = quality_of(scores, labels, every, threshold=LEAST, stopped=True)
    found = life.lane.gauges()
    assert wanted is not None
    assert found.quality is not None
    assert found.quality.average_precision == pytest.approx(wanted.average_precision)
    assert found.quality.recall_at_threshold == pytest.approx(wanted.recall_at_threshold)
    assert found.auc == pytest.approx(roc_auc_score(labels, scores, sample_weight=every))
    for number in range(3):  # a replay weighs what was learned since the last snapshot again
        life.start(*settings[0])
        life.take(places(640 + 20 * number, 660 + 20 * number), LABEL_LATER, snapshot=number == 2)
        again = life.lane.gauges()
        assert again.late is not None
        assert (again.auc, again.late.explored) == (found.auc, late.explored)
    assert life.lane.source is not None
    assert len(life.lane.source.acting) == 1


def explored(settings: Any, place: tuple[int, int]) -> bool:
    return Exploration(*settings, "t").marks(settings[0], *place)


def first_weight(life: Life, place: tuple[int, int]) -> float:
    score = life.scores[place]
    return weight_of(score, LEAST, SHARE, explored=explored((LEAST, SHARE, KEY), place))


def test_the_sample_keeps_weights_as_long_as_scores() -> None:
    """When it is thinned out, in a snapshot, and where a score is read again."""
    sample, records = ScoreSample(64), [event(n, (0, n), LABEL_LATER) for n in range(1000)]
    weights = {n: (0.0 if n % 2 else 4.0) for n in range(0, 1000, 20)} | dict.fromkeys(
        range(7, 1000, 20), 0.0
    )
    for start in range(0, 1000, 100):
        part = {n - start: w for n, w in weights.items() if start <= n < start + 100}
        sample.extend(records[start : start + 100], [0.5] * 100, part)
    sample.add(0, 999, 0.5, weight=2.0)
    sample.add(0, 999, 0.5)
    second = ScoreSample(64)
    second.load(sample.to_state())
    scores, found, stands_for = second.pop_many(records)
    kept = [n for n, score in enumerate(scores) if score is not None]
    explored = {n for n, weight in weights.items() if weight > 1.0}
    assert explored < set(kept)  # all of them: they are not thinned out with the others
    assert 16 < len(kept) - len(explored) <= 64
    assert found == {n: weights[n] for n in kept if n in weights}
    assert stands_for == {n: 16 for n in kept if n not in explored}
    assert second.to_state().keys() == {"level", "places", "scores"}


def test_a_sample_stands_for_all_events_while_its_share_changes() -> None:
    """A score that was chosen at a higher level stands for as many events when the level has fallen."""
    sample, records = ScoreSample(64), [event(n, (0, n), LABEL_LATER) for n in range(6000)]
    weights = dict.fromkeys(range(0, 6000, 10), 2.0)
    total: Counter[bool] = Counter()
    waiting: list[Any] = []

    def learn(due: int) -> None:
        scores, found, stands_for = sample.pop_many(waiting[:due])
        del waiting[:due]
        for n, score in enumerate(scores):
            if score is not None:
                total[n in found] += stands_for.get(n, 1)

    for start in range(0, 6000, 50):
        sample.extend(records[start : start + 50], [0.5] * 50, dict.fromkeys(range(0, 50, 10), 2.0))
        waiting += records[start : start + 50]
        # The waiting events are many, then few, then many again.
        learn(len(waiting) if start // 1000 % 2 and start % 500 == 0 else 10)
    learn(len(waiting))
    assert total[True] == pytest.approx(len(weights), rel=0.1)
    assert total[False] == pytest.approx(6000 - len(weights), rel=0.1)


def test_events_that_wait_stand_for_others_when_exploration_has_ended() -> None:
    """Explored events of the time before are all in the sample still."""
    for scorers in (False, True):
        life = Life()
        life.start(LEAST, SHARE, KEY)
        life.take(places(0, 40), LABEL_LATER)
        life.take(places(0, 40), outcome, snapshot=True)
        assert life.lane.score_sample is not None
        life.lane.score_sample._usual._size = 64
        life.take(places(40, 4040), LABEL_LATER, snapshot=True)
        assert life.lane.score_sample.share < 0.05
        life.start()
        if scorers:  # then the weights are those of their messages
            life.lane._batch.exploration = None
        labels = {p: outcome(p) if first_weight(life, p) else LABEL_STOPPED for p in places(40, 4040)}
        for begin in range(40, 4040, 100):
            life.take(places(begin, begin + 100), labels.__getitem__)
        scores, _, weights = life.lane._monitor.auc.events()
        every = np.array(list(life.scores.values()))
        assert weights.sum() == pytest.approx(len(every), rel=0.1)
        above = np.average(scores >= LEAST, weights=weights)
        assert above == pytest.approx((every >= LEAST).mean(), abs=0.1)
