"""What the demo says, over many orders of its events and fresh noise each time.

Runs `streampair demo` once a seed, embedded broker and all, and prints the median AUC of each learner. The
goal: the median PairFTRL at epsilon 1 within 0.05 of PairOGD on the last fifth of the stream.

    python benchmarks/demo.py [--seeds 20] [--rate 5000] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

GOAL = 0.05


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=5000.0, help="events a second")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs = [one(seed, arguments.rate) for seed in range(arguments.seeds)]
    table = {
        learner: {
            measure: {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
            }
            for measure in ("auc", "auc_last_fifth", "regret_average")
            for values in [[run[learner][measure] for run in runs]]
        }
        for learner in runs[0]
    }
    gap = table["PairOGD"]["auc_last_fifth"]["median"] - table["PairFTRL"]["auc_last_fifth"]["median"]
    if arguments.json:
        print(json.dumps({"seeds": arguments.seeds, "learners": table, "gap": gap, "goal": GOAL}))
        return
    print(f"Phishing, {arguments.seeds} seeds; median (smallest to largest)")
    print(f"{'learner':<20}{'AUC':>24}{'AUC of the last fifth':>26}{'average regret':>26}")
    for learner, measures in table.items():
        cells = [f"{m['median']:.3f} ({m['min']:.3f} to {m['max']:.3f})" for m in measures.values()]
        print(f"{learner:<20}{cells[0]:>24}{cells[1]:>26}{cells[2]:>26}")
    print(f"gap of the medians on the last fifth, PairOGD - PairFTRL: {gap:.3f} (goal: at most {GOAL})")


if __name__ == "__main__":
    main()
