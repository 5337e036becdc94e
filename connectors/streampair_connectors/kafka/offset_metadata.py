"""The register of a lane: a text in the metadata of the group's committed offset, outside of its store.

The engine defines its content. Reading never mistakes an error for a missing register, and writing raises
every error.
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
from streampair_connectors.kafka.client import Partition, client_options, reach_error, shielded, stop_quietly
from streampair_connectors.kafka.consumer import Consumer

__all__ = [
    "REGISTER_BYTES",
    "Committed",
    "ask_coordinator",
    "check_register",
    "commit_register",
    "read_register",
    "write_register_offline",
]

REGISTER_BYTES = 1024
"""Maximum length of a register. Brokers accept 4096 bytes by default; longer metadata kills a producer."""

_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, unknown to the client
_MEMBER_ERRORS = {  # a commit from outside is refused because the group has members
    kafka_errors.UnknownMemberIdError.errno,
    kafka_errors.IllegalGenerationError.errno,
    kafka_errors.RebalanceInProgressError.errno,
    82,  # FENCED_INSTANCE_ID
    113,  # STALE_MEMBER_EPOCH
}

_T = TypeVar("_T")


class Committed(NamedTuple):
    """Committed offset of a group for a partition, with its metadata."""

    offset: int
    metadata: str


# The client supports this request up to version 3. Version 7 (KIP-447, Kafka 2.5) has `require_stable`: while
# the offsets of an ended transaction are not written yet, the broker returns an error in place of old
# offsets.
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
    """Fetch offsets with the newest of the two versions that the broker supports."""

    API_KEY = 9

    def __init__(self, group: str, topics: Mapping[str, list[int]], *, stable: bool) -> None:
        self._group = group
        self._topics = topics
        self._stable = stable

    def build(self, struct: Any) -> Any:
        if struct is _FetchRequest7:
            return struct(self._group, [(t, p, {}) for t, p in self._topics.items()], self._stable, {})
        return struct(self._group, list(self._topics.items()))


class _RetryError(Exception):
    """The coordinator cannot answer yet; `args[0]` is its error."""


class _PendingError(Exception):
    """A transaction that commits this offset is still pending."""


async def read_register(
    config: KafkaConfig, group: str, partitions: Iterable[Partition], *, stable: bool = True
) -> dict[Partition, Committed | None]:
    """Return the committed offsets of a group for the given partitions.

    None: the broker answered without an error that nothing is committed for the partition. It never was, it
    has expired, or it was deleted. With `stable` false, the last ones that are committed, also while a
    transaction with later ones is pending.

    Raises
    ------
    SourceError
        No answer within `connect_timeout`, a pending transaction with offsets of the group in that
        time, an error of the broker, or an answer without one of the partitions.
    """
    requested = sorted(set(partitions))
    if not requested:
        return {}
    request = _Fetch(group, _by_topic(requested), stable=stable)
    return await ask_coordinator(
        config,
        CoordinationType.GROUP,
        group,
        request,
        lambda answer: _parse_committed(config, requested, answer),
    )


async def commit_register(
    consumer: Consumer, registers: Mapping[Partition, tuple[int, str]], *, seconds: float = 5.0
) -> None:
    """Commit offsets with their registers, as a member of the group. They are durable on return.

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
    FencedError
        The partitions belong, or may belong, to another member now.
    SourceError
        No answer in time: the outcome is unknown, and the call can be repeated. With `retriable` False the
        broker refuses permanently.
    """
    for _, text in registers.values():
        check_register(text)
    await consumer.commit_registers(registers, seconds)


async def write_register_offline(
    config: KafkaConfig, group: str, registers: Mapping[Partition, tuple[int, str]]
) -> None:
    """Commit offsets with their registers for a group without members.

    Raises
    ------
    StoreError
        A register is longer than `REGISTER_BYTES`; nothing was sent.
    SourceError
        The group has members (`retriable` is then False), or the broker does not answer or returns an error:
        the outcome is then unknown, and the call can be repeated.
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
    await ask_coordinator(
        config,
        CoordinationType.GROUP,
        group,
        request,
        lambda answer: _check_stored(config, group, registers, answer),
    )


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
            fix="report this bug: a register contains a few numbers and digests only",
        )


def _by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


async def ask_coordinator(
    config: KafkaConfig, kind: CoordinationType, name: str, request: Any, parse: Callable[[Any], _T]
) -> _T:
    """Send a request to the coordinator of a group or a transaction until `parse` accepts the response.

    Raises
    ------
    SourceError
        No answer within `connect_timeout`, or an error of the broker.
    IncompatibleBrokerVersion
        The broker does not know the request.
    """
    # Not the admin client: its method to send a request is private, and its offsets hide errors. The request
    # times out before the whole call: a connection that is cancelled while it is created is never closed.
    patience = int(min(10_000, config.connect_timeout.seconds * 800))
    client = AIOKafkaClient(**{**client_options(config), "request_timeout_ms": patience})
    last: BaseException = kafka_errors.RequestTimedOutError()
    try:
        async with asyncio.timeout(config.connect_timeout.seconds):
            await shielded(client.bootstrap())
            while True:
                try:
                    if client.get_random_node() is None:  # a broker is starting or stopping
                        raise kafka_errors.NoBrokersAvailable
                    node = await client.coordinator_lookup(kind, name)
                    return parse(await client.send(node, request))
                except _RetryError as error:
                    last = error.args[0]
                except kafka_errors.KafkaError as error:
                    if not error.retriable:
                        raise
                    last = error
                    await client.force_metadata_update()
                await asyncio.sleep(0.05)
    except TimeoutError:
        if isinstance(last, _PendingError):
            raise SourceError(
                f"a transaction that commits offsets of group {name!r} is still pending",
                fix="none is needed while a transaction ends. If this lasts for minutes, the broker has lost "
                f"its end: kafka-transactions.sh --bootstrap-server {config.bootstrap_servers} find-hanging "
                "--broker-id ID --max-transaction-timeout 1 lists what is left of it, and abort ends each",
            ) from None
        raise reach_error(config, last) from None
    except kafka_errors.IncompatibleBrokerVersion:
        raise
    except (kafka_errors.KafkaError, OSError) as error:
        raise reach_error(config, error) from None
    finally:
        await stop_quietly(client.close(), 2.0)


def _parse_committed(
    config: KafkaConfig, requested: Sequence[Partition], answer: Any
) -> dict[Partition, Committed | None]:
    """Parse the committed offsets of the requested partitions from a response."""
    _raise_for(answer.error_code)
    found: dict[Partition, Committed | None] = {}
    for topic, partitions, *_ in answer.topics:
        for partition, offset, *middle in partitions:
            # Version 7 has the leader's epoch before the metadata, and tags at the end.
            metadata, code = middle[-3:-1] if answer.API_VERSION == 7 else middle
            _raise_for(code)
            if offset < -1:
                raise _unexpected_answer(config, f"offset {offset} of {topic}/{partition}")
            none = offset == -1
            found[Partition(topic, partition)] = None if none else Committed(offset, metadata or "")
    missing = [p for p in requested if p not in found]
    if missing:
        raise _unexpected_answer(config, f"an answer without {missing[0].topic}/{missing[0].partition}")
    return {p: found[p] for p in requested}


def _check_stored(config: KafkaConfig, group: str, requested: Iterable[Partition], answer: Any) -> None:
    """Refuse a response that does not confirm every partition."""
    found = set()
    for topic, partitions in answer.topics:
        for partition, code in partitions:
            if code in _MEMBER_ERRORS:
                raise SourceError(
                    f"group {group!r} has members, so its offsets cannot be changed from outside",
                    fix="stop every worker of this application; a killed one stays a member until its "
                    "session time-out",
                    retriable=False,
                )
            _raise_for(code)
            found.add(Partition(topic, partition))
    missing = sorted(set(requested) - found)
    if missing:
        raise _unexpected_answer(config, f"an answer without {missing[0].topic}/{missing[0].partition}")


def _raise_for(code: int) -> None:
    if code == 0:
        return
    if code == _UNSTABLE:
        raise _RetryError(_PendingError())
    kind = kafka_errors.for_code(code)
    if kind is kafka_errors.UnknownError:
        raise kafka_errors.KafkaError(f"the coordinator of the group answers with error {code}")
    raise kind()


def _unexpected_answer(config: KafkaConfig, what: str) -> SourceError:
    return SourceError(
        f"Kafka at {config.bootstrap_servers} returns {what} for the offsets of a group",
        fix="read the broker's log; the worker can be restarted at any time",
    )
