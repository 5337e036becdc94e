"""`streampair erasure`: what is printed of the records that were found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streampair_connectors.cli.options import time_text
from streampair_connectors.config import Config
from streampair_connectors.worker.erasure import KeptRecord, searched_topics

__all__ = ["erasure_lines"]

_PLACES = 5  # offsets of a partition


def erasure_lines(config: Config, found: Sequence[KeptRecord]) -> Iterator[str]:
    """The records by topic, each with how many and where, and what is not searched."""
    for name, topic in searched_topics(config).items():
        records = [each for each in found if each.topic == topic]
        if not records:
            yield f"{name} {topic}: none"
            continue
        last = max(each.timestamp for each in records)
        places = [f"{each.partition}@{each.offset}" for each in records[:_PLACES]]
        more = f", and {len(records) - _PLACES} more" if len(records) > _PLACES else ""
        tombstones = sum(each.tombstone for each in records)
        yield (
            f"{name} {topic}: {len(records)} records, {tombstones} of them tombstones, the last of "
            f"{time_text(last)}: {', '.join(places)}{more}"
        )
    yield "not searched: the state of the learner, files, backups, and consumers of these topics"
