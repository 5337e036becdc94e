"""Cluster administration: topics, partitions, settings and group members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    client_options,
    log,
    one_line,
    reach_error,
    stop_producer,
    stop_quietly,
    within,
)

__all__ = [
    "add_partitions",
    "auto_creates_topics",
    "cluster_id",
    "create_by_metadata_request",
    "create_topics",
    "creation_command",
    "describe_topics",
    "group_members",
    "has_append_time",
    "is_compacted",
]


async def describe_topics(config: KafkaConfig) -> dict[str, int]:
    """Return the number of partitions of every topic, without creating any.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`, or it refuses.
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


async def cluster_id(config: KafkaConfig) -> str:
    """Return the permanent id of the cluster; empty if it reports none.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        found = await within(config, admin.describe_cluster())
        return str(found.get("cluster_id") or "")
    finally:
        await stop_quietly(admin.close(), 2.0)


async def group_members(config: KafkaConfig, group: str) -> int:
    """Return the number of members of a consumer group; 0 if it does not exist.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`, or it refuses.
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
                fix="wait until there is one, or create them yourself: "
                + "; ".join(creation_command(config, name, count) for name, count in wanted.items()),
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
                    config, name, wanted[name], replication_factor, kind(message), len(brokers)
                )
        return refused | await _await_leaders(config, admin, wanted.keys() - refused.keys())
    finally:
        await stop_quietly(admin.close(), 2.0)


def _refusal(
    config: KafkaConfig, name: str, partitions: int, factor: int | None, error: Exception, brokers: int
) -> SourceError:
    """Translate the error for a topic that was not created."""
    otherwise = f"create it yourself: {creation_command(config, name, partitions)}"
    retriable: bool = getattr(error, "retriable", False)
    if isinstance(
        error, kafka_errors.TopicAuthorizationFailedError | kafka_errors.ClusterAuthorizationFailedError
    ):
        user = "this user" if config.username is None else f"user {config.username!r}"
        fix = f"give {user} the permission Create on this topic (kafka-acls.sh --add --operation Create), "
        fix += f"or {otherwise}"
    elif isinstance(error, kafka_errors.InvalidReplicationFactorError):
        fix = f"set topics.replication_factor to at most {brokers}, the number of brokers"
    elif isinstance(error, kafka_errors.InvalidPartitionsError):
        fix = "set topics.input_partitions and topics.output_partitions to numbers that the cluster accepts"
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


async def add_partitions(config: KafkaConfig, topic: str, partitions: int) -> None:
    """Increase the number of partitions of a topic, and wait until each has a leader.

    It is no error if they were added meanwhile.

    Raises
    ------
    SourceError
        No broker answers, the cluster refuses, or the new partitions have no leaders in time.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    command = f"kafka-topics.sh --alter --bootstrap-server {config.bootstrap_servers} --topic {topic} "
    command += f"--partitions {partitions}"
    try:
        await within(config, admin.start())
        try:
            await asyncio.wait_for(
                admin.create_partitions({topic: NewPartitions(partitions)}), config.connect_timeout_seconds
            )
        except kafka_errors.InvalidPartitionsError:
            pass  # they may exist by now, which `_await_leaders` checks
        except (kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError):
            user = "this user" if config.username is None else f"user {config.username!r}"
            raise SourceError(
                f"the topic {topic!r} needs {partitions} partitions, and {user} may not add them",
                fix=f"give {user} the permission Alter on this topic (kafka-acls.sh --add --operation Alter "
                f"--topic {topic}), or have them added: {command}",
                retriable=False,
            ) from None
        except kafka_errors.KafkaError as error:
            if isinstance(error, kafka_errors.KafkaConnectionError) or error.retriable:
                raise reach_error(config, error) from None
            raise SourceError(
                f"the cluster does not extend topic {topic!r} to {partitions} partitions: {one_line(error)}",
                fix=f"read the broker's log, or add them yourself: {command}",
                retriable=False,
            ) from None
        except (OSError, TimeoutError) as error:
            raise reach_error(config, error) from None
        await _await_leaders(config, admin, {topic}, partitions)
    finally:
        await stop_quietly(admin.close(), 2.0)
    log.info("partitions_created", topic=topic, partitions=partitions)


async def _await_leaders(
    config: KafkaConfig, admin: AIOKafkaAdminClient, names: Set[str], least: int = 1
) -> dict[str, int]:
    """Wait until topics have leaders; the number of partitions of each. Creation itself returns earlier."""
    deadline = time.monotonic() + config.connect_timeout_seconds
    found: dict[str, int] = {}
    while missing := sorted(names - found.keys()):
        if time.monotonic() > deadline:
            raise SourceError(
                f"the cluster has created {', '.join(missing)}, but reports no leader yet",
                fix="try again in a moment",
            )
        for topic in await within(config, admin.describe_topics(missing)):
            partitions = topic["partitions"]
            if (
                topic["error_code"] == 0
                and len(partitions) >= least
                and all(p["leader"] >= 0 for p in partitions)
            ):
                found[topic["topic"]] = len(partitions)
        if len(found) < len(names):
            await asyncio.sleep(0.05)
    return found


def creation_command(config: KafkaConfig, topic: str, partitions: int | None = None) -> str:
    """Return the command of Kafka's tools that creates a topic."""
    count = "" if partitions is None else f" --partitions {partitions}"
    return f"kafka-topics.sh --create --bootstrap-server {config.bootstrap_servers} --topic {topic}{count}"
