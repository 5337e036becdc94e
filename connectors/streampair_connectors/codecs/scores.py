"""Scores in Avro, with the id of their schema in a schema registry."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import fastavro
import msgspec

from streampair.engine.records import OFFSET_BITS
from streampair_connectors.codecs.formats import FRAME, avro_reader, schema_registry
from streampair_connectors.config import Config

__all__ = ["SCORE_SCHEMA", "PublishedScore", "score_reader", "score_writer"]

_REASON = {
    "type": "record",
    "name": "Reason",
    "fields": [{"name": "feature", "type": "string"}, {"name": "contribution", "type": "double"}],
}
#: The schema of a score. Fields that come later have defaults, so that older readers and newer ones agree.
SCORE_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Score",
    "namespace": "streampair",
    "fields": [
        {"name": "app", "type": "string"},
        {"name": "learner", "type": "string"},
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": "long"},
        {"name": "id", "type": ["null", "string"], "default": None},
        {"name": "score", "type": ["null", "double"], "default": None},
        {"name": "outcome", "type": "string"},
        {"name": "probabilities", "type": ["null", {"type": "map", "values": "double"}], "default": None},
        {"name": "model_slots", "type": ["null", "long"], "default": None},
        {"name": "reasons", "type": ["null", {"type": "array", "items": _REASON}], "default": None},
        {"name": "threshold", "type": ["null", "double"], "default": None},
        {"name": "share", "type": ["null", "double"], "default": None},
        {"name": "explore", "type": ["null", "boolean"], "default": None},
    ],
}
_parsed = fastavro.parse_schema(SCORE_SCHEMA)


class PublishedScore(msgspec.Struct):
    """What says which event a message of the output topic is of, and how its score acted."""

    app: str
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << (63 - OFFSET_BITS))]
    offset: Annotated[int, msgspec.Meta(ge=0, lt=1 << OFFSET_BITS)]
    score: float | None = None
    threshold: float | None = None
    share: float | None = None
    explore: bool | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            self.score = None  # Avro has NaN, which has no rank: no snapshot with it could be read


def score_writer(config: Config) -> Callable[[Sequence[msgspec.Struct]], list[bytes]] | None:
    """Return the function from the fields of scores to messages in Avro; None: `output.format` is JSON.

    Asks the registry for the id of the schema, under the subject of the values of the output topic, and
    registers the schema if it is not there.

    Raises
    ------
    ConfigError
        The subject has a schema that this one may not follow, or a secret cannot be read.
    SourceError
        The registry does not answer, or refuses.
    """
    if config.output.format == "json":
        return None
    registry = schema_registry(config)
    assert registry is not None
    number = registry.register(f"{config.output_topic}-value", json.dumps(SCORE_SCHEMA))
    frame, write = b"\0" + number.to_bytes(4, "big"), fastavro.schemaless_writer

    def one(row: msgspec.Struct) -> bytes:
        body = io.BytesIO()
        body.write(frame)
        write(body, _parsed, msgspec.to_builtins(row))
        return body.getvalue()

    return lambda rows: list(map(one, rows))


def score_reader(config: Config, fields: Any) -> Callable[[bytes], Any]:
    """Return the function from a message of the output topic to some of its fields.

    Parameters
    ----------
    config
        The application.
    fields
        A struct of msgspec: the fields.

    Raises
    ------
    msgspec.MsgspecError, RecordError, TypeError
        By the returned function: the message is no score.
    """
    if config.output.format == "json":
        return msgspec.json.Decoder(fields).decode
    read = avro_reader(_parsed, FRAME)
    return lambda value: msgspec.convert(read(value), fields)
