"""The pure engine: lanes that score and learn from records, their logs and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.durable_lane import LoggedLane
from streampair.engine.lane import Lane, Shadow
from streampair.engine.records import (
    Breaker,
    Commit,
    DeadLetter,
    Event,
    LaneGauges,
    LaneOutput,
    LateGauges,
    LogAppend,
    OrderedRecord,
    Record,
    RegretConfig,
    ReplayRequest,
    Rows,
    Scored,
)
from streampair.engine.recovery import ExternalState
from streampair.engine.wal import LogDamagedError, LogKey, RecordRef, Register

__all__ = [
    "Breaker",
    "Commit",
    "DeadLetter",
    "Event",
    "ExternalState",
    "Lane",
    "LaneGauges",
    "LaneOutput",
    "LateGauges",
    "LogAppend",
    "LogDamagedError",
    "LogKey",
    "LoggedLane",
    "OrderedRecord",
    "Record",
    "RecordRef",
    "Register",
    "RegretConfig",
    "ReplayRequest",
    "Rows",
    "Scored",
    "Shadow",
]
