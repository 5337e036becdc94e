"""Lanes whose labels come later than the events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from harness.driver import decode_json
from river import linear_model, preprocessing

from streampair import auc, privacy
from streampair.engine import ExternalState, Lane, LaneId, LoggedLane, OrderedRecord, Saving
from streampair.engine.delays import LateSample
from streampair.engine.labels import digest_ids
from streampair.engine.records import LABEL_LATER, LABEL_STOPPED
from streampair.errors import PrivacyError
from streampair.privacy import NoiseKey

NAMES = ["a", "b"]
KEY = NoiseKey(b"k" * 32)
LEARNERS: dict[str, Any] = {
    "PairOGD": lambda: auc.PairOGD(seed=1),
    "Forest": lambda: auc.Forest(seed=1),
    "pipeline": lambda: preprocessing.StandardScaler() | auc.PairOGD(seed=1),
    "foreign": lambda: preprocessing.StandardScaler() | linear_model.LogisticRegression(),
    "PairFTRL": lambda: auc.PairFTRL(1.0, 1e-4, 400, features=NAMES, noise_key=KEY),
}
Steps = list[tuple[OrderedRecord, dict[str, Any] | None, Any]]


CODES = (None, False, True, None, None)  # labels by their code, as of `Config.label_codes`


def stream(count: int, *, seed: int = 0, bad: bool = True) -> Steps:
    """Records of two partitions in the order of a lane: arrivals, and dues some time later."""
    rng = np.random.default_rng(seed)
    steps: Steps = []
    pending: list[tuple[int, bytes, dict[str, Any] | None, int]] = []
    offsets = [0, 0]

    def add(partition: int, position: int, value: bytes, label: int, x: Any, y: Any) -> None:
        record = OrderedRecord(
            *(len(steps), value, b"k", 1_700_000_000_000 + len(steps)),
            partition=partition,
            position=position,
            label=label,
        )
        steps.append((record, x, y))

    for number in range(count):
        y = bool(rng.random() < 0.3)
        x = {"a": float(rng.normal() + y), "b": float(rng.normal())}
        value = json.dumps({"x": x}).encode()
        if bad and number % 17 == 3:
            x, value = None, b"oops"  # type: ignore[assignment]
        partition = number % 2
        add(partition, offsets[partition], value, LABEL_LATER, x, None)
        code = 0 if number % 5 == 0 else LABEL_STOPPED if number % 11 == 6 else 1 + y
        pending.append((partition, value, x, code))
        offsets[partition] += 1
        while len(pending) > 10 and (rng.random() < 0.9 or len(pending) > 40):
            partition, value, x, code = pending.pop(0)
            position = sum(1 for r, *_ in steps if r.due and r.partition == partition)
            add(partition, position, value, code, x, CODES[code])
    return steps


SAVING = Saving(allow_pickle=True, signing_keys=[b"s" * 32])


def lane(name: str, **options: Any) -> LoggedLane:
    return LoggedLane(
        LEARNERS[name](),
        decode_json,
        LaneId("a", "t"),
        **{"labels": CODES, "saving": SAVING, **options},
    )


def started(new: LoggedLane) -> LoggedLane:
    new.read(b"")
    new.start(ExternalState(registers=False, spans={0: (0, 0), 1: (0, 0)}))
    return new


def fed(new: LoggedLane, records: list[OrderedRecord], size: int) -> list[Any]:
    scores: list[Any] = []
    for start in range(0, len(records), size):
        scores += new.process(records[start : start + size]).scores
        new.commit()
        new.committed()
    return scores


def reference(name: str, steps: Steps) -> list[float | None]:
    """The scores of a loop without a lane: each event is scored when it comes, and learned when it is due."""
    learner = LEARNERS[name]()
    foreign = name == "foreign"
    out: list[float | None] = []
    for record, x, y in steps:
        if record.due:
            if x is not None and y is not None:
                learner.learn_one(x, y)
        elif x is None:
            out.append(None)
        else:
            out.append(learner.predict_proba_one(x).get(True, 0.0) if foreign else learner.score_one(x))
    return out


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "PairFTRL"])
@pytest.mark.parametrize("size", [1, 40])
def test_events_are_scored_when_they_come_and_learned_when_they_are_due(name: str, size: int) -> None:
    steps = stream(300)
    new = started(lane(name))
    scores = fed(new, [record for record, *_ in steps], size)
    arrival_scores = [
        scored.score for (record, *_), scored in zip(steps, scores, strict=True) if not record.due
    ]
    assert arrival_scores == pytest.approx(reference(name, steps), abs=1e-12)
    outcomes = {
        (record.due, x is None, y is None, scored.outcome)
        for (record, x, y), scored in zip(steps, scores, strict=True)
    }
    assert outcomes == {
        (False, False, True, "scored"),
        (False, True, True, "dead_letter"),
        (True, False, False, "learned"),
        (True, False, True, "skipped"),
        (True, True, False, "skipped"),
        (True, True, True, "skipped"),
    }


@pytest.mark.parametrize("name", LEARNERS)
def test_the_size_of_batches_changes_nothing(name: str) -> None:
    steps = stream(300)
    records = [record for record, *_ in steps]
    first = fed(started(lane(name)), records, 1)
    assert fed(started(lane(name)), records, 64) == first


def test_a_private_learner_takes_a_slot_for_each_due_event_alone() -> None:
    steps = stream(300)
    new = started(lane("PairFTRL"))
    fed(new, [record for record, *_ in steps], 50)
    due = [(x, y) for record, x, y in steps if record.due]
    assert new.learner.slots == len(due)
    assert new.learner.null_slots == sum(x is None or y is None for x, y in due)


def test_the_label_of_an_event_changes_the_digests_of_its_slot_alone() -> None:
    steps = stream(120, bad=False)
    records = [record for record, *_ in steps]
    changed = next(n for n, record in enumerate(records) if record.label == 2)

    def lines(records: list[OrderedRecord]) -> list[bytes]:
        new = started(lane("PairFTRL"))
        found = []
        for start in range(0, len(records), 10):
            line = new.process(records[start : start + 10]).line
            found.append(b"" if line is None else b"".join(line.frames))
        return found

    others = list(records)
    others[changed] = msgspec.structs.replace(records[changed], label=1)
    assert lines(records) != lines(others)
    assert lines(records)[: changed // 10] == lines(others)[: changed // 10]


@pytest.mark.parametrize("name", ["PairOGD", "Forest"])
def test_a_snapshot_goes_on_bit_for_bit(name: str) -> None:
    records = [record for record, *_ in stream(300)]
    whole = started(lane(name))
    wanted = fed(whole, records, 20)
    half = len(records) // 2
    first = started(lane(name))
    fed(first, records[:half], 20)
    assert first.late_sample is not None
    first.late_sample.extend(digest_ids([b"a", b"b"]), [0, 0], [True, False], after=10)
    commit = first.commit(snapshot=True)
    first.committed()
    assert commit.snapshot is not None
    second = Lane(
        LEARNERS[name](),
        decode_json,
        LaneId("a", "t"),
        labels=CODES,
        saving=SAVING,
    )
    second.restore(commit.snapshot)
    assert second.late_sample is not None
    assert second.late_sample.to_state()["words"].tolist() == digest_ids([b"b"])[:, 0].tolist()
    assert second.late_sample.in_time == 1
    got: list[Any] = []
    for start in range(half, len(records), 20):
        got += second.process(records[start : start + 20]).scores
    assert got == wanted[half:]
    assert second.auc == whole.auc
    one, other = second.gauges().late, whole.gauges().late
    assert one is not None
    assert one._replace(in_time=0) == other


def test_the_auc_is_of_the_scores_given_at_arrival() -> None:
    steps = stream(300)
    new = started(lane("PairOGD"))
    scores = fed(new, [record for record, *_ in steps], 20)
    arrival = {
        (record.partition, record.position): scored.score
        for (record, *_), scored in zip(steps, scores, strict=True)
        if not record.due
    }
    pairs = [
        (y, arrival[record.partition, record.position])
        for (record, *_), y in zip(steps, [y for *_, y in steps], strict=True)
        if record.due and y is not None and arrival[record.partition, record.position] is not None
    ]
    positive = [score for y, score in pairs if y]
    negative = [score for y, score in pairs if not y]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert new.auc == pytest.approx(wins / len(positive) / len(negative))


@pytest.mark.parametrize("size", [1, 40])
def test_events_that_were_due_are_counted_by_whether_a_label_came(size: int) -> None:
    steps = stream(300)
    new = started(lane("PairOGD"))
    fed(new, [record for record, *_ in steps], size)
    late = new.gauges().late
    assert late is not None
    due = [record for record, *_ in steps if record.due]
    assert (late.due, late.labelled) == (len(due), sum(record.label in (1, 2) for record in due))
    places = {(record.partition, record.position) for record in due}
    scored = [record for record, x, _ in steps if not record.due and x is not None]
    waiting = [record for record in scored if (record.partition, record.position) not in places]
    assert (late.scores, late.share) == (len(waiting), 1.0)
    assert Lane(LEARNERS["PairOGD"](), decode_json, LaneId("a", "t", 0)).gauges().late is None


AFTER, LATENESS = 1000, 100
Labelled = list[tuple[int, int, int | None]]  # time of an event, id, and time of its label


def labelled_events(count: int, seed: int) -> Labelled:
    """Of labels 60 % come in time, 10 % later, 10 % much later, and 20 % of the events have none."""
    rng = np.random.default_rng(seed)
    made: Labelled = []
    for number in range(count):
        delay = rng.choice([0, 1, 2, 3], p=[0.6, 0.1, 0.1, 0.2])
        after = {0: -LATENESS, 1: AFTER, 2: 2 * AFTER, 3: 0}[delay] + int(rng.integers(1, AFTER))
        made.append((5 * number, number, None if delay == 3 else 5 * number + after))
    return made


def sampled(sample: LateSample, made: Labelled, size: int) -> None:
    """Learn events when they are due, and see labels when they come."""
    steps = [(time + AFTER + LATENESS, 0, number) for time, number, _ in made]
    steps += [(label, 1, number) for _, number, label in made if label is not None]
    for now, kind, number in sorted(steps):
        time, _, label = made[number]
        digests = digest_ids([b"%d" % number])
        if kind:
            sample.match(digests, [now], after=AFTER, lateness=LATENESS)
        else:
            sample.extend(digests, [time], [label is not None and label <= time + AFTER], after=AFTER)
        assert len(sample) <= size


def expected(made: Labelled) -> tuple[int, int]:
    """Labels in time, and those that came once their event was learned, up to twice `AFTER` after it."""
    delays = [label - time for time, _, label in made if label is not None]
    return sum(d <= AFTER for d in delays), sum(AFTER + LATENESS < d <= 2 * AFTER for d in delays)


def test_labels_that_come_later_are_counted_when_they_come() -> None:
    """While few events are kept it has all of them, and the counts are exact."""
    made = labelled_events(2000, 1)
    sample = LateSample()
    sampled(sample, made, 20_000)
    assert sample.share == 1.0
    assert (sample.in_time, sample.late) == expected(made)


def test_a_small_sample_estimates_the_share_of_late_labels() -> None:
    """Of the events of one `after` some 80 have no label; the sample has room for 64."""
    made = labelled_events(40_000, 2)
    sample = LateSample(64)
    sampled(sample, made, 64)
    assert 0.25 <= sample.share <= 0.5
    in_time, late = expected(made)
    found = sample.late / (sample.late + sample.in_time)
    share = late / (late + in_time)
    error = (share * (1.0 - share) / (sample.late + sample.in_time)) ** 0.5
    assert sample.late > 200
    assert abs(found - share) < 4.0 * error


def test_a_label_counts_once_and_only_in_its_time() -> None:
    sample, ids = LateSample(), digest_ids([b"a"])
    sample.extend(ids, [5000], [False], after=AFTER)
    for time in (5000 - LATENESS - 1, 5000 + 2 * AFTER + 1):
        sample.match(ids, [time], after=AFTER, lateness=LATENESS)
    assert sample.late == 0
    sample.match(ids, [5000 + 2 * AFTER], after=AFTER, lateness=LATENESS)
    sample.match(ids, [5000 + 2 * AFTER], after=AFTER, lateness=LATENESS)
    assert sample.late == 1


def test_a_sample_of_late_labels_goes_on_from_its_state() -> None:
    made = labelled_events(4000, 3)
    whole = LateSample(64)
    sampled(whole, made, 64)
    first, second = LateSample(64), LateSample(64)
    sampled(first, made[:2000], 64)
    second.load(first.to_state())
    assert second.to_state()["late"] == first.late > 0
    assert second.share == first.share < 1.0
    assert len(second) == len(first) > 0


class Lives:
    """Lives of a private lane that died once it had released: its line is durable, its commit is not."""

    def __init__(self, forks: int) -> None:
        self.forks = forks
        # Of the default mechanism a model leaves at the ends of blocks only.
        self.learner = lambda: auc.PairFTRL(
            *(1.0, 1e-4, 400),
            features=NAMES,
            noise_key=KEY,
            warmup=0,
            forks=forks,
            mechanism=privacy.PairGradients(),
        )
        self.records = [record for record, *_ in stream(120, bad=False)]
        self.log, self.saved = b"", None
        first, self.log = self.start()
        self.process(first, self.records[:60])
        self.commit(first)
        self.process(first, self.records[60:100])
        self.released = weights(first)

    def start(self) -> tuple[LoggedLane, bytes]:
        """A lane, and what its start has appended."""
        new = LoggedLane(
            self.learner(),
            decode_json,
            LaneId("a", "t"),
            labels=CODES,
        )
        new.read(self.log)
        appends, _ = new.start(
            ExternalState(registers=False, spans=dict.fromkeys((0, 1), (0, 200))), self.saved
        )
        return new, self.log + b"".join(frame for append in appends for frame in append.frames)

    def process(self, lane: LoggedLane, records: list[OrderedRecord]) -> None:
        line = lane.process(records).line
        self.log += b"" if line is None else b"".join(line.frames)

    def commit(self, lane: LoggedLane) -> None:
        commit = lane.commit(snapshot=True)
        self.saved, self.log = commit.snapshot, self.log + b"".join(commit.frames)
        lane.committed()

    def other(self) -> list[OrderedRecord]:
        """The records that were released, one with another label."""
        found = list(self.records[60:100])
        index = next(n for n, record in enumerate(found) if n > 10 and record.label == 2)
        found[index] = msgspec.structs.replace(found[index], label=1)
        return found


def test_reasons_are_of_the_model_that_scored_when_an_event_came() -> None:
    model, wanted = auc.Forest(seed=1), []
    steps = stream(80)
    for record, x, y in steps:
        if record.due:
            if x is not None and y is not None:
                model.learn_one(x, y)
        elif x is not None:
            found = model.explain_one(x).features
            wanted.append(sorted((pair for pair in found.items() if pair[1]), key=lambda pair: -abs(pair[1])))
    records = [record for record, *_ in steps]
    scores = fed(started(lane("Forest", explain=2)), records, 7)
    assert [each.reasons for each in scores if each.outcome == "scored"] == wanted
    assert all(each.reasons is None for each, record in zip(scores, records, strict=True) if record.due)
    assert any(wanted)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_order_of_events_is_in_the_log_before_their_scores_leave(name: str) -> None:
    """Also where nothing is released: which model scores an event depends on what was learned before it.

    Scores that left before a crash leave again, from the same models, since the same order is taken again.
    """
    records = [record for record, *_ in stream(60)]
    facts = ExternalState(registers=False, spans=dict.fromkeys((0, 1), (0, 200)))
    log = b""
    for begin in (0, 40):  # the second life repeats the first ones, and goes on
        new = lane(name)
        new.read(log)
        appends, _ = new.start(facts)
        log += b"".join(frame for append in appends for frame in append.frames)
        assert new.source is not None
        assert sum(each.count for each in new.source.ahead) == begin
        for record in records[: begin + 40]:
            line = new.process([record]).line
            log += b"" if line is None else b"".join(line.frames)
    last = lane(name)
    last.read(log)
    last.start(facts)
    assert last.source is not None
    kinds = [(each.partition, each.labels != b"") for each in last.source.ahead for _ in range(each.count)]
    assert kinds == [(record.partition, record.due) for record in records[:80]]


def weights(lane: LoggedLane) -> bytes:
    return bytes(lane.learner.run.state.released.tobytes())


def test_a_restart_gets_the_labels_of_what_was_released_from_the_log() -> None:
    """Whatever the labels topic says by then: nobody asks it."""
    lives = Lives(forks=0)
    again, lives.log = lives.start()
    assert again.source is not None
    ahead = again.source.ahead
    due = [record.label for record in lives.records[60:100] if record.due]
    assert b"".join(each.labels for each in ahead) == bytes(due)
    assert set(due) == {0, 1, 2, LABEL_STOPPED}
    lives.process(again, lives.records[60:100])
    assert weights(again) == lives.released
    lives.commit(again)
    assert again.gauges().forks == 0


def test_another_label_of_what_was_released_is_charged_or_refused() -> None:
    """As another payload is."""
    lives = Lives(forks=1)
    again, lives.log = lives.start()
    lives.process(again, lives.other())
    assert weights(again) != lives.released
    lives.commit(again)
    assert again.gauges().forks == 1
    none_left = Lives(forks=0)
    again, _ = none_left.start()
    with pytest.raises(PrivacyError, match="all 0 fork"):
        again.process(none_left.other())


def test_another_label_draws_other_noise() -> None:
    """With the same noise the difference of two views would show the label."""
    lives = Lives(forks=1)
    one, _ = lives.start()
    other, _ = lives.start()
    changed = lives.other()
    index = next(n for n, record in enumerate(changed) if record != lives.records[60 + n])
    with pytest.MonkeyPatch.context() as silent:
        # What is learned of the record is the same: only what the noise is drawn from may differ.
        silent.setattr(one._batch._decoder, "_labels", (None, True, True, None, None))
        silent.setattr(other._batch._decoder, "_labels", (None, True, True, None, None))
        one.process(lives.records[60 : 60 + index + 1])
        other.process(changed[: index + 1])
    assert weights(one) != weights(other)
