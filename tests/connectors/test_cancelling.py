"""Tasks that do not end when told to, and connections that must not be cut off while they are made."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from typing import Any

import pytest
from streampair_connectors.kafka import ended
from streampair_connectors.kafka.client import _AllAddresses, shielded


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def work() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    # To cancel once and wait, as is usual, would be to wait for ever.
    task.cancel()
    assert await asyncio.wait({task}, timeout=0.05) == (set(), {task})
    await ended(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_what_a_task_raised_is_no_trouble_any_more() -> None:
    async def work() -> None:
        raise ValueError("of no use")

    task = asyncio.create_task(work())
    await asyncio.wait({task})
    await ended(task)
    await ended(None)


async def test_work_that_is_cancelled_comes_to_its_end_first() -> None:
    made = []

    async def connect() -> str:
        await asyncio.sleep(0.02)
        made.append("closed by whoever made it")
        return "connection"

    assert await shielded(connect()) == "connection"
    task = asyncio.create_task(shielded(connect()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(made) == 2
    # Without it, nothing is made, and nobody closes what was half made.
    bare = asyncio.create_task(connect())
    await asyncio.sleep(0)
    bare.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bare
    assert len(made) == 2


async def test_work_that_does_not_end_is_cancelled_after_a_moment() -> None:
    ends = asyncio.Event()

    async def silent() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ends.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(shielded(silent()), 0.01)
    await asyncio.wait_for(ends.wait(), 10)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("127.0.0.1", "127.0.0.2")])
def test_a_connection_that_is_cancelled_at_any_step_leaves_no_socket(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop's own race between addresses loses the socket of an attempt that has just succeeded."""
    lost: list[BaseException | None] = []
    outcomes: list[bool] = []

    async def resolve(loop: Any, host: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def attempt(port: int) -> None:
        loop = _AllAddresses(asyncio.get_running_loop())
        transport, _ = await loop.create_connection(asyncio.Protocol, "kafka.test", port, ssl=None)
        transport.close()

    async def body() -> None:
        servers: list[asyncio.Server] = []
        port = 0
        for address in addresses:
            servers.append(await asyncio.start_server(lambda reader, writer: writer.close(), address, port))
            port = servers[0].sockets[0].getsockname()[1]
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
        for steps in range(30):
            task = asyncio.create_task(attempt(port))
            for _ in range(steps):
                await asyncio.sleep(0)
            outcomes.append(task.done())
            task.cancel()
            await asyncio.wait({task})
            del task
            await asyncio.sleep(0)
            gc.collect()
        for server in servers:
            server.close()

    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_value))
    asyncio.run(body())
    gc.collect()
    assert (outcomes[0], outcomes[-1]) == (False, True)
    assert lost == []
