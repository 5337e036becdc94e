"""A lane with its store and its encoders: what `run` holds for each partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from river import compose

from streampair.engine.lane import DeadLetter, Lane, LaneGauges, LaneOutput, Record
from streampair.errors import RecordError
from streampair.privacy import NoiseKey
from streampair_connectors.assemble import build_lane, draws_key, lane_id
from streampair_connectors.config import Config
from streampair_connectors.kafka import Partition
from streampair_connectors.records import Decoder, Encoder, RawRecord
from streampair_connectors.store import LaneStore, Store, open_within
from streampair_connectors.telemetry import LaneLabels, Telemetry

__all__ = ["LaneTimer", "OpenLane"]

# How long a previous owner of a partition may take to close its store.
_HANDOVER_SECONDS = 15.0
# Share of the time that may go into estimates of the regret.
_ESTIMATES_SHARE = 0.04


class LaneTimer:
    """Times a lane from outside: the engine has no clock.

    Parameters
    ----------
    lane, decode
        The lane, and what it decodes with.
    telemetry, labels
        Where the times go.
    """

    def __init__(self, lane: Lane, decode: Decoder, telemetry: Telemetry, labels: LaneLabels) -> None:
        self._lane = lane
        self._decode = decode
        self._telemetry = telemetry
        self._labels = labels
        self.seconds_by_event = 0.0
        self._opened = time.perf_counter()
        self._estimating = 0.0
        self._last_estimate = 0.0
        self.estimated = True
        """Whether the last estimate of the regret covers all events."""

    def process(self, records: Sequence[Any]) -> LaneOutput:
        """Let the lane process a batch; Kafka's own records serve as the lane's."""
        start = time.perf_counter()
        self.estimated = False
        output = self._lane.process(cast("Sequence[Record]", records))
        self.seconds_by_event = (time.perf_counter() - start) / len(records)
        self._telemetry.batch(self._labels, self.seconds_by_event, self._time_score(records[-1]))
        return output

    def gauges(self, *, final: bool = False) -> LaneGauges:
        """Return the lane's numbers, with a fresh estimate of the regret if there is time for one.

        By itself a lane, which has no clock, spaces its estimates by counts, so that they do not show at full
        speed. A slower stream leaves time for more; `final` estimates in any case.
        """
        start = time.perf_counter()
        room = (start - self._opened) * _ESTIMATES_SHARE
        fresh = final or self._estimating + self._last_estimate <= room
        gauges = self._lane.gauges(solve=fresh or None)
        took = time.perf_counter() - start
        self._estimating += took
        if fresh:
            self._last_estimate = took
            self.estimated = True
        return gauges

    def _time_score(self, record: RawRecord) -> float | None:
        """Score the last event of a batch once more, alone, to see what scoring costs."""
        try:
            x = self._decode(record).x
        except RecordError:
            return None
        score = _scorer(self._lane.model)
        start = time.perf_counter()
        try:
            score(x)
        except Exception:
            # The lane has met the same event, and has said what is wrong with it.
            return None
        return time.perf_counter() - start


def _scorer(model: Any) -> Callable[[Any], Any]:
    # A pipeline has every method, its last step those that work.
    last = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    names = ("score_one", "predict_proba_one", "predict_one")
    return cast("Callable[[Any], Any]", getattr(model, next(name for name in names if hasattr(last, name))))


class OpenLane:
    """A lane that this process has opened from its last snapshot, and holds until `close`.

    Opening waits a while for a previous owner to let go.

    Raises
    ------
    StoreError, SnapshotError, ConfigError
        The lane cannot be opened or belongs to something else.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        decode: Decoder,
        telemetry: Telemetry,
        *,
        topic: str,
        partition: int,
        payloads_change: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_partition = Partition(topic, partition)
        self.labels: LaneLabels = (config.app, topic, str(partition), config.learner.label())
        self.encoder = Encoder(
            app=config.app, learner=config.learner.label(), topic=topic, partition=partition
        )
        self.dirty = False
        # Where the last commit left the partition, for the lag.
        self.position: int | None = None
        # Since the last commit, for the log.
        self.bad_count = 0
        self.last_bad: DeadLetter | None = None
        self._store: LaneStore = open_within(store, lane_id(config, topic, partition), _HANDOVER_SECONDS)
        try:
            self.lane = build_lane(
                config,
                decode,
                topic=topic,
                partition=partition,
                noise_key=NoiseKey(store.secret(f"{config.app}.noise-key")) if draws_key(config) else None,
                journal=self._store.journal(),
                payloads_change=payloads_change,
            )
            data = self._store.load()
            self.restored = data is not None
            if data is not None:
                self.lane.restore(data)
            # Until the next clean stop, the snapshot on the disk says that releases may have been made
            # after it; the ledger of a private lane counts the attempt, before its first release.
            self.lane.begin(self._store.save)
        except BaseException:
            self._store.close()
            raise
        self.timer = LaneTimer(self.lane, decode, telemetry, self.labels)

    def save(self, data: bytes) -> None:
        """Make `data`, the lane's last snapshot, durable."""
        self._store.save(data)
        self.lane.committed()

    def close(self) -> None:
        """Let another owner in."""
        self._store.close()
