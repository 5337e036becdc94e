"""Connections of a service: what ends a session, what is waited for, and what a stop does not wait for."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import KAFKA, AccessError, CredentialsError
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.sessions import ConnectionWatch, run_sessions, run_watched

from streampair.errors import SourceError, StreampairError

REFUSED = AccessError("b:1 refuses user 'alice': wrong password", fix="check the password")
UNREAD = CredentialsError("the password file cannot be read", fix="check the path")
NOBODY = SourceError("no Kafka broker answers at b:1", fix="start it")


def watched(*findings: StreampairError | None) -> tuple[ConnectionWatch, list[str]]:
    """A watch whose diagnosis gives these, and what it says."""
    said: list[str] = []
    found = iter(findings)

    async def diagnose(config: KafkaConfig) -> StreampairError | None:
        error = next(found)
        if isinstance(error, CredentialsError):
            raise error
        return error

    cluster = dataclasses.replace(KAFKA, diagnose=diagnose)
    config = KafkaConfig(bootstrap_servers="b:1")
    return (
        ConnectionWatch(
            config, lambda problem, fix: said.append(problem), lambda: said.append("running"), cluster=cluster
        ),
        said,
    )


def note(watch: ConnectionWatch, *works: bool) -> None:
    async def body() -> None:
        for each in works:
            await watch.note(each)

    asyncio.run(body())


def test_the_cause_is_named_until_the_clients_work_again() -> None:
    watch, said = watched(NOBODY, REFUSED, UNREAD)
    note(watch, True, False, False, False)
    assert watch.cause == (UNREAD.problem, UNREAD.fix)
    note(watch, True, True)
    assert watch.cause is None
    assert said == [NOBODY.problem, REFUSED.problem, UNREAD.problem, "running"]


def test_clients_are_made_anew_once_a_new_one_works_and_they_do_not() -> None:
    """Not at once: they may be about to connect again by themselves."""
    watch, said = watched(REFUSED, None, None, None, None)
    note(watch, False, False, False)
    assert watch.cause is None
    note(watch, True, False, False)
    with pytest.raises(SourceError, match="accepts new connections") as caught:
        note(watch, False)
    assert caught.value.retriable
    assert said == [REFUSED.problem, "running"]


def run(errors: list[StreampairError], *, joined: bool) -> int:
    """Sessions that end with these errors, then a stop; how many there were."""
    stop = asyncio.Event()
    sessions = 0

    async def session() -> None:
        nonlocal sessions
        sessions += 1
        if len(errors) >= sessions:
            raise errors[sessions - 1]
        stop.set()

    health = Health("fraud", Telemetry())
    asyncio.run(
        run_sessions(
            session,
            stop=stop,
            health=health,
            joined=lambda: joined,
            working=lambda: True,
            connect_seconds=60.0,
        )
    )
    return sessions


@pytest.mark.parametrize("error", [REFUSED, UNREAD])
def test_credentials_are_waited_for_once_a_service_runs(error: StreampairError) -> None:
    with pytest.raises(type(error)):
        run([error], joined=False)
    assert run([error, NOBODY], joined=True) == 3


def test_what_no_rotation_mends_ends_a_service() -> None:
    missing = SourceError("topic 'events' does not exist", fix="create it", retriable=False)
    with pytest.raises(SourceError, match="does not exist"):
        run([missing], joined=True)


@pytest.mark.parametrize("working", [False, True])
def test_a_stop_does_not_wait_for_a_connection(working: bool) -> None:
    """A session that is connected ends by itself, with a last commit; one that connects is cancelled."""
    ended: list[str] = []

    async def body() -> None:
        stop, begun = asyncio.Event(), asyncio.Event()

        async def session() -> None:
            begun.set()
            try:
                if working:
                    await stop.wait()
                else:
                    await asyncio.get_running_loop().create_future()
                ended.append("by itself")
            finally:
                ended.append("closed")

        health = Health("fraud", Telemetry())
        options: dict[str, Any] = {"stop": stop, "health": health, "connect_seconds": 60.0}
        task = asyncio.create_task(
            run_sessions(session, joined=lambda: working, working=lambda: working, **options)
        )
        await begun.wait()
        stop.set()
        async with asyncio.timeout(60):
            await task

    asyncio.run(body())
    assert ended == (["by itself", "closed"] if working else ["closed"])


def test_what_a_watch_raises_ends_the_work() -> None:
    async def body() -> list[str]:
        closed = []

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                closed.append("work")

        async def watch() -> None:
            raise NOBODY

        with pytest.raises(SourceError, match="no Kafka broker"):
            await run_watched(work(), watch())
        return closed

    assert asyncio.run(body()) == ["work"]
