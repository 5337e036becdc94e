"""The topic store: outputs, log, snapshot, offset and register of a lane in one Kafka transaction.

The order is in docs/design.md, "The steps of a commit". State moves between hosts, and a read_committed
consumer never sees an output twice. The log topic has as many partitions as the input. Each message is a
frame of the log, or a piece of a snapshot:

- frame: the message key names the lane; the value has its sequence (8) and the tag of the previous entry (32)
  in plaintext, then the frame, encrypted with lane, sequence and predecessor as associated data;
- piece: the message key names snapshot, number and count; encrypted with lane and key as associated data.

Records older than the last snapshot but one are deleted.

The log topic belongs to the lane of its first frame; other lanes are refused. If two lanes start in an empty
topic at once, each reads it again after its first transaction, and the second is refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from streampair.engine import Commit, LogAppend, UnusableLogError
from streampair.engine.lane_id import LaneId
from streampair.engine.snapshot import OR_ANEW
from streampair.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    SourceError,
    StoreError,
    StreampairError,
)
from streampair_connectors.config import Config
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    Committed,
    LogTopic,
    Message,
    Partition,
    RecordReader,
    ended,
    size_of,
    transactional_id,
)
from streampair_connectors.kafka.admin import output_topics
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.stores.base import group_offsets
from streampair_connectors.stores.encryption import OVERHEAD, Seal

__all__ = [
    "TopicLane",
    "TopicLog",
    "TopicStore",
    "check_log_partitions",
    "context_of",
    "key_missing",
    "seal_of",
]

log = get_logger(__name__)

_R = TypeVar("_R")

_FRAME: Final = b"frame|"  # and the lane
_HEAD: Final = 8 + 32  # sequence and predecessor
# Room for key and headers, so that a piece of a snapshot stays below the topic's limit.
_MARGIN: Final = 4096
_RETRY_SECONDS: Final = 30.0


def seal_of(config: Config) -> Seal:
    """The seal of an application: with its sealing keys, or else the private learner's noise key, or none.

    Raises
    ------
    ConfigError
        A key cannot be read, or is too short.
    """
    keys = config.store.sealing_keys()
    noise = config.learner.noise_key()
    # The noise key is as sensitive as the state: whoever has it can compute the noise.
    return Seal(keys or ([noise] if noise is not None else []))


def key_missing() -> ConfigError:
    """Return the error for a private learner with its state in Kafka and no configured noise key."""
    return ConfigError(
        "the state is kept in Kafka, and no noise key is configured: it must be the same on every host",
        fix="create one with: streampair key --output noise.key; then set "
        'learner.noise_key_file = "noise.key". Or keep the state on this machine: store.directory = "state"',
    )


def check_log_partitions(config: Config, count: int) -> None:
    """Refuse a log topic with several partitions.

    Raises
    ------
    ConfigError
    """
    if count != 1:
        raise ConfigError(
            f"the log topic {config.log_topic!r} has {count} partitions, and the lane has one log",
            fix="set store.log_topic to a new name",
        )


class TopicStore:
    """The log topic of an application, for one connection to the cluster.

    Parameters
    ----------
    config
        Of the application.
    lookup
        Reads logs; None: a new connection per log.
    cluster
        Makes clients.
    """

    def __init__(
        self,
        config: Config,
        *,
        lookup: RecordReader | None = None,
        cluster: Cluster = KAFKA,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._kafka = config.require_kafka()
        self._seal = seal_of(config)
        self._topic = cluster.log_topic(self._kafka, config.log_topic, lookup)
        self._lanes: set[TopicLane] = set()

    async def start(self) -> None:
        """Create the log topic, or check its settings.

        Raises
        ------
        ConfigError
            Its settings can lose entries, or it has several partitions.
        """
        count = await self._topic.ensure(
            replication_factor=self._config.topics.replication_factor, strict=True
        )
        check_log_partitions(self._config, count)
        if not self._seal.seals:
            log.info(
                "state_not_sealed",
                app=self._config.app,
                topic=self._config.log_topic,
                next_step="the topic contains unencrypted rows of the input: limit its readers to those of "
                "the input, or set store.key_file",
            )

    async def open(self, starts: Mapping[int, int]) -> TopicLane:
        """Fence every earlier owner of the lane, and return its store."""
        lane = TopicLane(
            self._config, self._topic, self._seal, starts, self._lanes.discard, cluster=self._cluster
        )
        await lane.start()
        self._lanes.add(lane)
        return lane

    async def committed(self, partitions: Sequence[Partition]) -> dict[int, Committed | None]:
        """The group's offsets and register."""
        found = await self._cluster.read_register(self._kafka, self._config.app, partitions)
        return {partition.partition: found[partition] for partition in partitions}

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Outputs are stored by the commit: only remember `give_up` and `on_trouble`."""
        for lane in self._lanes:
            lane.give_up, lane.on_trouble = give_up, on_trouble
        return True

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of outputs that wait for their commit."""
        return sum(lane.waiting_bytes for lane in self._lanes)

    @property
    def stuck(self) -> bool:
        """Whether the transaction of a lane is tried again and again."""
        return any(lane.stuck for lane in self._lanes)

    async def stop(self) -> None:
        """Close all lanes."""
        for lane in list(self._lanes):
            await lane.close()


def context_of(identity: LaneId) -> bytes:
    """Prefix of the associated data of a lane's values."""
    lane = identity.text.encode()
    return len(lane).to_bytes(4, "big") + lane


def _frame_key(context: bytes) -> bytes:
    """The message key of the frames of a lane."""
    return _FRAME + context[4:]


class ForeignLogError(StoreError):
    """The log of another application, or of another input."""


def _foreign(topic: str, key: bytes) -> ForeignLogError:
    """Return the error for a log topic of another application or input."""
    app, source = (key[len(_FRAME) :].decode(errors="replace") + "|").split("|")[:2]
    return ForeignLogError(
        f"the log topic {topic!r} has the log of application {app!r}, input {source!r}: it is for one "
        "application and one input",
        fix="set store.log_topic to another name, or remove the key: the default is APP-INPUT-log",
    )


class TopicLog:
    """Content of the log topic.

    Attributes
    ----------
    frames
        The log, as far as it can be decrypted.
    starts
        Offsets in the topic at which snapshots start.
    damage
        Error at which `frames` ends before the log does; None: it is complete.
    """

    def __init__(self, topic: str, seal: Seal, context: bytes) -> None:
        self.frames = b""
        self.starts: list[int] = []
        self.damage: StreampairError | None = None
        self._topic = topic
        self._seal = seal
        self._context = context
        self._pieces: dict[bytes, bytes] = {}

    @classmethod
    async def read(cls, topic: LogTopic, seal: Seal, context: bytes) -> TopicLog:
        """Read all committed messages, without fencing the owner.

        Raises
        ------
        SourceError
            The broker does not answer.
        UnusableLogError
            A message is incomplete.
        StoreError
            The log belongs to another lane.
        """
        stored = cls(topic.name, seal, context)
        frames: list[bytes] = []
        frame_key = _frame_key(context)
        first_piece: dict[bytes, int] = {}
        for offset, key, value in await topic.read():
            if key is not None and key.startswith(_FRAME):
                if key != frame_key:
                    if not frames:
                        raise _foreign(topic.name, key)
                    continue  # of a second lane, which was refused
            else:
                first_piece.setdefault((key or b"").split(b"|")[0], offset)
                stored._pieces[key or b""] = value
                continue
            try:
                frames.append(stored._decrypt(offset, value))
            except (StoreError, UnusableLogError) as error:
                stored.damage = error
                break
        if stored._pieces and not frames and stored.damage is None:
            stored.damage = UnusableLogError(
                f"the log topic {topic.name!r} has {len(stored._pieces)} record(s), and no entry of a log "
                "that this release reads: another release has written them, or the entries are lost",
                fix=f"run the release that wrote them, or restore the topic. {OR_ANEW}",
            )
        stored.frames = b"".join(frames)
        stored.starts = sorted(first_piece.values())
        return stored

    def _decrypt(self, offset: int, value: bytes) -> bytes:
        if len(value) < _HEAD:
            raise UnusableLogError(
                f"the record at offset {offset} of {self._topic} is not an entry of a log",
                fix=f"set store.log_topic to a topic without other writers. {OR_ANEW}",
            )
        return self._seal.open(value[_HEAD:], self._context + value[:_HEAD])

    def snapshot(self, content: str) -> bytes:
        """Join the pieces of a snapshot.

        Raises
        ------
        UnusableLogError
            It is missing or incomplete.
        """
        name = content[:32].encode()
        pieces = {key: value for key, value in self._pieces.items() if key.split(b"|")[0] == name}
        count = int(next(iter(pieces)).split(b"|")[2]) if pieces else 0
        parts = []
        for number in range(count):
            key = b"%s|%d|%d" % (name, number, count)
            if key not in pieces:
                break
            parts.append(self._seal.open(pieces[key], self._context + key))
        if not count or len(parts) != count:
            raise UnusableLogError(
                f"the snapshot {content[:32]} in the log is missing or incomplete in {self._topic}",
                fix=f"restore the topic: only streampair may delete its records. {OR_ANEW}",
            )
        return b"".join(parts)


class TopicLane:
    """Store of the lane: a transactional producer and the log topic."""

    def __init__(
        self,
        config: Config,
        topic: LogTopic,
        seal: Seal,
        starts: Mapping[int, int],
        on_close: Callable[[TopicLane], None],
        *,
        cluster: Cluster = KAFKA,
    ) -> None:
        self._config = config
        self._topic = topic
        self._seal = seal
        self._log = topic.place
        self._starts = starts
        self._on_close = on_close
        self._context = context_of(config.lane_id)
        self._limit = config.output.max_message_bytes - _MARGIN
        self._lines: list[LogAppend] = []
        self._waiting: dict[Partition, list[Message]] = {}
        self.waiting_since: float | None = None  # `release` does nothing here
        self._stored: TopicLog | None = None
        self._is_new = False
        # Offsets in the log topic at which the last two snapshots start.
        self._before_last: int | None = None
        self._last: int | None = None
        self._trimming: asyncio.Task[None] | None = None
        self.stuck = False  # a transaction was aborted, and is tried again
        self.waiting_bytes = 0
        self.give_up = asyncio.Event()
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._producer = cluster.transactional_producer(
            config.require_kafka(),
            transactional_id(*config.lane_id),
            name=config.input.topic,
            max_message_bytes=config.output.max_message_bytes,
            timeout_seconds=config.store.transaction_timeout.seconds,
            topics=tuple(filter(None, (*output_topics(config).values(), config.model_topic, topic.name))),
            group=config.app,
        )

    @property
    def clock_ahead(self) -> int | None:
        """Lead of this host's clock over the broker's, at most, in milliseconds; None: unknown."""
        return self._producer.clock_ahead

    async def start(self) -> None:
        """Fence every earlier owner, and abort its open transaction."""
        await self._producer.start()

    async def read(self) -> bytes:
        """Return the frames of the log; pieces of snapshots are kept for `snapshot`."""
        self._stored = await self._read()
        self._is_new = not self._stored.frames
        if self._stored.damage is not None:
            raise self._stored.damage
        # A transaction has the pieces of a snapshot, then its entry. So the log can be trimmed to the start
        # of the pieces.
        starts = self._stored.starts
        self._last = starts[-1] if starts else None
        self._before_last = starts[-2] if len(starts) > 1 else None
        return self._stored.frames

    async def _read(self) -> TopicLog:
        return await TopicLog.read(self._topic, self._seal, self._context)

    async def snapshot(self, content: str) -> bytes:
        """Return a snapshot."""
        stored, self._stored = self._stored, None
        if stored is None:
            raise StoreError(f"{self._log.topic} has not been read", fix="read the log before its snapshot")
        return stored.snapshot(content)

    async def secret(self, name: str, *, fresh: bool) -> bytes:
        """Refuse: a key that is drawn on one host is missing on the next.

        Raises
        ------
        ConfigError
        """
        raise key_missing()

    async def cut(self, used: int) -> None:
        """Refuse: transactions leave no incomplete entry."""
        raise StoreError(
            "the log in Kafka has an incomplete entry", fix="look for other writers of its topic"
        )

    async def append(self, append: LogAppend) -> None:
        """Store frames and register in a transaction."""
        await self._transaction([(self._log, self._log_messages(append))], append)
        if self._is_new:
            # Another application may have started the same log. Readers see a committed transaction with a
            # delay.
            try:
                async with asyncio.timeout(self._config.require_kafka().connect_timeout.seconds):
                    while True:
                        found = await self._read()
                        if found.frames or found.damage:
                            break
                        await asyncio.sleep(0.02)
            except TimeoutError:
                raise SourceError(
                    f"the first entry of the log in {self._log.topic} cannot be read back",
                    fix="wait until open transactions on this topic have ended; the worker retries",
                ) from None
            self._is_new = False

    async def line(self, append: LogAppend) -> None:
        """Keep the line for the commit, which makes it durable before its outputs."""
        self._lines.append(append)

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Keep outputs for their commit."""
        self._waiting.setdefault(target, []).extend(messages)
        self.waiting_bytes += size_of(messages)

    async def release(self, give_up: asyncio.Event) -> None:
        """Do nothing: outputs are stored by the commit."""

    async def commit(self, commit: Commit) -> None:
        """Store outputs, snapshot, frames, offset and register in one transaction; their lines in one before.

        A read_uncommitted consumer sees the outputs of an aborted transaction, too. So their lines must be
        stored before it begins.
        """
        if self._lines:
            frames = tuple(frame for line in self._lines for frame in line.frames)
            await self.append(dataclasses.replace(self._lines[-1], frames=frames))
            self._lines = []
        entries = self._log_messages(commit)
        if commit.content is not None and commit.snapshot is not None:
            entries = self._snapshot_messages(commit.content, commit.snapshot) + entries
        stored = await self._transaction([*self._waiting.items(), (self._log, entries)], commit)
        self._waiting, self.waiting_bytes = {}, 0
        if commit.content is not None:
            await self._trim()
            self._before_last, self._last = self._last, stored[self._log][0]

    async def close(self) -> None:
        """Close the producer."""
        self._on_close(self)
        await ended(self._trimming)
        await self._producer.stop()

    async def rewrite(
        self, frames: Sequence[bytes], content: str | None, snapshot: bytes | None, append: LogAppend | None
    ) -> None:
        """Start the log again from its last snapshot, and delete everything before.

        Parameters
        ----------
        frames
            Kept frames.
        content, snapshot
            Snapshot at their start; None: none.
        append
            Entry after them; None: none, and offset and register stay unchanged.
        """
        kept = [*frames, *(() if append is None else append.frames)]
        entries = self._log_messages(LogAppend(tuple(kept), "", None))
        if content is not None and snapshot is not None:
            entries = self._snapshot_messages(content, snapshot) + entries
        if append is None:
            stored = await self._producer.transaction([(self._log, entries)], offsets={})
        else:
            stored = await self._transaction([(self._log, entries)], append)
        await self._topic.trim(stored[self._log][0])

    def _log_messages(self, append: LogAppend) -> list[Message]:
        messages, key = [], _frame_key(self._context)
        for frame in append.frames:
            head = frame[:8] + frame[12:44]
            messages.append(Message(key, head + self._seal.seal(frame, self._context + head)))
        return messages

    def _snapshot_messages(self, content: str, snapshot: bytes) -> list[Message]:
        room = self._limit - OVERHEAD
        parts = [snapshot[start : start + room] for start in range(0, len(snapshot), room)] or [b""]
        messages = []
        for number, part in enumerate(parts):
            key = b"%s|%d|%d" % (content[:32].encode(), number, len(parts))
            messages.append(Message(key, self._seal.seal(part, self._context + key)))
        return messages

    async def _transaction(
        self, sends: list[tuple[Partition, list[Message]]], append: LogAppend
    ) -> dict[Partition, list[int]]:
        offsets = group_offsets(self._config.input.topic, self._starts, append)
        pause = 0.1
        while True:
            try:
                stored = await self._until_give_up(self._producer.transaction(sends, offsets=offsets))
                self.stuck = False
                return stored
            except SourceError as error:
                # Certainly aborted, and the producer is usable: retry.
                if not (error.retriable and self._producer.usable) or self.give_up.is_set():
                    raise
                self.stuck = True
                self.on_trouble(error.problem)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _until_give_up(self, work: Coroutine[Any, Any, _R]) -> _R:
        """Await `work` until `give_up` is set: a broker may never answer."""
        task, give_up = asyncio.ensure_future(work), asyncio.ensure_future(self.give_up.wait())
        # After a cancellation nobody reads it, and `close` waits for its end.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait({task, give_up}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            await ended(task)
        finally:
            give_up.cancel()
        raise CommitOutcomeUnknownError(
            f"the broker did not answer in time, so it is unknown whether the last commit of "
            f"{self._config.input.topic} is stored",
            fix="none is needed: the next start of the lane reads the outcome",
        )

    async def _trim(self) -> None:
        """Delete records older than the last snapshot but one, in the background."""
        if self._before_last is None or (self._trimming is not None and not self._trimming.done()):
            return

        async def trim(before: int) -> None:
            try:
                await self._topic.trim(before)
            except SourceError as error:
                log.warning(
                    "log_not_trimmed",
                    app=self._config.app,
                    topic=self._log.topic,
                    detail=error.problem,
                    next_step=error.fix,
                )

        self._trimming = asyncio.create_task(trim(self._before_last))
