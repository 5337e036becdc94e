"""Changes of topics while an application reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete

from harness.applications import App
from harness.kafka import Cluster


async def with_admin(cluster: Cluster, do: Callable[[AIOKafkaAdminClient], Any]) -> None:
    """Call a method of an admin client."""
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        await do(admin)
    finally:
        await admin.close()


async def add_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Add partitions up to a number of them."""
    await with_admin(cluster, lambda admin: admin.create_partitions({topic: NewPartitions(total)}))


def delete_records(app: App, before: int, partition: int = 0) -> None:
    """Remove the first records of the input, as retention does."""
    work = {TopicPartition(app.input, partition): RecordsToDelete(before_offset=before)}
    asyncio.run(with_admin(app.kafka, lambda admin: admin.delete_records(work)))


def delete_input(app: App) -> None:
    """Delete the input topic."""
    asyncio.run(with_admin(app.kafka, lambda admin: admin.delete_topics([app.input])))
