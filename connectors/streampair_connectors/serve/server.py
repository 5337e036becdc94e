"""HTTP server that answers with the newest model: scores, and the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from streampair import __version__
from streampair.errors import SourceError
from streampair.models import Model
from streampair_connectors.config import Config, duration_text
from streampair_connectors.kafka import ended
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.serve import inference, messages, series
from streampair_connectors.serve.errors import Refusal, unavailable
from streampair_connectors.serve.messages import ModelInfo, ScoreAnswer, ScoresAnswer
from streampair_connectors.serve.model_source import FileModel, ModelSource, TopicModel
from streampair_connectors.serve.openapi import document
from streampair_connectors.serve.options import ServeOptions, read_tls, read_tokens
from streampair_connectors.serve.routes import ROUTES
from streampair_connectors.serve.scoring import (
    Body,
    Coins,
    Decoder,
    coins_of,
    config_decoder,
    explain,
    model_decoder,
    score_event,
    score_events,
    split,
)

__all__ = ["ScoringServer", "build_server"]

log = get_logger(__name__)

_STOP_SECONDS = 20.0
_NO_MODEL_SECONDS = 5  # after which to ask again
_JSON = {"Content-Type": "application/json"}
_WINDOWS = {"gzip": 31, "deflate": 15}
_quiet = logging.Logger("http", logging.CRITICAL + 1)  # aiohttp would log what clients send
_encode = msgspec.json.Encoder().encode

Handler = Callable[[web.Request], Awaitable[web.Response]]


_PATTERNS = [(route, re.compile(re.sub(r"{\w+}", "[^/]+", route.path)).fullmatch) for route in ROUTES]
_NAMES = (*dict.fromkeys(route.name for route in ROUTES), "unknown")


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
    coins
        Say which events are to be let pass; None: answers say nothing of it.
    """

    def __init__(
        self, source: ModelSource, decoder: Decoder, options: ServeOptions, coins: Coins | None = None
    ) -> None:
        self._coins = coins
        self._source, self._decoder, self._options = source, decoder, options
        self._tokens = read_tokens(options.token_file)
        self._tls = read_tls(options.tls_cert, options.tls_key)
        self.series = series.ServerMetrics(_NAMES)
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

    async def start(self) -> None:
        """Listen.

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
        site = web.TCPSite(
            self._runner,
            options.host,
            options.port,
            ssl_context=self._tls,
            reuse_port=options.reuse_port or None,
        )
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            raise _cannot_listen(options, error) from None
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
        try:
            await asyncio.wait({follow, stop}, return_when=asyncio.FIRST_COMPLETED)
            if follow.done():
                follow.result()
        finally:
            await self.stop()
            await ended(follow, stop)

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
    ) -> ScoreAnswer | ScoresAnswer:
        events = split(body)
        if events is None:
            return self._scored_one(body, model, info, reasons=reasons)
        found = score_events(model, self._decoder, events)
        self.series.events(len(events))
        explained = [explain(model, self._decoder, event) for event in events] if reasons else None
        ids = found.ids if self._decoder.ids else None
        answer = ScoresAnswer(found.scores, info, ids, found.probabilities, explained)
        if (coins := self._coins) is not None:
            answer.threshold, answer.share = coins
            answer.explore = [coins.marks(score) for score in found.scores]
        return answer

    def _scored_one(self, body: bytes, model: Model, info: ModelInfo, *, reasons: bool) -> ScoreAnswer:
        event = Body(body)
        found = score_event(model, self._decoder, event)
        self.series.events(1)
        explained = explain(model, self._decoder, event) if reasons else None
        answer = ScoreAnswer(found.score, info, found.id, found.probabilities, explained)
        if (coins := self._coins) is not None:
            answer.threshold, answer.share = coins
            answer.explore = coins.marks(found.score)
        return answer

    async def _infer(self, request: web.Request) -> web.Response:
        self._check_name(request)
        body = await self._read(request)
        model, info = self._newest()
        inferred, binary = inference.parse_request(body, request.headers.get(inference.HEADER_LENGTH))
        events = inference.infer_events(inferred, binary, self._decoder)
        scores = score_events(model, self._decoder, events)
        self.series.events(len(events))
        answer, headers = inference.infer_answer(inferred, model, info, scores, self._coins)
        return web.Response(body=answer, headers=headers)

    # What the server says of itself

    async def _live(self, request: web.Request) -> web.Response:
        return _json(messages.Live(live=True))

    def problems(self) -> list[messages.Problem]:
        """Why the server is not ready; empty: it is."""
        found: list[messages.Problem] = []
        if self._stopping:
            found.append(messages.Problem("the server is stopping", "none: others answer"))
        model, most = self._source.newest, self._options.max_model_age
        if model is None:
            found.append(messages.Problem("there is no model yet", "start the worker that learns"))
        elif most is not None:
            age = None if model.time is None else time.time() * 1000 - model.time
            if age is None or age > most:
                said = "unknown" if age is None else duration_text(int(age))
                found.append(
                    messages.Problem(
                        f"the age of the model is {said}, more than {duration_text(most)}",
                        "look whether the worker that learns is running, and whether events come",
                    )
                )
        return found

    async def _ready(self, request: web.Request) -> web.Response:
        problems = self.problems()
        model, known = self._source.newest, None
        if model is not None:
            age = None if model.time is None else round(time.time() - model.time / 1000, 3)
            known = messages.ReadyModel(self._options.name, model.slots, model.time, age)
        answer = messages.Ready(not problems, problems, known)
        headers = {"Retry-After": str(_NO_MODEL_SECONDS)} if problems else {}
        return _json(answer, status=503 if problems else 200, headers=headers)

    async def _server(self, request: web.Request) -> web.Response:
        return _json(messages.Server("streampair", __version__, ["binary_tensor_data"]))

    async def _model(self, request: web.Request) -> web.Response:
        self._check_name(request)
        model, info = self._newest()
        return _json(inference.model_metadata(model, info, self._decoder, self._coins))

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
        model = self._source.newest
        self.series.standing(
            in_flight=self._in_flight,
            ready=not self.problems(),
            slots=None if model is None else model.slots,
            time=None if model is None else model.time,
        )
        return web.Response(body=self.series.render(), headers={"Content-Type": series.CONTENT_TYPE})

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
    answer = messages.RefusalAnswer(refusal.problem, refusal.fix)
    return _json(answer, status=refusal.status, headers=refusal.headers)


def _cannot_listen(options: ServeOptions, error: OSError | OverflowError) -> SourceError:
    """The error of an address that cannot be listened on."""
    return SourceError(
        f"cannot listen on {options.host}:{options.port} (--host, --port): "
        f"{getattr(error, 'strerror', None) or error}",
        fix="stop what uses the port, give another --port (0: a free one), correct --host, or start all that "
        "shall share the port with --reuse-port",
        retriable=False,
    )


def build_server(config: Config | None, model: Model | None, options: ServeOptions) -> ScoringServer:
    """The server of a configuration, of a model file, or of both.

    Parameters
    ----------
    config
        Says how events are decoded; without `model` also where the newest model is published. None: events
        have the features of `model`.
    model
        Of a file. None: the newest of the model topic.

    Raises
    ------
    StreampairError
        No model is published, or a token or a certificate cannot be used.
    """
    coins = None if config is None else coins_of(config)
    if model is None:
        assert config is not None
        return ScoringServer(TopicModel(config), config_decoder(config), options, coins)
    decoder = model_decoder(model) if config is None else config_decoder(config)
    return ScoringServer(FileModel(model), decoder, options, coins)
