"""The work of `streampair reproduce`: read the data sets, run the table, print it beside the paper's."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from streampair.errors import ConfigError, SourceError
from streampair.reproduce import yang2021

__all__ = ["as_dicts", "read_set", "reproduce_yang2021", "rows_of", "table_lines"]


def rows_of(folder: Path, name: str) -> list[list[str]]:
    """The texts of `NAME.csv.gz` or `NAME.csv`, without its header: the label is the last of a row.

    Raises
    ------
    SourceError
        If the file is not there, or is no table.
    """
    path = next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.exists()), None)
    if path is None:
        raise SourceError(
            f"{folder} has no {name}.csv.gz and no {name}.csv",
            fix="point --data at a folder with the sets, or choose those it has with --sets",
            retriable=False,
        )
    try:
        with cast("IO[str]", gzip.open(path, "rt") if path.suffix == ".gz" else path.open("rt")) as lines:
            _, *rows = csv.reader(lines)
        if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
            raise ValueError("its rows differ in length, or have no feature")
    except (OSError, EOFError, ValueError) as error:
        raise _no_table(path, error) from None
    return rows


def read_set(folder: Path, name: str) -> yang2021.DataSet:
    """Read `NAME.csv.gz` or `NAME.csv`: a header, then numbers, the label last.

    Raises
    ------
    SourceError
        If the file is not there, or a cell but the last is no number.
    """
    rows = rows_of(folder, name)
    try:
        numbers = np.array([row[:-1] for row in rows], dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise ValueError("a cell is missing")
    except ValueError as error:
        raise _no_table(folder / f"{name}.csv", error) from None
    return yang2021.binary(name, numbers, [row[-1] for row in rows])


def _no_table(path: Path, error: Exception) -> SourceError:
    return SourceError(
        f"{path} cannot be read as numbers with a label last ({error})",
        fix="give a CSV with a header line, numeric features and the label in the last column",
        retriable=False,
    )


def reproduce_yang2021(
    folder: Path, methods: Sequence[str], sets: Sequence[str], *, repeats: int, jobs: int, console: Console
) -> list[yang2021.Cell]:
    """Run the cells of the table, with progress on the console if it is a terminal.

    Raises
    ------
    ConfigError, SourceError
        If a name is unknown, or a set cannot be read.
    """
    for name, known in ((methods, yang2021.METHODS), (sets, yang2021.PUBLISHED["Ours"])):
        for value in name:
            if value not in known:
                raise ConfigError(f"{value!r} is not in the table", fix=f"choose from {', '.join(known)}")
    data = [read_set(folder, name) for name in sets]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} folds"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    cells: list[yang2021.Cell] = []
    # The kernels let go of the interpreter, so threads do run side by side.
    with progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("", total=len(data) * len(methods) * repeats * yang2021.FOLDS)
        for each in data:
            for method in methods:
                progress.update(task, description=f"{each.name}, {method}")

                def one(place: tuple[int, int], each: Any = each, method: str = method) -> yang2021.Fold:
                    fold = yang2021.held_out(method, each, *place)
                    progress.advance(task)
                    return fold

                places = [(r, i) for r in range(repeats) for i in range(yang2021.FOLDS)]
                cells.append(yang2021.cell(method, each.name, pool.map(one, places)))
    return cells


def as_dicts(cells: Sequence[yang2021.Cell]) -> Iterator[dict[str, Any]]:
    """The cells for `--json`."""
    for each in cells:
        yield {**asdict(each), "within": each.within}


def table_lines(cells: Sequence[yang2021.Cell]) -> Iterator[str]:
    """The table for people, a cell a line."""
    yield "Yang et al. 2021, Table 1: AUC on the fold held out, over folds"
    yield ""
    yield "data      method      published     here   std error  std dev  difference  within"
    for each in cells:
        published = f"{each.published:.3f} ± {each.published_std:.3f}"
        yield (
            f"{each.data:<10}{each.method:<8}{published}   {each.mean:.4f}{each.stderr:12.4f}"
            f"{each.std:9.4f}{each.mean - each.published:+12.4f}{'yes' if each.within else 'NO':>8}"
        )
    inside = sum(each.within for each in cells)
    yield ""
    yield f"{inside} of {len(cells)} cells within one published standard deviation."
    yield "Settings are chosen by 5-fold cross-validation inside each training part. The programs of the"
    yield "authors choose them on all rows, and report the best moment of each run."
