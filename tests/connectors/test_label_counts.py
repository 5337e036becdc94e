"""Counts of a labels topic."""

from __future__ import annotations

import numpy as np
import pytest
from streampair_connectors.worker.label_counts import DELAY_BOUNDS, LabelCounts

from streampair.engine.records import LABEL_STOPPED


def test_delays_are_in_the_first_bucket_that_has_room_for_them() -> None:
    rng = np.random.default_rng(0)
    bounds = np.array(DELAY_BOUNDS)
    delays = [*rng.integers(0, 500 * 86_400_000, 300).tolist(), *(1000 * bounds).tolist(), -5000]
    counts = LabelCounts(stopped=True)
    codes = rng.integers(1, 3, len(delays)).tolist()
    counts.used(delays[:100], codes[:100], repeats=2, contradictions=0)
    # Those of stopped events are counted apart.
    counts.used([*delays[100:], 1, 10**9], [*codes[100:], *[LABEL_STOPPED] * 2], repeats=1, contradictions=4)
    seconds = np.maximum(np.array(delays), 0) / 1000.0
    histogram = counts.delays
    assert list(histogram.buckets.values()) == [*(int((seconds <= b).sum()) for b in bounds), len(delays)]
    assert [float(name) for name in histogram.buckets] == [*bounds, np.inf]
    assert histogram.sum == pytest.approx(seconds.sum())
    assert counts.messages == {
        **{"used": len(delays), "stopped": 2, "repeated": 3, "contradicting": 4},
        **{"unused": 0, "late": 0, "unreadable": 0},
    }
    assert LabelCounts().messages.keys() == counts.messages.keys() - {"stopped"}
