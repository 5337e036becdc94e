"""The pure engine: lanes that score and learn from records, their logs and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.durable_lane import LoggedLane
from streampair.engine.lane import Lane
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
from streampair.engine.recovery import Facts
from streampair.engine.shadow import Shadow
from streampair.engine.wal import LogDamaged, LogKey, Place, Register

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
