"""A sample of events, of a topic or of a file, whose format need not be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Any

from streampair.errors import ConfigError, RecordError, SourceError, TombstoneError
from streampair_connectors.cli.event_files import open_lines
from streampair_connectors.codecs.fields import unwrapped
from streampair_connectors.codecs.formats import FRAME, fields_reader
from streampair_connectors.codecs.json_fields import is_json, json_object
from streampair_connectors.codecs.records import csv_row
from streampair_connectors.config import Config, KafkaConfig
from streampair_connectors.kafka import Partition, RecordReader, describe_topics

__all__ = ["Sample", "file_sample", "topic_sample"]


@dataclass
class Sample:
    """Some events.

    `events` says how many of which they are, and `total` how many there are in all; `input` has the keys of
    [input] that say how they are written; `rows` the fields of those that can be read; `problem` and `fix`
    why the first of the others cannot.
    """

    events: str
    records: list[Any]
    total: int
    input: dict[str, Any] = field(default_factory=dict)
    is_file: bool = True
    is_csv: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    fix: str = ""

    def read(self, parse: Callable[[bytes], dict[str, Any]]) -> None:
        """Read the fields of the events, or of the row of each if most are of Debezium; one must be read."""
        self._read(parse)
        changes = sum("op" in event and "after" in event for event in map(_payload, self.rows))
        if not self.is_csv and ("envelope" in self.input or 2 * changes > len(self.rows)):
            self.input["envelope"] = "debezium"
            self._read(lambda value: unwrapped(parse(value)))
        if not self.rows:
            raise _refused(
                f"none of {self.events} can be read: {self.problem}",
                "send events as JSON objects, or name their format with --set input.format (docs/formats.md)",
            )

    def _read(self, parse: Callable[[bytes], dict[str, Any]]) -> None:
        self.rows, self.problem = [], ""
        for record in self.records:
            try:
                row = parse(record.value)
            except (TombstoneError, RecordError) as error:
                self.problem, self.fix = self.problem or error.problem, self.fix or error.fix
            else:
                if list(row) != list(row.values()):  # else the header of CSV, sent as an event
                    self.rows.append(row)


def _refused(problem: str, fix: str) -> SourceError:
    return SourceError(problem, fix=fix, retriable=False)


def _payload(row: dict[str, Any]) -> dict[str, Any]:
    payload = row.get("payload")
    return payload if isinstance(payload, dict) else row


def file_sample(path: str, most: int, declared: Mapping[str, Any]) -> Sample:
    """Read a file, and keep events drawn at random, the same ones each time: the file may be sorted."""
    coin = Random(0)  # noqa: S311  # a draw, not a secret
    records: list[Any] = []
    total = 0
    with open_lines(path, 1000) as lines:
        for record in chain.from_iterable(lines.batches):
            total += 1
            if total <= most:
                records.append(record)
            elif (place := int(coin.random() * total)) < most:
                records[place] = record
        name, header = lines.name, lines.header
    if not records:
        raise _refused(f"{name} has no events", "name a file of CSV with its header, or of JSON lines")
    records.sort(key=lambda record: record.offset)
    events = f"{len(records):,}{f' of {total:,}' if total > most else ''} events of file {name}"
    envelope = {key: declared[key] for key in ("envelope",) if header is None and key in declared}
    sample = Sample(events, records, total, envelope, is_csv=header is not None)
    sample.read(json_object if header is None else lambda value: csv_row(value, header))
    return sample


async def topic_sample(
    kafka: KafkaConfig, topic: str, most: int, declared: Mapping[str, Any], config: Callable[..., Config]
) -> Sample:
    """Read the newest events of a topic, at most so many of all partitions together.

    `declared` has the keys of [input] that are known; `config` returns a configuration with some keys of
    [input], to read the events with.
    """
    partitions = (await describe_topics(kafka)).get(topic)
    if partitions is None:
        problem = f"topic {topic!r} does not exist on {kafka.bootstrap_servers}"
        raise _refused(problem, "correct --topic, or --kafka")
    lookup = RecordReader(kafka)
    try:
        places = [Partition(topic, number) for number in range(partitions)]
        spans = await lookup.spans(places)
        records: list[Any] = []
        for number, (first, end) in sorted(spans.items()):
            async for batch in lookup.span(places[number], max(first, end - -(-most // partitions)), end):
                records += (record for record in batch if record.value is not None)
    finally:
        await lookup.stop()
    if not records:
        raise _refused(
            f"topic {topic!r} has no messages, or none with a value",
            "send some events first, or take them from a file with --file",
        )
    keys = ("format", "columns", "schema_file", "envelope")
    found = {key: declared[key] for key in keys if key in declared}
    if "format" not in found:
        kind = "avro" if "schema_file" in found else _format_of([record.value for record in records])
        found |= {} if kind == "json" else {"format": kind}
    if found.get("format") == "csv" and "columns" not in found:
        raise ConfigError(
            f"the messages of topic {topic!r} are CSV, and the names of their cells are not known",
            fix="""name them in order: --set 'input.columns=["amount", "is_fraud"]'""",
        )
    total, count = sum(end - first for first, end in spans.values()), len(records)
    events = f"{f'the newest {count:,} of {total:,}' if count < total else f'{count:,}'} events"
    sample = Sample(f"{events} of topic {topic!r}", records, total, found, is_file=False)
    sample.is_csv = found.get("format") == "csv"
    sample.read(fields_reader(config(**found)))
    return sample


def _format_of(values: list[bytes]) -> str:
    """How most messages are written."""
    formats = Counter(filter(None, map(_format, values)))
    if not formats:
        raise _refused(
            f"the messages are neither JSON, CSV nor Avro with the id of a schema; one begins with "
            f"{values[0][:20]!r}",
            'if they are Avro without an id, add --set input.schema_file="events.avsc"; otherwise send JSON '
            "(docs/formats.md)",
        )
    return formats.most_common(1)[0][0]


def _format(value: bytes) -> str | None:
    """How a message is written; None: that cannot be said."""
    if value[:1] == b"\0" and len(value) >= FRAME:
        return "json-schema" if value[FRAME:].lstrip()[:1] == b"{" and is_json(value[FRAME:]) else "avro"
    if value.lstrip()[:1] == b"{" and is_json(value):
        return "json"
    try:
        text = value.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    return "csv" if "," in text and text.isprintable() and not text.startswith(("{", "[")) else None
