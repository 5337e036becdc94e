"""Runs the measurements of the papers: several at once, and each once, as a file keeps what was measured."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import streampair
from streampair.errors import ConfigError, SourceError, StreampairError

from . import manifest, measuring, pair_graph, protocol, yang2021
from .data_sets import read_set, rows_of
from .results import Result, result

__all__ = [
    "Measurements",
    "as_dicts",
    "default_cache",
    "reproduce_yang2021",
    "reproduced",
    "result_dict",
    "table_lines",
]


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


# What takes longest is left out of a quick look: sizes of metrics, sizes of bounds, rows of tuned tables.
_QUICK_METRIC, _QUICK_RISK, _QUICK_TABLES = 256, 512, ("diabetes", "german")
_LEFT_OUT = "left out of a quick look"
_TUNED = ("tuned AUC", "time to AUC")
# Files of this package that no measured value depends on.
_NOT_MEASURING = ("__main__.py", "manifest.py", "pages.py", "results.py", "runs.py")


def default_cache() -> Path:
    """Return the default file of measurements."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "streampair" / "reproduce.jsonl"


@functools.cache
def _program() -> str:
    """Return a digest of everything that a measurement may depend on."""
    seen = hashlib.sha256()
    for folder in (Path(streampair.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            if path.parent != Path(__file__).parent or path.name not in _NOT_MEASURING:
                seen.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return seen.hexdigest()


@functools.cache
def _digest(folder: Path, name: str) -> str:
    found = [p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.exists()]
    return hashlib.sha256(found[0].read_bytes()).hexdigest() if found else ""


@functools.lru_cache(maxsize=8)
def _sample(folder: Path, name: str, tuned: bool) -> protocol.Sample:
    if name == "strips":
        return pair_graph.strips()
    if tuned:
        table = read_set(folder, name)
        return protocol.Sample(name, table.rows, table.positive)
    rows = rows_of(folder, name)
    *columns, labels = list(zip(*rows, strict=True))
    return protocol.sample(name, columns, labels)


@dataclass(frozen=True)
class _Job:
    """A measurement to be made."""

    key: str
    what: Mapping[str, Any]
    seed: int


def _measured(folder: Path, job: _Job) -> protocol.Outcome:
    try:
        data = _sample(folder, job.what["data"], job.what["measure"] in _TUNED)
    except StreampairError as error:  # without the user's paths
        return protocol.Outcome(
            reason=error.problem.replace(f"{folder}/", "").replace(str(folder), "the folder")
        )
    return measuring.measure(job.what, data, job.seed)


class Measurements:
    """The file of measurements.

    Parameters
    ----------
    path
        The file: a line of JSON for each measurement. A torn last line, of a run that was killed, is skipped.

    Raises
    ------
    SourceError
        If it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, protocol.Outcome] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._torn = False
            if path.exists():
                text = path.read_text("utf-8")
                self._torn = bool(text) and not text.endswith("\n")
                for line in text.splitlines():
                    self._read(line)
        except OSError as error:
            raise _unusable(path, error) from None

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            self._known[found["key"]] = protocol.Outcome(
                value=math.nan if found["value"] is None else float(found["value"]),
                epsilon=math.nan if found["epsilon"] is None else float(found["epsilon"]),
                reason=str(found["reason"]),
                extra=dict(found["extra"]),
            )
        except (ValueError, KeyError, TypeError):
            return  # it is measured again

    def get(self, key: str) -> protocol.Outcome | None:
        """Return the measurement of a key."""
        return self._known.get(key)

    def put(self, job: _Job, outcome: protocol.Outcome) -> None:
        """Store a measurement. A missing one is not stored, since its reason may not hold next time."""
        self._known[job.key] = outcome
        if outcome.reason:
            return
        said = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(outcome).items()
        }
        line = json.dumps({"key": job.key, "seed": job.seed, "what": dict(job.what), **said})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(("\n" if self._torn else "") + line + "\n")
        except OSError as error:
            raise _unusable(self._path, error) from None
        self._torn = False


def _unusable(path: Path, error: OSError) -> SourceError:
    return SourceError(
        f"{path} cannot be used ({error})", fix="name another file with --cache", retriable=False
    )


def _quick(cell: manifest.Cell) -> str:
    """Why `--quick` skips a cell; empty: it does not."""
    sizes = {"metric": _QUICK_METRIC}
    slow = (
        cell.n > sizes.get(cell.task, cell.n)
        or (cell.measure == "excess risk" and cell.n > _QUICK_RISK)
        or (cell.task == "pair_graph" and cell.data != "strips")
        or (cell.measure in _TUNED and cell.data not in _QUICK_TABLES)
    )
    return _LEFT_OUT if slow else ""


def _job(folder: Path, cell: manifest.Cell, variant: str, seed: int) -> _Job:
    what = cell.job(variant)
    text = json.dumps([what, seed, _digest(folder, cell.data), _program()], sort_keys=True)
    return _Job(hashlib.sha256(text.encode()).hexdigest(), what, seed)


def reproduced(
    folder: Path,
    papers: Sequence[manifest.Paper],
    *,
    seeds: int,
    quick: bool,
    jobs: int,
    cache: Path,
    console: Console,
) -> list[tuple[manifest.Paper, list[Result]]]:
    """Measure every cell of the papers, with progress on the console if it is a terminal.

    Parameters
    ----------
    folder
        With the sets: NAME.csv.gz or NAME.csv.
    papers
        What to compute.
    seeds
        Measurements of each kind.
    quick
        Whether to leave out what takes long.
    jobs
        Processes.
    cache
        The file of measurements.
    console
        For the progress.

    Raises
    ------
    SourceError
        If the file cannot be used.
    ConfigError
        If there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", fix="give one with NAME.csv.gz, by --data")
    kept = Measurements(cache)
    cells = [cell for paper in papers for cell in paper.cells]
    todo: dict[str, tuple[str, _Job]] = {}
    for seed in range(seeds):  # a run that is stopped has all of its cells, under fewer seeds
        for cell in cells:
            if quick and _quick(cell):
                continue
            for variant in manifest.VARIANTS:
                job = _job(folder, cell, variant, seed)
                if kept.get(job.key) is None:
                    todo.setdefault(job.key, (f"{cell.paper}, {cell.place}, {cell.data}", job))
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} runs"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("", total=len(todo))
        for where, job, outcome in _all(folder, list(todo.values()), jobs):
            kept.put(job, outcome)
            progress.update(task, advance=1, description=where)
    return [(paper, [_result(folder, cell, seeds, quick, kept) for cell in paper.cells]) for paper in papers]


def _all(
    folder: Path, todo: Sequence[tuple[str, _Job]], jobs: int
) -> Iterator[tuple[str, _Job, protocol.Outcome]]:
    work = functools.partial(_measured, folder)
    if jobs == 1:
        for where, job in todo:
            yield where, job, work(job)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for (where, job), outcome in zip(todo, pool.map(work, [job for _, job in todo]), strict=True):
            yield where, job, outcome


def _result(folder: Path, cell: manifest.Cell, seeds: int, quick: bool, kept: Measurements) -> Result:
    why = _quick(cell) if quick else ""
    if why:
        return result(cell, {variant: [protocol.Outcome(reason=why)] for variant in manifest.VARIANTS})
    found: dict[str, list[protocol.Outcome]] = {variant: [] for variant in manifest.VARIANTS}
    for variant in manifest.VARIANTS:
        for seed in range(seeds):
            outcome = kept.get(_job(folder, cell, variant, seed).key)
            found[variant].append(outcome or protocol.Outcome(reason="it was not measured"))
    return result(cell, found)


def result_dict(each: Result) -> dict[str, Any]:
    """Return a cell for `--json`; NaN is null."""
    said = {**asdict(each), "verdict": each.verdict}
    for summary in said["found"].values():
        for name in ("mean", "stderr", "epsilon"):
            summary[name] = None if math.isnan(summary[name]) else summary[name]
    return said
