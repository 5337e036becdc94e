"""The pure engine: lanes that score and learn from records, their logs and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.lane import Lane
from streampair.engine.logged_lane import LoggedLane
from streampair.engine.records import (
    Breaker,
    Commit,
    DeadLetter,
    Event,
    EventRows,
    LaneGauges,
    LaneOutput,
    LateGauges,
    LogAppend,
    OrderedRecord,
    Record,
    RegretConfig,
    ReplayRequest,
    Scored,
)
from streampair.engine.recovery import ExternalState
from streampair.engine.snapshot import UnusableLogError
from streampair.engine.wal import LogDamagedError, LogKey, RecordRef, Register

__all__ = [
    "Breaker",
    "Commit",
    "DeadLetter",
    "Event",
    "EventRows",
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
    "Scored",
    "UnusableLogError",
]
