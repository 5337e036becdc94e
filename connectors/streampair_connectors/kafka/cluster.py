"""What a worker asks of a cluster, as one value: its clients, and questions about topics and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from streampair.errors import SourceError
from streampair_connectors.kafka.admin import (
    TopicFacts,
    TopicOrigin,
    check_topics,
    describe_topics,
    topic_origin,
)
from streampair_connectors.kafka.client import Partition, diagnose
from streampair_connectors.kafka.consumer import Consumer, PartitionReader, TopicReader
from streampair_connectors.kafka.log_topic import LogTopic, RecordReader
from streampair_connectors.kafka.membership import GroupState, describe_group
from streampair_connectors.kafka.offset_metadata import Committed, read_register
from streampair_connectors.kafka.producer import Producer
from streampair_connectors.kafka.transactions import TransactionalProducer

__all__ = ["KAFKA", "Cluster"]


@dataclass(frozen=True)
class Cluster:
    """The classes and functions of this package that a worker uses, each with the parameters of the original.

    The simulation of tests/harness has others.
    """

    consumer: type[Consumer] = Consumer
    partition_reader: type[PartitionReader] = PartitionReader
    topic_reader: type[TopicReader] = TopicReader
    record_reader: type[RecordReader] = RecordReader
    producer: type[Producer] = Producer
    transactional_producer: type[TransactionalProducer] = TransactionalProducer
    log_topic: type[LogTopic] = LogTopic
    check_topics: Callable[..., Awaitable[TopicFacts]] = check_topics
    describe_topics: Callable[..., Awaitable[dict[str, int]]] = describe_topics
    topic_origin: Callable[..., Awaitable[TopicOrigin]] = topic_origin
    describe_group: Callable[..., Awaitable[GroupState]] = describe_group
    read_register: Callable[..., Awaitable[dict[Partition, Committed | None]]] = read_register
    diagnose: Callable[..., Awaitable[SourceError | None]] = diagnose


KAFKA = Cluster()
