"""The pure engine: lanes that score and learn from records, their logs and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.lane import Lane
from streampair.engine.log import LogDamaged, LogKey, Place, Register
from streampair.engine.logged import LoggedLane
from streampair.engine.opening import Facts
from streampair.engine.records import (
    Append,
    Breaker,
    Commit,
    DeadLetter,
    Event,
    LaneGauges,
    LaneOutput,
    Record,
    RegretConfig,
    Rows,
    Scored,
    Wanted,
)
from streampair.engine.shadow import Shadow

__all__ = [
    "Append",
    "Breaker",
    "Commit",
    "DeadLetter",
    "Event",
    "Facts",
    "Lane",
    "LaneGauges",
    "LaneOutput",
    "LogDamaged",
    "LogKey",
    "LoggedLane",
    "Place",
    "Record",
    "Register",
    "RegretConfig",
    "Rows",
    "Scored",
    "Shadow",
    "Wanted",
]
