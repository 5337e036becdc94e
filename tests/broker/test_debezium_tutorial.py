"""The tutorial on changes of a database: a real broker with TLS and passwords, and a schema registry."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness import pages, support
from harness.apache_kafka import KafkaBroker
from harness.certificates import Authority
from harness.follow import agree, follow
from harness.kafka import Unavailable
from harness.schema_registry import Registry
from harness.tiers import STOPPABLE_TIERS

PAGE = "docs/tutorials/debezium.md"
PASSWORD = "correct horse battery staple"
LEFT_OUT = r"(python3 -m venv|\. \.venv|pip install) ?"


def secured_broker(directory: Path) -> KafkaBroker:
    """A broker with TLS and SCRAM, its certificate's authority and the password in files of the folder."""
    authority = Authority(directory, "ca")
    settings = {
        "listener.name.scram.ssl.keystore.type": "PEM",
        "listener.name.scram.ssl.keystore.location": str(authority.key_store("broker")),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    try:
        broker = KafkaBroker(STOPPABLE_TIERS[-1], settings=settings, listeners={"SCRAM": "SASL_SSL"})
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    (directory / "kafka.password").touch(mode=0o600)
    (directory / "kafka.password").write_text(PASSWORD)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsert = UserScramCredentialUpsertion("fraud", info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.alter_user_scram_credentials([upsert]).values():
        future.result()
    return broker


@pytest.mark.broker
def test_payments_from_a_database(tmp_path: Path) -> None:
    broker, registry = secured_broker(tmp_path), Registry()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    replaced = {
        "kafka.example:9093": broker.addresses["SCRAM"],
        "https://registry.example:8081": registry.url,
        "9464": str(port),
    }
    try:
        steps = pages.blocks(PAGE)
        outputs = follow(steps, tmp_path, replace=replaced, leave_out=LEFT_OUT)
    finally:
        registry.close()
        broker.close()
    for step, output in zip(steps, outputs, strict=True):
        after = step.following
        if step.language == "console" and after is not None and after.language == "text":
            said = f"{after.id}: the page says\n{after.text}\nit said\n{output}"
            assert agree(after.text, output, varies=after.varies), said
