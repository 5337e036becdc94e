"""SASL OAUTHBEARER on a real broker: tokens from a file and from a token endpoint; and of Amazon MSK."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

import pytest
from aiohttp import web
from harness import support
from harness.apache_kafka import KafkaBroker
from harness.applications import App, Inside, events
from harness.kafka import Unavailable
from harness.support import in_one_case
from harness.tiers import STOPPABLE_TIERS
from harness.worker_process import wait_for
from pydantic import SecretStr
from streampair_connectors import kafka as client
from streampair_connectors.config import KafkaConfig, parse_config
from streampair_connectors.kafka.oauth import TokenError, token_provider

from streampair.errors import ConfigError, SourceError

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET = "a secret of the client"


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def token(user: str = "alice", seconds: float = 600.0) -> str:
    """A token without a signature, which the broker's validator for tests takes."""
    now = time.time()
    claims = {"sub": user, "iat": now - 60, "exp": now + seconds}
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."


@pytest.fixture(scope="module", params=STOPPABLE_TIERS[-1:])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    settings = {
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{MODULE} required "
        'unsecuredLoginStringClaim_sub="broker";',
    }
    try:
        broker = KafkaBroker(request.param, settings=settings, listeners={"OAUTH": "SASL_PLAINTEXT"})
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    support.note_used("brokers", f"Apache Kafka {broker.version} with OAUTHBEARER")
    yield broker
    broker.close()


def config(broker: KafkaBroker | None, **keys: Any) -> KafkaConfig:
    server = "127.0.0.1:1" if broker is None else broker.addresses["OAUTH"]
    table = {"bootstrap_servers": server, "security_protocol": "SASL_PLAINTEXT"}
    more = {"sasl_mechanism": "OAUTHBEARER", "connect_timeout": "8s"}
    return KafkaConfig.model_validate({**table, **more, **keys})


def private_file(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


class Endpoint:
    """A token endpoint: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.secret: str | None = None  # others are refused
        self.answer: Callable[[], Any] = lambda: {"access_token": token(), "expires_in": 600}

    async def start(self) -> str:
        application = web.Application()
        application.router.add_post("/token", self._handle)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/token"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        login = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        self.requests.append(
            {**await request.post(), "login": [unquote_plus(each) for each in login.split(":")]}
        )
        refused = self.secret is not None and self.requests[-1]["login"][1] != self.secret
        return web.json_response(self.answer(), status=401 if refused else self.status)


def test_a_token_from_a_file_is_read_at_each_connection(broker: KafkaBroker, tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = config(broker, oauth_token_file=private_file(file, token(seconds=-10)))
    with pytest.raises(SourceError, match="refuses the token") as caught:
        asyncio.run(client.describe_topics(settings))
    assert "expiry" in caught.value.fix
    assert not caught.value.retriable
    file.write_text(token())
    assert isinstance(asyncio.run(client.describe_topics(settings)), dict)
    file.chmod(0o644)
    with pytest.raises(SourceError, match="mode 0644"):
        asyncio.run(client.describe_topics(settings))


def test_a_token_of_an_endpoint_is_used_until_shortly_before_it_expires(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint()
    clock = time.monotonic
    passed = 0.0

    async def body() -> None:
        nonlocal passed
        url = await endpoint.start()
        settings = config(
            *(broker,),
            **{
                "oauth_token_url": url,
                "oauth_client_id": "fraud",
                "oauth_client_secret_file": SecretStr(SECRET),
            },
            oauth_scope="kafka",
        )
        try:
            await client.describe_topics(settings)
            await client.describe_topics(settings)
            assert len(endpoint.requests) == 1
            passed = 571.0
            await client.describe_topics(settings)
            assert len(endpoint.requests) == 2
            passed = 2000.0
            endpoint.status = 302  # the secret follows no redirect
            with pytest.raises(SourceError, match="answers 302"):
                await client.describe_topics(settings)
            endpoint.status = 401
            with pytest.raises(SourceError, match="answers 401 for the client 'fraud'") as caught:
                await client.describe_topics(settings)
            assert SECRET not in str(caught.value)
            assert not caught.value.retriable
            endpoint.status, endpoint.answer = 200, lambda: {"token": "x"}
            with pytest.raises(SourceError, match="without an access_token"):
                await client.describe_topics(settings)
        finally:
            await endpoint.stop()
        with pytest.raises(SourceError, match="does not answer") as caught:
            await client.describe_topics(settings)
        assert caught.value.retriable, "the worker waits for it, as for a broker"

    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed)
    asyncio.run(body())
    form = {"grant_type": "client_credentials", "scope": "kafka", "login": ["fraud", SECRET]}
    assert endpoint.requests[0] == form


@pytest.mark.parametrize(("expires_in", "requests"), [("3599", 1), (3599, 1), ("0", 2), ("nan", 2)])
def test_the_lifetime_of_a_token_may_be_text(
    monkeypatch: pytest.MonkeyPatch, expires_in: Any, requests: int
) -> None:
    """A token whose lifetime makes no sense is used once."""
    endpoint = Endpoint()
    endpoint.answer = lambda: {"access_token": "a token", "expires_in": expires_in}

    async def body() -> None:
        url = await endpoint.start()
        keys = {"oauth_client_id": "fraud", "oauth_client_secret_file": SecretStr(SECRET)}
        provider = token_provider(config(None, oauth_token_url=url, **keys))
        try:
            for _ in range(2):
                assert await provider.token() == "a token"
        finally:
            await endpoint.stop()

    asyncio.run(body())
    assert len(endpoint.requests) == requests


@pytest.mark.parametrize(("status", "again"), [(429, True), (503, True), (400, False), (401, False)])
async def test_an_endpoint_that_is_overloaded_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, status: int, again: bool
) -> None:
    endpoint = Endpoint()
    endpoint.status = status
    url = await endpoint.start()
    keys = {"oauth_client_id": "fraud", "oauth_client_secret_file": SecretStr(SECRET)}
    try:
        with pytest.raises(TokenError, match=f"answers {status}") as caught:
            await token_provider(config(None, oauth_token_url=url, **keys)).token()
    finally:
        await endpoint.stop()
    assert caught.value.again is again


def test_the_secret_of_a_client_is_rotated_while_a_worker_runs(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The token endpoint refuses the old secret; the worker says so, and goes on with the new one."""
    secret, new = tmp_path / "secret", "another secret of the client"
    endpoint = Endpoint()
    endpoint.secret = SECRET
    endpoint.answer = lambda: {"access_token": token(), "expires_in": 1}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    url = asyncio.run_coroutine_threadsafe(endpoint.start(), loop).result()
    app = App(broker, tmp_path, "rotates", bootstrap=broker.addresses["OAUTH"], store="kafka")
    keys = (
        'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "OAUTHBEARER"\n'
        f'oauth_token_url = "{url}"\noauth_client_id = "fraud"\n'
        f'oauth_client_secret_file = "{private_file(secret, SECRET)}"\n[input]\n'
    )
    app.path.write_text(app.path.read_text().replace("[input]\n", keys))
    app.create_topics()
    app.produce(events(30))
    try:
        with Inside(app) as worker:
            app.await_scores({0: 30}, worker, committed=True)
            endpoint.secret = new
            broker.restart()
            refused = "answers 401 for the client 'fraud'"
            wait_for(
                "the worker's word",
                lambda: any(
                    refused in record.fields["detail"]  # type: ignore[attr-defined]
                    for record in caplog.records
                    if record.message == "waiting"
                ),
            )
            app.produce(events(60, seed=2)[30:])
            secret.write_text(new)
            assert len(app.await_scores({0: 60}, worker, committed=True)) == 60
            assert worker.stop() is None
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert SECRET not in caplog.text


def test_a_worker_runs_with_tokens(broker: KafkaBroker, tmp_path: Path) -> None:
    app = App(broker, tmp_path, "oauth", bootstrap=broker.addresses["OAUTH"])
    keys = (
        'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "OAUTHBEARER"\n'
        f'oauth_token_file = "{private_file(tmp_path / "token", token())}"\n[input]\n'
    )
    app.path.write_text(app.path.read_text().replace("[input]\n", keys))
    app.create_topics()
    app.produce(events(30))
    with Inside(app) as worker:
        assert len(app.await_scores({0: 30}, worker)) == 30


def test_a_token_of_amazon_msk_is_signed_for_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    settings = config(None, oauth_msk_region="eu-west-1")
    signed = asyncio.run(token_provider(settings).token())
    url = urlsplit(base64.urlsafe_b64decode(signed + "==").decode())
    assert url.hostname == "kafka.eu-west-1.amazonaws.com"
    assert parse_qs(url.query)["Action"] == ["kafka-cluster:Connect"]
    assert SECRET not in signed


def test_without_aws_credentials_the_fix_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(TokenError) as caught:
        asyncio.run(token_provider(config(None, oauth_msk_region="us-east-2")).token())
    assert "AWS credentials" in caught.value.fix


@in_one_case(
    ("keys", "problem"),
    [
        ({}, "needs one of"),
        ({"oauth_token_file": "a", "oauth_msk_region": "eu-west-1"}, "not oauth_token_file and"),
        ({"oauth_token_url": "https://idp.example/token"}, "needs oauth_client_id"),
        ({"oauth_token_url": "http://idp.example/token"}, "must begin with https"),
        ({"oauth_token_url": "https://me:secret@idp.example/token"}, "must not hold a password"),
        ({"oauth_msk_region": "Europe"}, "oauth_msk_region"),
        ({"oauth_token_file": "a", "sasl_mechanism": "PLAIN"}, "oauth_token_file needs"),
    ],
)
def test_settings_that_cannot_work_are_refused(keys: dict[str, Any], problem: str) -> None:
    table = {"bootstrap_servers": "b:9092", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    secret = {"oauth_client_id": "fraud", "oauth_client_secret_file": "x"} if "//" in str(keys) else {}
    if "needs oauth" in problem:
        secret = {}
    app = {"app": "a", "learner": {"class": "streampair.auc.PairOGD"}, "input": {"label": "y"}}
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_config({**app, "kafka": {**table, **secret, **keys}})
    assert "secret@" not in str(caught.value)
