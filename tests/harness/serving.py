"""A server of `streampair serve` in a thread, and requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from streampair_connectors.config import Config
from streampair_connectors.serve.model_source import FileModel
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import coins_of, config_decoder, model_decoder
from streampair_connectors.serve.server import ScoringServer

from streampair.models import Model


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class NoModel(FileModel):
    """A source that has no model yet."""

    def __init__(self) -> None:
        self.newest = None


class Serving:
    """Serves until the ``with`` block is left."""

    def __init__(self, server: ScoringServer) -> None:
        self.server = server
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @classmethod
    def of(cls, model: Model | None, config: Config | None = None, **options: Any) -> Serving:
        """A server of a model; None: there is none yet."""
        source = NoModel() if model is None else FileModel(model)
        if config is not None:
            decoder = config_decoder(config)
        else:
            assert model is not None
            decoder = model_decoder(model)
        chosen = ServeOptions(**{"name": "fraud", "port": 0, **options})
        return cls(ScoringServer(source, decoder, chosen, None if config is None else coins_of(config)))

    def _run(self) -> None:
        async def body() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self.server.start()
            self._started.set()
            await self.server.run(self._stop)

        try:
            asyncio.run(body())
        except BaseException as error:
            self._error = error
        self._started.set()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._started.wait(60)
        if self._error is not None:
            raise self._error
        self.address = self.server.url.partition("//")[2]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request, on a connection of its own."""
        return ask(self.address, method, path, body, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """POST of bytes, or of anything else as JSON."""
        return self.ask("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.ask("GET", path, **headers)


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request; underscores in names of headers are dashes."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, named)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def golden_models() -> list[Path]:
    """A model file of each learner."""
    from harness import support

    folder = support.ROOT / "tests" / "golden" / "1" / "models"
    return sorted(file for file in folder.glob("*.json") if file.name != "expected.json")
