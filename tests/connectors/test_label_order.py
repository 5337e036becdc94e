"""Events that are learned when their labels come: in one order, and each once, whatever is read first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from harness.simulation.scenario import Plan, run_plan
from streampair_connectors.codecs.labels import DecodedLabel
from streampair_connectors.config import parse_config
from streampair_connectors.kafka import Cluster, Partition, Span
from streampair_connectors.kafka.ordering import TopicOrder
from streampair_connectors.worker.early_labels import EarlyLabels, OffsetSet
from streampair_connectors.worker.late_labels import LateLabelSource

from streampair.engine.labels import LabelTable
from streampair.engine.source import Positions
from streampair.engine.wal import Wait

AFTER, NOW = 10_000, 10**6
CONFIG = parse_config(
    {
        "app": "a",
        "kafka": {"bootstrap_servers": "localhost:1"},
        "input": {"topic": "events", "features": ["a"]},
        "label_input": {
            **{"topic": "labels", "id": "key", "label": "y", "absent": False},
            **{"after": f"{AFTER}ms", "lateness": "0s", "order": "arrival"},
        },
        "learner": {"class": "streampair.auc.PairOGD"},
    }
)


def record(offset: int, name: str, timestamp: int) -> Any:
    return SimpleNamespace(
        **{"offset": offset, "key": name.encode(), "value": b"", "timestamp": timestamp, "headers": ()}
    )


class Events:
    """The input topic: the client that reads ids returns all of it at once."""

    def __init__(self, partitions: Mapping[int, Sequence[Any]]) -> None:
        self.partitions = partitions
        self._positions: dict[int, int] = {}
        self.reading, self.may_read = asyncio.Event(), asyncio.Event()
        self.may_read.set()

    def reader(self, config: Any, topic: str, partitions: int, on_lost: Any) -> Any:
        return self

    def begin(self, offsets: Mapping[int, int]) -> dict[Partition, int]:
        self._positions = dict(offsets)
        return {Partition("events", p): offset for p, offset in offsets.items()}

    def seek(self, partition: Partition, offset: int) -> None:
        self._positions[partition.partition] = offset

    async def poll(self, seconds: float) -> dict[Partition, Span]:
        found = {}
        for p, start in self._positions.items():
            records = self.partitions[p][start:]
            if records:
                self._positions[p] = start + len(records)
                found[Partition("events", p)] = Span(start, start + len(records), records)
        return found

    def settled(self) -> dict[int, int]:
        return dict.fromkeys(self.partitions, NOW)

    async def span(self, partition: Partition, start: int, end: int) -> AsyncGenerator[Sequence[Any], None]:
        """Of the reader of single events, which waits until it may read."""
        self.reading.set()
        await self.may_read.wait()
        yield self.partitions[partition.partition][start:end]


def early_of(events: Events, waits: Sequence[Wait] = (Wait(AFTER, 0),)) -> EarlyLabels:
    lookup: Any = events

    def wait_of(partition: int, offset: int) -> Wait:
        return next(each for each in waits if not each.until or offset < each.until.get(partition, 0))

    return EarlyLabels(
        CONFIG,
        partitions=len(events.partitions),
        ids=lambda records: [each.key for each in records],
        decode=lambda each: DecodedLabel(each.key or b"", 2),
        wait_of=wait_of,
        lookup=lookup,
        on_lost=lambda *_: None,
        broker_time=lambda host_ms: host_ms,
        cluster=Cluster(topic_reader=events.reader),  # type: ignore[arg-type]
    )


async def load(early: EarlyLabels, labels: Sequence[Any], learned: bytes = b"", after: int = AFTER) -> None:
    """Open it, and hand over the labels topic, of one partition, read to its end."""
    start = {0: 0, 1: 0}
    await early.load(start, start, Positions(), OffsetSet.load(learned), after=after)
    early.begin_labels({0: 0})
    early.push(0, Span(0, len(labels), labels))
    early.settled({0: NOW})


def taken(early: EarlyLabels, before_ms: float = math.inf) -> list[tuple[int, int]]:
    found = early.take(0, 100, before_ms=before_ms, scored=None)
    return [(event.partition, event.position) for event, _ in found]


EVENTS = {0: [record(0, "a", 1000), record(1, "b", 3000)], 1: [record(0, "c", 2000), record(1, "d", 4000)]}
LABELS = [record(0, "a", 5000), record(1, "d", 6000)]


async def test_a_commit_while_events_are_read_again_does_not_say_that_they_were_learned() -> None:
    """A rebalance commits while the worker waits for them, and the next owner has to learn them."""
    events = Events(EVENTS)
    early = early_of(events)
    await load(early, LABELS)
    events.may_read.clear()
    reading = asyncio.create_task(early.read())
    await events.reading.wait()
    saved = early.state(0)
    events.may_read.set()
    await reading
    assert list(OffsetSet.load(saved)) == []
    heir = early_of(events)
    await load(heir, LABELS, saved)
    await heir.read()
    assert taken(heir) == taken(early) == [(0, 0), (1, 1)]


async def test_events_that_are_read_again_while_it_is_loaded_anew_are_learned_once() -> None:
    events = Events(EVENTS)
    early = early_of(events)
    await load(early, LABELS)
    events.may_read.clear()
    reading = asyncio.create_task(early.read())
    await events.reading.wait()
    await load(early, LABELS)
    events.may_read.set()
    await reading
    await early.read()
    assert taken(early) == [(0, 0), (1, 1)]


def source_of(events: Events, early: EarlyLabels, waits: Sequence[Wait]) -> Any:
    """A source whose readers have read nothing."""
    unused: Any = None
    cluster: Any = Cluster(topic_reader=events.reader)  # type: ignore[arg-type]
    made: Any = LateLabelSource(
        CONFIG,
        SimpleNamespace(seek=None),  # type: ignore[arg-type]
        partitions=2,
        label_partitions=1,
        lookup=unused,
        routes=unused,
        cluster=cluster,
    )
    made._label_reader.table = LabelTable(after=AFTER, lateness=0)
    made._waits, made._early, made._learns_only = list(waits), early, True
    return made


def learned(source: Any, order: TopicOrder, arrivals: TopicOrder) -> list[tuple[int, int, bool]]:
    """What is learned next: partition, offset and whether its label came."""
    source._ready = []
    source._take_by_labels(source._early, order, arrivals, 100, NOW)
    return [(each.partition, each.position, each.early) for each in source._ready]


async def order_of(labels: Sequence[Any], waits: Sequence[Wait], first: int) -> list[tuple[int, int, bool]]:
    """What is learned where all labels are known, and due events are read later, of one partition first."""
    events = Events(EVENTS)
    early = early_of(events, waits)
    await load(early, labels, after=max(each.after for each in waits))
    await early.read()
    source, start = source_of(events, early, waits), {0: (0, 0), 1: (0, 0)}
    order, arrivals = TopicOrder(start), TopicOrder(start)
    found = learned(source, order, arrivals)
    for p in (first, 1 - first):
        order.push(p, Span(0, 2, EVENTS[p]))
        found += learned(source, order, arrivals)
        order.reached(p, sent_ms=NOW)
        found += learned(source, order, arrivals)
    return found


@pytest.mark.parametrize("first", [0, 1])
async def test_no_label_is_taken_before_an_event_that_is_due_and_was_not_read_yet(first: int) -> None:
    """The event c is due between the labels of a and b."""
    labels = [record(0, "a", 5000), record(1, "b", 13_000), record(2, "d", 14_000)]
    found = await order_of(labels, [Wait(AFTER, 0)], first)
    a, b, c, d = (0, 0), (0, 1), (1, 0), (1, 1)
    # Those with a label are passed over when they are due.
    assert found == [
        *((*a, True), (*a, False), (*c, False)),
        *((*b, True), (*b, False), (*d, True), (*d, False)),
    ]


@pytest.mark.parametrize("first", [0, 1])
async def test_labels_are_taken_while_events_wait_longer_than_the_newest(first: int) -> None:
    """a and c wait for 20 s, as long as `after` was, and b and d behind them for 10."""
    labels = [record(0, "b", 13_000), record(1, "d", 14_000)]
    found = await order_of(labels, [Wait(20_000, 0, {0: 1, 1: 1}), Wait(AFTER, 0)], first)
    assert [place for *place, early in found if early] == [[0, 1], [1, 1]]
    assert [place for *place, early in found if not early] == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert [early for *_, early in found[:2]] == [True, True]


@pytest.mark.parametrize("first", [0, 1])
async def test_no_event_is_learned_by_a_label_for_which_it_does_not_wait(first: int) -> None:
    """a and c wait for 5 s, as long as `after` was, and the label of a comes after 7."""
    labels = [record(0, "a", 8000), record(1, "b", 9000)]
    found = await order_of(labels, [Wait(5000, 0, {0: 1, 1: 1}), Wait(AFTER, 0)], first)
    assert found == [(0, 0, False), (1, 0, False), (0, 1, True), (0, 1, False), (1, 1, False)]


@pytest.mark.parametrize("step", range(8))
def test_a_worker_that_the_group_drops_learns_all_in_the_same_order(step: int) -> None:
    """It hangs for longer than its session, and joins again."""
    schedule: list[tuple[float, str, tuple[Any, ...]]] = [
        (round(0.1 * number, 3), "produce", (number % 2, 4, "plain")) for number in range(36)
    ]
    schedule += [(0.0, "start", (0,)), (1.0 + 0.25 * step, "suspend", (0, 2.5))]
    plan = Plan(step, partitions=2, late=True, arrival=True, session=1.0, latency=0.03)
    plan.skews, plan.schedule = [0.0] * 3, sorted(schedule, key=lambda each: each[0])
    run_plan(plan)
