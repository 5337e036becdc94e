"""`streampair backfill` of a private learner: memory and time by the size of the table, and by processes.

    python benchmarks/backfill.py [--files 1 10 100] [--processes 1] [--rounds 1] [--json] [--check]

A file has a million rows of 20 features, a label and row ids, which are all different; its features are those
of the other files. Both stages read it, and the ids are compared in the first one. `MB` is the most that any
process of a run has had resident, `us a row` the time of all processors. With `--processes 1 2`, on a machine
with two idle cores, `times` is how many times as fast by the clock more processes are. The goals: 1 GB for
any size, 1.7 times for two processes. It needs pyarrow (`pip install pyarrow`), and 21 MB of disk for each
file.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _timing
import numpy as np

ROWS, FEATURES = 1_000_000, 20
GROUP = 2**18
CONFIG = """
app = "backfill"
kafka.bootstrap_servers = "localhost:9092"
[input]
topic = "table"
label = "y"
id = "id"
features = {{ {features} }}
[learner]
class = "streampair.auc.PairFTRL"
options = {{ epsilon = 1.0, delta = 1e-9 }}
noise_key_file = "noise.key"
"""


def write(folder: Path, files: int) -> None:
    """The files of a table that are not there yet; values have few digits, so that they take little room."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    x = np.round(np.clip(0.3 * rng.normal(size=(ROWS, FEATURES)), -1, 1), 2)
    columns = {f"f{j}": x[:, j] for j in range(FEATURES)}
    columns["y"] = x[:, 0] + 0.3 * rng.normal(size=ROWS) > 0.2
    encodings = {"use_dictionary": list(columns), "column_encoding": {"id": "DELTA_BINARY_PACKED"}}
    for number in range(len(list(folder.iterdir())), files):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        part = pa.table({**columns, "id": ids})
        pq.write_table(part, folder / f"{number:04}.parquet", row_group_size=GROUP, **encodings)


def _resident(process: int) -> int:
    """The most that a process, or one of its children, has had resident so far, in kB.

    The kernel's own list of children is read: to go through all processes would take a tenth of a processor.
    """
    place = Path(f"/proc/{process}")
    try:
        found = re.findall(r"VmHWM:\s+(\d+)", (place / "status").read_text())
        children = [(task / "children").read_text().split() for task in (place / "task").iterdir()]
    except OSError:  # it has ended meanwhile
        return 0
    return max([0, *map(int, found), *(_resident(int(child)) for each in children for child in each)])


def _processor() -> float:
    """Seconds of the processors that runs have taken so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(folder: Path, processes: int) -> tuple[int, float, float]:
    """MB, seconds of the clock and of the processors of a run."""
    for path in folder.glob("out*"):
        path.unlink()
    command = [sys.executable, "-m", "streampair_connectors", "backfill", "lane.toml", "table"]
    options = ["--output", "out.json", "--account", "out.account", "--processes", str(processes)]
    most, start, before = 0, time.perf_counter(), _processor()
    with subprocess.Popen(
        command + options, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while process.poll() is None:
            most = max(most, _resident(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        if process.returncode:
            raise RuntimeError(process.stderr.read().decode())
    return most // 1024, time.perf_counter() - start, _processor() - before


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each size and number of processes; these take turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "table").mkdir()
        features = ", ".join(f"f{j} = [-1, 1]" for j in range(FEATURES))
        (folder / "lane.toml").write_text(CONFIG.format(features=features))
        key = os.open(folder / "noise.key", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(key, "w") as file:
            file.write(secrets.token_hex(32))
        for files in options.files:
            write(folder / "table", files)
            found: dict[int, list[tuple[int, float, float]]] = {number: [] for number in options.processes}
            for _ in range(options.rounds):
                for number in options.processes:
                    found[number].append(run(folder, number))
            first = [seconds for _, seconds, _ in found[options.processes[0]]]
            for number, runs in found.items():
                mb, times, busy = zip(*runs, strict=True)
                row: dict[str, Any] = {"rows": files * ROWS, "processes": number, "megabytes": max(mb)}
                row["each"] = 1e6 * statistics.median(busy) / row["rows"]
                row["times"] = _timing.ratio(first, times)
                if number == 2 and options.processes[0] == 1:
                    yield _timing.judged(row, "times", least=1.7)
                else:
                    yield _timing.judged(row, "megabytes", most=1024)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("rows", "rows", "<13,"), ("processes", "processes", ">9"), ("MB", "megabytes", ">7")),
        *(("us a row", "each", ">10.2f"), ("times", "times", ">7.2f")),
    ]
    return _timing.table(columns, rows, goals=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "--files": {"type": int, "nargs": "+", "default": [1, 10, 100], "help": "sizes, growing"},
    "--processes": {"type": int, "nargs": "+", "default": [1]},
    "--rounds": {"type": int, "default": 1},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
