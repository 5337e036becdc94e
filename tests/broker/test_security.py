"""TLS, SASL and ACLs on real brokers: what works, and what is said of each fault."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness import pages, support
from harness.apache_kafka import KafkaBroker
from harness.applications import PAIR_OGD, App, Inside, events, produce
from harness.certificates import Authority
from harness.kafka import Unavailable
from harness.tiers import STOPPABLE_TIERS
from harness.worker_process import wait_for
from streampair_connectors import kafka as client
from streampair_connectors.cli.app import app as app_of_commands
from streampair_connectors.cli.check import check_config
from streampair_connectors.config import Config, Duration, KafkaConfig, load_config
from streampair_connectors.kafka.log_topic import SETTINGS
from streampair_connectors.serve.model_source import TopicModel
from typer.testing import CliRunner

from streampair.errors import ConfigError, SourceError

PASSWORD = "correct horse battery staple"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass
class Secured:
    """A broker with a listener for each case, and what its clients are given."""

    broker: KafkaBroker
    directory: Path
    ca: Path
    foreign_ca: Path
    client: tuple[Path, Path]
    locked_client: tuple[Path, Path]
    stranger: tuple[Path, Path]

    def config(self, listener: str, protocol: str, **keys: Any) -> KafkaConfig:
        address = self.broker.addresses[listener]
        table = {"bootstrap_servers": address, "security_protocol": protocol, "connect_timeout": "8s"}
        return KafkaConfig.model_validate({**table, **{k: v for k, v in keys.items() if v is not None}})

    def scram(self, user: str = "alice", password: str = PASSWORD, **keys: Any) -> KafkaConfig:
        file = self.directory / f"password-{abs(hash(password))}"
        file.touch(mode=0o600)
        file.write_text(password)
        options: dict[str, Any] = {"ssl_cafile": str(self.ca), "sasl_mechanism": "SCRAM-SHA-256", **keys}
        return self.config("SCRAM", "SASL_SSL", username=user, password_file=str(file), **options)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        upsert = UserScramCredentialUpsertion(name, info, password.encode())
        admin = self.admin()
        for future in admin.alter_user_scram_credentials([upsert]).values():
            future.result()


@pytest.fixture(scope="module", params=STOPPABLE_TIERS[-1:])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("certificates")
    ours, foreign = Authority(directory, "our-authority"), Authority(directory, "foreign-authority")
    stores = {
        "TLS": ours.key_store("broker"),
        "MUTUAL": ours.key_store("broker-mutual"),
        "SCRAM": ours.key_store("broker-scram"),
        "EXPIRED": ours.key_store("broker-expired", expired=True),
        "ELSEWHERE": ours.key_store("broker-elsewhere", host="kafka.example.org"),
    }
    listeners = {name: "SASL_SSL" if name == "SCRAM" else "SSL" for name in stores} | {
        "OPEN": "SASL_PLAINTEXT"
    }
    settings = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ours.file),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client;User:CN=locked-client;"
        "User:CN=stranger;User:alice;User:dora",
    }
    for name, store in stores.items():
        settings[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(store)
    for name in ("scram", "open"):
        settings[f"listener.name.{name}.sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
        settings[f"listener.name.{name}.scram-sha-256.sasl.jaas.config"] = JAAS
    try:
        broker = KafkaBroker(request.param, settings=settings, listeners=listeners)
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    support.note_used("brokers", f"Apache Kafka {broker.version} with TLS, SCRAM and ACLs")
    made = Secured(
        *(broker, directory, ours.file, foreign.file, ours.issue("client")),
        *(ours.issue("locked-client", password="opens the key"), foreign.issue("stranger")),
    )
    made.add_user("alice")
    yield made
    broker.close()


Make = Callable[[Secured], KafkaConfig]


def mutual(secured: Secured, pair: tuple[Path, Path] | None, **keys: Any) -> KafkaConfig:
    options = {} if pair is None else {"ssl_keyfile": str(pair[0]), "ssl_certfile": str(pair[1])}
    return secured.config("MUTUAL", "SSL", ssl_cafile=str(secured.ca), **options, **keys)


WORKS: dict[str, Make] = {
    "TLS": lambda s: s.config("TLS", "SSL", ssl_cafile=str(s.ca)),
    "SCRAM over TLS": lambda s: s.scram(),
    "mutual TLS": lambda s: mutual(s, s.client),
}

FAULTS: dict[str, tuple[Make, str, str]] = {
    "wrong password": (
        lambda s: s.scram(password="wrong secret"),
        *("refuses user 'alice': wrong password", "password_file"),
    ),
    "unknown user": (lambda s: s.scram(user="mallory"), "refuses user 'mallory'", "kafka.username"),
    "wrong mechanism": (
        lambda s: s.scram(sasl_mechanism="PLAIN"),
        *("does not offer the SASL mechanism PLAIN", "kafka.sasl_mechanism"),
    ),
    "expired": (
        lambda s: s.config("EXPIRED", "SSL", ssl_cafile=str(s.ca)),
        *("has expired", "renew the certificate"),
    ),
    "foreign authority": (
        lambda s: s.config("TLS", "SSL", ssl_cafile=str(s.foreign_ca)),
        *("is not trusted", "kafka.ssl_cafile"),
    ),
    "wrong host": (
        lambda s: s.config("ELSEWHERE", "SSL", ssl_cafile=str(s.ca)),
        *("is for another host", "kafka.bootstrap_servers"),
    ),
    "plain to TLS": (
        lambda s: s.config("TLS", "PLAINTEXT"),
        *("requires TLS", "security_protocol to SSL"),
    ),
    "plain to SASL": (lambda s: s.config("OPEN", "PLAINTEXT"), "does not authenticate", "SASL_PLAINTEXT"),
    "no client certificate": (
        lambda s: mutual(s, None),
        *("demands a client certificate", "kafka.ssl_certfile"),
    ),
    "a stranger's certificate": (
        lambda s: mutual(s, s.stranger),
        *("does not accept the certificate", "trust store"),
    ),
}


async def topics_of(config: KafkaConfig) -> dict[str, int]:
    """The topics, once the client has closed its sockets: TLS takes leave over the network."""
    try:
        return await client.describe_topics(config)
    finally:
        loop: Any = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            # The loop has no event for it. One stays: its own pipe.
            while len(loop._selector.get_map()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("case", WORKS)
def test_a_secured_broker_is_reached(secured: Secured, case: str) -> None:
    assert isinstance(asyncio.run(topics_of(WORKS[case](secured))), dict)


@pytest.mark.parametrize("case", FAULTS)
def test_the_cause_of_a_refusal_is_named(secured: Secured, case: str) -> None:
    make, problem, fix = FAULTS[case]
    with pytest.raises(SourceError) as caught:
        asyncio.run(topics_of(make(secured)))
    assert problem in caught.value.problem
    assert fix in str(caught.value.fix)
    assert not caught.value.retriable
    assert "secret" not in str(caught.value)


def test_tls_to_a_plain_port_and_nobody_at_all(secured: Secured) -> None:
    tls = {"security_protocol": "SSL", "connect_timeout": "8s", "ssl_cafile": str(secured.ca)}
    plain = KafkaConfig.model_validate({"bootstrap_servers": secured.broker.bootstrap, **tls})
    with pytest.raises(SourceError, match="does not speak TLS") as caught:
        asyncio.run(topics_of(plain))
    assert "PLAINTEXT" in str(caught.value.fix)
    nobody = KafkaConfig.model_validate({"bootstrap_servers": "127.0.0.1:1", **tls})
    with pytest.raises(SourceError, match="no Kafka broker answers") as caught:
        asyncio.run(topics_of(nobody))
    assert caught.value.retriable


def test_init_connects_as_a_user_and_writes_no_password(
    secured: Secured, tmp_path: Path, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, file = secured.broker.create_topic(unique("init")), tmp_path / "fraud.toml"
    values = [b'{"amount": %d, "label": %d}' % (i, i % 2) for i in range(50)]
    asyncio.run(produce(secured.broker.bootstrap, topic, values))
    keys = {
        **{"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "username": "alice"},
        "ssl_cafile": str(secured.ca),
    }
    options = [part for key, value in keys.items() for part in ("--set", f"kafka.{key}={value}")]
    command = ["init", str(file), "--topic", topic, "--kafka", secured.broker.addresses["SCRAM"], *options]
    monkeypatch.setenv("STREAMPAIR_KAFKA__PASSWORD", "another")
    refused = CliRunner().invoke(app_of_commands, command)
    assert refused.exit_code != 0
    assert "refuses user 'alice': wrong password" in refused.stderr
    assert "another" not in refused.stderr
    monkeypatch.setenv("STREAMPAIR_KAFKA__PASSWORD", PASSWORD)
    result = CliRunner().invoke(app_of_commands, command)
    assert result.exit_code == 0, result.stderr
    assert PASSWORD not in result.stdout + file.read_text()
    assert len(file.read_text().splitlines()) <= 20
    assert asyncio.run(topics_of(load_config(file).require_kafka()))


def test_an_encrypted_key_is_refused(secured: Secured) -> None:
    with pytest.raises(ConfigError, match="openssl pkey -in"):
        asyncio.run(topics_of(mutual(secured, secured.locked_client)))


# ---- rights ----------------------------------------------------------------------------------------------


def secured_app(secured: Secured, directory: Path, name: str, user: str, *, scoring: str) -> App:
    scram = secured.scram(user)
    keys = (
        f'security_protocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-256"\nusername = "{user}"\n'
        f'password_file = "{scram.password_file}"\nssl_cafile = "{secured.ca}"\n'
    )
    return app_with(secured, directory, name, scram.bootstrap_servers, keys, scoring=scoring)


def app_with(
    secured: Secured, directory: Path, name: str, bootstrap: str, keys: str, *, scoring: str = "inline"
) -> App:
    """An application with these keys of [kafka]."""
    learner = f'scoring = "{scoring}"\n{PAIR_OGD}'
    app = App(secured.broker, directory, name, bootstrap=bootstrap, store="kafka", learner=learner)
    app.path.write_text(app.path.read_text().replace("[input]\n", f"{keys}[input]\n"))
    return app.create_topics()


def commands_of_the_page(config: Config, user: str) -> list[str]:
    """The least set of ACLs, as docs/operations/secure.md has it."""
    text = pages.text_of("docs/operations/secure.md")
    inline, parallel = re.findall(r"```console\n((?:\$ kafka-acls\.sh [^\n]*\n)+)```", text)
    names = {"events": config.input.topic, "scores": config.output_topic, "alice": user, "fraud": config.app}
    names |= {"fraud-dead-letters": config.dead_letter_topic, "fraud-events-log": config.log_topic}
    names |= {"fraud.scorers": config.scorers_group, "fraud-model": f"{config.app}-model"}
    # With scorers, their group needs Read, which includes Describe.
    lines = [
        line for line in inline.splitlines() if "fraud.scorers" not in line or not config.learner.parallel
    ]
    out = []
    for line in lines + (parallel.splitlines() if config.learner.parallel else []):
        words = [names.get(word, word) for word in line.split()]
        out.append(" ".join(words).replace("User:alice", f"User:{user}"))
    return out


def grant(secured: Secured, commands: list[str]) -> None:
    """Do what the command does: its tool takes a second for each."""
    acls = []
    for command in commands:
        (user,) = re.findall(r"--allow-principal '?(User:[^' ]+)", command)
        prefixed = "--resource-pattern-type prefixed" in command
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        kinds = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}
        kinds["transactional-id"] = ResourceType.TRANSACTIONAL_ID
        for kind, name in re.findall(r"--(topic|group|transactional-id) (\S+)", command):
            for operation in re.findall(r"--operation (\w+)", command):
                named = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()
                acls.append(
                    AclBinding(
                        *(kinds[kind], name, pattern, user, "*"),
                        *(AclOperation[named], AclPermissionType.ALLOW),
                    )
                )
    assert acls
    admin = secured.admin()
    for future in admin.create_acls(acls).values():
        future.result()


def rights(report: Any) -> Any:
    return next(f for f in report.findings if f["check"] == "rights")


def test_check_names_every_right_that_is_missing_at_once(secured: Secured, tmp_path: Path) -> None:
    secured.add_user("bob")
    app = secured_app(secured, tmp_path, "bare", "bob", scoring="parallel")
    config = load_config(app.path)
    for name in (config.log_topic, str(config.model_topic)):
        app.kafka.create_topic(name, **SETTINGS)
    report = asyncio.run(check_config(config))
    found = rights(report)
    assert not found["ok"]
    for topic in (app.input, app.output, app.dead, config.log_topic, config.model_topic):
        assert f"on topic {topic!r}" in found["text"]
    for group in ("bare", "bare.scorers"):
        assert f"Read on group {group!r}" in found["text"]
    assert "on transactional-id 'streampair-" in found["text"]
    # A topic that may not be seen is not said to be missing.
    assert not any("does not exist" in f["text"] for f in report.findings)
    grant(secured, found["fix"].split("\n"))
    after = asyncio.run(check_config(config))
    assert rights(after)["ok"], rights(after)
    assert after.ok, after.lines()


@pytest.mark.parametrize("scoring", ["inline", "parallel"])
def test_a_worker_runs_with_the_acls_of_the_page(secured: Secured, tmp_path: Path, scoring: str) -> None:
    name = f"carol-{scoring}"
    secured.add_user(name)
    app = secured_app(secured, tmp_path, f"least-{scoring}", name, scoring=scoring)
    config = load_config(app.path)
    for topic in {config.log_topic, config.model_topic} - {None}:
        app.kafka.create_topic(str(topic), **SETTINGS)
    commands = commands_of_the_page(config, name)
    for left_out in range(len(commands)):
        user = f"{name}-{left_out}"
        secured.add_user(user)
        fewer = [c.replace(f"User:{name}", f"User:{user}") for i, c in enumerate(commands) if i != left_out]
        grant(secured, fewer)
        other = tmp_path / str(left_out)
        other.mkdir()
        text = app.path.read_text().replace(f'username = "{name}"', f'username = "{user}"')
        (other / "app.toml").write_text(text)
        report = asyncio.run(check_config(load_config(other / "app.toml")))
        assert not rights(report)["ok"], commands[left_out]
    grant(secured, commands)
    assert asyncio.run(check_config(config)).ok
    app.produce(events(60))
    with Inside(app) as worker:
        rows = app.await_scores({0: 60}, worker)
    assert len(rows) == 60


# ---- rotation --------------------------------------------------------------------------------------------


class Served:
    """The models that a server has, followed in a thread."""

    def __init__(self, app: App) -> None:
        self.source = TopicModel(load_config(app.path))
        self.error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self.source.follow())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as error:
            self.error = error
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    @property
    def slots(self) -> int:
        """Events that the newest model has learned; -1 without a model."""
        assert self._thread.is_alive(), self.error
        return -1 if self.source.newest is None else self.source.newest.slots

    def stop(self) -> None:
        """End it; it must have been running."""
        assert self._thread.is_alive(), self.error
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()


def said(caplog: pytest.LogCaptureFixture, event: str, app: str | None, problem: str) -> bool:
    """Whether the log names a problem."""
    logged = [record.fields for record in caplog.records if record.message == event]  # type: ignore[attr-defined]
    return any(problem in each["detail"] and each.get("app") == app for each in logged)


def test_a_password_is_rotated_while_worker_scorer_and_server_run(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them say what is wrong, and go on once the file has the new password."""
    new = "another horse, another staple"
    secured.add_user("dora")
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(PASSWORD)
    app = secured_app(secured, tmp_path, "rotated", "dora", scoring="parallel")
    old = str(secured.scram("dora").password_file)
    app.path.write_text(app.path.read_text().replace(old, str(file)))
    app.produce(events(30))
    with Inside(app) as worker:
        app.await_scores({0: 30}, worker, committed=True)
        served = Served(app)
        wait_for("a model that is served", lambda: served.slots >= 0)
        secured.add_user("dora", new)
        secured.broker.restart()  # which ends the connections, as in a rolling restart
        refused = "refuses user 'dora': wrong password"
        wait_for("the worker's word", lambda: said(caplog, "waiting", app.name, refused))
        wait_for("the scorer's word", lambda: said(caplog, "waiting", f"{app.name}.scorers", refused))
        wait_for("the server's word", lambda: said(caplog, "model_topic_not_read", None, refused))
        before = served.slots
        app.produce(events(60, seed=2)[30:])
        file.write_text(new)
        assert len(app.await_scores({0: 60}, worker, committed=True)) == 60
        wait_for("a newer model that is served", lambda: served.slots > before)
        served.stop()
        assert worker.health() == "running"
        assert worker.stop() is None
    assert app.position() == 60
    assert PASSWORD not in caplog.text
    assert new not in caplog.text


def test_a_client_certificate_is_rotated_while_a_worker_runs(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca, key, chain = (tmp_path / name for name in ("ca.pem", "client.key", "client.crt"))
    key.touch(mode=0o600)

    def use(pair: tuple[Path, Path]) -> None:
        for file, source in zip((key, chain), pair, strict=True):
            file.write_bytes(source.read_bytes())

    ca.write_bytes(secured.ca.read_bytes())
    use(secured.client)
    keys = (
        f'security_protocol = "SSL"\nssl_cafile = "{ca}"\nssl_keyfile = "{key}"\nssl_certfile = "{chain}"\n'
    )
    app = app_with(secured, tmp_path, "renewed", secured.broker.addresses["MUTUAL"], keys)
    app.produce(events(30))
    try:
        with Inside(app) as worker:
            app.await_scores({0: 30}, worker, committed=True)
            secured.ca.write_bytes(secured.foreign_ca.read_bytes())  # whom the broker trusts
            secured.broker.restart()
            refused = "does not accept the certificate in kafka.ssl_certfile"
            wait_for("the worker's word", lambda: said(caplog, "waiting", app.name, refused))
            app.produce(events(60, seed=2)[30:])
            use(secured.stranger)
            assert len(app.await_scores({0: 60}, worker, committed=True)) == 60
            assert worker.stop() is None
        assert app.position() == 60
    finally:
        secured.ca.write_bytes(ca.read_bytes())
        secured.broker.restart()


def test_the_next_address_of_a_name_is_tried(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at the first one, not even to refuse, as behind a firewall that drops packets."""
    host, _, port = secured.broker.bootstrap.partition(":")
    resolve = socket.getaddrinfo

    def two(name: Any, *arguments: Any, **options: Any) -> Any:
        names = ("127.0.0.2", host) if name in ("kafka.test", b"kafka.test") else (name,)
        return [each for one in names for each in resolve(one, *arguments, **options)]

    with socket.socket() as hole, contextlib.ExitStack() as waiting:
        hole.bind(("127.0.0.2", int(port)))
        hole.listen(0)
        for _ in range(3):  # more than it takes: the rest get no answer
            client_socket = waiting.enter_context(socket.socket())
            client_socket.setblocking(False)
            client_socket.connect_ex(hole.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", two)
        config = KafkaConfig(bootstrap_servers=f"kafka.test:{port}", connect_timeout=Duration.of("8s"))
        assert isinstance(asyncio.run(client.describe_topics(config)), dict)
