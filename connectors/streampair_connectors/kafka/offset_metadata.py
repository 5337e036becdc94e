"""The register of a lane: a text beside the group's committed offset, out of reach of the lane's own storage.

What the text says is the engine's affair. Here it is read without ever taking a failure for "there is none",
and written so that a failure is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest_v3
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from streampair.errors import SourceError, StoreError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import Partition, client_options, reach_error, stop_quietly, unbroken
from streampair_connectors.kafka.consumer import Consumer

__all__ = [
    "REGISTER_BYTES",
    "Committed",
    "check_register",
    "commit_register",
    "read_register",
    "write_register_offline",
]

REGISTER_BYTES = 1024
"""The longest register. Brokers take 4096 bytes by default, and a producer dies of a longer one."""

_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which the client does not know
_MEMBERS = {  # why a commit by nobody is refused: the group has members
    kafka_errors.UnknownMemberIdError.errno,
    kafka_errors.IllegalGenerationError.errno,
    kafka_errors.RebalanceInProgressError.errno,
    82,  # FENCED_INSTANCE_ID
    113,  # STALE_MEMBER_EPOCH
}

_T = TypeVar("_T")


class Committed(NamedTuple):
    """What the group has committed for a partition: the next offset to read, and the text beside it."""

    offset: int
    metadata: str


# The client knows this request up to version 3. Version 7 (KIP-447, Kafka 2.5) has `require_stable`: a broker
# that has ended a transaction may still be about to write its offsets down, and then says so. Without it, it
# gives the ones before.
class _FetchResponse7(Response):  # type: ignore[misc]  # untyped base
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _FetchRequest7(RequestStruct):  # type: ignore[misc]  # untyped base
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _FetchResponse7
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _Fetch(Request[OffsetFetchRequest_v3 | _FetchRequest7]):  # type: ignore[misc]  # untyped base
    """Ask for offsets in the newest of the two versions that the broker speaks."""

    API_KEY = 9

    def __init__(self, group: str, topics: Mapping[str, list[int]]) -> None:
        self._group = group
        self._topics = topics

    def build(self, struct: Any) -> Any:
        if struct is _FetchRequest7:
            return struct(self._group, [(t, p, {}) for t, p in self._topics.items()], True, {})
        return struct(self._group, list(self._topics.items()))


class _Again(Exception):
    """The coordinator cannot answer just now; `args[0]` is the client's error for what it said."""


async def read_register(
    config: KafkaConfig, group: str, partitions: Iterable[Partition]
) -> dict[Partition, Committed | None]:
    """Return what a group has committed, for each of the partitions asked for.

    None says that the broker was asked, answered without an error, and named this partition as one for which
    nothing is committed: there never was anything, it has expired, or somebody deleted it.

    Raises
    ------
    SourceError
        Anything else: nobody answers within `connect_timeout_seconds`, a transaction that commits offsets of
        the group is not decided in that time, the broker names an error, or leaves a partition out.
    """
    asked = sorted(set(partitions))
    if not asked:
        return {}
    request = _Fetch(group, _by_topic(asked))
    return await _ask(config, group, request, lambda answer: _committed(config, asked, answer))


async def commit_register(
    consumer: Consumer, registers: Mapping[Partition, tuple[int, str]], *, seconds: float = 5.0
) -> None:
    """Commit offsets with their registers, as a member of the group. They are stored when this returns.

    Parameters
    ----------
    consumer
        A member to which the partitions are assigned.
    registers
        The next offset to read, and the register, by partition.
    seconds
        How long to wait for the broker.

    Raises
    ------
    StoreError
        A register is longer than `REGISTER_BYTES`; nothing was sent.
    Fenced
        The partitions belong, or may belong, to another member now.
    SourceError
        No answer in time: whether it is stored is not known, and the same call may be made again. With
        `retriable` False the broker refuses for good.
    """
    for _, text in registers.values():
        check_register(text)
    await consumer.commit_registers(registers, seconds)


async def write_register_offline(
    config: KafkaConfig, group: str, registers: Mapping[Partition, tuple[int, str]]
) -> None:
    """Commit offsets with their registers for a group that nobody is a member of.

    Raises
    ------
    StoreError
        A register is longer than `REGISTER_BYTES`; nothing was sent.
    SourceError
        The group has members (`retriable` is then False), or the broker does not answer or names an error:
        whether it is stored is then not known, and the same call may be made again.
    """
    for _, text in registers.values():
        check_register(text)
    if not registers:
        return
    topics = _by_topic(sorted(registers))
    request = OffsetCommitRequest(
        group,
        OffsetCommitRequest.DEFAULT_GENERATION_ID,
        "",
        OffsetCommitRequest.DEFAULT_RETENTION_TIME,
        [(t, [(p, *registers[Partition(t, p)]) for p in numbers]) for t, numbers in topics.items()],
    )
    await _ask(config, group, request, lambda answer: _stored(config, group, registers, answer))


def check_register(text: str) -> None:
    """Refuse a register that is longer than `REGISTER_BYTES`.

    Raises
    ------
    StoreError
    """
    size = len(text.encode())
    if size > REGISTER_BYTES:
        raise StoreError(
            f"the register of a lane would have {size} bytes, {REGISTER_BYTES} are allowed",
            fix="report it: a register holds a few numbers and digests, whatever the lane is",
        )


def _by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


async def _ask(config: KafkaConfig, group: str, request: Any, take: Callable[[Any], _T]) -> _T:
    """Send a request to the coordinator of a group until it has an answer that `take` accepts."""
    # Not the admin client: its way to send a request is private, and its answer about offsets hides errors.
    # A request gives up before all does: a connection that is cancelled while it is made is never closed.
    patience = int(min(10_000, config.connect_timeout_seconds * 800))
    client = AIOKafkaClient(**{**client_options(config), "request_timeout_ms": patience})
    last: BaseException = kafka_errors.RequestTimedOutError()
    try:
        async with asyncio.timeout(config.connect_timeout_seconds):
            await unbroken(client.bootstrap())
            while True:
                try:
                    if client.get_random_node() is None:  # a broker that has just come up, or goes down
                        raise kafka_errors.NoBrokersAvailable
                    node = await client.coordinator_lookup(CoordinationType.GROUP, group)
                    return take(await client.send(node, request))
                except _Again as error:
                    last = error.args[0]
                except kafka_errors.KafkaError as error:
                    if not error.retriable:
                        raise
                    last = error
                    await client.force_metadata_update()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise reach_error(config, last) from None
    except (kafka_errors.KafkaError, OSError) as error:
        raise reach_error(config, error) from None
    finally:
        await stop_quietly(client.close(), 2.0)


def _committed(
    config: KafkaConfig, asked: Sequence[Partition], answer: Any
) -> dict[Partition, Committed | None]:
    """What an answer says of the partitions that were asked for."""
    _raise_for(answer.error_code)
    found: dict[Partition, Committed | None] = {}
    for topic, partitions, *_ in answer.topics:
        for partition, offset, *middle in partitions:
            # Version 7 has the leader's epoch before the metadata, and tags at the end.
            metadata, code = middle[-3:-1] if answer.API_VERSION == 7 else middle
            _raise_for(code)
            if offset < -1:
                raise _odd(config, f"offset {offset} of {topic}/{partition}")
            none = offset == -1
            found[Partition(topic, partition)] = None if none else Committed(offset, metadata or "")
    missing = [p for p in asked if p not in found]
    if missing:
        raise _odd(config, f"an answer without {missing[0].topic}/{missing[0].partition}")
    return {p: found[p] for p in asked}


def _stored(config: KafkaConfig, group: str, asked: Iterable[Partition], answer: Any) -> None:
    """Refuse an answer that does not say that every partition was stored."""
    found = set()
    for topic, partitions in answer.topics:
        for partition, code in partitions:
            if code in _MEMBERS:
                raise SourceError(
                    f"group {group!r} has members, so that its offsets are not written from outside",
                    fix="stop every worker of this application; one that was killed is a member until its "
                    "session time-out",
                    retriable=False,
                )
            _raise_for(code)
            found.add(Partition(topic, partition))
    missing = sorted(set(asked) - found)
    if missing:
        raise _odd(config, f"an answer without {missing[0].topic}/{missing[0].partition}")


def _raise_for(code: int) -> None:
    if code == 0:
        return
    if code == _UNSTABLE:
        raise _Again(kafka_errors.KafkaError("a transaction that commits this offset is not decided yet"))
    kind = kafka_errors.for_code(code)
    if kind is kafka_errors.UnknownError:
        raise kafka_errors.KafkaError(f"the coordinator of the group answers with error {code}")
    raise kind()


def _odd(config: KafkaConfig, what: str) -> SourceError:
    return SourceError(
        f"Kafka at {config.bootstrap_servers} gives {what} when it is asked for the offsets of a group",
        fix="look into the broker's log; the worker can be started again at any time",
    )
