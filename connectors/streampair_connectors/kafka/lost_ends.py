"""Ends of transactions that a broker has not written, which the next owner of the transactional id writes.

A broker ends a transaction with a marker in each of its partitions. Kafka 4.3.1 takes a partition that has no
leader at that moment for a deleted one: it writes no marker there, and reports the transaction as complete.
Its records stay open, and the next marker of the same producer ends them too. So records of an aborted
transaction would be committed together with those of the next one.

`last_outcome` asks the transaction coordinator how the last transaction ended, before a new producer fences
it. `write_ends` then looks for open records, and ends them as that transaction ended, with a transaction that
has these partitions and no records. A marker in a partition without open records changes nothing. While a
producer is idle it does the same for its last commit (`find_open`, `write_end`).

Private names of the client are read for the id and the epoch of the producer.

The client does not support DescribeTransactions (KIP-664, Kafka 3.0), so that request is here. Brokers
without it write all markers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import Partition
from streampair_connectors.kafka.offset_metadata import ask_coordinator

__all__ = ["Outcome", "find_open", "last_outcome", "write_end", "write_ends"]

_UNKNOWN_ID = 105  # TRANSACTIONAL_ID_NOT_FOUND, unknown to the client
_COMMITTED = {"PrepareCommit", "CompleteCommit"}
_ABORTED = {"Ongoing", "PrepareAbort", "PrepareEpochFence", "CompleteAbort"}  # the next producer aborts it
_COMMITTED_ONLY, _ALL = 1, 0  # isolation levels


class Outcome(NamedTuple):
    """How the last transaction of a transactional id ended, or will when the next producer starts.

    Attributes
    ----------
    committed
        None: the broker no longer knows it, as another producer was started since.
    ongoing
        Whether the next producer aborts it; its epoch is then two above `epoch`.
    epoch
        Of the producer at that time.
    """

    committed: bool | None
    ongoing: bool = False
    epoch: int = -1


class _DescribeResponse(Response):  # type: ignore[misc]  # untyped base
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DescribeStruct(RequestStruct):  # type: ignore[misc]  # untyped base
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeResponse
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class _Describe(Request[_DescribeStruct]):  # type: ignore[misc]  # untyped base
    """DescribeTransactions."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id

    def build(self, struct: type[_DescribeStruct]) -> _DescribeStruct:
        return struct([self._id], {})


async def last_outcome(config: KafkaConfig, transactional_id: str) -> Outcome | None:
    """Return how the last transaction of an id ended; None: there is none, or the broker writes all ends.

    Raises
    ------
    SourceError
        No broker answers in time, or it refuses.
    """

    def parse(answer: Any) -> Outcome | None:
        ((code, _, state, _, _, _, epoch, *_),) = answer.transactions
        if code == _UNKNOWN_ID:
            return None
        if code:
            raise kafka_errors.for_code(code)()
        if state in _COMMITTED:
            return Outcome(True)
        return Outcome(False, state == "Ongoing", epoch) if state in _ABORTED else Outcome(None)

    try:
        return await ask_coordinator(
            config, CoordinationType.TRANSACTION, transactional_id, _Describe(transactional_id), parse
        )
    except kafka_errors.IncompatibleBrokerVersion:
        return None


async def write_ends(
    config: KafkaConfig,
    producer: AIOKafkaProducer,
    transactional_id: str,
    outcome: Outcome,
    partitions: Collection[Partition],
    group: str,
) -> None:
    """End what the last transaction of a producer has left open, and return when all before has an end.

    Transactions of others that are open in these partitions are waited for.

    Parameters
    ----------
    config, transactional_id
        Of the producer.
    producer
        A started one, without a transaction.
    outcome
        How the last transaction of the id ended.
    partitions
        All to which it may have written.
    group
        Whose offsets it may have committed; empty: none.

    Raises
    ------
    SourceError
        A transaction is still open after `connect_timeout`.
    KafkaError
        The broker refuses, or does not answer.
    """
    client, committed = producer.client, outcome.committed
    if outcome.ongoing and producer._txn_manager.producer_epoch - outcome.epoch < 2:
        committed = None  # it had ended otherwise before it could be aborted
    found: Mapping[Partition, int] = {}
    try:
        async with asyncio.timeout(config.connect_timeout.seconds):
            # A group's open offsets cannot be seen from here, so their end is written in any case.
            if committed is not None and group:
                await write_end(producer, transactional_id, [], group, committed)
            ends = await _end_offsets(client, partitions, _ALL)
            for pause in itertools.chain((0.05, 0.1, 0.2, 0.5), itertools.repeat(1.0)):
                found = await _open_before(client, ends)
                if not found:
                    return
                if committed is not None:
                    await write_end(producer, transactional_id, list(found), "", committed)
                await asyncio.sleep(pause)
    except TimeoutError:
        if not found:
            raise kafka_errors.RequestTimedOutError from None
        place, offset = next(iter(found.items()))
        raise SourceError(
            f"a transaction is open in {place.topic}/{place.partition} from offset {offset} on, and the "
            "broker does not say how it is to end",
            fix="none is needed while a transaction ends. If this lasts for minutes: kafka-transactions.sh "
            f"--bootstrap-server {config.bootstrap_servers} abort --topic {place.topic} --partition "
            f"{place.partition} --start-offset {offset}",
        ) from None


async def find_open(client: AIOKafkaClient, partitions: Collection[Partition]) -> dict[Partition, int]:
    """Return in which partitions a transaction is open, whoever's, and from which offset on.

    Raises
    ------
    KafkaError
        The broker refuses, or does not answer.
    """
    return await _open_before(client, await _end_offsets(client, partitions, _ALL))


async def _open_before(client: AIOKafkaClient, ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return where transactions are open before these offsets, and from which offset on."""
    stable = await _end_offsets(client, ends, _COMMITTED_ONLY)
    return {place: stable[place] for place in ends if stable[place] < ends[place]}


async def _end_offsets(
    client: AIOKafkaClient, partitions: Collection[Partition], isolation: int
) -> dict[Partition, int]:
    """Return the ends of partitions, of all records or of those whose transactions have ended."""
    ends: dict[Partition, int] = {}
    while True:
        leaders: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for place in partitions:
            node = client.cluster.leader_for_partition(TopicPartition(*place))
            if place not in ends and node is not None and node >= 0:
                leaders.setdefault(node, {}).setdefault(place.topic, []).append((place.partition, -1))
        for node, topics in leaders.items():
            for topic, answers in (
                await client.send(node, OffsetRequest(-1, isolation, list(topics.items())))
            ).topics:
                for number, code, _, offset in answers:
                    kind = kafka_errors.for_code(code)
                    if code and not kind.retriable:
                        raise kind()
                    if not code:
                        ends[Partition(topic, number)] = offset
        if len(ends) == len(partitions):
            return ends
        await client.force_metadata_update()
        await asyncio.sleep(0.05)


async def write_end(
    producer: AIOKafkaProducer,
    transactional_id: str,
    partitions: Collection[Partition],
    group: str,
    committed: bool,
) -> None:
    """Have the coordinator end a transaction without records in these partitions, and in a group's offsets.

    Raises
    ------
    KafkaError
        The broker refuses, or does not answer: another end may then arrive late.
    """
    client, manager = producer.client, producer._txn_manager
    ids = transactional_id, manager.producer_id, manager.producer_epoch
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    if topics:
        await _ask(client, AddPartitionsToTxnRequest(*ids, list(topics.items())))
    if group:
        await _ask(client, AddOffsetsToTxnRequest(*ids, group))
    await _ask(client, EndTxnRequest(*ids, committed))


async def _ask(client: AIOKafkaClient, request: Any) -> None:
    """Send a request to the coordinator of the transaction until it is done.

    One without a response is not repeated: the first copy could arrive late, and end a later transaction.
    """
    while True:
        node = await client.coordinator_lookup(CoordinationType.TRANSACTION, request._transactional_id)
        answer = await client.send(node, request)
        if isinstance(request, AddPartitionsToTxnRequest):
            codes = {code for _, partitions in answer.errors for _, code in partitions}
        else:
            codes = {answer.error_code}
        errors = [kafka_errors.for_code(code) for code in codes - {0}]
        if not errors:
            return
        for error in errors:
            # ConcurrentTransactions: the end of its last transaction is being written.
            if not (error.retriable or error is kafka_errors.ConcurrentTransactions):
                raise error()
        await asyncio.sleep(0.02)
