"""Numbers of a lane whose labels come later, for tests of series and of the page."""

from __future__ import annotations

import dataclasses
from typing import Any

from streampair_connectors.observability.metric_definitions import LabelMetrics
from streampair_connectors.worker.label_counts import LabelCounts

from streampair.engine import LaneGauges, LateGauges
from streampair.evaluation import ExpectedQuality

DAY = 86_400
NEWEST = 1_700_000_000.0


def label_metrics(**changes: Any) -> LabelMetrics:
    """Of a worker that has used 100 labels, half of them within a day, and has 123,456 events that wait."""
    counts = LabelCounts()
    delays = [*[DAY * 500] * 50, *[DAY * 20_000] * 50]
    counts.used(delays, [2] * len(delays), repeats=3, contradictions=2)
    counts.messages |= {"unused": 7, "late": 1, "unreadable": 4}
    made = LabelMetrics(
        messages=dict(counts.messages),
        kept=4_321,
        newest=NEWEST,
        quiet=21_600.0,
        delays=counts.delays,
        pending=123_456,
        without_id=17,
        learned_to=NEWEST - 30 * DAY,
        lag=2.0,
        reading=False,
    )
    return dataclasses.replace(made, **changes)


def late_gauges(gauges: LaneGauges, **changes: Any) -> LaneGauges:
    """The gauges of a lane with 2,000 events that were due, 100 of them with a label, and 40 stopped."""
    late = LateGauges(due=2_000, labelled=100, scores=40_000, share=0.25, in_time=90, late=10, stopped=40)
    late = late._replace(explored={"yes": 12, "no": 3, "stopped": 2})
    quality = gauges.quality
    assert quality is not None
    return dataclasses.replace(
        gauges,
        late=late._replace(**changes),
        quality=dataclasses.replace(
            quality, recall_at_threshold=0.625, precision_at_threshold=0.5, explored_positives=31
        ),
        expected=ExpectedQuality(
            0.75, 0.125, (), (("amount", 0.5), ('<i>"odd"\n', 0.01)), score_psi=0.0625, drifted=1
        ),
    )
