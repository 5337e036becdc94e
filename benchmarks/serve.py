"""`streampair serve` against a bare handler of the same HTTP server: requests per second and latency.

    python benchmarks/serve.py                    # --json for machines
    python benchmarks/serve.py --learner Forest
    python benchmarks/serve.py --requests 100000  # requests at random instead, as in the tests

One process serves; this one asks, over 16 connections that are kept. The bare handler reads the body,
decodes its JSON, and answers a constant. Measured in turns: requests per second of `/score` with one event
of 20 features, of the bare handler with the same body, and of `/score` with lists of 100 events; then the
latency of both at half of the rate of the first, from the moment at which a request was due. Ratios are
medians over the rounds. That of the server's CPU time is bare / ours: other programs do not change it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import statistics
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import _timing
import msgspec
import numpy as np
from aiohttp import web
from streampair_connectors.cli.options import settle
from streampair_connectors.serve.model_source import FileModel
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import model_decoder
from streampair_connectors.serve.server import ScoringServer

from streampair import auc, models

NAMES = [f"feature_{i}" for i in range(20)]
CONNECTIONS = 16
LIST = 100


def model_of(learner: str) -> models.Model:
    made = getattr(auc, learner)()
    generator = np.random.default_rng(1)
    for row in generator.normal(size=(2000, len(NAMES))):
        made.learn_one(dict(zip(NAMES, row.tolist(), strict=True)), bool(row[0] + row[1] > 0.0))
    return models.export(made)


class WithBare(ScoringServer):
    """The server, with the handler that it is compared with."""

    def application(self) -> web.Application:
        app = super().application()
        decode = msgspec.json.Decoder(dict[str, float]).decode

        async def bare(request: web.Request) -> web.Response:
            decode(await request.read())
            return web.Response(body=b'{"score":0.5}', headers={"Content-Type": "application/json"})

        async def cpu(request: web.Request) -> web.Response:
            return web.Response(text=str(time.process_time()))

        app.router.add_post("/bare", bare)
        app.router.add_get("/cpu", cpu)
        return app


def serve(learner: str, ready: connection.Connection) -> None:
    """The process that serves, until it is terminated."""

    async def body() -> None:
        model = model_of(learner)
        server = WithBare(FileModel(model), model_decoder(model), ServeOptions("bench", port=0))
        await server.start()
        settle()
        ready.send(server.url.rpartition(":")[2])
        await server.run(asyncio.Event())

    asyncio.run(body())


class Client(asyncio.Protocol):
    """A connection that is kept; answers are read as far as their length says."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._done: Callable[[], None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, request: bytes, done: Callable[[], None]) -> None:
        """Send a request; `done` is called with its answer."""
        self._done = done
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        position = self._data.find(b"Content-Length: ", 0, end)
        if len(self._data) < end + 4 + int(self._data[position + 16 : self._data.find(b"\r\n", position)]):
            return
        assert self._data.startswith(b"HTTP/1.1 200"), bytes(self._data)
        self._data.clear()
        done, self._done = self._done, None
        assert done is not None
        done()


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def throughput(port: int, sent: bytes, seconds: float) -> tuple[int, float]:
    """Requests and seconds, when each connection asks again as soon as it is answered."""
    loop = asyncio.get_running_loop()
    clients = await connect(port)
    count, end = 0, time.perf_counter() + seconds
    finished = loop.create_future()
    running = len(clients)

    def again(client: Client) -> None:
        nonlocal count, running
        count += 1
        if time.perf_counter() < end:
            client.ask(sent, lambda: again(client))
        else:
            running -= 1
            if not running:
                finished.set_result(None)

    begin = time.perf_counter()
    for client in clients:
        client.ask(sent, lambda client=client: again(client))  # type: ignore[misc]
    await finished
    taken = time.perf_counter() - begin
    close(clients)
    return count, taken


async def latencies(port: int, sent: bytes, rate: float, seconds: float) -> list[float]:
    """Seconds from the moment at which each request was due to its answer, at a rate."""
    loop = asyncio.get_running_loop()
    clients = await connect(port)
    free, waiting = list(clients), []
    found: list[float] = []
    total = int(rate * seconds)
    begin = time.perf_counter()
    finished = loop.create_future()

    def start(due: float) -> None:
        if not free:
            waiting.append(due)
            return
        client = free.pop()

        def done() -> None:
            found.append(time.perf_counter() - due)
            free.append(client)
            if waiting:
                start(waiting.pop(0))
            if len(found) == total:
                finished.set_result(None)

        client.ask(sent, done)

    number = 0
    while number < total:
        now = time.perf_counter() - begin
        while number < total and number / rate <= now:
            start(begin + number / rate)
            number += 1
        await asyncio.sleep(0.0 if number / rate - now < 0.001 else 0.0005)
    await finished
    close(clients)
    return found


async def connect(port: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Client, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    return [client for _, client in made]


def close(clients: list[Client]) -> None:
    for client in clients:
        client._transport.close()


def cpu(port: int) -> float:
    """Seconds of the processor that the server has taken."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cpu") as answer:
        return float(answer.read())


def measure(port: int, options: Namespace) -> Iterator[_timing.Row]:
    generator = np.random.default_rng(2)
    events = [
        dict(zip(NAMES, row, strict=True))
        for row in generator.normal(size=(LIST, len(NAMES))).round(6).tolist()
    ]
    one, many = json.dumps(events[0]).encode(), json.dumps(events).encode()
    sent = {"score": request("/score", one), "bare": request("/bare", one), "lists": request("/score", many)}
    costs: dict[str, list[float]] = {name: [] for name in sent}

    def rate(name: str) -> float:
        before = cpu(port)
        count, seconds = asyncio.run(throughput(port, sent[name], options.seconds))
        costs[name].append((cpu(port) - before) / count)
        return count / seconds

    measures = {name: functools.partial(rate, name) for name in sent}
    rates = _timing.turns(measures, options.rounds, warm=1)
    half = statistics.median(rates["score"]) / 2
    tails = _timing.turns(
        {
            name: lambda name=name: float(  # type: ignore[misc]
                np.quantile(asyncio.run(latencies(port, sent[name], half, options.seconds)), 0.99)
            )
            for name in ("score", "bare")
        },
        options.rounds,
        warm=1,
    )

    def ratio(ours: list[float], theirs: list[float], by: float = 1.0) -> float:
        return by * _timing.ratio(ours, theirs)

    def row(what: str, values: list[float], by: float = 1.0, **more: float) -> _timing.Row:
        return {"what": what, "value": by * statistics.median(values), "ratio": 1.0, **more}

    single = ratio(rates["score"], rates["bare"])
    listed = ratio(rates["lists"], rates["score"], LIST)
    tail = ratio(tails["score"], tails["bare"])
    yield row("bare handler, requests/s", rates["bare"])
    yield _timing.judged(row("/score, requests/s", rates["score"], ratio=single), "ratio", least=0.7)
    lists = row(f"/score, lists of {LIST}, events/s", rates["lists"], LIST, ratio=listed)
    yield _timing.judged(lists, "ratio", least=20)
    yield row("bare handler, server's CPU a request, us", costs["bare"][1:], 1e6)
    saved = ratio(costs["bare"][1:], costs["score"][1:])
    yield row("/score, server's CPU a request, us", costs["score"][1:], 1e6, ratio=saved)
    yield row(f"bare handler, p99 at {half:,.0f}/s, ms", tails["bare"], 1000)
    yield _timing.judged(
        row(f"/score, p99 at {half:,.0f}/s, ms", tails["score"], 1000, ratio=tail), "ratio", most=3
    )


def at_random(port: int, options: Namespace) -> Iterator[_timing.Row]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from harness import serve_requests

    counts = serve_requests.run(f"127.0.0.1:{port}", NAMES, options.requests, options.seed)
    for status, count in sorted(counts.items()):
        yield {"what": f"answers with status {status}", "value": count, "ratio": 1.0}


def rows(options: Namespace) -> Iterator[_timing.Row]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(options.learner, theirs))
    process.start()
    try:
        port = int(ours.recv())
        yield from at_random(port, options) if options.requests else measure(port, options)
    finally:
        process.terminate()
        process.join()


def page(found: Iterable[_timing.Row], options: Namespace) -> Iterable[str]:
    columns = (("", "what", "<44"), ("", "value", ">12,.1f"), ("ratio", "ratio", ">9.2f"))
    return _timing.table(columns, found, goals=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "--learner": {"default": "PairOGD", "help": "class of streampair.auc"},
    "--rounds": {"type": int, "default": 5},
    "--seconds": {"type": float, "default": 2.0, "help": "of each measurement"},
    "--requests": {"type": int, "default": 0, "help": "requests at random; 0: measure"},
    "--seed": {"type": int, "default": 1, "help": "of the requests at random"},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, rows, page, OPTIONS))
