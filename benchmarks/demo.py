"""What the demo says, over many orders of its events and fresh noise each time.

Runs `streampair demo` once a seed, embedded broker and all, and prints the median AUC of each learner. The
goal: the median PairFTRL at epsilon 1 within 0.05 of PairOGD on the last fifth of the stream.

    python benchmarks/demo.py [--seeds 20] [--rate 5000] [--json] [--check]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import _timing

GOAL = 0.05
MEASURES = {"auc": "AUC", "auc_last_fifth": "AUC of the last fifth", "regret_average": "average regret"}


def one(seed: int, rate: float) -> dict[str, dict[str, Any]]:
    """Run the demo as a user does; return its rows by learner."""
    command = [sys.executable, "-m", "streampair_connectors", "demo", "--json"]
    ran = subprocess.run(
        [*command, "--seed", str(seed), "--rate", str(rate)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return {row["learner"]: row for row in json.loads(ran.stdout)["learners"]}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Median, smallest and largest of each measure of each learner; and the gap."""
    runs = [one(seed, options.rate) for seed in range(options.seeds)]
    last: dict[str, float] = {}
    for learner in runs[0]:
        row: _timing.Row = {"name": learner}
        for key in MEASURES:
            values = [run[learner][key] for run in runs]
            row[key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        last[learner] = row["auc_last_fifth"]["median"]
        yield row
    yield _timing.judged({"name": "gap", "gap": last["PairOGD"] - last["PairFTRL"]}, "gap", most=GOAL)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    *learners, gap = rows
    for row in learners:
        for key in MEASURES:
            row[key] = "{median:.3f} ({min:.3f} to {max:.3f})".format(**row[key])
    yield f"Phishing, {options.seeds} seeds; median (smallest to largest)"
    columns = [(head, key, ">26") for key, head in MEASURES.items()]
    yield from _timing.table([("learner", "name", "<18"), *columns], learners)
    yield (
        f"gap of the medians on the last fifth, PairOGD - PairFTRL: {gap['gap']:.3f} (goal: at most {GOAL})"
    )


if __name__ == "__main__":
    flags = {
        "--seeds": {"type": int, "default": 20},
        "--rate": {"type": float, "default": 5000.0, "help": "events a second"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
