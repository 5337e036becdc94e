"""Structured logs on standard error: one event per line, as JSON or as text."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from typing import Any, TextIO

import msgspec

__all__ = ["RateLimit", "configure", "get_logger"]

_encoder = msgspec.json.Encoder(enc_hook=str)


def _line(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        + f".{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "event": record.getMessage(),
    }
    fields = getattr(record, "fields", None)
    if fields:
        line.update(fields)
    if not record.name.startswith("streampair"):
        line["logger"] = record.name
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        line["error"] = f"{type(error).__name__}: {error}"
    return line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _encoder.encode(_line(record)).decode()


class _TextLines(logging.Formatter):
    """The same fields: `2026-01-31T12:00:00.000Z INFO    lane_opened app=fraud partition=0`."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line(record)
        begin = f"{line.pop('time')} {line.pop('level').upper():<7} {line.pop('event')}"
        return " ".join([begin, *(f"{name}={_text(value)}" for name, value in line.items())])


def _text(value: Any) -> str:
    """Format a value: quoted if it has whitespace, so that an event stays on one line."""
    text = value if isinstance(value, str) else _encoder.encode(value).decode()
    plain = text and not any(char.isspace() or char in '"=' for char in text)
    return text if plain else _encoder.encode(text).decode()


class RateLimit(logging.Filter):
    """Pass the same message of the same logger at most once in `seconds`.

    A client library repeats one line ten times a second while a broker is away.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is to be written."""
        key = (record.name, str(record.msg))
        now = record.created
        last = self._last.get(key)
        if last is not None and now - last < self._seconds:
            return False
        self._last[key] = now
        return True


class Logger:
    """A logger whose events carry fields: `log.info("lane_opened", partition=0)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail for developers of this package."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log a normal event."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that needs attention; `next_step` says what to do."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an error that stopped the work; `fix` says what to do."""
        self._log(logging.ERROR, event, fields)


def get_logger(name: str) -> Logger:
    """Return the structured logger of a module."""
    return Logger(name)


log = get_logger(__name__)


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Write a warning of Python as an event of the log."""
    log.warning("warning", kind=category.__name__, message=str(message))


def configure(level: str = "info", stream: TextIO | None = None, form: str | None = None) -> None:
    """Send the logs of streampair and of its Kafka client, and warnings of Python, to `stream`.

    Parameters
    ----------
    level
        The lowest level that is written.
    stream
        Default: standard error.
    form
        "json" or "text". None: text on a terminal, which a person reads, else JSON.
    """
    stream = sys.stderr if stream is None else stream
    as_text = stream.isatty() if form is None else form == "text"
    formatter = _TextLines() if as_text else _JsonLines()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    ours = logging.getLogger("streampair_connectors")
    ours.handlers[:] = [handler]
    ours.setLevel(level.upper())
    ours.propagate = False
    # The worker reports compilation itself.
    logging.getLogger("streampair").setLevel("ERROR")
    client_handler = logging.StreamHandler(stream)
    client_handler.setFormatter(formatter)
    client_handler.addFilter(RateLimit())
    client = logging.getLogger("aiokafka")
    client.handlers[:] = [client_handler]
    # The worker reports the client's errors itself, once, as states of its health.
    client.setLevel("WARNING" if level == "debug" else "CRITICAL")
    client.propagate = False
    warnings.showwarning = _log_warning
