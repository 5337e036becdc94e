"""HTTP server that answers with the newest model: scores, the Open Inference Protocol, labels and events."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import socket
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from streampair import __version__
from streampair.engine import Event
from streampair.errors import RecordError, SourceError
from streampair.models import Model
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.config import Config, duration_text
from streampair_connectors.kafka import Message, ended
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.serve import inference, series
from streampair_connectors.serve.errors import Refusal, unavailable
from streampair_connectors.serve.idempotency import Answers
from streampair_connectors.serve.model_source import ModelInfo, ModelSource
from streampair_connectors.serve.openapi import document
from streampair_connectors.serve.options import ServeOptions, read_tls, read_tokens
from streampair_connectors.serve.scoring import (
    Body,
    Decoder,
    explain,
    refused,
    score_event,
    score_events,
    split,
)
from streampair_connectors.serve.sending import Sender

__all__ = ["ROUTES", "Route", "ScoringServer", "cannot_listen"]

log = get_logger(__name__)

_STOP_SECONDS = 20.0
_KEY_CHARACTERS = 255
_NO_MODEL_SECONDS = 5  # after which to ask again
_LOOK_SECONDS = 1.0
_JSON = {"Content-Type": "application/json"}
_WINDOWS = {"gzip": 31, "deflate": 15}
_quiet = logging.Logger("http", logging.CRITICAL + 1)  # aiohttp would log what clients send
_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.Response]]


class Route(NamedTuple):
    """A route: its method, path, the method of `ScoringServer` that answers, and whether it needs a token."""

    method: str
    path: str
    name: str
    token: bool = True


ROUTES = (
    Route("POST", "/score", "score"),
    Route("POST", "/label", "label"),
    Route("POST", "/events", "events"),
    Route("POST", "/v2/models/{model}/infer", "infer"),
    Route("GET", "/v2/models/{model}", "model"),
    Route("GET", "/v2/models/{model}/ready", "model_ready"),
    Route("POST", "/v2/models/{model}/versions/{version}/infer", "infer"),
    Route("GET", "/v2/models/{model}/versions/{version}", "model"),
    Route("GET", "/v2/models/{model}/versions/{version}/ready", "model_ready"),
    Route("GET", "/v2", "server"),
    Route("GET", "/v2/health/live", "live", token=False),
    Route("GET", "/v2/health/ready", "ready", token=False),
    Route("GET", "/livez", "live", token=False),
    Route("GET", "/readyz", "ready", token=False),
    Route("GET", "/metrics", "metrics"),
    Route("GET", "/openapi.json", "openapi"),
)
"""All routes; `serve.openapi` describes them."""

_PATTERNS = [(route, re.compile(re.sub(r"{\w+}", "[^/]+", route.path)).fullmatch) for route in ROUTES]
_NAMES = (*dict.fromkeys(route.name for route in ROUTES), "unknown")


class _ScoreAnswer(msgspec.Struct, omit_defaults=True):
    score: float
    model: ModelInfo
    id: str | None = None
    probabilities: dict[str, float] | None = None
    explanation: dict[str, Any] | None = None


class _ScoresAnswer(msgspec.Struct, omit_defaults=True):
    scores: list[float]
    model: ModelInfo
    ids: list[str | None] | None = None
    probabilities: list[dict[str, float]] | None = None
    explanations: list[dict[str, Any]] | None = None


class ScoringServer:
    """Answers requests with the newest model, until it is stopped.

    Parameters
    ----------
    source
        Gives the model.
    decoder
        Decodes events.
    options
        Address, secrets and limits.
    config
        Of the application, for labels and events. None: a model file alone.
    memory, number
        Of the series (`series.ServerMetrics`), and which process this is.
    """

    def __init__(
        self,
        source: ModelSource,
        decoder: Decoder,
        options: ServeOptions,
        config: Config | None = None,
        *,
        memory: Any = None,
        number: int = 0,
    ) -> None:
        self._source, self._decoder, self._options, self._config = source, decoder, options, config
        self._tokens = read_tokens(options.token_file)
        self._tls = read_tls(options.tls_cert, options.tls_key)
        self.series = series.ServerMetrics(_NAMES, workers=options.workers, shared=memory, number=number)
        with_kafka = config is not None and config.kafka is not None
        self._sender = Sender(config) if config is not None and with_kafka else None
        self._decode_label = self._event_ids = None
        if config is not None and config.labels is not None:
            self._decode_label = LabelDecoder(config) if config.labels.format == "json" else None
            self._event_ids = event_ids(config) if config.input.format == "json" else None
        self._answers = Answers()
        self._ids = config is not None and config.input.id is not None
        self._in_flight = 0
        self._stopping = False
        self._idle = asyncio.Event()  # set once nothing is in flight any more
        self._document = _encode(document(options.name))
        self._known: tuple[Model | None, ModelInfo] = (None, ModelInfo(options.name, 0, None))
        self._runner: web.AppRunner | None = None
        self.url = ""

    # Start and stop

    def application(self) -> web.Application:
        """The routes, as an application of aiohttp."""
        app = web.Application(client_max_size=self._options.max_body_bytes)
        for route in ROUTES:
            handler = self._guarded(route.name, getattr(self, f"_{route.name}"), token=route.token)
            app.router.add_route(route.method, route.path, handler, expect_handler=_expect)
        unknown = self._guarded("unknown", self._unknown, token=False)
        app.router.add_route("*", "/{tail:.*}", unknown, expect_handler=_expect)
        return app

    async def start(self, sock: socket.socket | None = None) -> None:
        """Listen, on a socket that is bound already if one is given.

        Raises
        ------
        SourceError
            The port is taken or not allowed.
        """
        options = self._options
        self._runner = web.AppRunner(
            self.application(),
            access_log=None,
            logger=_quiet,
            shutdown_timeout=1.0,
            auto_decompress=False,  # its parser answers in plain text what it cannot decompress
        )
        await self._runner.setup()
        site: web.BaseSite
        if sock is None:
            site = web.TCPSite(self._runner, options.host, options.port, ssl_context=self._tls)
        else:
            site = web.SockSite(self._runner, sock, ssl_context=self._tls)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            raise cannot_listen(options, error) from None
        host, port = self._runner.addresses[0][:2]
        name = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if self._tls else ''}://{name}:{port}"

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Follow the model until `stop_requested`, then answer what has come, and stop.

        Raises
        ------
        StreampairError
            A model cannot be used.
        """
        follow = asyncio.create_task(self._source.follow())
        stop = asyncio.create_task(stop_requested.wait())
        look = asyncio.create_task(self._keep_looking())
        try:
            await asyncio.wait({follow, stop}, return_when=asyncio.FIRST_COMPLETED)
            if follow.done():
                follow.result()
        finally:
            await self.stop()
            await ended(follow, stop, look)

    async def stop(self) -> None:
        """Answer the requests that have come, and stop listening."""
        self._stopping = True
        if self._runner is not None:
            for site in self._runner.sites:
                await site.stop()
            # The library drops what arrives of a body once it shuts down.
            if self._in_flight:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), _STOP_SECONDS)
            await self._runner.cleanup()
            self._runner = None
        if self._sender is not None:
            await self._sender.stop(_STOP_SECONDS)
            self._sender = None

    # Around each request

    def _guarded(self, name: str, handler: Handler, *, token: bool) -> Handler:
        route, most = _NAMES.index(name), self._options.max_requests
        tokens = self._tokens if token else []
        clock, count = time.perf_counter, self.series.request

        async def answer(request: web.Request) -> web.Response:
            begin = clock()
            self._in_flight += 1
            status = 500
            try:
                if tokens:
                    _check_token(request, tokens)
                if token and self._in_flight > most:
                    raise unavailable("too many requests at a time", fix="send it again later")
                response = await handler(request)
                if self._stopping:
                    response.force_close()
                status = response.status
                return response
            except Refusal as refusal:
                status = refusal.status
                return _refusal(refusal)
            except web.HTTPRequestEntityTooLarge:
                status = 413
                limit = self._options.max_body_bytes
                return _refusal(
                    Refusal(413, f"the body has more than {limit} bytes", fix="send smaller lists of events")
                )
            except (web.RequestPayloadError, ConnectionError):  # of a client that has gone, too
                status = 400
                return _refusal(_not_whole())
            except Exception as error:
                # Its message may quote the request.
                log.error("request_failed", route=name, kind=type(error).__name__, fix="report it as a bug")
                return _refusal(Refusal(500, "internal error", fix="report it as a bug"))
            finally:
                self._in_flight -= 1
                if self._stopping and not self._in_flight:
                    self._idle.set()
                count(route, status, clock() - begin)

        return answer

    async def _read(self, request: web.Request) -> bytes:
        return decompressed(request.headers, await self._arrived(request), self._options.max_body_bytes)

    async def _arrived(self, request: web.Request) -> bytes:
        length = request.content_length
        if length is not None and length > self._options.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._options.max_body_bytes, length)
        if request.content.is_eof():  # it came with the headers
            return await request.read()
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                return await request.read()
        except TimeoutError:
            raise Refusal(408, "the body did not arrive in time", fix="send it again") from None

    def _newest(self) -> tuple[Model, ModelInfo]:
        model = self._source.newest
        if model is None:
            raise unavailable(
                "there is no model yet",
                fix=f"start the worker that learns: streampair run, for application {self._options.name!r}",
                seconds=_NO_MODEL_SECONDS,
            )
        if model is not self._known[0]:
            self._known = model, ModelInfo(self._options.name, model.slots, model.time)
        return model, self._known[1]

    # Routes

    async def _score(self, request: web.Request) -> web.Response:
        reasons = _flag(request, "explain") if request.query_string else False
        body = await self._read(request)
        model, info = self._newest()
        return _json(self._scored(body, model, info, reasons=reasons))

    def _scored(
        self, body: bytes, model: Model, info: ModelInfo, *, reasons: bool
    ) -> _ScoreAnswer | _ScoresAnswer:
        events = split(body)
        if events is None:
            return self._scored_one(body, model, info, reasons=reasons)
        found = score_events(model, self._decoder, events)
        self.series.events(len(events))
        explained = [explain(model, self._decoder, event) for event in events] if reasons else None
        return _ScoresAnswer(
            found.scores, info, found.ids if self._ids else None, found.probabilities, explained
        )

    def _scored_one(self, body: bytes, model: Model, info: ModelInfo, *, reasons: bool) -> _ScoreAnswer:
        event = Body(body)
        found = score_event(model, self._decoder, event)
        self.series.events(1)
        explained = explain(model, self._decoder, event) if reasons else None
        return _ScoreAnswer(found.score, info, found.id, found.probabilities, explained)

    async def _infer(self, request: web.Request) -> web.Response:
        self._check_name(request)
        body = await self._read(request)
        model, info = self._newest()
        inferred = inference.parse_request(body, request.headers.get(inference.HEADER_LENGTH))
        events = inference.infer_events(inferred, self._decoder)
        scores = score_events(model, self._decoder, events)
        self.series.events(len(events))
        answer, headers = inference.infer_answer(inferred, model, info, scores)
        return web.Response(body=answer, headers=headers)

    async def _label(self, request: web.Request) -> web.Response:
        config, decode = self._config, self._decode_label
        if config is None or config.labels is None or decode is None or self._sender is None:
            raise Refusal(
                404,
                "this application has no topic of labels in JSON",
                fix="serve with a configuration that has [kafka] and [labels], with labels in JSON",
            )
        body = await self._read(request)
        message = self._message(request, body, config)
        try:
            decode(_Message(message.value, message.key, message.headers or []))
        except RecordError as error:
            if isinstance(config.labels.id, str) and config.labels.id == "key" and message.key is None:
                raise Refusal(422, error.problem, fix="give the id of the event as ?key=") from None
            raise refused(error, body) from None
        sending = self._sender.send(config.labels.topic, message)
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await sending
        except TimeoutError:
            raise unavailable(
                "the broker has not confirmed the label yet",
                fix="send it again: a label that comes twice is one label",
            ) from None
        return _json({"stored": True})

    async def _events(self, request: web.Request) -> web.Response:
        config, sender = self._config, self._sender
        if config is not None and config.input.format != "json":
            raise Refusal(
                404,
                f"this server takes no events: it takes JSON, and the topic has {config.input.format}",
                fix="write events to the topic with a producer",
            )
        if config is None or sender is None or self._options.workers > 1:
            why = "has several processes" if self._options.workers > 1 else "has no Kafka"
            raise Refusal(
                404,
                f"this server takes no events: it {why}",
                fix="serve with a configuration that has [kafka], and with one process (--workers 1), which "
                "knows the keys of all requests",
            )
        key = request.headers.get("Idempotency-Key", "")
        if not 0 < len(key) <= _KEY_CHARACTERS:
            raise Refusal(
                400,
                f"the header Idempotency-Key is missing, or has more than {_KEY_CHARACTERS} characters",
                fix="send a new one with each event, such as a UUID, and the same one with a retry",
            )
        body = await self._read(request)
        message = self._message(request, body, config)
        content = _encode([body, message.key, message.headers])

        async def work() -> bytes:
            model = self._source.newest
            if model is None:  # an event can be learned before anything can be scored
                answer: Any = {"score": None, "model": None, "id": self._decoded(body).id}
            else:
                answer = self._scored_one(body, *self._newest(), reasons=False)
            self._require_id(message, config)
            await sender.send(config.input.topic, message)
            return _encode(answer)

        answer = await self._answers.answer(key, content, work, self._options.timeout_seconds)
        return web.Response(body=answer, headers=_JSON)

    def _message(self, request: web.Request, body: bytes, config: Config) -> Message:
        """The record of a request: its body, the key that it names, and the headers that are passed on."""
        names = list(config.output.headers)
        if config.labels is not None and not isinstance(config.labels.id, str):
            names.append(config.labels.id.header)
        headers: list[tuple[str, bytes | None]] = [
            (name, request.headers[name].encode("utf-8", "replace"))
            for name in names
            if name in request.headers
        ]
        key = request.query.get("key") if request.query_string else None
        return Message(None if key is None else key.encode("utf-8", "replace"), body, headers)

    def _require_id(self, message: Message, config: Config) -> None:
        if self._event_ids is None:
            return
        if self._event_ids([_Message(message.value, message.key, message.headers or [])])[0] is None:
            assert config.labels is not None
            place = config.labels.id if isinstance(config.labels.id, str) else config.labels.id.header
            raise Refusal(
                422,
                f"the event has no id in {place!r}, so that no label can find it",
                fix="send it: a field of the event, the parameter ?key=, or the header, as labels.id says",
            )

    def _decoded(self, body: bytes) -> Event:
        try:
            return self._decoder.decode(Body(body))
        except Exception as error:
            raise refused(error, body) from None

    # What the server says of itself

    async def _live(self, request: web.Request) -> web.Response:
        return _json({"live": True})

    def problems(self) -> list[dict[str, str]]:
        """Why the server is not ready; empty: it is."""
        found: list[dict[str, str]] = []
        if self._stopping:
            found.append({"problem": "the server is stopping", "fix": "none: others answer"})
        model, most = self._source.newest, self._options.max_model_age
        if model is None:
            found.append({"problem": "there is no model yet", "fix": "start the worker that learns"})
        elif most is not None:
            age = None if model.time is None else time.time() * 1000 - model.time
            if age is None or age > most:
                said = "unknown" if age is None else duration_text(int(age))
                found.append(
                    {
                        "problem": f"the age of the model is {said}, more than {duration_text(most)}",
                        "fix": "look whether the worker that learns is running, and whether events come",
                    }
                )
        return found

    async def _ready(self, request: web.Request) -> web.Response:
        problems = self.problems()
        model = self._source.newest
        answer: dict[str, Any] = {"ready": not problems, "problems": problems, "model": None}
        if model is not None:
            age = None if model.time is None else round(time.time() - model.time / 1000, 3)
            answer["model"] = {**msgspec.structs.asdict(self._newest()[1]), "age_seconds": age}
        headers = {"Retry-After": str(_NO_MODEL_SECONDS)} if problems else {}
        return _json(answer, status=503 if problems else 200, headers=headers)

    async def _server(self, request: web.Request) -> web.Response:
        return _json({"name": "streampair", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _model(self, request: web.Request) -> web.Response:
        self._check_name(request)
        model, info = self._newest()
        return _json(inference.model_metadata(model, info, self._decoder))

    async def _model_ready(self, request: web.Request) -> web.Response:
        self._check_name(request)
        return await self._ready(request)

    def _check_name(self, request: web.Request) -> None:
        name, version = self._options.name, request.match_info.get("version")
        if request.match_info["model"] != name:
            raise Refusal(404, "there is no model of this name", fix=f"ask for {name!r}")
        newest = None if version is None else str(self._newest()[1].slots)
        if version != newest:
            raise Refusal(
                404,
                f"there is no version {version!r} of this model"[:100],
                fix=f"ask for the newest one, {newest!r}, or for none: others come as a worker learns",
            )

    async def _metrics(self, request: web.Request) -> web.Response:
        self._look()
        return web.Response(body=self.series.render(), headers={"Content-Type": series.CONTENT_TYPE})

    def _look(self) -> None:
        """Set the gauges of this process."""
        model = self._source.newest
        self.series.standing(
            in_flight=self._in_flight,
            ready=not self.problems(),
            slots=None if model is None else model.slots,
            time=None if model is None else model.time,
        )

    async def _keep_looking(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.Response(body=self._document, headers=_JSON)

    async def _unknown(self, request: web.Request) -> web.Response:
        allowed = sorted({route.method for route, match in _PATTERNS if match(request.path)})
        if allowed:
            raise Refusal(
                405,
                f"this address does not take {request.method}"[:100],
                fix=f"use {' or '.join(allowed)}",
                headers={"Allow": ", ".join(allowed)},
            )
        raise Refusal(404, "there is nothing at this address", fix="see /openapi.json for what there is")


def _not_whole() -> Refusal:
    return Refusal(400, "the body is cut short, or not encoded as its headers say", fix="send it again")


def decompressed(headers: Mapping[str, str], body: bytes, most: int) -> bytes:
    """Undo the Content-Encoding of a body.

    Raises
    ------
    Refusal
        400: the body is not encoded so. 415: it is encoded otherwise than by gzip or deflate.
    HTTPRequestEntityTooLarge
        It has more than `most` bytes.
    """
    name = headers.get("Content-Encoding", "identity").strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOWS:
        raise Refusal(
            415,
            f"the server does not read the Content-Encoding {name!r}"[:100],
            fix="send the body as it is, or with gzip or deflate",
            headers={"Accept-Encoding": ", ".join(_WINDOWS)},
        )
    decoder = zlib.decompressobj(_WINDOWS[name])
    try:
        found = decoder.decompress(body, most + 1)
    except zlib.error:
        raise _not_whole() from None
    if len(found) > most:
        raise web.HTTPRequestEntityTooLarge(most, len(found))
    if not decoder.eof or decoder.unused_data:
        raise _not_whole()
    return found


class _Message(NamedTuple):
    """A message as the decoders of labels and ids take it."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]


def _check_token(request: web.Request, tokens: list[bytes]) -> None:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
    # Each is compared, so that the time tells nothing.
    found = [hmac.compare_digest(digest, each) for each in tokens]
    if kind.lower() != "bearer" or not any(found):
        raise Refusal(
            401,
            "the token is missing or wrong",
            fix="send the header Authorization: Bearer TOKEN, with a token of --token-file",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false").lower()
    if value not in ("true", "false", "1", "0", ""):
        raise Refusal(422, f"{name} is neither true nor false", fix=f"ask with ?{name}=true")
    return value in ("true", "1", "")


async def _expect(request: web.Request) -> web.Response | None:
    """Invite the body of a request that asks first."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return _refusal(Refusal(417, "the header Expect is unknown", fix="send 100-continue, or none"))
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer begins after it
    return None


def _json(answer: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(answer), status=status, headers={**_JSON, **(headers or {})})


def _refusal(refusal: Refusal) -> web.Response:
    return _json(
        {"error": refusal.problem, "fix": refusal.fix}, status=refusal.status, headers=refusal.headers
    )


def cannot_listen(options: ServeOptions, error: OSError | OverflowError) -> SourceError:
    """The error of an address that cannot be listened on."""
    return SourceError(
        f"cannot listen on {options.host}:{options.port} (--host, --port): "
        f"{getattr(error, 'strerror', None) or error}",
        fix="stop what uses the port, give another --port (0: a free one), or correct --host",
        retriable=False,
    )
