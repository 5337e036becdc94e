"""The command `serve`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streampair.errors import ConfigError, StreampairError
from streampair_connectors.cli.options import (
    LogFormat,
    LogLevel,
    Set,
    errors,
    load_optional,
    run_until_signal,
)
from streampair_connectors.config import Config, Duration
from streampair_connectors.observability import logs
from streampair_connectors.serve.options import ServeOptions

if TYPE_CHECKING:
    from streampair.models import Model

__all__ = ["serve"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def serve(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="Configuration file, TOML. Not needed with --model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="FILE", help="Model file to serve, in place of the newest of the model topic."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model. Default: the application of CONFIG or of the model, or the file's name."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    token_file: Annotated[
        Path | None, typer.Option(help="Bearer tokens, one a line. Default: none is asked for.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain for TLS, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate, PEM.")] = None,
    reuse_port: Annotated[
        bool,
        typer.Option(
            "--reuse-port", help="Share the port with other processes that are started so (SO_REUSEPORT)."
        ),
    ] = False,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, max=1_000_000_000, help="Largest body of a request.")
    ] = 1_048_576,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests that it answers at a time; others get status 503.")
    ] = 256,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Time for a body to arrive.")] = "10s",
    max_model_age: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help='Not ready when the newest record of the model is older, such as "15m". Default: no limit.',
        ),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    overrides: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print errors as JSON.")] = False,
) -> None:
    """Answer over HTTP with the newest model of an application, or with a model file.

    POST /score takes one event or a list, as [input] of CONFIG declares them; with --model alone an event has
    the features of the model. It also speaks the Open Inference Protocol, version 2, as KServe and Triton do.
    /openapi.json describes all, /readyz and /metrics are for operators.

    Serving learns nothing, stores nothing and spends no privacy budget. On Ctrl-C or SIGTERM it answers what
    has come, and ends.
    """
    from streampair_connectors.serve.model_source import load_model
    from streampair_connectors.serve.server import build_server

    with errors(as_json):
        logs.configure(log_level, form=log_format)
        log = logs.get_logger(__name__)
        if config is None and model is None:
            raise ConfigError(
                "there is nothing to serve", fix="give a configuration, or a model file with --model"
            )
        settings = load_optional(config, overrides)
        loaded = None if model is None else load_model(model, settings)
        max_age = None if max_model_age is None else _duration("--max-model-age", max_model_age)
        options = ServeOptions(
            _name_of(name, settings, loaded, model),
            *(host, port, token_file, tls_cert, tls_key, reuse_port),
            *(max_body_bytes, max_requests, _duration("--timeout", timeout).seconds, max_age),
        )
        stop = asyncio.Event()

        async def work() -> None:
            server = build_server(settings, loaded, options)
            await server.start()
            log.info("serving", app=options.name, url=server.url)
            try:
                await server.run(stop)
            except StreampairError as error:
                log.error("failed", app=options.name, error=error.problem, fix=error.fix)
                raise

        run_until_signal(work, stop.set)


def _duration(option: str, text: str) -> Duration:
    try:
        found = Duration.of(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a duration", fix='write it as "90s", "15m", "6h" or "30d"'
        ) from None
    if not found:
        raise ConfigError(f"{option} {text!r} leaves no time", fix='write at least "1ms"')
    return found


def _name_of(name: str | None, config: Config | None, model: Model | None, file: Path | None) -> str:
    """The name of the model in answers."""
    if name is None:
        if config is not None:
            name = config.app
        else:
            assert model is not None
            assert file is not None
            application = model.metadata.get("application")
            name = application if application and isinstance(application, str) else file.stem
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a model",
            fix="give --name with letters, digits, dot, dash and underscore, the first a letter or a digit",
        )
    return name
