"""Counts of the messages of a labels topic, and of the delays of its labels, for the series of a lane."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from streampair.engine.records import LABEL_STOPPED
from streampair_connectors.observability.metric_definitions import LABEL_OUTCOMES, Observations

__all__ = ["DELAY_BOUNDS", "LabelCounts"]

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400

DELAY_BOUNDS: Final = (
    *(1, 10, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY),
    *(60 * _DAY, 90 * _DAY, 180 * _DAY, 365 * _DAY),
)
"""Upper bounds of the buckets of delays, in seconds."""


class LabelCounts:
    """Counts since a lane was opened.

    Parameters
    ----------
    stopped
        Whether a label may say that its event was stopped: `label_input.stopped`.

    Attributes
    ----------
    messages
        Of the labels topic, by outcome: `metric_definitions.LABEL_OUTCOMES`.
    without_id
        Events that were due and have no id.

    Examples
    --------
    >>> from streampair_connectors.worker.label_counts import LabelCounts
    >>> counts = LabelCounts()
    >>> counts.used([2_000, 40_000], [2, 1], repeats=1, contradictions=0)
    >>> counts.messages["used"], counts.messages["repeated"]
    (2, 1)
    >>> delays = counts.delays
    >>> delays.buckets["10.0"], delays.buckets["60.0"], delays.buckets["+Inf"], delays.sum
    (1, 2, 2, 42.0)
    """

    def __init__(self, *, stopped: bool = False) -> None:
        self.messages = {name: 0 for name in LABEL_OUTCOMES if stopped or name != "stopped"}
        self.without_id = 0
        self._buckets = np.zeros(len(DELAY_BOUNDS) + 1, np.int64)
        self._seconds = 0.0

    def used(self, delays: ArrayLike, codes: ArrayLike, *, repeats: int, contradictions: int) -> None:
        """Count labels that events have used.

        Parameters
        ----------
        delays
            Shape (n,): from each event to its label, in milliseconds.
        codes
            Shape (n,): of the labels (`Config.label_codes`). Those of stopped events are counted apart, and
            their delays are in no bucket.
        repeats, contradictions
            Further labels of these events, as of `JoinedLabels`.
        """
        self.messages["repeated"] += repeats
        self.messages["contradicting"] += contradictions
        known = np.asarray(codes, np.int64) != LABEL_STOPPED
        if stopped := int(np.count_nonzero(~known)):
            self.messages["stopped"] += stopped
        seconds = np.maximum(np.asarray(delays, np.int64)[known], 0) / 1000.0
        self.messages["used"] += len(seconds)
        buckets = np.searchsorted(DELAY_BOUNDS, seconds)
        self._buckets += np.bincount(buckets, minlength=len(self._buckets))
        self._seconds += float(seconds.sum())

    @property
    def delays(self) -> Observations:
        """The delays of labels that were used, in seconds."""
        names = [*(str(float(bound)) for bound in DELAY_BOUNDS), "+Inf"]
        found, count = {}, 0
        for name, more in zip(names, self._buckets.tolist(), strict=True):
            count += more
            found[name] = count
        return Observations(found, self._seconds)
