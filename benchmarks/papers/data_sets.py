"""Reads the files of the data sets: NAME.csv.gz or NAME.csv, the label in the last column."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import IO, cast

import numpy as np

from streampair.errors import SourceError

from . import yang2021

__all__ = ["read_set", "rows_of"]


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
