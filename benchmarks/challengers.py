"""What challengers cost: a lane with two of them, against three lanes of one learner each.

    python benchmarks/challengers.py
    python benchmarks/challengers.py --records 50000 --rounds 9

Every lane takes the same records of twenty features, as JSON, in batches of a thousand. "three lanes" is the
CPU time of the learners alone; each of these lanes decodes all records, and a lane with challengers decodes
them once. So the bound is the time of the three without two times that of decoding, and the ratio is that of
the lane to it. All take turns, round by round.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _timing
import numpy as np
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig

from streampair import auc
from streampair.engine import Challenger, Lane, Record, RegretConfig

GOAL = 1.1
FEATURES = [f"f{i}" for i in range(20)]
BATCH = 1000
PRIVATE = {"epsilon": 1.0, "delta": 1e-7, "horizon": 10_000_000, "features": FEATURES}
LEARNERS: dict[str, Callable[[], Any]] = {
    "PairOGD": lambda: auc.PairOGD(seed=1),
    "slow PairOGD": lambda: auc.PairOGD(learning_rate=0.01, seed=2),
    "Forest": lambda: auc.Forest(seed=3),
    "PairFTRL": lambda: auc.PairFTRL(**PRIVATE),
    "second PairFTRL": lambda: auc.PairFTRL(**{**PRIVATE, "epsilon": 0.5}),
}
GROUPS = [
    ("PairOGD", "slow PairOGD", "Forest"),
    ("PairFTRL", "second PairFTRL", "PairOGD"),
    ("PairOGD", "slow PairOGD", "OAM"),
]
LEARNERS["OAM"] = auc.OAM


def stream(count: int) -> list[Record]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, len(FEATURES))).round(4)
    y = x[:, 0] + rng.normal(size=count) > 1.0
    return [
        Record(i, json.dumps({**dict(zip(FEATURES, row, strict=True)), "y": bool(label)}).encode())
        for i, (row, label) in enumerate(zip(x.tolist(), y, strict=True))
    ]


def lane(champion: str, *challengers: str, regret: bool = False) -> Lane:
    return Lane(
        LEARNERS[champion](),
        json_decoder(InputConfig(label="y", features=FEATURES)),
        app="benchmark",
        topic="events",
        partition=0,
        snapshots=False,
        regret=RegretConfig() if regret else None,
        challengers=[Challenger(name, LEARNERS[name]()) for name in challengers],
    )


def taking(records: list[Record], make: Callable[[], Lane]) -> Callable[[], float]:
    """Seconds of a new lane for all records but those of its first batch."""

    def seconds() -> float:
        made = make()
        made.process(records[:BATCH])

        def rest() -> None:
            for start in range(BATCH, len(records), BATCH):
                made.process(records[start : start + BATCH])

        return _timing.timed(rest)()

    return seconds


def decoding(records: list[Record]) -> Callable[[], float]:
    many = json_decoder(InputConfig(label="y", features=FEATURES)).many

    def rest() -> None:
        for start in range(BATCH, len(records), BATCH):
            many(records[start : start + BATCH])

    return _timing.timed(rest)


def measure(options: Namespace) -> Iterator[dict[str, Any]]:
    records = stream(options.records)
    for group in GROUPS:
        champion, *others = group
        measures = {
            **{name: taking(records, lambda name=name: lane(name)) for name in group},
            "together": taking(records, lambda first=champion, rest=tuple(others): lane(first, *rest)),
            "decoding": decoding(records),
        }
        times = _timing.turns(measures, options.rounds, warm=1)
        alone = [sum(times[name][i] for name in group) for i in range(options.rounds)]
        bound = [total - 2.0 * once for total, once in zip(alone, times["decoding"], strict=True)]
        row = {
            "learners": ", ".join(group),
            **{
                key: 1e6 * statistics.median(values) / len(records)
                for key, values in (
                    ("together", times["together"]),
                    ("alone", alone),
                    ("decoding", times["decoding"]),
                    ("bound", bound),
                )
            },
            "ratio": _timing.ratio(times["together"], bound),
        }
        yield _timing.judged(row, "ratio", most=GOAL)


def page(rows: Iterable[dict[str, Any]], options: Namespace) -> Iterator[str]:
    yield f"CPU time of {options.records} records of {len(FEATURES)} features, microseconds a record\n"
    yield from _timing.table(
        [
            ("champion and challengers", "learners", "<36s"),
            ("decoding", "decoding", ">10.2f"),
            ("three lanes", "alone", ">12.2f"),
            ("bound", "bound", ">8.2f"),
            ("one lane", "together", ">10.2f"),
            ("ratio", "ratio", ">7.2f"),
        ],
        rows,
        goals=True,
    )


if __name__ == "__main__":
    sys.exit(
        _timing.main(
            __doc__,
            measure,
            page,
            {
                "--records": {"type": int, "default": 30_000},
                "--rounds": {"type": int, "default": 7},
            },
        )
    )
