"""Clusters for the tests, whatever stands behind them: librdkafka's in-process broker, or the caller's own.

Apache Kafka, which the tests start and stop themselves, is in ``apache_kafka``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Unavailable(Exception):
    """This machine cannot run the broker; ``hint`` says in one line what to install."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}: {hint}")
        self.what = what
        self.hint = hint


class Cluster:
    """A Kafka cluster that a test may use.

    Attributes
    ----------
    bootstrap
        ``host:port``.
    kind
        "embedded" (librdkafka's in-process broker), "kafka" (Apache Kafka, started here) or "external".
    version
        Version of what answers, for messages.
    real
        Whether ``kill``, ``stop``, ``start`` and ``restart`` work.
    """

    bootstrap: str
    kind: str
    version: str
    real = False

    def create_topic(self, name: str, partitions: int = 1, **options: str) -> str:
        """Create a topic and return its name; ``options`` are topic settings, underscores for dots."""
        configs = {key.replace("_", "."): value for key, value in options.items()}
        complete(create_topic(self.bootstrap, name, partitions, configs))
        return name

    def restart(self) -> None:
        """Stop the broker in good order and start it again: same port, same data."""
        raise NotImplementedError(f"a cluster of kind {self.kind} is not ours to restart")

    def stop(self) -> None:
        """Stop the broker in good order."""
        raise NotImplementedError(f"a cluster of kind {self.kind} is not ours to stop")

    def kill(self) -> None:
        """End the broker at once, as ``kill -9`` does."""
        raise NotImplementedError(f"a cluster of kind {self.kind} is not ours to kill")

    def start(self) -> None:
        """Start the broker again after ``stop`` or ``kill``: same port, same data."""
        raise NotImplementedError(f"a cluster of kind {self.kind} is not ours to start")

    def ensure_running(self) -> None:
        """Bring the broker back if a test left it stopped."""

    def log_tail(self, lines: int = 30) -> str:
        """Last lines of the broker's log, for the report of a failed test."""
        return ""

    def close(self) -> None:
        """Release everything."""


class ExternalCluster(Cluster):
    """The caller's own cluster (``STREAMPAIR_TEST_KAFKA=host:port``)."""

    kind = "external"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.version = "of the caller"


class EmbeddedCluster(Cluster):
    """The broker of ``streampair demo``: librdkafka's, in this process. ``kill`` drops its connections."""

    kind = "embedded"

    def __init__(self) -> None:
        try:
            import confluent_kafka
        except ImportError:
            raise Unavailable("the in-process broker", "pip install '.[demo]'") from None
        from streampair_connectors.kafka.embedded import EmbeddedBroker

        self.version = f"librdkafka {confluent_kafka.libversion()[0]}"
        self._broker = EmbeddedBroker()
        self.bootstrap = self._broker.bootstrap_servers
        self._down = False

    def create_topic(self, name: str, partitions: int = 1, **options: str) -> str:
        self._broker.create_topic(name, partitions)
        return name

    def kill(self) -> None:
        self._broker.set_down()
        self._down = True

    def start(self) -> None:
        self._broker.set_up()
        self._down = False

    def restart(self) -> None:
        self.kill()
        self.start()

    def ensure_running(self) -> None:
        if self._down:
            self.start()

    def close(self) -> None:
        self._broker.close()


def complete(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, from inside a running event loop too (which then waits)."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    configs: dict[str, str],
    replicas: dict[int, list[int]] | None = None,
) -> None:
    """Create a topic, and return when clients can see it; `replicas`: the brokers of each partition."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        counts = (partitions, 1) if replicas is None else (-1, -1)
        new = NewTopic(name, *counts, replica_assignments=replicas, topic_configs=configs)
        answer = await admin.create_topics([new])
        for topic, code, message in answer.topic_errors:
            if code:
                raise RuntimeError(f"the broker refused the topic {topic!r}: error {code}, {message}")
        # the broker answers before every metadata cache knows the topic: return when clients can see a leader
        deadline = time.monotonic() + 30
        while True:
            (found,) = await admin.describe_topics([name])
            ready = [p for p in found["partitions"] if p["leader"] >= 0]
            if found["error_code"] == 0 and len(ready) == partitions:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the topic {name!r} was created but has no leader: {found}")
            await asyncio.sleep(0.02)
    finally:
        await admin.close()
