"""The topic of the logs: made so that it loses nothing, refused where it could, read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from harness.kafka import Cluster
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import LogTopic

from streampair.errors import ConfigError

Unique = Callable[[str], str]


def settings(kafka: Cluster) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap)


def test_it_is_made_with_the_settings_that_keep_everything(apache_kafka: Cluster, unique: Unique) -> None:
    topic = LogTopic(settings(apache_kafka), unique("log"))
    asyncio.run(topic.ensure(2, replication_factor=None, strict=True))
    asyncio.run(topic.ensure(2, replication_factor=None, strict=True))
    told = asyncio.run(topic._settings())
    assert told == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    }
    with pytest.raises(ConfigError, match=r"2 partition\(s\), and the input has 3"):
        asyncio.run(topic.ensure(3, replication_factor=None, strict=False))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup_policy", "compact"),
        ("retention_ms", "3600000"),
        ("retention_bytes", "1000000"),
        ("unclean_leader_election_enable", "true"),
    ],
)
def test_a_topic_that_can_lose_an_entry_is_refused(
    apache_kafka: Cluster, unique: Unique, setting: str, value: str
) -> None:
    name = unique("log")
    kept = {"retention_ms": "-1", "retention_bytes": "-1", setting: value}
    apache_kafka.create_topic(name, **kept)
    topic = LogTopic(settings(apache_kafka), name)
    with pytest.raises(ConfigError, match=setting.replace("_", ".")) as caught:
        asyncio.run(topic.ensure(1, replication_factor=None, strict=True))
    assert "kafka-configs.sh --alter" in caught.value.fix
    asyncio.run(topic.ensure(1, replication_factor=None, strict=False))  # nobody's account
