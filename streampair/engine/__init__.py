"""The pure engine: lanes that score and learn from records, their logs and their snapshots.

No I/O, no clock, no asyncio.
"""

from streampair.engine.lane import Lane
from streampair.engine.lane_id import LaneId
from streampair.engine.logged_lane import LoggedLane
from streampair.engine.monitor import Monitoring
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
from streampair.engine.snapshot import Saving, UnusableLogError
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
    "LaneId",
    "LaneOutput",
    "LateGauges",
    "LogAppend",
    "LogDamagedError",
    "LogKey",
    "LoggedLane",
    "Monitoring",
    "OrderedRecord",
    "Record",
    "RecordRef",
    "Register",
    "RegretConfig",
    "ReplayRequest",
    "Saving",
    "Scored",
    "UnusableLogError",
]
