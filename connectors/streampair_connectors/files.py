"""Replay: the lane of `run`, fed from a CSV or JSON lines file, without Kafka."""

from __future__ import annotations

import base64
import contextlib
import csv
import gzip
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from streampair.engine.lane import DeadLetter, LaneGauges, Record
from streampair.errors import ConfigError, SourceError
from streampair_connectors.assemble import build_lane
from streampair_connectors.config import Config
from streampair_connectors.lanes import LaneTimer
from streampair_connectors.records import Decoder, Encoder, csv_decoder, json_decoder
from streampair_connectors.telemetry import LaneLabels, Telemetry

__all__ = ["Replay", "open_input"]

_json = msgspec.json.Encoder()


def open_input(config: Config, path: str) -> tuple[Decoder, Iterator[Record]]:
    """Open a file of events.

    Parameters
    ----------
    config
        Says which fields are features and label.
    path
        `*.csv` (first line: names) or JSON lines under any other name, `.gz` or not;
        `-` reads JSON lines from standard input.

    Returns
    -------
    tuple
        What decodes a record, and the records: one per line, numbered from 0.

    Raises
    ------
    SourceError
        The file cannot be read, or a CSV header lacks a column that the configuration names.
    """
    name = path.removesuffix(".gz")
    try:
        lines: IO[bytes] = _open(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not name.endswith(".csv"):
        return json_decoder(config.input), _guarded(path, _lines(lines))
    with contextlib.ExitStack() as stack:
        stack.callback(lines.close)
        header = _header(config, path, lines)
        stack.pop_all()  # it stays open for the rows
    return csv_decoder(config.input, header), _guarded(path, _csv_rows(lines))


def _header(config: Config, path: str, lines: IO[bytes]) -> list[str]:
    try:
        first = lines.readline().decode("utf-8-sig").rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    header = next(csv.reader([first]), [])
    wanted = [*(config.input.feature_names() or ()), config.input.label]
    absent = [column for column in wanted if column not in header]
    if absent:
        raise SourceError(
            f"{path} has no column {absent[0]!r}; its columns are {', '.join(header[:20]) or 'none'}",
            fix="correct input.features and input.label, or the file's first line",
            retriable=False,
        )
    return header


def _open(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    if path.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return open(path, "rb")


def _unreadable(path: str, error: Exception) -> SourceError:
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError(
        f"{path} cannot be read: {reason}",
        fix="check the path, its permissions and that a .gz file is whole",
        retriable=False,
    )


def _guarded(path: str, records: Iterator[Record]) -> Iterator[Record]:
    try:
        yield from records
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from None


def _lines(lines: IO[bytes]) -> Iterator[Record]:
    with lines:
        for number, line in enumerate(lines):
            yield Record(number, line.rstrip(b"\r\n"))


def _csv_rows(lines: IO[bytes]) -> Iterator[Record]:
    number = 0
    with lines:
        row = b""
        for line in lines:
            row += line
            if row.count(b'"') % 2:  # a quoted cell goes on in the next line
                continue
            yield Record(number, row.rstrip(b"\r\n"))
            number += 1
            row = b""
        if row:
            yield Record(number, row.rstrip(b"\r\n"))


@dataclass
class Replay:
    """One replay of a file.

    Parameters
    ----------
    config
        The same configuration as for `run`; [kafka], [store] and the topics are not used.
    path
        See :func:`open_input`.
    scores
        Called with each score as one line of JSON.
    dead_letters
        Called with each dead letter as one line of JSON: text in `value`, or bytes that are not
        text in `value_base64`.
    """

    config: Config
    path: str
    scores: Callable[[bytes], object]
    dead_letters: Callable[[bytes], object]
    telemetry: Telemetry = field(default_factory=Telemetry)
    events: int = 0

    def run(self, progress: Callable[[int], object] | None = None) -> LaneGauges:
        """Score and learn every record of the file.

        Returns
        -------
        LaneGauges
            The lane's numbers at the end.

        Raises
        ------
        SourceError, ConfigError, LaneStopped
            As the message says.
        """
        config = self.config
        decode, records = open_input(config, self.path)
        topic = "stdin" if self.path == "-" else Path(self.path).name
        lane = build_lane(config, decode, topic=topic, partition=0, snapshots=False)
        if getattr(lane.learner, "entity", None) is not None:
            raise ConfigError(
                "the learner counts records by entity, which is the key of a message: a file has no keys",
                fix="replay without entity=, or use Kafka",
            )
        labels: LaneLabels = (config.app, topic, "0", config.learner.label())
        timer = LaneTimer(lane, decode, self.telemetry, labels)
        encode = Encoder(app=config.app, learner=lane.name, topic=topic, partition=0).score
        self.telemetry.health(config.app, "running")
        size = config.worker.batch_size
        while batch := list(islice(records, size)):
            output = timer.process(batch)
            for scored in output.scores:
                self.scores(encode(scored))
            for letter in output.dead_letters:
                self.dead_letters(_letter_line(letter))
            self.events += len(batch)
            self.telemetry.publish(labels, timer.gauges(), None)
            if progress is not None:
                progress(len(batch))
        gauges = timer.gauges(final=True)
        self.telemetry.publish(labels, gauges, None)
        return gauges


def _letter_line(letter: DeadLetter) -> bytes:
    line: dict[str, Any] = {"offset": letter.offset, "stage": letter.stage, "error": letter.error}
    try:
        line["value"] = None if letter.value is None else letter.value.decode("utf-8")
    except UnicodeDecodeError:
        line["value_base64"] = base64.b64encode(letter.value or b"").decode()
    return _json.encode(line)
