"""The pure engine: lanes that score and learn from records, and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.lane import (
    Breaker,
    DeadLetter,
    Event,
    Lane,
    LaneGauges,
    LaneJournal,
    LaneOutput,
    Record,
    RegretConfig,
    Scored,
)

__all__ = [
    "Breaker",
    "DeadLetter",
    "Event",
    "Lane",
    "LaneGauges",
    "LaneJournal",
    "LaneOutput",
    "Record",
    "RegretConfig",
    "Scored",
]
