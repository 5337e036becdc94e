"""Sessions: one connection to the cluster after the other, until a service is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from streampair.errors import SourceError
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.observability.health import Health

__all__ = ["run_sessions"]


async def run_sessions(
    session: Callable[[], Awaitable[None]],
    *,
    stop: asyncio.Event,
    health: Health,
    joined: Callable[[], bool],
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
    connect_seconds
        How long a broker may be away before the first connection.
    host
        Its clock.

    Raises
    ------
    SourceError
        A retry cannot help, or no broker answers at the start.
    """
    pause, patience = 0.5, host.monotonic() + connect_seconds
    while not stop.is_set():
        try:
            await session()
        except SourceError as error:
            # Before the first connection a missing broker is an error; later the service waits for it.
            late = not joined() and host.monotonic() >= patience
            if not error.retriable or late or stop.is_set():
                raise
            health.waiting(error.problem, error.fix)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            pause = min(pause * 2, 10.0)
