"""A sample of events, of a topic or of a file, whose format need not be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streampair.errors import ConfigError, RecordError, SourceError, TombstoneError
from streampair_connectors.cli.event_files import open_lines
from streampair_connectors.codecs.fields import unwrapped
from streampair_connectors.codecs.formats import FRAME, event_decoder, fields_reader
from streampair_connectors.codecs.json_fields import is_json, json_object
from streampair_connectors.codecs.records import Decoder, csv_decoder, csv_row, json_decoder
from streampair_connectors.config import Config, KafkaConfig
from streampair_connectors.kafka import Partition, RecordReader, describe_topics
from streampair_connectors.worker.factory import taken_cells

__all__ = ["Sample", "file_sample", "topic_sample"]

_Parse = Callable[[bytes], dict[str, Any]]


@dataclass
class Sample:
    """Some events.

    `total` is how many there are in all; `input` has the keys of [input] that say how they are written;
    `header` the columns of a CSV file; `rows` the fields of those that can be read.
    """

    source: str
    records: list[Any]
    total: int
    input: dict[str, Any] = field(default_factory=dict)
    header: list[str] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_file: bool = True

    @property
    def events(self) -> str:
        """How many events of which, in words."""
        count = f"{len(self.records):,}"
        if len(self.records) < self.total:
            count = f"the {'first' if self.is_file else 'newest'} {count} of {self.total:,}"
        return f"{count} events of {self.source}"

    @property
    def is_csv(self) -> bool:
        return self.header is not None or self.input.get("format") == "csv"

    def read(self, parse: _Parse) -> None:
        """Read the fields of the events, or of the row of each if most are of Debezium; one must be read."""
        self.rows, problem = _rows(self.records, parse)
        enveloped = "envelope" in self.input or 2 * sum(map(_is_debezium, self.rows)) > len(self.rows)
        if enveloped and not self.is_csv:
            self.input["envelope"] = "debezium"
            self.rows, problem = _rows(self.records, lambda value: unwrapped(parse(value)))
        if not self.rows:
            raise SourceError(
                f"none of {len(self.records):,} events of {self.source} can be read: {problem}",
                fix="send events as JSON objects, or name their format with --set input.format "
                "(docs/formats.md)",
                retriable=False,
            )

    def decoder(self, config: Config) -> Decoder:
        """The decoder that `run`, or `replay`, has for these events."""
        cells = taken_cells(config)
        if not self.is_file:
            return event_decoder(config, **cells)
        if self.header is not None:
            return csv_decoder(config.input, self.header, **cells)
        return json_decoder(config.input, **cells)


def _rows(records: Sequence[Any], parse: _Parse) -> tuple[list[dict[str, Any]], str]:
    """The fields of the events that can be read, and why the first of the others cannot."""
    rows: list[dict[str, Any]] = []
    problem = ""
    for record in records:
        try:
            row = parse(record.value)
        except (TombstoneError, RecordError) as error:
            problem = problem or error.problem
        else:
            if list(row) != list(row.values()):  # else the header of CSV, sent as an event
                rows.append(row)
    return rows, problem or "it is the header"


def _is_debezium(row: Mapping[str, Any]) -> bool:
    payload = row.get("payload")
    event = payload if isinstance(payload, dict) else row
    return "op" in event and "after" in event


def file_sample(path: str, most: int, declared: Mapping[str, Any]) -> Sample:
    """Read the first events of a file, and count all others."""
    with open_lines(path, most) as lines:
        records = list(next(lines.batches, []))
        total = len(records) + sum(map(len, lines.batches))
        header = lines.header
    if not records:
        raise SourceError(
            f"{lines.name} has no events",
            fix="name a file of CSV with its header, or of JSON lines",
            retriable=False,
        )
    envelope = {key: declared[key] for key in ("envelope",) if header is None and key in declared}
    sample = Sample(f"file {lines.name}", records, total, envelope, header)
    sample.read(json_object if header is None else lambda value: csv_row(value, header))
    return sample


async def topic_sample(
    kafka: KafkaConfig, topic: str, most: int, declared: Mapping[str, Any], config: Callable[..., Config]
) -> Sample:
    """Read the newest events of a topic.

    Parameters
    ----------
    kafka, topic
        Where they are.
    most
        How many, of all partitions together.
    declared
        The keys of [input] that are known.
    config
        Returns a configuration with some keys of [input], to read the events with.
    """
    partitions = (await describe_topics(kafka)).get(topic)
    if partitions is None:
        raise SourceError(
            f"topic {topic!r} does not exist on {kafka.bootstrap_servers}",
            fix="correct --topic, or --kafka",
            retriable=False,
        )
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
        raise SourceError(
            f"topic {topic!r} has no messages, or none with a value",
            fix="send some events first, or take them from a file with --file",
            retriable=False,
        )
    total = sum(end - first for first, end in spans.values())
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
    sample = Sample(f"topic {topic!r}", records, total, found, is_file=False)
    sample.read(fields_reader(config(**found)))
    return sample


def _format_of(values: Sequence[bytes]) -> str:
    """How most messages are written."""
    formats = Counter(found for value in values if (found := _format(value)) is not None)
    if not formats:
        raise SourceError(
            f"the messages are neither JSON, CSV nor Avro with the id of a schema; one begins with "
            f"{values[0][:20]!r}",
            fix='if they are Avro without an id, add --set input.schema_file="events.avsc"; otherwise send '
            "JSON (docs/formats.md)",
            retriable=False,
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
