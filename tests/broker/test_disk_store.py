"""What leaves a lane on a disk waits for lines that are durable, and many lines are so with one register."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from broker.test_register import member
from harness.kafka import Cluster
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Committed, Message, Partition, Producer, read_register
from streampair_connectors.stores import DiskLane, DiskStore

from streampair.engine import LogAppend
from streampair.errors import CommitOutcomeUnknownError, FencedError

pytestmark = pytest.mark.directory

Unique = Callable[[str], str]


class Watched(Producer):
    """Notes beside each message which register is stored when it is handed over."""

    async def send(self, target: Partition, messages: list[Message]) -> None:
        found = await read_register(self._config, self.group, [self.lane])
        self.seen += [(message.value, found[self.lane]) for message in messages]
        await super().send(target, messages)

    def watch(self, group: str, lane: Partition) -> None:
        self.group, self.lane = group, lane
        self.seen: list[tuple[bytes | None, Committed | None]] = []


def entry(frame: bytes, register: str, offset: int) -> LogAppend:
    """An append of a lane."""
    return LogAppend((frame,), register, offset, positions={0: offset})


class Early(DiskLane):
    """Lets its outputs go before what they wait for."""

    async def release(self, give_up: asyncio.Event) -> None:
        for target, messages in self._take_waiting():
            await self._store.producer.send(target, messages)
        await super().release(give_up)


class Hasty(DiskLane):
    """Does not look whether a line waits."""

    async def send(self, target: Partition, messages: list[Message]) -> None:
        await self._store.producer.send(target, messages)


class Refused(DiskLane):
    """Whose register is another owner's."""

    async def _register(self, append: LogAppend) -> None:
        raise FencedError("the lane has another owner", fix="drop it")


def config_of(kafka: Cluster, app: str, topic: str, out: str, directory: Path) -> Config:
    return parse_config(
        {
            "app": app,
            "kafka": {"bootstrap_servers": kafka.bootstrap},
            "input": {"topic": topic, "label": "y"},
            "output": {"topic": out, "dead_letter_topic": f"{out}-dead"},
            "learner": {"class": "streampair.auc.PairOGD"},
            "store": {"directory": str(directory)},
        }
    )


@pytest.mark.parametrize(("kind", "holds"), [(DiskLane, True), (Early, False), (Hasty, False)])
def test_no_output_leaves_before_its_line(
    kafka: Cluster, unique: Unique, tmp_path: Path, kind: type[DiskLane], holds: bool
) -> None:
    app, topic, out = unique("app"), kafka.create_topic(unique("events")), kafka.create_topic(unique("out"))
    config = config_of(kafka, app, topic, out, tmp_path)
    source, target, give_up = Partition(topic, 0), Partition(out, 0), asyncio.Event()

    async def body() -> None:
        producer = Watched(config.require_kafka(), max_message_bytes=config.output.max_message_bytes)
        producer.watch(app, source)
        await producer.start()
        try:
            async with member(kafka, topic, app) as consumer:
                store = DiskStore(config, consumer, producer)
                lane = await store.open({0: 0})
                lane.__class__ = kind
                await lane.send(target, [Message(None, b"a")])  # nobody's privacy: no line before it
                assert lane.waiting_since is None
                await lane.line(entry(b"1", "first", 1))
                await lane.send(target, [Message(None, b"b")])
                await lane.line(entry(b"2", "second", 1))
                await lane.send(target, [Message(None, b"c"), Message(None, b"d")])
                if holds:
                    assert lane.waiting_since is not None
                    assert store.waiting_bytes == 3
                    assert store.unacknowledged_bytes == 4
                    assert await lane.read() == b""
                await lane.release(give_up)
                assert lane.waiting_since is None
                assert store.waiting_bytes == 0
                assert await lane.read() == b"12"
                await lane.line(entry(b"3", "third", 2))
                await lane.send(target, [Message(None, b"e")])
                await lane.release(give_up)
                assert await lane.read() == b"123"
                # Where the lane ends before it has released them, the next owner makes them again.
                await lane.line(entry(b"4", "fourth", 3))
                await lane.send(target, [Message(None, b"f")])
                await lane.close()
                assert store.waiting_bytes == 0
                assert await producer.flush(give_up, lambda _: None)
        finally:
            await producer.stop()
        second, third = Committed(1, "second"), Committed(2, "third")
        due = [(b"a", None), *[(value, second) for value in (b"b", b"c", b"d")], (b"e", third)]
        assert (producer.seen == due) is holds

    asyncio.run(body())


def test_a_line_is_not_written_twice(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    """Where it is not known whether it is stored, nobody goes on with the lane, and nothing has left."""
    app, topic, out = unique("app"), kafka.create_topic(unique("events")), kafka.create_topic(unique("out"))
    config, give_up = config_of(kafka, app, topic, out, tmp_path), asyncio.Event()

    async def body() -> None:
        producer = Watched(config.require_kafka(), max_message_bytes=config.output.max_message_bytes)
        producer.watch(app, Partition(topic, 0))
        async with member(kafka, topic, app) as consumer:
            lane = await DiskStore(config, consumer, producer).open({0: 0})
            lane.__class__ = Refused
            await lane.line(entry(b"1", "first", 1))
            await lane.send(Partition(out, 0), [Message(None, b"a")])
            with pytest.raises(FencedError):
                await lane.release(give_up)
            for again in (lane.release(give_up), lane.append(entry(b"2", "second", 1))):
                with pytest.raises(
                    CommitOutcomeUnknownError, match=r"it is unknown whether an earlier entry.*Fix: "
                ):
                    await again
            assert await lane.read() == b"1"
            assert producer.seen == []
            await lane.close()

    asyncio.run(body())
