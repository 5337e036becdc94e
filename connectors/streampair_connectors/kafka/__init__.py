"""Apache Kafka: the only package that uses the client library, aiokafka.

It sends whole batches (one `send` per event costs ten times as much), replaces a failed producer and repeats
unacknowledged sends, and translates the client's errors.
"""

from streampair_connectors.kafka.admin import (
    auto_creates_topics,
    create_by_metadata_request,
    create_topics,
    creation_command,
    describe_topics,
    group_members,
    has_append_time,
    is_compacted,
    topic_origin,
)
from streampair_connectors.kafka.client import (
    AccessError,
    CredentialsError,
    Message,
    Partition,
    RecordLike,
    check_codecs,
    ended,
    scorer_id,
    size_of,
    transactional_id,
)
from streampair_connectors.kafka.cluster import KAFKA, Cluster
from streampair_connectors.kafka.consumer import Consumer, PartitionReader
from streampair_connectors.kafka.log_topic import Batches, LogTopic, RangeReader, RecordReader
from streampair_connectors.kafka.membership import Member, StaticMemberConflicts, describe_group
from streampair_connectors.kafka.offset_metadata import (
    Committed,
    check_register,
    commit_register,
    read_register,
    write_register_offline,
)
from streampair_connectors.kafka.producer import Producer, Routes
from streampair_connectors.kafka.spans import ReadPositions, Span
from streampair_connectors.kafka.transactions import TransactionalProducer

__all__ = [
    "KAFKA",
    "AccessError",
    "Batches",
    "Cluster",
    "Committed",
    "Consumer",
    "CredentialsError",
    "LogTopic",
    "Member",
    "Message",
    "Partition",
    "PartitionReader",
    "Producer",
    "RangeReader",
    "ReadPositions",
    "RecordLike",
    "RecordReader",
    "Routes",
    "Span",
    "StaticMemberConflicts",
    "TransactionalProducer",
    "auto_creates_topics",
    "check_codecs",
    "check_register",
    "commit_register",
    "create_by_metadata_request",
    "create_topics",
    "creation_command",
    "describe_group",
    "describe_topics",
    "ended",
    "group_members",
    "has_append_time",
    "is_compacted",
    "read_register",
    "scorer_id",
    "size_of",
    "topic_origin",
    "transactional_id",
    "write_register_offline",
]
