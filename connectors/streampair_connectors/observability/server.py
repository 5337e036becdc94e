"""HTTP server: `/metrics`, `/healthz` and probes for operators; public `/metrics` on another address."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import urllib.request
from pathlib import Path

from aiohttp import web

from streampair.errors import SourceError
from streampair_connectors.config import Address, CardConfig, MetricsConfig
from streampair_connectors.observability import dashboard, privacy_card
from streampair_connectors.observability.metrics import CONTENT_TYPE, Telemetry

__all__ = [
    "MetricsServer",
    "add_routes",
    "read_metrics",
]

_SECONDS, _MOST_BYTES = 2.0, 2**24


def add_routes(app: web.Application, telemetry: Telemetry, *, public: bool) -> None:
    """Add the probes `/livez` and `/readyz`, to the operator's endpoint only."""
    if public:
        return

    def probe(*, live: bool) -> web.Response:
        problems = [dataclasses.asdict(problem) for problem in telemetry.problems(live=live)]
        # A process without an application yet is live, and not ready.
        ok = not problems and (live or telemetry.health_report()[0])
        return web.json_response(
            {"ok": ok, "problems": problems}, status=200 if ok else 503, dumps=json.dumps
        )

    async def livez(request: web.Request) -> web.Response:
        return probe(live=True)

    async def readyz(request: web.Request) -> web.Response:
        return probe(live=False)

    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)


def read_metrics(address: Address) -> list[str]:
    """The lines of `/metrics` that a process serves at an address; none if it does not answer in 2 s."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_SECONDS) as answer:
            return str(answer.read(_MOST_BYTES), "utf-8").splitlines()
    except (OSError, ValueError, http.client.HTTPException):
        return []


class MetricsServer:
    """Serves the series of a `Telemetry` until `stop`.

    Parameters
    ----------
    telemetry
        The series to serve.
    config
        Addresses; port 0 takes a free port, see `url`.
    audit
        The file of the last audit, for the page and the privacy cards.
    curator
        The curator's entries of the privacy cards.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        config: MetricsConfig,
        audit: Path | None = None,
        curator: CardConfig | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._config = config
        self._audit = audit
        self._curator = curator
        self._runners: list[web.AppRunner] = []
        self.url = ""
        self.public_url: str | None = None

    async def start(self) -> None:
        """Listen.

        Raises
        ------
        SourceError
            A port is taken or not allowed.
        """
        config = self._config
        self.url = await self._listen(config.address, public=False)
        if config.public_address is not None:
            self.public_url = await self._listen(config.public_address, public=True)

    async def _listen(self, address: Address, *, public: bool) -> str:
        async def metrics(request: web.Request) -> web.Response:
            return web.Response(
                body=self._telemetry.render(public=public), headers={"Content-Type": CONTENT_TYPE}
            )

        async def healthz(request: web.Request) -> web.Response:
            well, report = self._telemetry.health_report()
            return web.json_response(
                {"ok": well, "apps": report}, status=200 if well else 503, dumps=json.dumps
            )

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        if not public:
            app.router.add_get("/healthz", healthz)
        dashboard.add_routes(app, self._telemetry, public=public, audit=self._audit, curator=self._curator)
        privacy_card.add_routes(app, self._telemetry, public=public, audit=self._audit, curator=self._curator)
        add_routes(app, self._telemetry, public=public)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, address.host, address.port).start()
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            key = "metrics.public_address" if public else "metrics.address"
            raise SourceError(
                f"cannot listen on {address} ({key}): {getattr(error, 'strerror', None) or error}",
                fix=f"stop what uses the port, or correct {key} (port 0 takes a free one)",
                retriable=False,
            ) from None
        self._runners.append(runner)
        return f"http://{Address(*runner.addresses[0][:2])}"

    async def linger(self, stop_requested: asyncio.Event) -> None:
        """Keep serving after a failure, for `linger` or until `stop_requested`, to show its cause."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_requested.wait(), self._config.linger.seconds)

    async def stop(self) -> None:
        """Stop listening."""
        while self._runners:
            await self._runners.pop().cleanup()
