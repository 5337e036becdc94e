"""Counts of records that must agree: of those that a client has handed over, and of what became of them.

A record that a reader has taken is in one place until its lane has an outcome for it. So, since a lane began,

- of each partition, read = waiting in the order + ready to be processed + taken by the lane;
- of the lane, taken = learned + scored + skipped + tombstones + dead letters. By partition no outcomes are
  known.

Where labels come later, an event goes through the lane twice: when it comes ("new"), and when it is due
("due"). Each way has a reader and an order of its own, and so the first identity. An event that is learned
when its label comes ("early") is read by its offset, outside of both orders, and is passed over when it is
due, without an outcome. Each other time has its own outcome, so the second identity is that of all ways
together, less those that were passed over.

Records that the log has announced, and that are processed first after a start, count as read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from streampair.engine import OrderedRecord
from streampair.engine.source import way_of
from streampair_connectors.kafka import Partition, ReadPositions
from streampair_connectors.kafka.ordering import TopicOrder
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = ["RecordCounts"]


class RecordCounts:
    """The counts of one lane since it began.

    Parameters
    ----------
    lane
        The lane, which begins now.
    announced
        Records that it is given before those of a reader.
    """

    def __init__(self, lane: OpenLane, announced: Iterable[OrderedRecord]) -> None:
        self._lane = lane
        self._announced = Counter((each.partition, way_of(each)) for each in announced)
        self._taken_before = self._taken()
        self._without_before = self._without_outcome()

    def _taken(self) -> Counter[tuple[int, str]]:
        return Counter(self._lane.source.counts)

    def _without_outcome(self) -> int:
        """Records that this process has taken, less those with an outcome; whatever was before."""
        outcomes = self._lane.logged_lane.outcomes
        known = sum(count for name, count in outcomes.items() if name != "ignored")
        source = self._lane.source
        return sum(source.counts.values()) - source.passed - known

    def check_way(
        self,
        way: str,
        positions: ReadPositions,
        order: TopicOrder | None,
        places: Iterable[Partition],
        ready: Iterable[OrderedRecord],
    ) -> str | None:
        """Compare what was read of each partition; return what differs, or None.

        Parameters
        ----------
        way
            As of `way_of`.
        positions, order, places
            Its reader, its order (None: nothing waits) and its partitions.
        ready
            Records that the lane has not processed yet.
        """
        known = Counter(each.partition for each in ready if way_of(each) == way)
        taken = self._taken()
        taken.subtract(self._taken_before)
        for place in places:
            number = place.partition
            read = positions.records(place) + self._announced[number, way]
            waiting = 0 if order is None else order.waiting(number)
            if read != waiting + known[number] + taken[number, way]:
                return (
                    f"of {place.topic}/{number} {read} records were read ({way}), and {waiting} wait, "
                    f"{known[number]} are ready and {taken[number, way]} were taken"
                )
        return None

    def check_outcomes(self) -> str | None:
        """Compare what was taken with the outcomes; return what differs, or None."""
        missing = self._without_outcome() - self._without_before
        return None if missing == 0 else f"the records taken exceed those with an outcome by {missing}"
