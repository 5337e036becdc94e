"""Sessions: one connection to the cluster after the other, until a service is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from streampair.errors import SourceError, StreampairError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import KAFKA, AccessError, Cluster, CredentialsError, ended
from streampair_connectors.observability.health import Health

__all__ = ["ConnectionWatch", "run_sessions", "run_watched"]

_WATCH_SECONDS = 2.0
_PROOFS = 2  # one may be a broker that has just come back, or an event loop that was blocked


class ConnectionWatch:
    """Says why the clients of a running service have lost the cluster, and when they are to be made anew.

    A client keeps the password, the certificate and the token with which it was made, and tries for ever.
    Once the clients fail, a new one is tried with the files as they are now. If that one works, and those of
    the service still fail some seconds later, the session ends, and the next one has new clients.

    Parameters
    ----------
    config
        How to reach the cluster.
    waiting
        Called with the cause and the next step, again and again until it works.
    running
        Called when it works again.
    cluster
        Asked for the cause.

    Attributes
    ----------
    cause
        Why they fail, and the next step; None: they work, or the cause is not known.
    """

    def __init__(
        self,
        config: KafkaConfig,
        waiting: Callable[[str, str], None],
        running: Callable[[], None],
        *,
        cluster: Cluster = KAFKA,
    ) -> None:
        self._config = config
        self._waiting = waiting
        self._running = running
        self._cluster = cluster
        self._failing = False
        self._reached = 0  # how often a new client worked while these failed
        self.cause: tuple[str, str] | None = None

    async def note(self, works: bool) -> None:
        """Note whether the clients work; to be called every few seconds.

        Raises
        ------
        SourceError
            A new client works, and these do not.
        """
        if works:
            if self._failing:
                self._running()
            self._failing, self._reached, self.cause = False, 0, None
            return
        self._failing = True
        if self._reached >= _PROOFS:
            raise SourceError(
                f"Kafka at {self._config.bootstrap_servers} accepts new connections, and those of this "
                "process fail",
                fix="none is needed: they are made anew, and the files of [kafka] are read again",
            )
        error: StreampairError | None
        try:
            error = await self._cluster.diagnose(self._config)
        except CredentialsError as unread:
            error = unread
        self._reached = self._reached + 1 if error is None else 0
        self.cause = None if error is None else (error.problem, error.fix)
        if self.cause is not None:
            self._waiting(*self.cause)

    async def run(self, works: Callable[[], Awaitable[bool]]) -> None:
        """Ask every few seconds whether the clients work, until it is cancelled.

        Raises
        ------
        SourceError
            As of `note`.
        """
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await self.note(await works())


async def run_watched(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or until `watch` raises, which goes on."""
    tasks = [asyncio.create_task(work), asyncio.create_task(watch)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        next(task for task in tasks if task.done()).result()
    finally:
        await ended(*tasks)


async def run_sessions(
    session: Callable[[], Coroutine[Any, Any, None]],
    *,
    stop: asyncio.Event,
    health: Health,
    joined: Callable[[], bool],
    working: Callable[[], bool],
    connect_seconds: float,
    host: Host = THIS_HOST,
) -> None:
    """Run sessions until `stop` is set. A broker that is away is waited for.

    Parameters
    ----------
    session
        Works with one connection, and returns when it is to be made anew.
    stop, health
        Of the service.
    joined
        Whether a session has ever been connected.
    working
        Whether this session is connected, and ends by itself at a stop. Before, a stop cancels it.
    connect_seconds
        How long a broker may be away before the first connection.
    host
        Its clock.

    Raises
    ------
    StreampairError
        A retry cannot help, or no broker answers at the start.
    """
    pause, patience = 0.5, host.monotonic() + connect_seconds
    while not stop.is_set():
        try:
            await _until_stop(session, stop, working)
        except (SourceError, CredentialsError) as error:
            # Before the first connection a missing broker is an error; later the service waits for it.
            late = not joined() and host.monotonic() >= patience
            # So it does for credentials: they may be about to be replaced here or on the brokers.
            waits = error.retriable or (joined() and isinstance(error, AccessError | CredentialsError))
            if not waits or late or stop.is_set():
                raise
            health.waiting(error.problem, error.fix)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            pause = min(pause * 2, 10.0)


async def _until_stop(
    session: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event, working: Callable[[], bool]
) -> None:
    task, stopped = asyncio.create_task(session()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not working():
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
    finally:
        await ended(task, stopped)
