"""The dead letters of an application: read, grouped by cause, and sent to their topics again, each once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from streampair.errors import ConfigError
from streampair_connectors.codecs.records import Headers
from streampair_connectors.config import Config
from streampair_connectors.kafka import (
    Message,
    Partition,
    RecordLike,
    RecordReader,
    TransactionalProducer,
    describe_topics,
    transactional_id,
)
from streampair_connectors.kafka.producer import PART, part_of
from streampair_connectors.worker.causes import cause_name
from streampair_connectors.worker.factory import is_private

__all__ = ["Cause", "DeadLetters", "StoredLetter", "by_cause", "read_dead_letters", "replay_dead_letters"]

REPLAYED = "streampair.replayed"
"""Header of a marker in the dead-letter topic, and of an event that was sent again."""

_OURS = "streampair."
_LARGEST = 100_000_000  # bytes of an event, as of input.max_event_bytes: an event is never split
_CHUNK = 500  # letters of one transaction
_CHUNK_BYTES = 4 * 1024 * 1024


class StoredLetter(msgspec.Struct, frozen=True):
    """A dead letter as it stands in its topic.

    Attributes
    ----------
    partition, offset
        Of the letter.
    topic, source_partition, source_offset, timestamp
        Of the event.
    stage, error
        As of `streampair.engine.DeadLetter`.
    key, value, headers
        Of the event.
    again
        Whether the event had been sent again before.
    replayed
        Whether the letter was sent again.
    """

    partition: int
    offset: int
    topic: str
    source_partition: int
    source_offset: int
    timestamp: int
    stage: str
    error: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    again: bool = False
    replayed: bool = False

    def same_event(self, other: StoredLetter) -> bool:
        """Whether both are of one event: the parts of a large letter follow each other."""
        mine = self.partition, self.topic, self.source_partition, self.source_offset
        return mine == (other.partition, other.topic, other.source_partition, other.source_offset)

    @property
    def cause(self) -> str:
        """Short name of the cause, as `streampair_connectors.worker.causes.cause_name`."""
        return cause_name(self.stage, self.error)


class Cause(msgspec.Struct, frozen=True):
    """Dead letters of one cause.

    Attributes
    ----------
    name
        As of `StoredLetter.cause`.
    stage, error
        Of the newest one.
    waiting, replayed
        Letters that were not sent again, and those that were.
    again
        Waiting letters whose events were sent again before, and failed again.
    first_ms, last_ms
        Earliest and latest timestamp of their events, in milliseconds; 0: they have none.
    newest
        Topic, partition and offset of the newest event.
    """

    name: str
    stage: str
    error: str
    waiting: int
    replayed: int
    again: int
    first_ms: int
    last_ms: int
    newest: str


class DeadLetters(msgspec.Struct, frozen=True):
    """What the dead-letter topic holds of an application.

    Attributes
    ----------
    topic
        Its name.
    letters
        In the order of partitions and offsets.
    others
        Records that are no dead letters of this application.
    """

    topic: str
    letters: list[StoredLetter]
    others: int


def by_cause(letters: Sequence[StoredLetter]) -> list[Cause]:
    """Group letters by cause, those with the most waiting letters first.

    Examples
    --------
    >>> def letter(offset, error):
    ...     return StoredLetter(0, offset, "payments", 0, offset, 0, "decode", error, None, b"", [])
    >>> found = by_cause([letter(1, "row 17 is no JSON"), letter(2, "row 18 is no JSON")])
    >>> [(cause.waiting, cause.error) for cause in found]
    [(2, 'row 18 is no JSON')]
    """
    groups: dict[str, list[StoredLetter]] = {}
    for letter in letters:
        groups.setdefault(letter.cause, []).append(letter)
    causes = []
    for name, group in groups.items():
        newest = max(group, key=lambda each: (each.timestamp, each.offset))
        times = [each.timestamp for each in group if each.timestamp > 0]
        waiting = [each for each in group if not each.replayed]
        causes.append(
            Cause(
                name=name,
                stage=newest.stage,
                error=newest.error,
                waiting=len(waiting),
                replayed=len(group) - len(waiting),
                again=sum(each.again for each in waiting),
                first_ms=min(times, default=0),
                last_ms=max(times, default=0),
                newest=f"{newest.topic}-{newest.source_partition}@{newest.source_offset}",
            )
        )
    return sorted(causes, key=lambda cause: (-cause.waiting, -cause.replayed, cause.name))


async def read_dead_letters(config: Config) -> DeadLetters:
    """Read the dead-letter topic to its end.

    Raises
    ------
    ConfigError
        Events that cannot be used do not go to a topic, or the topic does not exist.
    SourceError
        The broker does not answer.
    """
    topic = _topic(config)
    partitions = (await describe_topics(config.require_kafka())).get(topic)
    if partitions is None:
        raise ConfigError(
            f"the dead-letter topic {topic!r} does not exist",
            fix="none is needed if no worker has run yet; otherwise name it as output.dead_letter_topic",
        )
    lookup = RecordReader(config.require_kafka())
    letters: list[StoredLetter] = []
    replayed: set[tuple[int, int]] = set()
    others = 0
    try:
        async with contextlib.aclosing(lookup.topic(topic, partitions)) as records:
            async for number, record in records:
                headers = dict(record.headers)
                if headers.get("streampair.app") != config.app.encode():
                    others += 1
                elif "streampair.stage" not in headers:
                    replayed |= _marked(record.value)
                else:
                    part, _ = part_of(headers.get(PART))
                    found = _stored(number, record, headers)
                    if part > 1 and letters and letters[-1].same_event(found):
                        value = (letters[-1].value or b"") + (found.value or b"")
                        letters[-1] = msgspec.structs.replace(letters[-1], value=value)
                    else:
                        letters.append(found)
    finally:
        await lookup.stop()
    done = [
        msgspec.structs.replace(each, replayed=(each.partition, each.offset) in replayed) for each in letters
    ]
    return DeadLetters(topic, sorted(done, key=lambda each: (each.partition, each.offset)), others)


def _topic(config: Config) -> str:
    if config.worker.on_bad != "dlq":
        raise ConfigError(
            f"there are no dead letters: worker.on_bad is {config.worker.on_bad!r}",
            fix='set worker.on_bad = "dlq" to keep events that cannot be used',
        )
    return config.dead_letter_topic


def _stored(partition: int, record: RecordLike, headers: Mapping[str, bytes | None]) -> StoredLetter:
    def text(name: str) -> str:
        return (headers.get(_OURS + name) or b"").decode("utf-8", "replace")

    def number(name: str, missing: int) -> int:
        found = text(name)
        return int(found) if re.fullmatch(r"-?[0-9]{1,18}", found) else missing

    return StoredLetter(
        partition=partition,
        offset=record.offset,
        topic=text("topic"),
        source_partition=number("partition", -1),
        source_offset=number("offset", -1),
        timestamp=number("timestamp", 0),
        stage=text("stage"),
        error=text("error"),
        key=record.key,
        value=record.value,
        headers=[(name, value) for name, value in record.headers if not name.startswith(_OURS)],
        again=REPLAYED in headers,
    )


def _marker(letters: Sequence[StoredLetter]) -> bytes:
    places: dict[int, list[int]] = {}
    for letter in letters:
        places.setdefault(letter.partition, []).append(letter.offset)
    return msgspec.json.encode(places)


def _marked(marker: bytes | None) -> set[tuple[int, int]]:
    """The letters that a marker names."""
    try:
        places = msgspec.json.decode(marker or b"", type=dict[int, list[int]])
    except msgspec.MsgspecError:
        return set()
    return {(partition, offset) for partition, offsets in places.items() for offset in offsets}


async def replay_dead_letters(config: Config, *, causes: Collection[str] = ()) -> list[StoredLetter]:
    """Send the events of dead letters to their topics again: each letter once, whatever dies meanwhile.

    The events and a marker in the dead-letter topic are one transaction. Who replays reads the markers
    after no one else can write them, so two that replay at the same time send nothing twice. Each event goes
    to the partition that it came from, with its key, its headers and its timestamp.

    Parameters
    ----------
    config
        The configuration, with [kafka].
    causes
        Names of causes (`StoredLetter.cause`); none: all.

    Returns
    -------
    list of StoredLetter
        Those that were sent.

    Raises
    ------
    ConfigError
        The learner is private, a cause is unknown, or an event came from a topic or a partition that the
        configuration does not read.
    SourceError
        The broker does not answer; letters of finished transactions are sent.
    """
    check_replayable(config)
    topic = _topic(config)
    producer = TransactionalProducer(
        config.require_kafka(),
        transactional_id(config.app, topic, 0),
        name=topic,
        max_message_bytes=_LARGEST,
        topics=(topic, config.input.topic),
    )
    await producer.start()  # from here on no other replay can write
    try:
        found = await read_dead_letters(config)
        known = {letter.cause for letter in found.letters}
        if unknown := sorted(set(causes) - known):
            raise ConfigError(
                f"no dead letter has the cause {unknown[0]!r}",
                fix="`streampair dlq list` prints the causes",
            )
        chosen = [
            letter
            for letter in found.letters
            if not letter.replayed and (not causes or letter.cause in causes)
        ]
        await _check_sources(config, chosen)
        for chunk in _chunks(chosen):
            marker = Message(None, _marker(chunk), [("streampair.app", config.app.encode()), (REPLAYED, b"")])
            sends: dict[Partition, list[Message]] = {}
            for letter in chunk:
                headers = [*letter.headers, (REPLAYED, f"{letter.partition}@{letter.offset}".encode())]
                when = letter.timestamp if letter.timestamp > 0 else None
                target = Partition(letter.topic, letter.source_partition)
                sends.setdefault(target, []).append(Message(letter.key, letter.value, headers, when))
            sends.setdefault(Partition(topic, chunk[0].partition), []).append(marker)
            await producer.transaction(list(sends.items()), offsets={})
        return chosen
    finally:
        await producer.stop()


def check_replayable(config: Config) -> None:
    """Refuse a replay into a private learner.

    Raises
    ------
    ConfigError
        The learner is private: each dead letter has used a slot, and would use a second one.
    """
    if is_private(config):
        raise ConfigError(
            "the learner is private: each of these events has used its slot, and would use a second one, "
            "which the guarantee does not count",
            fix="correct the producer; later events are learned. `streampair dlq show` prints the old ones",
        )


async def _check_sources(config: Config, letters: Sequence[StoredLetter]) -> None:
    topic = config.input.topic
    count = (await describe_topics(config.require_kafka())).get(topic, 0)
    for letter in letters:
        if letter.topic != topic:
            raise ConfigError(
                f"the event of the dead letter {letter.partition}@{letter.offset} came from the topic "
                f"{letter.topic!r}, and this configuration reads {topic!r}",
                fix="use the configuration that the application had, or choose others with --cause",
            )
        if not 0 <= letter.source_partition < count:
            raise ConfigError(
                f"the topic {topic!r} has no partition {letter.source_partition}, from which an event came",
                fix="create the topic with as many partitions as it had",
            )


def _chunks(letters: Sequence[StoredLetter]) -> Iterator[list[StoredLetter]]:
    """Letters of one partition, for one transaction each."""
    chunk: list[StoredLetter] = []
    size = 0
    for letter in letters:
        size += len(letter.value or b"") + len(letter.key or b"")
        if chunk and (len(chunk) == _CHUNK or size > _CHUNK_BYTES or letter.partition != chunk[0].partition):
            yield chunk
            chunk, size = [], len(letter.value or b"") + len(letter.key or b"")
        chunk.append(letter)
    if chunk:
        yield chunk
