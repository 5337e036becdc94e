"""Cluster administration: topics, partitions, settings, group members, and access rights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest_v2
from aiokafka.protocol.transaction import InitProducerIdRequest_v0
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from streampair.errors import SourceError
from streampair_connectors.config import Config, KafkaConfig
from streampair_connectors.kafka.client import (
    client_options,
    log,
    one_line,
    stop_producer,
    stop_quietly,
    transactional_id,
    within,
)

__all__ = [
    "FLAG",
    "Creation",
    "TopicFacts",
    "TopicOrigin",
    "append_time_command",
    "auto_creates_topics",
    "check_topics",
    "create_by_metadata_request",
    "create_missing",
    "create_topics",
    "creation_command",
    "describe_topics",
    "group_members",
    "has_append_time",
    "is_compacted",
    "missing_rights",
    "missing_topic",
    "output_topics",
    "retention_ms",
    "rights_error",
    "topic_origin",
]

FLAG = "--create-topics"
"""The option of `check` and `run` that creates missing topics."""

Missing = tuple[str, str, str]
"""Resource type (topic, group, transactional-id), name, and the operation that is not allowed."""

_BITS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
_UNKNOWN = -(2**31)  # the broker does not report operations
_TOPIC_DENIED, _GROUP_DENIED, _ID_DENIED, _CLUSTER_DENIED = 29, 30, 53, 31
_RETRIES, _RETRY_SECONDS = 15, 0.2
_INVALID_TIMEOUT = 2**31 - 1  # refused by every broker, after it has checked the rights


async def describe_topics(config: KafkaConfig) -> dict[str, int]:
    """Return the number of partitions of every topic, without creating any.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        # A request for all topics never creates one; a request by name may.
        names: list[str] = await within(config, admin.list_topics())
        found = await within(config, admin.describe_topics(names)) if names else []
        return {topic["topic"]: len(topic["partitions"]) for topic in found}
    finally:
        await stop_quietly(admin.close(), 2.0)


class TopicOrigin(NamedTuple):
    """Which topic it is: permanent ids of its cluster and of itself; empty where the broker has none."""

    cluster: str
    topic_id: str


async def topic_origin(config: KafkaConfig, topic: str) -> TopicOrigin:
    """Return the origin of a topic: one that is deleted and made again has another id (Kafka 2.8).

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        found = await within(config, admin._send_request(_Identify(topic)))
        if found.API_VERSION < _MetadataStruct.API_VERSION:
            return TopicOrigin(found.cluster_id or "", "")
        ids = [row[2].hex() for row in found.topics if row[0] == 0 and any(row[2])]
        return TopicOrigin(found.cluster_id or "", ids[0] if ids else "")
    finally:
        await stop_quietly(admin.close(), 2.0)


async def group_members(config: KafkaConfig, group: str) -> int:
    """Return the number of members of a consumer group; 0 if it does not exist.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        (answer,) = await within(config, admin.describe_consumer_groups([group]))
        (found,) = answer.groups
        kind = kafka_errors.for_code(found[0])
        if found[0] not in (0, 69):  # GROUP_ID_NOT_FOUND, of newer versions
            raise SourceError(
                f"the members of group {group!r} cannot be read: {one_line(kind())}",
                fix="grant this user Describe: kafka-acls.sh --add --operation Describe --group " + group,
                retriable=bool(getattr(kind, "retriable", False)),
            )
        return len(found[5])
    finally:
        await stop_quietly(admin.close(), 2.0)


async def auto_creates_topics(config: KafkaConfig) -> bool | None:
    """Return the broker's `auto.create.topics.enable`; None: not readable."""
    value = await _setting(config, None, "auto.create.topics.enable")
    return None if value is None else value == "true"


async def is_compacted(config: KafkaConfig, topic: str) -> bool | None:
    """Return whether the topic is compacted; None: its settings are not readable."""
    value = await _setting(config, topic, "cleanup.policy")
    return None if value is None else "compact" in value


async def has_append_time(config: KafkaConfig, topic: str) -> bool:
    """Return whether the broker sets the timestamps of the topic, as far as its settings can be read."""
    return await _setting(config, topic, "message.timestamp.type") == "LogAppendTime"


async def retention_ms(config: KafkaConfig, topic: str) -> int | None:
    """Return how long the topic keeps its records, in milliseconds; -1: for ever. None: not readable."""
    value = await _setting(config, topic, "retention.ms")
    return None if value is None else int(value)


async def _setting(config: KafkaConfig, topic: str | None, name: str) -> str | None:
    """Return a setting of a topic, or of a broker; None: not readable."""
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        if topic is None:
            broker = next(iter((await admin.describe_cluster())["brokers"]))["node_id"]
            query = ConfigResource(ConfigResourceType.BROKER, str(broker), {name: ""})
        else:
            query = ConfigResource(ConfigResourceType.TOPIC, topic, {name: ""})
        (answer,) = await asyncio.wait_for(admin.describe_configs([query]), 5.0)
        for resource in answer.resources:
            for found, value, *_ in resource[4]:
                if found == name:
                    return str(value)
    except (kafka_errors.KafkaError, SourceError, OSError, TimeoutError, LookupError, StopIteration):
        return None
    finally:
        await stop_quietly(admin.close(), 2.0)
    return None


async def create_by_metadata_request(config: KafkaConfig, topic: str) -> bool:
    """Request a topic by name, which creates it where the broker creates topics automatically.

    Returns
    -------
    bool
        Whether the topic exists now.
    """
    producer = AIOKafkaProducer(**client_options(config))
    try:
        await within(config, producer.start())
        await asyncio.wait_for(producer.partitions_for(topic), 3.0)
    except (kafka_errors.KafkaError, TimeoutError):
        return False
    finally:
        await stop_producer(producer, 2.0)
    log.info("topic_created_by_broker", topic=topic)
    return True


async def create_topics(
    config: KafkaConfig,
    wanted: Mapping[str, int],
    replication_factor: int | None,
    *,
    settings: Mapping[str, Mapping[str, str]],
) -> dict[str, int | SourceError]:
    """Create topics, and wait until each of their partitions has a leader.

    Parameters
    ----------
    wanted
        Partitions by name.
    replication_factor
        Of all topics; None: the cluster's default.
    settings
        By topic; without an entry a topic has the cluster's.

    Returns
    -------
    dict
        By name the number of partitions, or the error of the cluster. A topic that was created meanwhile
        stays as it is.

    Raises
    ------
    SourceError
        No broker answers, the cluster has no controller, or the new topics have no leaders in time.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        cluster = await within(config, admin.describe_cluster())
        brokers = {broker["node_id"] for broker in cluster["brokers"]}
        if cluster["controller_id"] not in brokers:
            raise SourceError(
                f"{config.bootstrap_servers} reports no controller, the broker that creates topics",
                fix="wait until there is one; or leave out --create-topics where the broker makes topics on "
                "first use, as the in-process one does; or create them yourself: "
                + "; ".join(
                    creation_command(config, name, count, settings.get(name))
                    for name, count in wanted.items()
                ),
            )
        # The client accepts -1, the cluster's default, only together with an assignment, which may be empty.
        default = replication_factor is None
        factor = -1 if default else replication_factor
        topics = [
            NewTopic(name, count, factor, {} if default else None, dict(settings.get(name, {})))
            for name, count in wanted.items()
        ]
        answer = await within(config, admin.create_topics(topics))
        refused: dict[str, int | SourceError] = {}
        for name, code, message in answer.topic_errors:
            kind = kafka_errors.for_code(code)
            if code != 0 and kind is not kafka_errors.TopicAlreadyExistsError:
                refused[name] = _refusal(
                    *(config, name, wanted[name], settings.get(name), replication_factor),
                    *(kind(message), len(brokers)),
                )
        return refused | await _await_leaders(config, admin, wanted.keys() - refused.keys())
    finally:
        await stop_quietly(admin.close(), 2.0)


def _refusal(
    config: KafkaConfig,
    name: str,
    partitions: int,
    settings: Mapping[str, str] | None,
    factor: int | None,
    error: Exception,
    brokers: int,
) -> SourceError:
    """Translate the error for a topic that was not created."""
    otherwise = f"create it yourself: {creation_command(config, name, partitions, settings)}"
    retriable: bool = getattr(error, "retriable", False)
    if isinstance(
        error, kafka_errors.TopicAuthorizationFailedError | kafka_errors.ClusterAuthorizationFailedError
    ):
        user = "this user" if config.username is None else f"user {config.username!r}"
        fix = f"give {user} the permission Create on this topic (kafka-acls.sh --add --operation Create), "
        fix += f"or {otherwise}"
    elif isinstance(error, kafka_errors.InvalidReplicationFactorError):
        fix = f"set topics.replication_factor to at most {brokers}, the number of brokers that run, or start "
        fix += "those that are away first"
    elif isinstance(error, kafka_errors.InvalidPartitionsError):
        fix = "set topics.input_partitions to a number that the cluster accepts"
    elif isinstance(error, kafka_errors.PolicyViolationError):
        fix = "set the numbers in [topics] to what the cluster's policy allows"
    elif retriable:
        fix = "try again in a moment"
    else:
        fix = f"read the broker's log, or {otherwise}"
    copies = "" if factor is None else f", replication factor {factor}"
    return SourceError(
        f"the cluster does not create topic {name!r} ({partitions} partition(s){copies}): {one_line(error)}",
        fix=fix,
        retriable=retriable,
    )


async def _await_leaders(config: KafkaConfig, admin: AIOKafkaAdminClient, names: Set[str]) -> dict[str, int]:
    """Wait until topics have leaders; the number of partitions of each. Creation itself returns earlier."""
    deadline = time.monotonic() + config.connect_timeout.seconds
    found: dict[str, int] = {}
    while missing := sorted(names - found.keys()):
        if time.monotonic() > deadline:
            raise SourceError(
                f"the cluster has created {', '.join(missing)}, but reports no leader yet",
                fix="try again in a moment",
            )
        for topic in await within(config, admin.describe_topics(missing)):
            partitions = topic["partitions"]
            if topic["error_code"] == 0 and partitions and all(p["leader"] >= 0 for p in partitions):
                found[topic["topic"]] = len(partitions)
        if len(found) < len(names):
            await asyncio.sleep(0.05)
    return found


def creation_command(
    config: KafkaConfig,
    topic: str,
    partitions: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return the command of Kafka's tools that creates a topic."""
    count = "" if partitions is None else f" --partitions {partitions}"
    count += "".join(f" --config {name}={value}" for name, value in (settings or {}).items())
    return f"kafka-topics.sh --create --bootstrap-server {config.bootstrap_servers} --topic {topic}{count}"


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 10
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc]
    """Metadata of version 10, which has the ids of topics. The client sends up to version 5."""

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 10
    RESPONSE_TYPE: ClassVar[type[Response]] = _MetadataResponse
    FLEXIBLE_VERSION: ClassVar[bool] = True
    SCHEMA: ClassVar[Schema] = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


def _metadata(topics: Sequence[str], *, rights: bool) -> _MetadataStruct:
    """Asks for these topics; with `rights` also for what this user may do with them."""
    return _MetadataStruct([(bytes(16), topic, {}) for topic in topics], False, False, rights, {})


class _Rights(Request[_MetadataStruct]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_MetadataStruct]) -> _MetadataStruct:
        return _metadata(self._topics, rights=True)


class _Identify(Request[MetadataRequest_v2 | _MetadataStruct]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _MetadataStruct:
            return _metadata([self._topic], rights=False)
        return request_struct_class([self._topic])


class _InitProducerId(Request[InitProducerIdRequest_v0]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 22

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id

    def build(self, request_struct_class: type[InitProducerIdRequest_v0]) -> InitProducerIdRequest_v0:
        return request_struct_class(self._id, _INVALID_TIMEOUT)


async def _missing_rights(
    config: KafkaConfig,
    topics: Mapping[str, Sequence[str]],
    *,
    groups: Mapping[str, str],
    transactional_id: str | None,
) -> list[Missing]:
    """Return which rights this user lacks, without using any of them or changing anything.

    Parameters
    ----------
    config
        How to reach the cluster.
    topics
        Required operations on each topic: `Read`, `Write`, `Describe`, `DescribeConfigs`, ...
    groups
        Required operation on each consumer group.
    transactional_id
        A transactional id of the application, with `Write`; None: it uses no transactions.

    Returns
    -------
    list
        Missing rights. Empty if the cluster has no authorizer, or is older than 2.8.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout`.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        # Each question is made when the one before is answered: one that fails leaves none behind.
        missing: list[Missing] = []
        missing += await within(config, _empty_if_unsupported(_missing_on_topics(admin, topics)))
        for group, operation in groups.items():
            of_group = _missing_on_group(admin, group, operation)
            missing += await within(config, _empty_if_unsupported(of_group))
        if transactional_id is not None:
            of_id = _missing_on_transactional_id(admin, transactional_id)
            missing += await within(config, _empty_if_unsupported(of_id))
        return missing
    finally:
        await stop_quietly(admin.close(), 2.0)


async def _empty_if_unsupported(work: Awaitable[list[Missing]]) -> list[Missing]:
    """Missing rights; empty if the broker is too old to report them."""
    try:
        return await work
    except (
        kafka_errors.IncompatibleBrokerVersion,
        kafka_errors.UnsupportedVersionError,
        NotImplementedError,
    ):
        return []


async def _missing_on_topics(
    admin: AIOKafkaAdminClient, topics: Mapping[str, Sequence[str]]
) -> list[Missing]:
    answer = await admin._send_request(_Rights(list(topics)))
    missing: list[Missing] = []
    for code, topic, _, _, _, allowed, _ in answer.topics:
        wanted = topics[topic]
        if code == _TOPIC_DENIED:
            missing += [("topic", topic, operation) for operation in ("Describe", *wanted)]
        elif code == 0 and allowed != _UNKNOWN:
            missing += [("topic", topic, name) for name in wanted if not allowed >> _BITS[name] & 1]
    return list(dict.fromkeys(missing))


async def _missing_on_group(admin: AIOKafkaAdminClient, group: str, operation: str) -> list[Missing]:
    found = await _allowed_on_group(admin, group)
    if found is not None and (found == _UNKNOWN or found >> _BITS[operation] & 1):
        return []
    return [("group", group, operation)]


async def _allowed_on_group(admin: AIOKafkaAdminClient, group: str) -> int | None:
    """Bit set of the operations allowed on a group; None: not even Describe."""
    for _ in range(_RETRIES):
        try:
            (answer,) = await admin.describe_consumer_groups([group], include_authorized_operations=True)
            break
        except kafka_errors.GroupAuthorizationFailedError:
            return None
        except kafka_errors.GroupCoordinatorNotAvailableError:  # a cluster without any group yet
            await asyncio.sleep(_RETRY_SECONDS)
    else:
        return _UNKNOWN
    (found,) = answer.groups
    if found[0] == _GROUP_DENIED:
        return None
    return int(found[6]) if len(found) > 6 else _UNKNOWN


async def _missing_on_transactional_id(admin: AIOKafkaAdminClient, name: str) -> list[Missing]:
    where = await admin._send_request(FindCoordinatorRequest(name, 1))
    if where.error_code == _ID_DENIED:
        return [("transactional-id", name, "Describe"), ("transactional-id", name, "Write")]
    if where.error_code:
        return []
    answer = await admin._send_request_to_node(where.coordinator_id, _InitProducerId(name))
    if answer.error_code in (_ID_DENIED, _CLUSTER_DENIED):
        return [("transactional-id", name, "Write")]
    return []


def output_topics(config: Config) -> dict[str, str]:
    """Return the topics that the application writes to, by their key in the configuration."""
    topics = {"output.topic": config.output_topic, "output.dead_letter_topic": config.dead_letter_topic}
    more = {"output.alert_above": config.alert_topic, "label_input": config.late_labels_topic}
    return topics | {key: name for key, name in more.items() if name is not None}


def topic_settings(config: Config, name: str) -> dict[str, str]:
    """Return the settings with which a topic of the application is to be created."""
    labels = None if config.label_input is None else config.label_input.topic
    if name in (config.input.topic, labels):
        return {"message.timestamp.type": "LogAppendTime"}  # then the order is a function of the topic
    return {}


@dataclass(frozen=True)
class Creation:
    """Result of creating the missing topics.

    Attributes
    ----------
    made
        Partitions of each created topic.
    errors
        Errors of the others, by name. Without errors all topics exist now.
    """

    made: dict[str, int]
    errors: dict[str, SourceError]


async def create_missing(config: Config, existing: Mapping[str, int]) -> Creation:
    """Create the topics that are not in `existing` (partitions by name), with the settings of [topics].

    Nothing is created if the input topic is missing and has no `input_partitions`: outputs follow its number.

    Raises
    ------
    SourceError
        The cluster does not answer.
    """
    settings, topics = config.require_kafka(), config.topics
    wanted: dict[str, int] = {}
    name = config.input.topic
    partitions = existing.get(name, topics.input_partitions)
    if partitions is None:
        return Creation({}, {name: missing_topic(config, "input.topic", name)})
    if name not in existing:
        wanted[name] = partitions
    for output in output_topics(config).values():
        if output not in existing:
            wanted[output] = partitions
    if not wanted:
        return Creation({}, {})
    special = {name: topic_settings(config, name) for name in wanted}
    results = await create_topics(settings, wanted, topics.replication_factor, settings=special)
    return Creation(
        {name: count for name, count in results.items() if not isinstance(count, SourceError)},
        {name: error for name, error in results.items() if isinstance(error, SourceError)},
    )


async def missing_rights(config: Config) -> list[Missing]:
    """Return all rights on the cluster that `run` needs and this user lacks.

    Raises
    ------
    SourceError
        No broker answers.
    """
    wanted: dict[str, tuple[str, ...]] = {config.input.topic: ("Read", "Describe", "DescribeConfigs")}
    wanted |= dict.fromkeys(output_topics(config).values(), ("Write", "Describe"))
    if config.label_input is not None:
        wanted[config.label_input.topic] = ("Read", "Describe", "DescribeConfigs")
        if config.learner.parallel and "learn" in config.worker.roles:
            # What scorers gave is compared with the labels.
            wanted[config.output_topic] = ("Read", "Write", "Describe")
    name = None
    internal = ("Read", "Write", "Describe", "DescribeConfigs", "Delete")
    learns, parallel = "learn" in config.worker.roles, config.learner.parallel
    groups = {}
    if parallel and "score" in config.worker.roles:
        groups[config.scorers_group] = "Read"
    elif learns:
        groups[config.scorers_group] = "Describe"  # whether scorers have given scores, and up to where
    if learns:
        groups[config.app] = "Read"
        if config.store.in_kafka:
            wanted[config.log_topic] = internal
    if config.store.in_kafka or parallel:
        name = transactional_id(*config.lane_id)
    if config.model_topic is not None:
        wanted[config.model_topic] = internal if learns else ("Read", "Describe")
    return await _missing_rights(config.require_kafka(), wanted, groups=groups, transactional_id=name)


def rights_error(config: Config, missing: Sequence[Missing]) -> SourceError:
    """Return the error for missing rights, with the commands that grant them."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for kind, name, operation in missing:
        grouped.setdefault((kind, name), []).append(operation)
    settings = config.require_kafka()
    user = settings.username or "the name in the certificate"
    commands = []
    for (kind, name), operations in grouped.items():
        flags = " ".join(f"--operation {operation}" for operation in operations)
        resource = f"--{kind} {name}"
        if kind == "transactional-id":
            resource = f"--{kind} streampair- --resource-pattern-type prefixed"
        commands.append(
            f"kafka-acls.sh --bootstrap-server {settings.bootstrap_servers} --add --allow-principal "
            f"'User:{user}' {flags} {resource}"
        )
    text = "; ".join(f"{' and '.join(ops)} on {kind} {name!r}" for (kind, name), ops in grouped.items())
    return SourceError(f"this user lacks rights: {text}", fix="\n".join(commands), retriable=False)


def missing_topic(config: Config, key: str, name: str) -> SourceError:
    """Return the error for a missing topic, by its key in the configuration and its name."""
    topics = config.topics
    if key == "input.topic":
        partitions, why = topics.input_partitions, ""
        count = "" if partitions else "set topics.input_partitions and "
        fix = f"correct the name, or {count}add {FLAG}"
    elif key == "label_input.topic":
        partitions, why, fix = None, "", "correct the name"
    else:
        partitions, why = topics.input_partitions, ", and the broker does not create topics automatically"
        fix = f"add {FLAG}"
    command = creation_command(config.require_kafka(), name, partitions, topic_settings(config, name))
    return SourceError(
        f"topic {name!r} ({key}) does not exist{why}",
        fix=f"{fix}, or create it yourself: {command}",
        retriable=False,
    )


def append_time_command(config: Config) -> str:
    """Return the command that makes the order of a whole topic a function of the topic (docs/privacy 8.4)."""
    name, servers = config.input.topic, config.require_kafka().bootstrap_servers
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --topic {name} "
        "--add-config message.timestamp.type=LogAppendTime"
    )


def retention_fix(config: Config) -> str:
    """Return what to do where the topic's retention removed events before they were read."""
    return (
        f"the retention of {config.input.topic!r} removed events before they were read: "
        "increase retention.ms, or take a faster learner"
    )


@dataclass(frozen=True)
class TopicFacts:
    """Facts about the topics that are read.

    Attributes
    ----------
    partitions
        Number of partitions of the input topic.
    payloads_change
        Whether records may be compacted away, so that a replay may read others.
    label_partitions
        Number of partitions of the labels topic; 0 without [label_input].
    """

    partitions: int
    payloads_change: bool
    label_partitions: int


def _check_labels_topic(config: Config, topics: Mapping[str, int]) -> None:
    if config.label_input is not None and config.label_input.topic not in topics:
        raise missing_topic(config, "label_input.topic", config.label_input.topic)


async def check_topics(config: Config, *, create: bool) -> TopicFacts:
    """Refuse to start if a topic or a right is missing, before a broker creates topics automatically.

    Parameters
    ----------
    config
        With [kafka].
    create
        Create missing topics with the settings of [topics].

    Raises
    ------
    SourceError
        A topic or a right is missing, or no broker answers.
    """
    settings = config.require_kafka()
    topics = await describe_topics(settings)
    if create:
        creation = await create_missing(config, topics)
        for name, partitions in creation.made.items():
            log.info("topic_created", app=config.app, topic=name, partitions=partitions)
        for error in creation.errors.values():
            raise error
        topics |= creation.made
    if missing := await missing_rights(config):
        raise rights_error(config, missing)
    if config.input.topic not in topics:
        raise missing_topic(config, "input.topic", config.input.topic)
    _check_labels_topic(config, topics)
    label_partitions = 0 if config.label_input is None else topics[config.label_input.topic]
    compacted = await is_compacted(settings, config.input.topic)
    if compacted:
        log.warning(
            "topic_is_compacted",
            app=config.app,
            topic=config.input.topic,
            next_step="none for a learner that is not private: it saves its state with every commit, as "
            "with input.payloads_change = true. For a private one every crash is charged to the privacy "
            "budget: set cleanup.policy=delete, or set forks in learner.options",
        )
    for key, topic in output_topics(config).items():
        if topic not in topics and not await create_by_metadata_request(settings, topic):
            raise missing_topic(config, key, topic)
    return TopicFacts(topics[config.input.topic], bool(compacted), label_partitions)
