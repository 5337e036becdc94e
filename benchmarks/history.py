#!/usr/bin/env python
"""Sums of a table (`history.Job`) against the least that any program does with it, and their memory.

The bound reads the Parquet file with pyarrow, batch by batch, and adds up the products of the features:
``X.T @ X``. The two stages of a job read it, too, once each. All is done by one processor, and times are the
processor's; the ratio is the time of the bound over that of both stages together. Memory is the most that a
process of its own has resident while it goes through both stages, by the number of rows. With ``--groups N``
both stages are those of `streampair backfill`, on a table of N row groups of 2^16 rows in the order of their
ids, of which a stage skips those without rows of its own. It needs pyarrow: ``pip install pyarrow``.
"""

from __future__ import annotations

import argparse
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported, here and in the processes below

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _timing
import numpy as np

from streampair import auc, history

BATCH = 2**16
KEY = bytes(range(32))
Row = dict[str, Any]


def write(path: Path, rows: int, d: int) -> None:
    """A table of d features, a label and row ids, as pyarrow writes it by default."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    writer = None
    for start in range(0, rows, BATCH):
        x = np.clip(0.3 * rng.normal(size=(min(BATCH, rows - start), d)), -1, 1)
        columns = {f"f{j}": x[:, j] for j in range(d)}
        columns["y"] = x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0.2
        part = pa.table({**columns, "id": np.arange(start, start + len(x))})
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()


class Table:
    """A Parquet file, read by one thread from its beginning at each iteration."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path, pre_buffer=False) as file:  # else it keeps what it has read
            yield from file.iter_batches(BATCH, use_threads=False)

    def products(self, d: int) -> np.ndarray:
        """The bound."""
        total = np.zeros((d, d))
        for batch in self:
            x = np.empty((batch.num_rows, d))
            for j in range(d):
                x[:, j] = batch.column(j).to_numpy()
            total += x.T @ x
        return total


def job_of(rows: int, d: int) -> history.Job:
    learner = auc.PairFTRL(epsilon=1.0, delta=1e-8, bounds={f"f{j}": (-1.0, 1.0) for j in range(d)})
    return history.Job(learner, label="y", rows=rows, row_id="id", salt="a benchmark")


def stages(table: Table, rows: int, d: int, folder: Path) -> tuple[history.Job, history.Job]:
    """The jobs of both stages."""
    first = job_of(rows, d)
    account = folder / f"account {rows} {d}"
    return first, first.standardised(sum(map(first.sums, table)), KEY, account=account)


def speed(rows: int, d: int, rounds: int, folder: Path) -> Row:
    path = folder / "table.parquet"
    write(path, rows, d)
    table = Table(path)
    first, second = stages(table, rows, d, folder)
    calls = {
        "bound": lambda: table.products(d),
        "first": lambda: sum(map(first.sums, table)),
        "second": lambda: sum(map(second.sums, table)),
    }
    row = {"what": "speed", "features": d} | compared(calls, rows, rounds)
    return _timing.judged(row, "ratio", least=0.45) if d == 20 else row


def compared(calls: dict[str, Callable[[], object]], rows: int, rounds: int) -> Row:
    """Microseconds a row of the bound and of both stages, and the ratio."""
    measures = {name: _timing.timed(call) for name, call in calls.items()}
    times = _timing.turns(measures, rounds, warm=1)
    both = [a + b for a, b in zip(times["first"], times["second"], strict=True)]
    each = {name: 1e6 * float(np.median(values)) / rows for name, values in times.items()}
    return {"ratio": _timing.ratio(times["bound"], both), **each}


def grouped(groups: int, rounds: int, folder: Path) -> Row:
    """Both stages of `streampair backfill`, in one process."""
    from streampair_connectors.config.models import InputConfig
    from streampair_connectors.history.passes import JobPass
    from streampair_connectors.history.tables import open_table

    rows, d = groups * BATCH, 20
    path = folder / "groups.parquet"
    write(path, rows, d)
    table = Table(path)
    declared = InputConfig(topic="table", features={f"f{j}": [-1.0, 1.0] for j in range(d)})
    files = open_table([path], declared, ["y", "id"])

    def read(job: history.Job) -> history.Sums:
        work = JobPass(job, files.reader, 1)
        return sum(work.part(part).sums for part, _ in files.parts)

    first = job_of(rows, d)
    second = first.standardised(read(first), KEY, account=folder / f"account {groups}")
    calls = {
        "bound": lambda: table.products(d),
        "first": lambda: read(first),
        "second": lambda: read(second),
    }
    row = {"what": "groups", "groups": groups} | compared(calls, rows, rounds)
    return _timing.judged(row, "ratio", least=0.6) if groups >= 200 else row


def memory(rows: int, d: int, folder: Path) -> Row:
    path = folder / "table.parquet"
    write(path, rows, d)
    command = [sys.executable, __file__, "--once", str(path), str(rows), str(d)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {"what": "memory", "rows": rows, "megabytes": int(out)}


def once(path: Path, rows: int, d: int) -> None:
    """Both stages, and the most memory that was resident, in MB."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        history.fit(job_of(rows, d), Table(path), KEY, account=Path(folder) / "account")
    # `getrusage` would say what the process that started this one had resident.
    status = Path("/proc/self/status").read_text()
    print(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024)


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    import pyarrow as pa

    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as name:
        if arguments.groups:
            yield from (grouped(groups, arguments.rounds, Path(name)) for groups in arguments.groups)
            return
        for d in (5, 20, 50):
            yield speed(arguments.rows, d, arguments.rounds, Path(name))
        for rows in (arguments.rows // 10, arguments.rows, 4 * arguments.rows):
            yield memory(rows, 20, Path(name))


def page(rows: Iterable[Row], arguments: argparse.Namespace) -> Iterator[str]:
    found = list(rows)
    times = [("bound", "bound", ">8.3f"), ("stage 1", "first", ">10.3f"), ("stage 2", "second", ">10.3f")]
    times += [("ratio", "ratio", ">8.2f")]
    if arguments.groups:
        yield f"microseconds a row, row groups of {BATCH:,} rows, 20 features, one processor"
        yield from _timing.table([("row groups", "groups", "<10,"), *times], found, goals=True)
        return
    yield f"microseconds a row, table of {arguments.rows:,} rows, one processor"
    columns = [("features", "features", "<10"), *times]
    yield from _timing.table(columns, (row for row in found if row["what"] == "speed"), goals=True)
    yield ""
    yield "most memory resident, 20 features"
    columns = [("rows", "rows", "<12,"), ("MB", "megabytes", ">6")]
    yield from _timing.table(columns, (row for row in found if row["what"] == "memory"))


if __name__ == "__main__":
    if "--once" in sys.argv:
        once(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        options = {
            "--rows": {"type": int, "default": 1_000_000, "help": "rows of the table (default: %(default)s)"},
            "--groups": {"type": int, "nargs": "+", "help": "numbers of row groups, for streampair backfill"},
            "--rounds": {"type": int, "default": 5, "help": "rounds (default: %(default)s)"},
        }
        sys.exit(_timing.main(__doc__, measure, page, options))
