"""Outcomes of the records of a lane: their counts, dead letters, and the breaker that stops the lane."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, Literal

from streampair.engine.records import Breaker, DeadLetter, Record, stage_and_text
from streampair.errors import LaneStoppedError, TombstoneError

__all__ = ["Outcomes"]

_OUTCOMES: Final = ("learned", "scored", "dead_letter", "tombstone", "ignored")
_STAGES: Final = ("decode", "features", "label", "learn")


class Outcomes:
    """Counts of records by outcome, and what becomes of one that cannot be used.

    Parameters
    ----------
    topic, partition
        For messages.
    on_bad
        See `Lane`.
    breaker
        Stops the lane when too many events are bad; None: never.
    late
        Whether labels come later: events that are due may then be skipped.

    Attributes
    ----------
    events, stages
        Number of records by outcome, and of dead letters by stage.
    bad
        Positions, in records taken, of the dead letters in the breaker's window.

    Examples
    --------
    >>> from streampair.engine import Record
    >>> from streampair.engine.outcomes import Outcomes
    >>> outcomes, letters = Outcomes("events", 0, on_bad="dlq", breaker=None, late=False), []
    >>> outcomes.refuse(Record(7, b"?"), 1, ValueError("no event"), "decode", letters)
    'dead_letter'
    >>> letters[0].error, outcomes.stages["decode"]
    ('ValueError: no event', 1)
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        on_bad: Literal["dlq", "skip", "fail"],
        breaker: Breaker | None,
        late: bool,
    ) -> None:
        self._where = f"{topic}[{partition}]"
        self._on_bad = on_bad
        self._breaker = breaker
        self.events = dict.fromkeys((*_OUTCOMES, "skipped") if late else _OUTCOMES, 0)
        self.stages = dict.fromkeys(_STAGES, 0)
        self.bad: deque[int] = deque()

    def count(self, outcomes: Iterable[str]) -> None:
        """Count outcomes of records."""
        for outcome, count in Counter(outcomes).items():
            self.events[outcome] += count

    def refuse(
        self,
        record: Record,
        position: int,
        error: Exception,
        stage: str,
        letters: list[DeadLetter],
        *,
        due: bool = False,
    ) -> str:
        """The outcome of a record that cannot be used: a dead letter, unless it is a tombstone.

        A tombstone says that a key was deleted. It is not an error, so neither `on_bad` nor the breaker
        counts it.

        Parameters
        ----------
        record
            The record.
        position
            Number of records that were taken up to this one.
        error, stage
            What is wrong, and where it was found.
        letters
            Receives the dead letter.
        due
            Whether the record was scored before: it has its dead letter if it could not be.

        Raises
        ------
        LaneStoppedError
            Under `on_bad="fail"`, and when the breaker trips.
        """
        if record.value is None or isinstance(error, TombstoneError):
            return "skipped" if due else "tombstone"
        stage, text = stage_and_text(error, stage)
        if due and stage in ("decode", "features"):
            return "skipped"
        self.stages[stage] = self.stages.get(stage, 0) + 1
        if self._on_bad == "fail":
            raise LaneStoppedError(
                f"{self._where} offset {record.offset} cannot be used ({stage}: {text})",
                fix="repair the producer, or use on_bad='dlq' to set such events aside",
            ) from error
        if self._on_bad == "dlq":
            letters.append(DeadLetter(record.offset, record.key, record.value, record.timestamp, stage, text))
        if self._breaker is not None and self._trips(self._breaker, position):
            raise LaneStoppedError(
                f"{len(self.bad)} of the last {min(position, self._breaker.window)} records of {self._where} "
                f"are bad, the last at offset {record.offset} ({stage}: {text})",
                fix="look whether the schema of the topic changed; nothing since the last snapshot is lost. "
                "To go on over bad records, raise the breaker's share or turn it off: in a "
                'configuration, worker.on_bad = "skip"',
            ) from error
        return "dead_letter"

    def _trips(self, breaker: Breaker, position: int) -> bool:
        """Add a dead letter to the window; whether there are too many now."""
        bad = self.bad
        bad.append(position)
        while bad[0] <= position - breaker.window:
            bad.popleft()
        return len(bad) >= breaker.limit
