"""`streampair replay` of a file, beside what only reads it, in one run.

    python benchmarks/replay.py            # a table
    python benchmarks/replay.py --json     # for machines

A file of numbers, nine features and a label 0 or 1, as CSV and as JSON lines. Each variant is a process of
its own, and they take turns. `replay` is the command with the scores in a file: each row scored, learned and
written. Its seconds are those of the processor for all rows, without the start of the process: a first replay
of ten rows is taken off; `by its summary` is what the command itself prints, by the clock. The others read
the file and keep nothing: Python's csv.reader with every cell as a float, msgspec line by line, and
pandas.read_csv.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _timing
import numpy as np

GOAL = 300_000.0
FEATURES = [f"x{i}" for i in range(9)]
CONFIG = f"""
app = "bench"
[input]
label = "y"
features = {FEATURES}
[learner]
class = "streampair.auc.PairOGD"
"""
OTHERS = {
    "csv.reader": "import csv, sys\nwith open(sys.argv[1], newline='') as f:\n r = csv.reader(f); next(r)\n"
    " for row in r: list(map(float, row))",
    "msgspec": "import msgspec, sys\nd = msgspec.json.Decoder(dict[str, float | bool]).decode\n"
    "with open(sys.argv[1], 'rb') as f:\n for line in f: d(line)",
    "pandas.read_csv": "import sys, pandas\npandas.read_csv(sys.argv[1])",
}


def write(folder: Path, rows: int) -> None:
    """`all` and `few` of rows, as CSV and as JSON lines, and the configuration."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, len(FEATURES))).round(6)
    y = (x @ draw.normal(size=len(FEATURES)) + draw.normal(size=rows) > 0).astype(int)
    for name, count in (("all", rows), ("few", 10)):
        with (folder / f"{name}.csv").open("w") as lines, (folder / f"{name}.jsonl").open("w") as objects:
            lines.write(",".join([*FEATURES, "y"]) + "\n")
            for row, label in zip(x[:count].tolist(), y[:count].tolist(), strict=True):
                lines.write(",".join(map(repr, row)) + f",{label}\n")
                event = dict(zip(FEATURES, row, strict=True)) | {"y": bool(label)}
                objects.write(json.dumps(event) + "\n")
    (folder / "bench.toml").write_text(CONFIG)


def seconds(command: list[str]) -> tuple[float, str]:
    """Seconds of the processor that a command takes, and what it prints."""
    before = os.times()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, done.stdout


def replay(folder: Path, kind: str, clock: list[float]) -> float:
    """Seconds of the processor for all rows but ten; `clock` gets what the summary says."""
    command = [sys.executable, "-m", "streampair_connectors", "replay", str(folder / "bench.toml")]
    command += ["--json", "--output", str(folder / "scores.jsonl")]
    few, _ = seconds([*command, str(folder / f"few.{kind}")])
    spent, output = seconds([*command, str(folder / f"all.{kind}")])
    clock.append(json.loads(output.splitlines()[-1])["summary"]["events_per_second"])
    return spent - few


def other(folder: Path, name: str) -> float:
    """Seconds of the processor that something else takes to read all rows but ten."""
    kind = "jsonl" if name == "msgspec" else "csv"
    few, _ = seconds([sys.executable, "-c", OTHERS[name], str(folder / f"few.{kind}")])
    return seconds([sys.executable, "-c", OTHERS[name], str(folder / f"all.{kind}")])[0] - few


def measure(options: Namespace) -> Iterator[_timing.Row]:
    clocks: dict[str, list[float]] = {"csv": [], "jsonl": []}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write(folder, options.rows)
        measures: dict[str, Any] = {
            f"replay, {kind}": partial(replay, folder, kind, clock) for kind, clock in clocks.items()
        }
        measures |= {name: partial(other, folder, name) for name in OTHERS}
        replay(folder, "csv", [])  # the kernels compile
        times = _timing.turns(measures, options.rounds)
    rates = {name: (options.rows - 10) / statistics.median(spent) for name, spent in times.items()}
    for name, rate in rates.items():
        clock = clocks.get(name.removeprefix("replay, "))
        row = {
            "name": name,
            "rows_per_second": rate,
            "over_replay": _timing.ratio(times["replay, csv"], times[name]),
        }
        row["by_summary"] = f"{statistics.median(clock):,.0f}" if clock else ""
        yield _timing.judged(row, "rows_per_second", least=GOAL) if name == "replay, csv" else row


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.rows:,} rows of {len(FEATURES)} features and a label; median of {options.rounds} rounds"
    columns = [
        *(("", "name", "<18"), ("rows/s", "rows_per_second", ">12,.0f")),
        *(("x replay of CSV", "over_replay", ">18.2f"), ("by its summary", "by_summary", ">17")),
    ]
    yield from _timing.table(columns, rows, goals=True)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--rows": {"type": int, "default": 1_000_000, "help": "rows (default 1000000)"},
        "--rounds": {"type": int, "default": 3, "help": "rounds (default 3)"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
