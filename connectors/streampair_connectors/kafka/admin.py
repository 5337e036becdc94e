"""What a cluster has: its topics, and whether it makes the missing ones itself."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka._client import client_options, log, stop_quietly, within

__all__ = ["create_by_asking", "creates_topics", "describe_topics", "is_compacted"]


async def describe_topics(config: KafkaConfig) -> dict[str, int]:
    """Return the number of partitions of every topic. Creates none.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        # Asking for all topics never creates one; asking for one by name may.
        names: list[str] = await within(config, admin.list_topics())
        found = await within(config, admin.describe_topics(names)) if names else []
        return {topic["topic"]: len(topic["partitions"]) for topic in found}
    finally:
        await stop_quietly(admin.close(), 2.0)


async def creates_topics(config: KafkaConfig) -> bool | None:
    """Return the broker's `auto.create.topics.enable`; None when it does not tell."""
    value = await _setting(config, None, "auto.create.topics.enable")
    return None if value is None else value == "true"


async def is_compacted(config: KafkaConfig, topic: str) -> bool | None:
    """Return whether records vanish from the topic by compaction; None when the broker does not tell."""
    value = await _setting(config, topic, "cleanup.policy")
    return None if value is None else "compact" in value


async def _setting(config: KafkaConfig, topic: str | None, name: str) -> str | None:
    """Return a setting of a topic, or of a broker; None when nobody tells."""
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        if topic is None:
            broker = next(iter((await admin.describe_cluster())["brokers"]))["node_id"]
            asked = ConfigResource(ConfigResourceType.BROKER, str(broker), {name: ""})
        else:
            asked = ConfigResource(ConfigResourceType.TOPIC, topic, {name: ""})
        (answer,) = await asyncio.wait_for(admin.describe_configs([asked]), 5.0)
        for resource in answer.resources:
            for found, value, *_ in resource[4]:
                if found == name:
                    return str(value)
    except (kafka_errors.KafkaError, SourceError, OSError, TimeoutError, LookupError, StopIteration):
        return None
    finally:
        await stop_quietly(admin.close(), 2.0)
    return None


async def create_by_asking(config: KafkaConfig, topic: str) -> bool:
    """Ask for a topic by name, which creates it where the broker is set up to do that.

    Returns
    -------
    bool
        Whether it exists now.
    """
    producer = AIOKafkaProducer(**client_options(config))
    try:
        await within(config, producer.start())
        await asyncio.wait_for(producer.partitions_for(topic), 3.0)
    except (kafka_errors.KafkaError, TimeoutError):
        return False
    finally:
        await stop_quietly(producer.stop(), 2.0)
    log.info("topic_created_by_broker", topic=topic)
    return True
