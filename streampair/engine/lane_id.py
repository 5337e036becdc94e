"""The identity of a lane."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["WHOLE_TOPIC", "LaneId"]

WHOLE_TOPIC: Final = -1
"""In place of a partition's number: all of them."""


class LaneId(NamedTuple):
    """Identity of a lane, which its noise, its log and its snapshots are bound to.

    Attributes
    ----------
    app, topic
        The application, and the topic whose records it learns.
    partition
        `WHOLE_TOPIC`: the lane takes records of all partitions (`OrderedRecord`). Otherwise it takes those of
        one, by their offsets: a stream in a file or in memory.

    Examples
    --------
    >>> from streampair.engine import LaneId
    >>> LaneId("fraud", "payments").text, LaneId("demo", "events", 0).text
    ('fraud|payments|-1', 'demo|events|0')
    """

    app: str
    topic: str
    partition: int = WHOLE_TOPIC

    @property
    def text(self) -> str:
        """All of it in one text: the noise is drawn under this name."""
        return f"{self.app}|{self.topic}|{self.partition}"
