"""HTTP routes of the page: its files, the data, and a stream of changes (server-sent events)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from importlib import resources
from pathlib import Path

from aiohttp import web

from streampair_connectors.observability.dashboard.view import frame_json
from streampair_connectors.observability.metrics import Telemetry

__all__ = ["ASSETS", "add_routes", "asset"]

ASSETS = {
    "page.css": "text/css",
    "chart.js": "text/javascript",
    "page.js": "text/javascript",
}
"""Files of the page besides `page.html`, with their content types."""

# Nothing is loaded from or sent to other hosts, and no other page may embed this one.
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

STREAMS = 32
"""Maximum number of streams per port; further readers get 503 and poll."""

_LOOK_SECONDS = 0.25  # between two checks for changes
_BEAT_SECONDS = 1.0  # a message is sent at least as often: silence means that the worker has stopped
_SLOW_SECONDS = 10.0  # a reader that blocks for longer is dropped; until then changes are merged
_SHARE = 20  # to put changes together takes at most a twentieth of the time


@functools.cache
def asset(name: str) -> bytes:
    """Return a file of the page."""
    return (resources.files("streampair_connectors.observability.dashboard") / "assets" / name).read_bytes()


def add_routes(
    app: web.Application, telemetry: Telemetry, *, public: bool, audit: Path | None = None
) -> None:
    """Serve the page at `/`.

    Parameters
    ----------
    app
        Application of one port.
    telemetry
        Source of all numbers.
    public
        Whether it is the public port: there the page has the privacy tab only.
    audit
        The file of the last audit.
    """
    streams: set[asyncio.Task[object]] = set()

    async def page(request: web.Request) -> web.Response:
        return _file("page.html", "text/html")

    async def part(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return _file(name, ASSETS[name])

    async def data(request: web.Request) -> web.Response:
        _, body = frame_json(telemetry, public=public, card=_has_cards(request), audit=audit)
        response = web.Response(body=body, content_type="application/json", headers=_SAFE)
        response.headers["Cache-Control"] = "no-store"
        response.enable_compression()
        return response

    async def events(request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        if len(streams) >= STREAMS or task is None:
            return web.Response(
                status=503,
                text=f"{STREAMS} pages are open already: close one, then load this one again\n",
                headers={"Retry-After": "5"},
            )
        streams.add(task)
        try:
            return await _stream(request, telemetry, audit, public=public)
        finally:
            streams.discard(task)

    async def close(_: web.Application) -> None:
        for task in list(streams):  # a stopping worker does not wait for readers
            task.cancel()

    app.router.add_get("/", page)
    app.router.add_get("/page/data", data)
    app.router.add_get("/page/events", events)
    app.router.add_get("/page/{name}", part)
    app.on_shutdown.append(close)


def _file(name: str, kind: str) -> web.Response:
    response = web.Response(body=asset(name), content_type=kind, charset="utf-8", headers=_SAFE)
    response.headers["Cache-Control"] = "no-cache"
    response.enable_compression()
    return response


async def _stream(
    request: web.Request, telemetry: Telemetry, audit: Path | None, *, public: bool
) -> web.StreamResponse:
    after = _count(request.query.get("after"))
    response = web.StreamResponse(headers=_SAFE)
    response.content_type = "text/event-stream"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # a proxy in front passes it on at once
    await response.prepare(request)
    await response.write(b"retry: 1000\n\n")
    card, sent = _has_cards(request), 0.0
    with contextlib.suppress(ConnectionError, TimeoutError):
        while True:
            now, pause = time.monotonic(), _LOOK_SECONDS
            if telemetry.history.counts[public] != after or now >= sent + _BEAT_SECONDS:
                after, body = frame_json(telemetry, public=public, after=after, card=card, audit=audit)
                sent = time.monotonic()
                pause = max(pause, _SHARE * (sent - now))
                async with asyncio.timeout(_SLOW_SECONDS):  # wait_for may lose that it is cancelled
                    await response.write(b"data: " + body + b"\n\n")
            await asyncio.sleep(pause)
    return response


def _has_cards(request: web.Request) -> bool:
    return any(resource.canonical == "/card" for resource in request.app.router.resources())


def _count(text: str | None) -> int:
    try:
        return max(int(text or 0), 0)
    except ValueError:
        return 0
