"""Results of a cell's measurements: means, a verdict in plain words, and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .manifest import VARIANTS, Cell, Paper
from .protocol import Outcome

__all__ = ["Result", "Summary", "lacking", "markdown", "result", "summary", "verdict"]

#: Differences below a point count as none, however many seeds there are.
POINT = 0.01
_LESS_IS_BETTER = {"objective", "excess risk", "time to AUC"}
_WAYS = ("better", "worse")


@dataclass(frozen=True)
class Summary:
    """Several seeds of one measurement.

    Attributes
    ----------
    mean, stderr, seeds
        Over the seeds that gave a value; nan and 0 if none did. One seed has no standard error.
    epsilon
        What the accountant says one run spends; nan without privacy.
    reason
        Why there is no value, if there is none.
    extra
        Means of further numbers, by name.
    lacking, why
        How many more seeds gave no value, and the reason of the first of them.
    """

    mean: float = math.nan
    stderr: float = math.nan
    seeds: int = 0
    epsilon: float = math.nan
    reason: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)
    lacking: int = 0
    why: str = ""


@dataclass(frozen=True)
class Result:
    """A cell, and what was found: a summary for each of `VARIANTS`."""

    cell: Cell
    found: Mapping[str, Summary]

    @property
    def verdict(self) -> str:
        """In plain words: see `verdict`."""
        return verdict(self.cell, self.found)


def summary(outcomes: Sequence[Outcome]) -> Summary:
    """Summary of several seeds of one measurement; no mean unless more than half have a value.

    Examples
    --------
    >>> from benchmarks.papers.protocol import Outcome
    >>> from benchmarks.papers.results import summary
    >>> found = summary([Outcome(0.5), Outcome(0.7)])
    >>> round(found.mean, 3), round(found.stderr, 3), found.seeds
    (0.6, 0.1, 2)
    """
    good = [each for each in outcomes if not each.reason]
    why = next((each.reason for each in outcomes if each.reason), "nothing was measured")
    lacking = len(outcomes) - len(good)
    if 2 * len(good) <= len(outcomes):
        return Summary(reason=f"{why.rstrip('.')}, in {lacking} of {len(outcomes)} runs" if good else why)
    values = np.array([each.value for each in good])
    names = good[0].extra
    return Summary(
        mean=float(values.mean()),
        stderr=float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan,
        seeds=len(good),
        epsilon=float(max(each.epsilon for each in good)),
        extra={name: float(np.mean([each.extra[name] for each in good])) for name in names},
        lacking=lacking,
        why=why if lacking else "",
    )


def result(cell: Cell, outcomes: Mapping[str, Sequence[Outcome]]) -> Result:
    """A cell with the summaries of its measurements, by variant."""
    return Result(cell, {variant: summary(outcomes[variant]) for variant in VARIANTS})


def verdict(cell: Cell, found: Mapping[str, Summary]) -> str:
    """The verdict of a cell in sentences, computed from its numbers.

    A value is reproduced if it is within a point of the printed one, or within the printed deviation.
    """
    said = [*_of_value(cell, found["paper"], found["tight"])]
    if found["paper"].lacking:
        short, runs = found["paper"].lacking, found["paper"].lacking + found["paper"].seeds
        said.append(f"{short} of {runs} runs are not in it: {found['paper'].why.rstrip('.')}.")
    said += _of_epsilon(cell, found["paper"])
    bound = found["paper"].extra.get("bound")
    if bound is not None:
        holds = "holds" if found["paper"].mean <= bound else "does not hold"
        said.append(f"The bound, {_number(bound)}, {holds}.")
    if cell.doubt:
        said.append(f"{cell.doubt[0].upper()}{cell.doubt[1:]}.")
    return " ".join(said)


def _of_value(cell: Cell, paper: Summary, tight: Summary) -> Iterator[str]:
    better = -1.0 if cell.measure in _LESS_IS_BETTER else 1.0
    if paper.reason:
        yield f"Not compared: {paper.reason.rstrip('.')}."
    elif cell.published is None:
        yield "No number is printed."
    else:
        off, errors = paper.mean - cell.published, 2.0 * paper.stderr
        if abs(off) <= max(POINT, cell.spread or 0.0):
            yield "Reproduced."
        elif abs(off) <= errors:
            yield f"Not significantly different from the printed value: two standard errors are {errors:.3f}."
        else:
            yield f"{abs(off):.3f} {'above' if off > 0 else 'below'} the printed value."
    if not paper.reason and not tight.reason:
        gain = better * (tight.mean - paper.mean)
        spreads = [each for each in (tight.stderr, paper.stderr) if not math.isnan(each)]
        if abs(gain) <= max(POINT, 2.0 * math.hypot(*spreads)):
            yield "The tight calibration is no different."
        else:
            yield f"The tight calibration is {abs(gain):.3f} {'better' if gain > 0 else 'worse'}."


def _of_epsilon(cell: Cell, paper: Summary) -> Iterator[str]:
    if cell.private and not cell.promised:
        yield "No epsilon is stated: the scale of its noise is read off private data."
    if not cell.promised or paper.reason or math.isnan(paper.epsilon):
        return
    if paper.epsilon > cell.epsilon * (1.0 + 1e-9):
        yield f"The constants promise {cell.epsilon:g}; what is proved of them here is {paper.epsilon:.3g}."
    elif paper.epsilon == 0.0:
        yield "Noise and coins hide the records altogether: at this delta, epsilon is 0."
    elif paper.epsilon < 0.9 * cell.epsilon:
        yield f"The constants spend {paper.epsilon:.2g} of {cell.epsilon:g}."


def lacking(results: Iterable[Result]) -> Iterator[str]:
    """What a result lacks: a value with its standard error, an epsilon, or the reason for having none.

    Examples
    --------
    >>> from benchmarks.papers import manifest, results
    >>> cell = manifest.load("xue2021").cells[0]
    >>> same = results.Summary(0.7, 0.01, 20)
    >>> list(results.lacking([results.Result(cell, dict.fromkeys(manifest.VARIANTS, same))]))
    []
    """
    for each in results:
        cell = each.cell
        where = (
            f"{cell.paper}, {cell.place}, {cell.data}, {cell.algorithm}, n {cell.n}, epsilon {cell.epsilon:g}"
        )
        for variant in VARIANTS:
            found = each.found.get(variant)
            if found is None:
                yield f"{where}: nothing for {variant}"
            elif found.reason:
                continue
            elif not math.isfinite(found.mean):
                yield f"{where}: no value and no reason for {variant}"
            elif not math.isfinite(found.stderr):
                yield f"{where}: no standard error for {variant}, it has {found.seeds} seeds"
            elif variant == "paper" and cell.promised and not math.isfinite(found.epsilon):
                yield f"{where}: no epsilon for the paper's constants"


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3f}" if value < 100.0 else f"{value:.3g}"


def _value(found: Summary) -> str:
    if found.reason:
        return "-"
    if math.isnan(found.stderr):
        return _number(found.mean)
    return f"{_number(found.mean)} ± {_number(found.stderr)}"


#: Titles of the columns.
COLUMNS = (
    *("set", "algorithm", "n", "epsilon", "delta", "printed", "paper's constants"),
    *("epsilon spent", "tight", "library's default", "verdict"),
)


def columns(each: Result) -> tuple[str, ...]:
    """The texts of a row, one for each of `COLUMNS`."""
    cell, paper = each.cell, each.found["paper"]
    printed = "none" if cell.published is None else f"{cell.published:.4g}"
    if cell.spread is not None:
        printed += f" ± {cell.spread:.3g}"
    delta = "-" if not cell.private else "0" if cell.pure else "1/n"
    spent = f"{paper.epsilon:.3g}" if cell.private and not math.isnan(paper.epsilon) else "-"
    return (
        *(cell.data, cell.algorithm, str(cell.n or "-"), f"{cell.epsilon:g}" if cell.private else "-", delta),
        *(printed, _value(paper), spent, _value(each.found["tight"]), _value(each.found["default"])),
        each.verdict,
    )


def places(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results grouped by (place, measure), in order."""
    out: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        out.setdefault((each.cell.place, each.cell.measure), []).append(each)
    return out


def counted(results: Sequence[Result]) -> str:
    """Numbers of reproduced and other cells, one sentence for each kind."""
    printed = [each for each in results if each.cell.published is not None]
    compared = [each for each in printed if not each.found["paper"].reason]
    same = sum(each.verdict.startswith("Reproduced") for each in compared)
    without = sum(bool(each.found["paper"].reason) for each in results)
    seeds = sorted({each.found[v].seeds for each in results for v in VARIANTS if not each.found[v].reason})
    seeds_range = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0]) if seeds else "no"
    private = [each for each in results if each.cell.promised and not each.found["paper"].reason]
    also = ""
    if private:
        words = [each.verdict for each in private]
        better, worse = (
            sum(bool(re.search(rf"tight calibration is \S+ {w}", v)) for v in words) for w in _WAYS
        )
        also = (
            f" Of the {len(private)} private cells with a value the tight calibration is better in {better}, "
            f"worse in {worse}, and no different or not measured in the others."
        )
    return (
        f"{len(results)} cells, {seeds_range} seeds each. {len(printed)} have a printed value; {same} of the "
        f"{len(compared)} that could be compared are reproduced with the paper's constants. {without} have a "
        f"reason in place of a value.{also}"
    )


def markdown(paper: Paper, results: Sequence[Result]) -> Iterator[str]:
    """The tables of a paper, line by line."""
    yield f"## {paper.title}"
    yield ""
    yield paper.about
    yield ""
    yield counted(results)
    for (place, kind), rows in places(results).items():
        yield ""
        yield f"### {place}: {kind}"
        yield ""
        yield f"| {' | '.join(COLUMNS)} |"
        yield "|" + "---|" * len(COLUMNS)
        for each in rows:
            yield f"| {' | '.join(text.replace('|', '/') for text in columns(each))} |"
