"""The tiers that broker tests run on, and how a tier becomes a cluster."""

from __future__ import annotations

import os

from harness import support
from harness.apache_kafka import PROFILES, KafkaBroker
from harness.kafka import Cluster, EmbeddedCluster, ExternalCluster, Unavailable

EXTERNAL = os.environ.get("STREAMPAIR_TEST_KAFKA", "")
REAL_TIERS = [f"external={EXTERNAL}"] if EXTERNAL else list(PROFILES)
STOPPABLE_TIERS = [] if EXTERNAL else list(PROFILES)
TIERS = ["embedded", *REAL_TIERS]


def open_cluster(tier: str, settings: dict[str, str] | None = None) -> Cluster:
    """The cluster of a tier; skips (or fails, where everything is required) if this machine cannot run it."""
    try:
        cluster: Cluster
        if tier == "embedded":
            cluster = EmbeddedCluster()
        elif tier.startswith("external="):
            cluster = ExternalCluster(tier.partition("=")[2])
        else:
            # Its life is too short for the slower of the JVM's two compilers.
            cluster = KafkaBroker(tier, settings=settings, jvm=["-XX:TieredStopAtLevel=1"])
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    name = {"embedded": cluster.version, "kafka": f"Apache Kafka {cluster.version}"}
    support.note_used("brokers", name.get(cluster.kind, f"{cluster.bootstrap} (STREAMPAIR_TEST_KAFKA)"))
    return cluster
