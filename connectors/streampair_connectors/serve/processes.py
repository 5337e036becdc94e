"""Processes that share a port: each runs a server, and all end with the first that does."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from streampair.errors import SourceError, StreampairError
from streampair.models import Model
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs
from streampair_connectors.serve.model_source import FileModel, ModelSource, TopicModel, load_model
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import Decoder, config_decoder, model_decoder
from streampair_connectors.serve.server import ScoringServer, cannot_listen

__all__ = ["Loaded", "Processes", "Served", "build", "shared_socket"]

log = logs.get_logger(__name__)

_KILL_SECONDS = 60.0


class Loaded(NamedTuple):
    """What `Served` names, read by this process."""

    config: Config | None
    model: Model | None


class Served(NamedTuple):
    """What is served: a configuration, a model file, or both."""

    config: Path | None
    model: Path | None

    def load(self) -> Loaded:
        """Read both files.

        Raises
        ------
        StreampairError
            The configuration or the model cannot be used.
        """
        config = None if self.config is None else load_config(self.config)
        return Loaded(config, None if self.model is None else load_model(self.model, config))


def build(loaded: Loaded, options: ServeOptions, *, memory: Any = None, number: int = 0) -> ScoringServer:
    """The server of one process.

    Raises
    ------
    StreampairError
        No model is published, or a token or a certificate cannot be used.
    """
    config, model = loaded
    source: ModelSource
    decoder: Decoder
    if model is None:
        assert config is not None
        source, decoder = TopicModel(config), config_decoder(config)
    else:
        source = FileModel(model)
        decoder = model_decoder(model) if config is None else config_decoder(config)
    return ScoringServer(source, decoder, options, config, memory=memory, number=number)


def shared_socket(options: ServeOptions) -> socket.socket:
    """A socket that processes may share the port of; it does not listen.

    Raises
    ------
    SourceError
        The port is taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(found[4])
        except BaseException:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        raise cannot_listen(options, error) from None
    return sock


class Processes:
    """Servers that share a port.

    Parameters
    ----------
    served, options
        Of each of the `options.workers` servers.
    memory
        Of the series.
    log_options
        Level and format of the log.
    """

    def __init__(
        self, served: Served, options: ServeOptions, memory: Any, log_options: tuple[str, str]
    ) -> None:
        self._served, self._options = served, options
        self._memory, self._log_options = memory, log_options
        self._processes: list[SpawnProcess] = []
        self._stopping = False

    def run(self, started: Callable[[str], None]) -> None:
        """Run until a signal, or until one of them ends; a second signal kills them.

        Parameters
        ----------
        started
            Called with the address once all of them listen.

        Raises
        ------
        SourceError
            The port is taken, or a process has ended.
        """
        with shared_socket(self._options) as sock:
            signals = signal.SIGINT, signal.SIGTERM
            before = [signal.signal(each, self._on_signal) for each in signals]
            try:
                self._run(self._options._replace(port=sock.getsockname()[1]), started)
            finally:
                ended = not self._stopping
                self._end()
                for each, handler in zip(signals, before, strict=True):
                    signal.signal(each, handler)
        if ended:
            raise SourceError(
                "a process of the server has ended, so all have",
                fix="its log says why; start again",
                retriable=False,
            )

    def _on_signal(self, number: int, frame: object) -> None:
        for process in self._processes:
            process.kill() if self._stopping else process.terminate()
        self._stopping = True

    def _run(self, options: ServeOptions, started: Callable[[str], None]) -> None:
        context = multiprocessing.get_context("spawn")
        pipes: list[connection.Connection] = []
        for number in range(options.workers):
            ours, theirs = context.Pipe(duplex=False)
            arguments = self._served, options, self._memory, number, self._log_options, theirs
            process = context.Process(target=_child, args=arguments, name=f"serve-{number}")
            process.start()
            self._processes.append(process)
            pipes.append(ours)
            if self._stopping:
                return
        urls = [_first(pipe, process.sentinel) for pipe, process in zip(pipes, self._processes, strict=True)]
        if all(urls):
            started(str(urls[0]))
            connection.wait([process.sentinel for process in self._processes])

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_KILL_SECONDS)
            process.kill()
            process.join()


def _first(pipe: connection.Connection, sentinel: int) -> str | None:
    """What a process says once it listens; None: it has ended."""
    connection.wait([pipe, sentinel])
    return str(pipe.recv()) if pipe.poll() else None


def _child(
    served: Served,
    options: ServeOptions,
    memory: Any,
    number: int,
    log_options: tuple[str, str],
    ready: connection.Connection,
) -> None:
    logs.configure(log_options[0], form=log_options[1])
    try:
        asyncio.run(_serve(served, options, memory, number, ready))
    except StreampairError as error:
        log.error("failed", app=options.name, error=error.problem, fix=error.fix)
        raise SystemExit(1) from None


async def _serve(
    served: Served, options: ServeOptions, memory: Any, number: int, ready: connection.Connection
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    # Ctrl-C reaches every process of the terminal; the parent then sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def orphaned() -> None:
        loop.remove_reader(parent.sentinel)
        stop.set()

    loop.add_reader(parent.sentinel, orphaned)
    server = build(served.load(), options, memory=memory, number=number)
    with shared_socket(options) as sock:
        await server.start(sock)
        ready.send(server.url)
        await server.run(stop)
