#!/usr/bin/env python
"""Sums and scores of a table on Spark, against one process: the bits must be equal, and what does it cost?

Spark runs with two threads of this machine. Times are those of the processors, of Spark's process and of all
that it starts. It needs Java 17 and ``pip install '.[spark]'``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported
os.environ["PYSPARK_PYTHON"] = sys.executable

import history as tables
import psutil
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from streampair_connectors import spark

from streampair import history


def spent() -> float:
    """Seconds of the processors, of this process and of those that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def timed(call: Callable[[], Any], rounds: int = 3) -> tuple[Any, float]:
    """What a call returns, and the least seconds of some rounds after a first one."""
    result, least = call(), float("inf")
    for _ in range(rounds):
        begun = spent()
        result = call()
        least = min(least, spent() - begun)
    return result, least


def main(rows: int, d: int) -> None:
    options = {"spark.ui.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "50000"}
    session = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.parquet")
        tables.write(path, rows, d)
        job = tables.job_of(rows, d)
        data = pq.read_table(path)
        account = Path(folder, "account")
        model = history.fit(job, data.to_batches(50_000), bytes(range(32)), account=account)
        table = session.read.parquet(str(path)).repartition(8, "id").cache()
        table.count()
        names = list(model.features)
        calls = {
            "sums, stage 1": (
                lambda: sum(map(job.sums, data.to_batches(50_000))),
                lambda: spark.sums(table, job),
            ),
            "scores": (
                lambda: model.score_many(data.select(names)),
                lambda: spark.score(table, model).select("id", "score").toArrow().sort_by("id")["score"],
            ),
        }
        print(f"microseconds of the processors a row, {rows:,} rows of {d} features")
        for name, (alone, shared) in calls.items():
            (one, least), (other, most) = timed(alone), timed(shared)
            assert one == other, f"{name}: other bits on Spark"
            cost = f"one process {1e6 * least / rows:6.2f}   Spark {1e6 * most / rows:6.2f}"
            print(f"{name:<16}{cost}   bits equal")
    session.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=20)
    arguments = parser.parse_args()
    main(arguments.rows, arguments.features)
