"""Late labels, exactly once: killed at every step, each event is learned once and with its label."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.apache_kafka import KafkaBroker
from harness.applications import PAIR_FTRL, PAIR_OGD
from harness.dying_worker import DIRECTORY, EARLY, LABELS, TOPIC
from harness.label_trial import LabelTrial
from harness.late_labels import Event, Label, due_ends, joined, send_labels
from harness.verifier import Evidence, Nursery, Wrong

pytestmark = pytest.mark.verifier

MakeTrial = Callable[..., LabelTrial]


@pytest.fixture
def trial(
    stoppable_kafka: KafkaBroker, unique: Callable[[str], str], tmp_path: Path, store: str
) -> MakeTrial:
    def make(**options: str) -> LabelTrial:
        name = unique("app")
        (tmp_path / name).mkdir()
        return LabelTrial(stoppable_kafka, tmp_path / name, name, store=store, **options)

    return make


def killed_at(
    nursery: Nursery, one: LabelTrial, step: str, before: Evidence | None, count: int, **order: Any
) -> Evidence:
    """Let a worker run until it dies at a step; what the broker says then."""
    with nursery.start(one.app, step=step, count=count, **order) as worker:
        code = worker.end()
    assert code == -signal.SIGKILL, f"{step}: it ended with {code}\n{worker.log()}"
    assert worker.said("trap"), f"{step}: it died elsewhere\n{worker.log()}"
    one.kills += 1
    return one.look(before)


def finish(nursery: Nursery, one: LabelTrial, fault: str, *, forks: int = 0) -> None:
    with nursery.start(one.app) as worker:
        worker.await_log("lane_opened")
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.verify(fault, extra_forks=forks)


@pytest.mark.verifier(short=True)
@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_killed_at_every_step_of_late_labels(trial: MakeTrial, nursery: Nursery, learner: str) -> None:
    one, found = trial(learner=learner), None
    one.feed(40)
    for number, step in enumerate([*LABELS, *LABELS]):
        one.feed(40)
        # What a start knows of used labels is in a snapshot, or comes of a replay.
        count, often = 2 if LABELS[step].at_work else 1, 0 if number < len(LABELS) else None
        found = killed_at(nursery, one, step, found, count, snapshot_seconds=often)
    finish(nursery, one, "killed at every step of late labels")


def test_killed_at_every_step(trial: MakeTrial, nursery: Nursery, store: str) -> None:
    one, found = trial(), None
    coin = random.Random(store)
    steps = {**(TOPIC if store == "kafka" else DIRECTORY), **LABELS}
    one.feed(30)
    for step in (s for s in steps if "snapshot" not in s and "anew" not in s and "trimmed" not in s):
        if step.startswith("start 5"):
            continue
        one.feed(20)
        found = killed_at(nursery, one, step, found, coin.randint(1, 2) if steps[step].at_work else 1)
    finish(nursery, one, "killed at every step")


@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_killed_at_any_time(trial: MakeTrial, nursery: Nursery, store: str, learner: str) -> None:
    one, found = trial(learner=learner), None
    coin = random.Random(f"{store} {learner}")
    for _ in range(6):
        one.feed(100)
        with nursery.start(one.app, snapshot_seconds=coin.choice([0, None]), pause=0.001) as worker:
            worker.await_log("lane_opened")
            worker.wait(coin.random())
            worker.kill()
        one.kills += 1
        found = one.look(found)
    finish(nursery, one, "killed at any time")


@pytest.mark.verifier(short=True)
def test_killed_at_every_step_of_learning_by_arrival(trial: MakeTrial, nursery: Nursery, store: str) -> None:
    """Events that were learned when their labels came are not learned again when they are due."""
    one, found = trial(learner=PAIR_OGD, order="arrival"), None
    one.feed(1000)
    steps = {
        **LABELS,
        **EARLY,
        "commit 6: not published": (TOPIC if store == "kafka" else DIRECTORY)["commit 6: not published"],
    }
    for number, step in enumerate([*steps, *steps]):
        count, often = 2 if steps[step].at_work else 1, 0 if number < len(steps) else None
        found = killed_at(nursery, one, step, found, count, snapshot_seconds=often)
    finish(nursery, one, "killed at every step of learning by arrival")


@pytest.mark.verifier(short=True)
@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_other_labels_between_two_lives_change_nothing_that_was_released(
    trial: MakeTrial, nursery: Nursery, learner: str
) -> None:
    """Each released event gets another label, which would be its first one, while no worker runs."""
    one, found = trial(learner=learner), None
    hostile: list[Label] = []
    for step in ("commit 1: line durable", "commit 6: not published", "commit 1: line durable"):
        one.feed(120)
        # A lane that is not private has no lines, and commits that hold the labels.
        step = step if learner == PAIR_FTRL else "commit 6: not published"
        found = killed_at(nursery, one, step, found, 2, snapshot_seconds=None)
        ends = due_ends(one.app)
        released = [
            event
            for event, place in zip(one.events, places(one.events), strict=True)
            if place[1] < ends.get(place[0], 0)
        ]
        assert released
        codes = {id(event): code for event, code in joined(one.events, one.labels)}
        named = {(each.id, each.time) for each in hostile}
        more = [
            Label(number % 2, event.time, event.id, codes[id(event)] != 2)
            for number, event in enumerate(released)
            if (event.id, event.time) not in named
        ]
        send_labels(one.app, more)
        hostile += more
    finish(nursery, one, "other labels of what was released")


def places(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Partition and offset of each event."""
    counts: dict[int, int] = {}
    found = []
    for event in events:
        found.append((event.partition, counts.get(event.partition, 0)))
        counts[event.partition] = found[-1][1] + 1
    return found


MUTANTS = {
    "joins too soon": "what was learned differs",
    "forgets what was used": "what was learned differs",
    "reads due events twice": "what was learned differs|slots",
    "sends on without noting": "labels sent on twice",
}


@pytest.mark.verifier(short=True, store="kafka")
def test_mutants_are_caught(trial: MakeTrial, nursery: Nursery, store: str) -> None:
    caught = {}
    for broken in MUTANTS:
        one = trial(learner=PAIR_OGD)
        try:
            for _ in range(4):
                one.feed(120)
                killed_at(
                    *(nursery, one, "commit 6: not published", None, 2), broken=broken, snapshot_seconds=0
                )
            with nursery.start(one.app, broken=broken) as worker:
                one.await_done(worker)
                assert worker.stop() == 0, worker.log()
            one.verify(f"mutant: {broken}")
        except Wrong as wrong:
            caught[broken] = str(wrong)
    assert caught.keys() == MUTANTS.keys()
    for broken, said in caught.items():
        assert re.search(MUTANTS[broken], said), f"{broken}: {said}"
