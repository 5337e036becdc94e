"""Timing of lanes by stage: decode, learn, encode. The engine itself has no clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from river import compose

from streampair.engine import Event, EventRows, Lane, LaneGauges, LaneOutput, Record
from streampair.errors import RecordError, SourceError
from streampair_connectors.codecs.records import Decoder, RawRecord
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.observability.metric_definitions import STAGES, LaneLabels
from streampair_connectors.observability.metrics import Telemetry

__all__ = ["DecodeClock", "Estimates", "LaneTimer"]

# Shares of the time for regret estimates, and for drift between them; the most that is saved up in a pause.
_ESTIMATES_SHARE = 0.02
_LOOKS_SHARE = 0.005
_ESTIMATES_SAVED = 0.25


class DecodeClock:
    """Times a decoder: whole batches, and one event of each batch.

    Parameters
    ----------
    decode
        As of `json_decoder`.
    host
        Its clock.

    Attributes
    ----------
    decode
        The timed decoder, to build lanes with.
    batch
        Seconds spent in whole batches since `reset`; 0 where events are decoded one by one.
    one
        Seconds that the last single event took.

    Examples
    --------
    >>> from streampair.engine.lane import Record
    >>> from streampair_connectors.config import InputConfig
    >>> from streampair_connectors.codecs.records import json_decoder
    >>> clock = DecodeClock(json_decoder(InputConfig(label="bad", features=["amount"])))
    >>> clock.decode.many([Record(0, b'{"amount": 12, "bad": true}')]).names
    ['amount']
    >>> clock.batch > 0.0
    True
    """

    def __init__(self, decode: Decoder, *, host: Host = THIS_HOST) -> None:
        self._host = host
        self._decode = decode
        self._many: Callable[[Sequence[Any]], EventRows | None] | None = getattr(decode, "many", None)
        # Single events are decoded without any timing code in between.
        wrapped: Any = functools.partial(decode)
        if self._many is not None:
            wrapped.many = self._timed
        self.decode: Any = wrapped
        self.batch = 0.0
        self.one = 0.0

    def reset(self) -> None:
        """Start a new batch."""
        self.batch = 0.0

    def _timed(self, records: Sequence[Any]) -> EventRows | None:
        assert self._many is not None
        start = self._host.monotonic()
        rows = self._many(records)
        self.batch += self._host.monotonic() - start
        return rows

    def one_event(self, record: RawRecord) -> Event:
        """Decode one event and record its duration.

        Raises
        ------
        RecordError
        """
        start = self._host.monotonic()
        event = self._decode(record)
        self.one = self._host.monotonic() - start
        return event


class Estimates:
    """Time budget of a process for regret estimates, however often its lane is opened.

    Parameters
    ----------
    clock
        Monotonic, in seconds.
    share
        Of the time.

    Examples
    --------
    >>> now = 0.0
    >>> estimates = Estimates(lambda: now)
    >>> estimates.afford()
    True
    >>> estimates.spent(0.02)
    >>> estimates.afford()
    False
    >>> now = 2.0
    >>> estimates.afford()
    True
    """

    def __init__(
        self, clock: Callable[[], float] = THIS_HOST.monotonic, share: float = _ESTIMATES_SHARE
    ) -> None:
        self._clock = clock
        self._share = share
        self._updated_at = clock()
        self._saved = 0.0
        self._last = 0.0

    def afford(self) -> bool:
        """Whether there is time for another estimate as long as the last one."""
        now = self._clock()
        self._saved = min(self._saved + (now - self._updated_at) * self._share, _ESTIMATES_SAVED)
        self._updated_at = now
        return self._saved >= min(self._last, _ESTIMATES_SAVED)

    def spent(self, seconds: float) -> None:
        """Record the duration of an estimate."""
        self._saved -= seconds
        self._last = seconds


class LaneTimer:
    """Times a lane from outside.

    Parameters
    ----------
    lane, clock
        The lane, and the clock of its decoder.
    telemetry, labels
        Receives the times.
    estimates
        Time budget of the process; None: a new one.
    host
        Its clock.
    """

    def __init__(
        self,
        lane: Lane,
        clock: DecodeClock,
        telemetry: Telemetry,
        labels: LaneLabels,
        estimates: Estimates | None = None,
        *,
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self._lane = lane
        self._clock = clock
        self._telemetry = telemetry
        self._labels = labels
        self._estimates = Estimates(host.monotonic) if estimates is None else estimates
        self._looks = Estimates(host.monotonic, _LOOKS_SHARE)
        self.seconds_by_event = 0.0
        self.seconds = dict.fromkeys(STAGES, 0.0)
        """Processing time of this lane by stage, summed over all batches."""
        self.estimated = True
        """Whether the last estimate of the regret covers all events."""

    def process(self, records: Sequence[Any]) -> LaneOutput:
        """Process a batch; Kafka's records serve as the lane's records."""
        start = self._host.monotonic()
        self.estimated = False
        self._clock.reset()
        output = self._lane.process(cast("Sequence[Record]", records))
        took = self._host.monotonic() - start
        self.seconds_by_event = took / len(records)
        self._telemetry.batch(self._labels, self.seconds_by_event, self._time_score(records[-1]))
        decoding = min(self._clock.batch or self._clock.one * len(records), took)
        self.seconds["decode"] += decoding
        self.seconds["learn"] += took - decoding
        return output

    def encoded(self, seconds: float) -> None:
        """Record the time spent encoding the outputs of a batch and handing them over."""
        self.seconds["encode"] += seconds

    def gauges(self, *, final: bool = False) -> LaneGauges:
        """Return the lane's gauges, with a new regret and quality if there is time for them.

        A lane without a clock spaces its estimates by counts; here they have a budget of time, and what is
        known before labels come one of its own: it is to be seen within 2,000 events however long an estimate
        of the regret takes. With `final`, all are computed in any case and not charged to a budget.
        """
        fresh = final or self._estimates.afford()
        if final or self._looks.afford():
            start = self._host.monotonic()
            if self._lane.look() and not final:
                self._looks.spent(self._host.monotonic() - start)
        start = self._host.monotonic()
        gauges = self._lane.gauges(solve=fresh)
        if fresh:
            # Before the second event there is nothing to compute, and nothing to charge.
            if not final and not (gauges.regret is None and gauges.quality is None):
                self._estimates.spent(self._host.monotonic() - start)
            self.estimated = True
        return gauges

    def _time_score(self, record: RawRecord) -> float | None:
        """Score the last event of a batch again, alone, to measure the latency of scoring."""
        try:
            x = self._clock.one_event(record).x
        except (RecordError, SourceError):
            return None
        score = _scorer(self._lane.model)
        start = self._host.monotonic()
        try:
            score(x)
        except Exception:
            # The lane has reported the error of this event already.
            return None
        return self._host.monotonic() - start


def _scorer(model: Any) -> Callable[[Any], Any]:
    # A pipeline has every method, its last step those that work.
    last = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    names = ("score_one", "predict_proba_one", "predict_one")
    return cast("Callable[[Any], Any]", getattr(model, next(name for name in names if hasattr(last, name))))
