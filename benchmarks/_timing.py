"""What the benchmarks share: turns, medians, figures beside their goals, and JSON for machines.

Those that are compared take turns, round by round, so that whatever else the machine does weighs on all of
them; a figure is the median of its rounds, and a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
Measure = Callable[[], float]
Column = tuple[str, str, str]


def timed(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Measure:
    """How long a call takes: seconds of the processor, unless another clock is given."""

    def seconds() -> float:
        start = clock()
        call()
        return clock() - start

    return seconds


def turns(
    measures: Mapping[str, Measure],
    rounds: int,
    *,
    warm: int = 0,
    before: Callable[[int], object] = id,
    shuffled: bool = False,
) -> dict[str, list[float]]:
    """What each measured in each round, without ``warm`` rounds at the beginning.

    ``before`` is called with the number of the round before each (warm ones have negative numbers);
    ``shuffled`` draws the order of each round.
    """
    times: dict[str, list[float]] = {name: [] for name in measures}
    order, draw = list(measures), random.Random(1)
    for number in range(-warm, rounds):
        before(number)
        if shuffled:
            draw.shuffle(order)
        for name in order:
            value = measures[name]()
            if number >= 0:
                times[name].append(value)
    return times


def versus(ours: Measure, theirs: Measure, rounds: int, *, warm: int = 0) -> tuple[float, float, float]:
    """Median of each, and the median of their ratios, theirs / ours."""
    times = turns({"theirs": theirs, "ours": ours}, rounds, warm=warm)
    return statistics.median(times["ours"]), statistics.median(times["theirs"]), ratio(**times)


def ratio(theirs: Iterable[float], ours: Iterable[float]) -> float:
    """Median over the rounds of theirs / ours."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def judged(row: Row, key: str, *, least: float | None = None, most: float | None = None) -> Row:
    """The row with its goal in words, and whether ``row[key]`` meets it."""
    value = row[key]
    row["goal"] = f">= {least:g}" if least is not None else f"<= {most:g}" if most is not None else ""
    row["met"] = (least is None or value >= least) and (most is None or value <= most)
    return row


def table(
    columns: Iterable[tuple[str, str, str]], rows: Iterable[Row], *, goals: bool = False
) -> Iterator[str]:
    """Lines of a table: a column is its head, a key of the rows, a format whose number is the width.

    With ``goals`` each row ends with its goal, and whether it was missed.
    """
    columns = list(columns)
    heads = (format(head, spec[0] + re.findall(r"\d+", spec)[0]) for head, _, spec in columns)
    yield "".join(heads).rstrip() + "  goal" * goals
    for row in rows:
        line = "".join(format(row[key], spec) for _, key, spec in columns)
        if goals:
            line += f"  {row.get('goal', '')}{'' if row.get('met', True) else '  missed'}"
        yield line.rstrip()


def main(
    doc: str | None,
    measure: Callable[[argparse.Namespace], Iterable[Row]],
    page: Callable[[Iterable[Row], argparse.Namespace], Iterable[str]],
    options: Mapping[str, Mapping[str, Any]],
    *,
    strict: bool = False,
) -> int:
    """Measure, and print the page line by line, or with ``--json`` all rows; return the exit code.

    It is 1 if a goal was missed: always where ``strict``, elsewhere with ``--check``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, settings in options.items():
        parser.add_argument(name, **settings)
    parser.add_argument("--json", action="store_true", help="for machines")
    if not strict:
        parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    arguments = parser.parse_args()
    seen: list[Row] = []

    def rows() -> Iterator[Row]:
        for row in measure(arguments):
            seen.append(row)
            yield row

    if arguments.json:
        print(json.dumps({"rows": list(rows())}, indent=1))
    else:
        for line in page(rows(), arguments):
            print(line, flush=True)
    missed = not all(row.get("met", True) for row in seen)
    return int(missed and (strict or arguments.check))
