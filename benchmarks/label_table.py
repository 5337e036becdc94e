"""Labels that wait for their events: memory and rates of the table of a lane, compared with a dict of Python.

    python benchmarks/label_table.py [--labels 10000000] [--directory DIRECTORY] [--json] [--check]

Random digests come in batches of 10,000, at one label a millisecond, from eight partitions. Then events are
joined, of which all or none have a label among all that wait. The dict has a tenth of the labels, as bytes of
16 with a tuple of code, time, partition and offset. Each has a process of its own. Memory is what the process
has grown by at its largest; with --directory the table's pages belong to files, and the system may take them
back. Rates are a second of the processor's time.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import _timing
import numpy as np

from streampair.engine.labels import LabelTable

BATCH = 10_000
JOINED = 100  # batches of events
AFTER = 2**40


def digests(number: int) -> Any:
    """Digests of a batch, the same for the same number."""
    return np.random.default_rng(number).integers(0, 2**64, (BATCH, 2), dtype=np.uint64)


def largest() -> float:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def rate(batches: int, call: Callable[[int], Callable[[], object]]) -> float:
    """Rows a second; what `call` returns for a batch is timed, and what it prepares is not."""
    seconds = 0.0
    for number in range(batches):
        ready = call(number)
        start = time.process_time()
        ready()
        seconds += time.process_time() - start
    return batches * BATCH / seconds


def of_table(labels: int, directory: Path | None) -> dict[str, float]:
    """Figures of a table of labels."""
    batches, codes, zeros = labels // BATCH, np.ones(BATCH, dtype=np.uint8), np.zeros(BATCH, dtype=np.int64)
    warm = LabelTable(after=1, lateness=0)
    warm.add(digests(0), codes, zeros, 0, np.arange(BATCH))
    warm.join(digests(0), zeros)
    before, table = largest(), LabelTable(after=AFTER, lateness=0, directory=directory)

    def add(number: int) -> Callable[[], object]:
        ids, offsets = digests(number), np.arange(number * BATCH, (number + 1) * BATCH)
        return lambda: table.add(ids, codes, offsets, number % 8, offsets)

    def join(number: int) -> Callable[[], object]:
        ids = digests(number)
        return lambda: table.join(ids, zeros)

    figures = {"added": rate(batches, add), "memory": (largest() - before) / labels}
    figures["without"] = rate(JOINED, lambda number: join(batches + number))
    figures["with"] = rate(JOINED, lambda number: join(number * batches // JOINED))
    start = time.process_time()
    table.expire(AFTER)
    figures["expired"] = labels / (time.process_time() - start)
    return figures


def of_dict(labels: int) -> dict[str, float]:
    """The same of a dict."""
    table: dict[bytes, tuple[int, int, int, int]] = {}

    def batch(number: int) -> list[bytes]:
        data = digests(number).tobytes()
        return [data[i : i + 16] for i in range(0, len(data), 16)]

    def add(number: int) -> Callable[[], object]:
        ids, offsets = batch(number), range(number * BATCH, (number + 1) * BATCH)

        def put() -> None:
            for id, offset in zip(ids, offsets, strict=True):
                table[id] = (1, offset, number % 8, offset)

        return put

    def join(number: int) -> Callable[[], object]:
        ids = batch(number)
        return lambda: [table.get(id) for id in ids]

    batches = labels // BATCH
    before = largest()
    figures = {"added": rate(batches, add), "memory": (largest() - before) / labels}
    figures["without"] = rate(JOINED, lambda number: join(batches + number))
    figures["with"] = rate(JOINED, lambda number: join(number * batches // JOINED))
    start = time.process_time()
    for id in [id for id, (_, moment, _, _) in table.items() if moment < AFTER]:
        del table[id]
    figures["expired"] = labels / (time.process_time() - start)
    return figures


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each figure."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        ours = processes.submit(of_table, options.labels, options.directory).result()
        theirs = processes.submit(of_dict, max(BATCH * JOINED, options.labels // 10)).result()
    names = {
        "memory": "bytes a label",
        "added": "labels added a second",
        "without": "events joined a second, without a label",
        "with": "events joined a second, each with a label",
        "expired": "labels expired a second",
    }
    goals = {
        "memory": {"most": 512 * 2**20 / 10**7},
        **{name: {"least": 5e5} for name in ("added", "without", "with")},
    }
    for name, label in names.items():
        row = {"name": label, "table": ours[name], "dict": theirs[name]}
        yield _timing.judged(row, "table", **goals.get(name, {}))


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """Every row with its goal."""
    place = f"in {options.directory}" if options.directory else "in memory"
    yield f"Labels that wait: {options.labels:,} {place}."
    yield ""
    columns = [("", "name", "<44"), ("table", "table", ">14,.0f"), ("dict", "dict", ">14,.0f")]
    yield from _timing.table(columns, rows, goals=True)


if __name__ == "__main__":
    more_options = {
        "--labels": {"type": int, "default": 10**7, "help": "how many wait"},
        "--directory": {"type": Path, "default": None, "help": "keep them in files of this directory"},
    }
    sys.exit(_timing.main(__doc__, measure, page, more_options))
