"""The page: its data (series, privacy reports, each lane's history), and the HTTP routes that serve it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import web

from streampair import __version__
from streampair.engine.lane import LaneGauges
from streampair.privacy.accounting import DOUBTFUL_BY, NOT_COVERED, VOID_BY
from streampair.privacy.mechanisms.base import ONE_RECORD
from streampair_connectors.config import CardConfig
from streampair_connectors.observability.metric_definitions import SERIES, LaneLabels
from streampair_connectors.observability.metric_history import POINTS, Track
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.privacy_card import audit_summary, public_report, terms

__all__ = ["ASSETS", "add_routes", "asset", "frame", "frame_json"]

# The columns of a lane's history; those that are not public series are for operators only.
_COLUMNS = (
    *("events", "prequential_auc", "prequential_auc_stderr", "regret_average", "regret_average_stderr"),
    *("pair_loss", "comparator_loss"),
    *("lag", "weight_norm", "privacy_epsilon_spent", "privacy_mu_spent", "privacy_horizon_left"),
    *("privacy_releases_total", "privacy_forks"),
)
_BY_NAME = {series.name.removeprefix("streampair_"): series for series in SERIES}
_PUBLIC = {name for name, series in _BY_NAME.items() if series.public}
_LIMITS = {"not_covered": NOT_COVERED, "void_by": VOID_BY, "doubtful_by": DOUBTFUL_BY}
_POINTS_OF_ALL = 12_000  # shared by all lanes: the first message stays small

_encode = msgspec.json.Encoder().encode


def frame(
    telemetry: Telemetry,
    *,
    public: bool,
    after: int | None = None,
    card: bool = False,
    audit: Path | None = None,
    curator: CardConfig | None = None,
) -> dict[str, Any]:
    """Return the data of the page.

    Parameters
    ----------
    telemetry
        Source of all numbers.
    public
        Leave out functions of raw data (docs/privacy 7): private lanes only, and of them what the public
        endpoint has.
    after
        A count of the history for this reader: only lanes that changed later, with their last point; None:
        all lanes with their past, and the words that never change: of the series, the curator and the limits
        of every guarantee.
    card
        Whether there are privacy cards to open.
    audit
        The file of the last audit.
    curator
        The table [card] of the configuration.

    Returns
    -------
    dict
        Ready for JSON. `seq` is its count of the history.
    """
    history = telemetry.history
    names = [name for name in _COLUMNS if name in _PUBLIC or not public]
    with history.lock:
        tracks = [(k, t) for k, t in history.tracks.items() if after is None or t.changed[public] > after]
        most = POINTS if after is None else 1
        most = min(most, max(24, _POINTS_OF_ALL // max(len(tracks), 1)))
        content: dict[str, Any] = {
            "boot": history.began,
            "seq": history.counts[public],
            "roster": history.roster,
            "now": history.now(),
            "public": public,
            "card": card,
            "version": __version__,
            "process": telemetry.process(public=public),
        }
        if after is None:
            content |= {"series": _words(public=public), "terms": terms(curator), "limits": _LIMITS}
            content["approval"] = _approval(curator)
        lanes = []
        for key, track in sorted(tracks):
            labels = cast("LaneLabels", key)
            series = telemetry.values(labels, public=public)
            values = {name: value for name, value in series.items() if value != {}}
            if values:
                lane = _lane(telemetry, labels, track, values, public=public)
                lane["history"] = track.points(names, most)
                if after is None or track.words_changed[public] > after:
                    lane["report"] = _report(telemetry, labels, audit, public=public)
                lanes.append(lane)
    content["lanes"] = lanes
    if not public:
        content["apps"] = _apps(telemetry)
    return content


def frame_json(
    telemetry: Telemetry,
    *,
    public: bool,
    after: int | None = None,
    card: bool = False,
    audit: Path | None = None,
    curator: CardConfig | None = None,
) -> tuple[int, bytes]:
    """Return `frame` as one line of JSON, and its count. NaN is null."""
    content = frame(telemetry, public=public, after=after, card=card, audit=audit, curator=curator)
    return content["seq"], _encode(content)


def _approval(curator: CardConfig | None) -> list[str] | None:
    """Who has approved epsilon and delta, when, and until when that holds."""
    if curator is None or curator.approved_on is None:
        return None
    return [str(value) for value in (curator.approved_by, curator.approved_on, curator.review_by)]


def _words(*, public: bool) -> dict[str, dict[str, str]]:
    """Title, unit and help of the series that an endpoint has, by name without the prefix."""
    return {
        name: {"title": series.title, "unit": series.unit, "help": series.help}
        for name, series in _BY_NAME.items()
        if series.public or not public
    }


def _lane(
    telemetry: Telemetry, labels: LaneLabels, track: Track, values: Mapping[str, Any], *, public: bool
) -> dict[str, Any]:
    app, topic, learner = labels
    gauges = telemetry.gauges(app).get(labels)
    content = {
        "app": app,
        "topic": topic,
        "learner": learner,
        "since": track.since,
        "releases": _releases(gauges, track, public=public),
        "values": values,
    }
    if not public:
        content["fork_dates"] = [] if gauges is None else [[t / 1000.0, n] for t, n in gauges.fork_dates]
        content["dead_letter_offsets"] = dict(telemetry.history.letters.get(labels, {}))
        causes = telemetry.history.causes.get(labels, {})
        content["dead_letter_causes"] = [[name, *cause] for name, cause in causes.items()]
    quality = getattr(gauges, "quality", None)
    if quality is not None and not public:
        content["quality"] = quality.as_dict()
    expected = getattr(gauges, "expected", None)
    if expected is not None and not public:
        content["expected"] = expected.as_dict()
    if gauges is not None and not public:
        content["weights"] = [[name, weight, noise] for name, weight, noise in gauges.weights]
    return content


def _releases(gauges: LaneGauges | None, track: Track, *, public: bool) -> list[list[Any]]:
    """Timestamps of releases: those in the state for operators, those seen by this worker in public."""
    if public or gauges is None or not gauges.release_dates:
        return [list(row) for row in track.releases]
    return [[t / 1000.0, *row] for t, *row in gauges.release_dates]


def _report(
    telemetry: Telemetry, labels: LaneLabels, audit: Path | None, *, public: bool
) -> dict[str, Any] | None:
    """The texts of a privacy report, and the last audit; its numbers are among the series."""
    gauges = telemetry.gauges(labels[0]).get(labels)
    if gauges is None or gauges.privacy is None:
        return None
    report = public_report(gauges.privacy) if public else gauges.privacy
    fields = (f.name for f in dataclasses.fields(report))
    content = {name: getattr(report, name) for name in fields if name not in _NUMBERS}
    content["card"] = [dict(line) for line in report.card]
    content["protects"] = "one record" if report.unit == ONE_RECORD.unit else "one entity"
    content["text"] = f"{report}\n{report.details}"
    content["audit"] = audit_summary(audit, report, labels[2])
    return content


_NUMBERS = {
    *("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "releases"),
    *("horizon_left", "noise_std"),
}


def _apps(telemetry: Telemetry) -> dict[str, Any]:
    """The state of each application; its lanes are listed apart."""
    _, report = telemetry.health_report()
    committed = telemetry.history.committed_at
    changes = telemetry.changes
    return {
        name: {
            **{k: v for k, v in app.items() if k != "lanes"},
            "committed_at": committed.get(name),
            "configuration": changes[name].as_dict() if name in changes else None,
        }
        for name, app in list(report.items())
    }


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
    app: web.Application,
    telemetry: Telemetry,
    *,
    public: bool,
    audit: Path | None = None,
    curator: CardConfig | None = None,
) -> None:
    """Serve the page at `/`.

    Parameters
    ----------
    app
        Application of one port.
    telemetry
        Source of all numbers.
    public
        Whether it is the public endpoint: there the page has the privacy tab only.
    audit, curator
        As of `frame`.
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
        card = _has_cards(request)
        _, body = frame_json(telemetry, public=public, card=card, audit=audit, curator=curator)
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
