"""Where records of one person still are: in the topics of an application, by their key."""

from __future__ import annotations

import contextlib

import msgspec

from streampair_connectors.config import Config
from streampair_connectors.kafka import RecordLike, RecordReader, describe_topics
from streampair_connectors.kafka.admin import output_topics

__all__ = ["KeptRecord", "find_records", "searched_topics"]


class KeptRecord(msgspec.Struct, frozen=True):
    """A record that is still there.

    Attributes
    ----------
    key_of_configuration
        Which topic it is, by its key in the configuration: `input.topic`.
    topic, partition, offset, timestamp
        Of the record.
    tombstone
        Whether it has no value, so that compaction removes earlier ones with its key.
    """

    key_of_configuration: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    tombstone: bool


def searched_topics(config: Config) -> dict[str, str]:
    """The topics that hold records with the keys of events, by their keys in the configuration."""
    topics = {"input.topic": config.input.topic}
    if config.label_input is not None:
        topics["label_input.topic"] = config.label_input.topic
    return topics | output_topics(config)


async def find_records(config: Config, key: bytes, *, anywhere: bool = False) -> list[KeptRecord]:
    """Read the topics of an application, and return the records of a key.

    Parameters
    ----------
    config
        The configuration, with [kafka].
    key
        The key.
    anywhere
        Also records with these bytes in their value or in a header.

    Raises
    ------
    SourceError
        The broker does not answer.
    """
    settings = config.require_kafka()
    counts = await describe_topics(settings)
    lookup = RecordReader(settings)
    found: list[KeptRecord] = []
    try:
        for name, topic in searched_topics(config).items():
            async with contextlib.aclosing(lookup.topic(topic, counts.get(topic, 0))) as records:
                found += [
                    KeptRecord(name, topic, number, each.offset, each.timestamp, each.value is None)
                    async for number, each in records
                    if each.key == key or (anywhere and _holds(each, key))
                ]
    finally:
        await lookup.stop()
    return found


def _holds(record: RecordLike, text: bytes) -> bool:
    return text in (record.value or b"") or any(text in (value or b"") for _, value in record.headers)
