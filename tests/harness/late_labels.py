"""Applications whose labels come on a topic of their own, and what they are to learn."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import LogTopic
from streampair_connectors.kafka.ordering import BUCKET_MS
from streampair_connectors.stores.encryption import Seal
from streampair_connectors.stores.topic import TopicLog, context_of
from streampair_connectors.worker.factory import build_lane

from harness.applications import FEATURES, App, Inside, differences, same
from streampair.engine import OrderedRecord
from streampair.engine.records import LABEL_LEARNED, LABEL_STOPPED
from streampair.engine.recovery import RecoveredState
from streampair.engine.snapshot import unpack
from streampair.engine.wal import Chain, CommitEntry, Entry, Range, RangesEntry, StartEntry

DAY = 86_400_000
BEGIN = 1_700_000_000_000  # of the events, long ago: all of them are due
AFTER = 30 * DAY
LATENESS = 60_000
STOPPED = "declined"  # label_input.stopped


class Event(NamedTuple):
    """An event: its partition, time, id and value."""

    partition: int
    time: int
    id: str
    value: bytes


class Label(NamedTuple):
    """A label: its partition, time, id of the event, and value."""

    partition: int
    time: int
    id: str
    value: bool | str  # or STOPPED

    @property
    def code(self) -> int:
        """The code of the value."""
        return LABEL_STOPPED if self.value == STOPPED else 2 if self.value else 1


def stream(count: int, partitions: int, *, seed: int = 1) -> tuple[list[Event], list[Label]]:
    """Events six hours apart, and labels of most of the positive ones, up to 45 days late."""
    coin = random.Random(seed)
    made: list[Event] = []
    labels: list[Label] = []
    for number in range(count):
        y = coin.random() < 0.3
        x = {name: round(coin.gauss(0.4 if y else -0.2, 0.5), 6) for name in FEATURES}
        time = BEGIN + number * 6 * 3_600_000
        identity = f"p{number}"
        made.append(
            Event(number % partitions, time, identity, json.dumps({**x, "payment": identity}).encode())
        )
        if y and coin.random() < 0.8:
            delay = round(coin.random() * 45 * DAY)
            labels.append(Label(coin.randrange(2), time + delay, identity, True))
        elif coin.random() < 0.1:
            labels.append(Label(coin.randrange(2), time + DAY, identity, False))
    labels.sort(key=lambda label: label.time)
    return made, labels


def with_id(event: Event, identity: str) -> Event:
    """The event with another id, in its key and its value."""
    value = json.dumps({**json.loads(event.value), "payment": identity}).encode()
    return event._replace(id=identity, value=value)


def late_app(made: App, more: str = "") -> App:
    """The application with [label_input] in place of a label in its events."""
    text = made.path.read_text().replace('label = "y"\n', "")
    text += f"""
[label_input]
topic = "{made.name}-labels"
id = "payment"
label = "fraud"
after = "30d"
absent = false
{more}
"""
    made.path.write_text(text)
    return made


def create(app: App, *, label_partitions: int = 2, times: str = "CreateTime") -> App:
    """Make all topics."""
    # The events are years old: no retention by time may remove them.
    settings = {"message_timestamp_type": times, "retention_ms": "-1"}
    app.create_topics(**settings)
    app.kafka.create_topic(f"{app.name}-labels", partitions=label_partitions, **settings)
    app.kafka.create_topic(f"{app.name}-late-labels")
    return app


async def send(
    bootstrap: str, topic: str, messages: Sequence[tuple[int, int, bytes | None, bytes | None]]
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        futures = [
            await producer.send(topic, value, key=key, partition=partition, timestamp_ms=time)
            for partition, time, value, key in messages
        ]
        await asyncio.gather(*futures)


def send_events(app: App, events: Sequence[Event]) -> None:
    """Append events to the input."""
    rows = [(each.partition, each.time, each.value, each.id.encode()) for each in events]
    asyncio.run(send(app.kafka.bootstrap, app.input, rows))


def send_labels(app: App, labels: Sequence[Label]) -> None:
    """Append labels to their topic."""
    rows = [
        (
            each.partition,
            each.time,
            json.dumps({"payment": each.id, "fraud": each.value}).encode(),
            each.id.encode(),
        )
        for each in labels
    ]
    asyncio.run(send(app.kafka.bootstrap, f"{app.name}-labels", rows))


def joined(
    events: Sequence[Event], labels: Sequence[Label], *, after: int = AFTER, lateness: int = LATENESS
) -> list[tuple[Event, int]]:
    """Events in the order in which they are due, each with the code of its label."""
    found: list[tuple[Event, int]] = []
    used: set[int] = set()
    order = sorted(
        enumerate(events), key=lambda item: (item[1].time // BUCKET_MS, item[1].partition, item[0])
    )
    for _, event in order:
        mine = [
            (label.time, label.partition, number)
            for number, label in enumerate(labels)
            if label.id == event.id
            and number not in used
            and event.time - lateness <= label.time <= event.time + after
        ]
        used |= {number for *_, number in mine}
        found.append((event, labels[min(mine)[2]].code if mine else 0))
    return found


def by_arrival(
    events: Sequence[Event], labels: Sequence[Label], *, after: int = AFTER, lateness: int = LATENESS
) -> list[OrderedRecord]:
    """The events in the order in which they are learned with `order = "arrival"`.

    A label is for the first event of its id for which it is in time; others are learned when they are due.
    """
    records = due_records(events, labels, after=after, lateness=lateness)
    places = {(record.partition, record.position): record for record in records}
    counts: dict[int, int] = {}
    known: dict[str, list[tuple[int, int, int]]] = {}
    for event in events:
        position = counts.get(event.partition, 0)
        counts[event.partition] = position + 1
        known.setdefault(event.id, []).append((event.time, event.partition, position))
    ordered = sorted(
        enumerate(labels), key=lambda item: (item[1].time // BUCKET_MS, item[1].partition, item[0])
    )
    out: list[OrderedRecord] = []
    learned: set[tuple[int, int]] = set()
    waiting = list(records)

    def due(before: int | None) -> None:
        while waiting and (
            before is None or waiting[0].timestamp // BUCKET_MS < (before - after - lateness) // BUCKET_MS
        ):
            record = waiting.pop(0)
            if (record.partition, record.position) not in learned:
                out.append(record)

    for _, label in ordered:
        due(label.time)
        mine = sorted(each for each in known.get(label.id, []) if label.time - after <= each[0] <= label.time)
        if mine and mine[0][1:] not in learned:
            learned.add(mine[0][1:])
            record = places[mine[0][1:]]
            out.append(msgspec.structs.replace(record, label=label.code, early=True))
    due(None)
    return [msgspec.structs.replace(record, offset=number) for number, record in enumerate(out)]


def verify_learned(app: App, records: Sequence[OrderedRecord]) -> None:
    """What was learned is what a lane learns of these records that is not interrupted.

    If not, both states are kept next to the configuration.
    """
    config = load_config(app.path)
    lane = build_lane(config, json_decoder(config.input))
    lane.process(records)
    states = {"found": app.snapshot()["steps"], "wanted": unpack(lane.snapshot(clean=True))["steps"]}
    if same(states["found"], states["wanted"]):
        return
    for name, state in states.items():
        app.path.with_name(f"{name}.state").write_bytes(pickle.dumps(state))
    found = learned_places(Chain.peek(log_frames(app)), lambda each: range(each.first, each.end))
    wanted = [(each.partition, each.position, each.label) for each in records]
    raise AssertionError(
        "what was learned differs:\n"
        + "\n".join(differences(states["found"], states["wanted"]))
        + f"\nfound.state and wanted.state are in {app.path.parent}"
        + f"\nlearned, as far as the log has it (partition, offset, code of the label): {found}"
        + f"\nwanted: {wanted}"
        + f"\nwanted and not in the log: {[each for each in wanted if each not in found]}"
    )


def learned_places(
    entries: Sequence[Entry], offsets: Callable[[Range], Iterable[int]]
) -> list[tuple[int, int, int]]:
    """What was learned by the entries of a log, in its order: partition, offset and code of the label.

    Parameters
    ----------
    entries
        Of the log.
    offsets
        Those of the records in a range.
    """
    learned: list[tuple[int, int, int]] = []
    announced: list[tuple[int, int, int]] = []
    for entry in entries:
        if isinstance(entry, StartEntry):
            announced = []  # it is announced again
        elif isinstance(entry, RangesEntry):
            for each in entry.ranges:
                if each.labels:
                    codes = zip(offsets(each), each.labels, strict=True)
                    announced += [(each.partition, o, code) for o, code in codes if code != LABEL_LEARNED]
        elif isinstance(getattr(entry, "tip", entry), CommitEntry):
            learned, announced = learned + announced, []
    return learned


def due_records(events: Sequence[Event], labels: Sequence[Label], **times: int) -> list[OrderedRecord]:
    """The events as a lane takes them when they are due; `times` of `joined`."""
    counts: dict[int, int] = {}
    records = []
    for number, (event, code) in enumerate(joined(events, labels, **times)):
        position = counts.get(event.partition, 0)
        counts[event.partition] = position + 1
        records.append(
            OrderedRecord(
                *(number, event.value, event.id.encode(), event.time),
                partition=event.partition,
                position=position,
                label=code,
            )
        )
    return records


async def _read(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    ) as consumer:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        found: list[Any] = []
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
        return found


def read_topic(app: App, topic: str, partitions: int = 1) -> list[Any]:
    """Committed records of a topic."""
    return asyncio.run(_read(app.kafka.bootstrap, topic, partitions))


def late_labels(app: App) -> list[tuple[str, str]]:
    """Ids and reasons of the labels that were sent on."""
    return [
        (json.loads(record.value)["payment"], dict(record.headers)["streampair.reason"].decode())
        for record in read_topic(app, f"{app.name}-late-labels")
    ]


def sent(app: App, *, label_partitions: int = 2) -> tuple[list[Event], list[Label]]:
    """Events and labels as their topics have them, with the timestamps there."""
    events = [
        Event(record.partition, record.timestamp, record.key.decode(), record.value)
        for record in sorted(
            read_topic(app, app.input, app.partitions), key=lambda each: (each.partition, each.offset)
        )
    ]
    labels = [
        Label(record.partition, record.timestamp, record.key.decode(), json.loads(record.value)["fraud"])
        for record in sorted(
            read_topic(app, f"{app.name}-labels", label_partitions),
            key=lambda each: (each.partition, each.offset),
        )
    ]
    return events, labels


def n_due(worker: Inside) -> int:
    """Events that were due, learned or skipped, as committed."""
    found = [gauges.events for gauges in worker.telemetry.gauges(worker.app.name).values()]
    return sum(events["learned"] + events["skipped"] for events in found)


def due_offsets(app: App) -> dict[int, int]:
    """By partition how many events were learned when they were due, as the log has it; fences nobody."""
    known = RecoveredState.of(Chain.peek(log_frames(app)))
    source = None if known is None else known.source
    return {} if source is None else {each.partition: each.next_offset for each in source.due}


def due_ends(app: App) -> dict[int, int]:
    """By partition up to which offset events may have been learned and released, as the log has it."""
    found = due_offsets(app)
    known = RecoveredState.of(Chain.peek(log_frames(app)))
    for each in [] if known is None or known.source is None else known.source.ahead:
        if each.labels:
            found[each.partition] = each.end
    return found


def log_frames(app: App) -> bytes:
    """The log as a reader sees it, without fencing its owner."""
    if app.store == "directory":
        file = app.state / f"{app.name}@{app.input}-all.log"
        return file.read_bytes() if file.exists() else b""
    config = load_config(app.path)
    topic = LogTopic(config.require_kafka(), config.log_topic)
    seal = Seal(config.store.sealing_keys())
    return asyncio.run(TopicLog.read(topic, seal, context_of(config.lane_id))).frames


def sent_on_places(app: App) -> list[tuple[str, str]]:
    """Partition and offset, in the labels topic, of the labels that were sent on."""
    return [
        (headers["streampair.partition"].decode(), headers["streampair.offset"].decode())
        for record in read_topic(app, f"{app.name}-late-labels")
        for headers in [dict(record.headers)]
    ]


def make_app(kafka: Any, directory: Path, name: str, **options: Any) -> App:
    """An application with two partitions whose labels come later, and its topics."""
    more, times = options.pop("more", ""), options.pop("times", "CreateTime")
    return create(late_app(App(kafka, directory, name, **{"partitions": 2, **options}), more), times=times)
