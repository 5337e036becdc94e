"""Manifests of the papers' tables and figures, cell by cell: one file each, in `manifests/`."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streampair.errors import ConfigError

__all__ = ["PAPERS", "VARIANTS", "Cell", "Paper", "load", "read"]

#: The papers that have a file.
PAPERS = ("huai2020", "xue2021", "yang2021", "kang2021", "li2020")

#: What stands beside a printed value: the paper's constants, the same algorithm calibrated tightly, and
#: what the library takes where nobody chooses.
VARIANTS = ("paper", "tight", "default")


@dataclass(frozen=True)
class Cell:
    """One cell of a table, or one point of a curve.

    Attributes
    ----------
    paper, place
        Which paper, and where in it.
    algorithm, learner
        As it is called there, and the class here: ``"offline.DPGDSC"``; without a module one of the task's.
    task, measure
        ``"auc"``, ``"metric"`` or ``"pair_graph"``; what the number is.
    data, n
        The set, and how many of its records are learned; 0: as the protocol of the measure has it.
    epsilon, pure
        The promise; 0: none, the algorithm is not private. Whether delta is 0, or else 1 / n.
    l2
        Strength of the ridge term in a strongly convex risk; 0: the risk is convex only.
    options
        Further parameters of the learner, by name and value.
    published, spread
        The printed value and standard deviation; None: none is printed.
    doubt
        Why the printed value may be another cell's; empty: no reason.
    """

    paper: str
    place: str
    algorithm: str
    learner: str
    task: str
    measure: str
    data: str
    n: int
    epsilon: float
    pure: bool = False
    l2: float = 0.0
    options: tuple[tuple[str, Any], ...] = ()
    published: float | None = None
    spread: float | None = None
    doubt: str = ""

    @property
    def private(self) -> bool:
        """Whether the algorithm promises privacy."""
        return self.epsilon > 0.0

    @property
    def promised(self) -> bool:
        """Whether it has an epsilon: what is here for reproduction only has none."""
        return self.private and not dict(self.options).get("reproduction_only")

    def job(self, variant: str) -> dict[str, Any]:
        """The measurement's definition in plain values: equal for cells that share a measurement.

        Parameters
        ----------
        variant
            One of `VARIANTS`.
        """
        same = {
            "task": self.task,
            "measure": self.measure,
            "data": self.data,
            "n": self.n,
            "epsilon": self.epsilon,
            "pure": self.pure and self.private,
            "l2": self.l2,
        }
        if variant == "default" and self.measure != "time to AUC":
            return {**same, "variant": variant}  # one learner, whatever the algorithm beside it
        algorithm = self.algorithm if self.task == "pair_graph" or self.paper == "yang2021" else ""
        return {
            **same,
            "variant": variant,
            "algorithm": algorithm,
            "learner": self.learner,
            "options": dict(self.options),
        }


@dataclass(frozen=True)
class Paper:
    """A paper, and its cells.

    Attributes
    ----------
    name, title
        Its key, and its authors, title and year.
    about
        What is measured, and what the paper does not say.
    cells
        In the order of the paper.
    bibtex
        Its entry for a list of references.
    """

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...] = field(default=())
    bibtex: str = ""


def load(name: str) -> Paper:
    """The manifest of a paper.

    Parameters
    ----------
    name
        One of `PAPERS`.

    Raises
    ------
    ConfigError
        If there is none of that name.

    Examples
    --------
    >>> from benchmarks.papers import manifest
    >>> paper = manifest.load("xue2021")
    >>> cell = next(c for c in paper.cells if c.place == "Table 4" and c.algorithm == "DPGDSC")
    >>> cell.data, cell.n, cell.epsilon, cell.published
    ('diabetes', 256, 0.5, 0.6326)
    """
    if name not in PAPERS:
        raise ConfigError(f"no paper {name!r} is here", fix=f"use {', '.join(PAPERS)}, or all")
    text = (Path(__file__).parent / "manifests" / f"{name}.toml").read_text("utf-8")
    return read(tomllib.loads(text))


def read(found: Mapping[str, Any]) -> Paper:
    """A paper from what its file says.

    Raises
    ------
    ConfigError
        If a row has not as many printed values as there are sets, sizes and budgets.
    """
    cells: list[Cell] = []
    for table in found["tables"]:
        for row in table["rows"]:
            learner = found["learners"][row["algorithm"]]
            for column, data in enumerate(table["sets"]):
                columns = list(itertools.product(table["n"], table["epsilon"]))
                printed = _printed(row, "percent", table, column, len(columns))
                spreads = _printed(row, "spread", table, column, len(columns))
                for (n, epsilon), value, spread in zip(columns, printed, spreads, strict=True):
                    private = learner.get("private", True)
                    cell = Cell(
                        paper=found["paper"],
                        place=table["place"],
                        algorithm=row["algorithm"],
                        learner=learner["learner"],
                        task=table["task"],
                        measure=table["measure"],
                        data=data,
                        n=n,
                        epsilon=float(epsilon) if private else 0.0,
                        pure=row.get("pure", False),
                        l2=float(table["l2"]) if row.get("strong") else 0.0,
                        options=tuple(sorted(learner.get("options", {}).items())),
                        published=value,
                        spread=spread,
                        doubt=table.get("doubt", {}).get(data, ""),
                    )
                    if cell not in cells:  # what is not private has one curve for all budgets
                        cells.append(cell)
    about = " ".join(found["about"].split())
    return Paper(found["paper"], found["title"], about, tuple(cells), found.get("bibtex", ""))


def _printed(
    row: Mapping[str, Any], key: str, table: Mapping[str, Any], column: int, columns: int
) -> Sequence[float | None]:
    """The printed values of a row for one set, as shares of one."""
    if key not in row:
        return [None] * columns
    if len(row[key]) != len(table["sets"]) or len(row[key][column]) != columns:
        raise ConfigError(
            f"{table['place']}, {row['algorithm']}: {key} does not fit the table",
            fix="give a list for each set, with a number for each size and budget",
        )
    return [round(float(value) / 100.0, 6) for value in row[key][column]]
