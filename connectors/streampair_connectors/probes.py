"""`/livez` and `/readyz`: what starts a worker anew, and what says that it is not at work."""

from __future__ import annotations

import dataclasses
import json

from aiohttp import web

from streampair_connectors.telemetry import Telemetry

__all__ = ["add_routes"]


def add_routes(app: web.Application, telemetry: Telemetry, *, public: bool) -> None:
    """Add both to the operator's port; the public one tells nobody how the worker is."""
    if public:
        return

    def probe(*, live: bool) -> web.Response:
        problems = [dataclasses.asdict(problem) for problem in telemetry.problems(live=live)]
        # A process that runs nothing yet lives, and is not ready.
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
