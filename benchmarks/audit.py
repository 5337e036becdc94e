"""The canary audit of each mechanism: its claim, how near an attack comes, which mutants it catches.

    python benchmarks/audit.py [--runs 1000] [--json]

mu: what one record is promised, what the account comes to for the canary's slots, and what the best attack
on it shows exactly, as a share of that; then the lower bound from attacks with the learner's own noise, at
confidence 0.9999, and the size of the noise. A mutant is a learner with one defect; its share says how much
more the attack shows than is accounted for: above 1 it is caught. Then come learners as they are made, of
which no attack that is known shows 0.9, and last the learners of whole tables: how far the worst neighbours
that are known move what is released, over the noise, as a share of what is charged for it.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

import _timing
import pytest

from streampair import privacy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness import table_canaries
from harness.audit_mutants import CASES, LOOSE


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A line for each part of each mechanism, and for each of its mutants."""
    yield from of_streams(options)
    yield from of_tables()


def of_tables() -> Iterator[_timing.Row]:
    """A line for each learner of tables, and for each of its mutants."""
    for name, make in table_canaries.CANARIES.items():
        mu = make().fit(*next(table_canaries.worst_tables(60))[:2]).privacy.mu_spent
        part = {"part": "table", "claimed": mu, "account": mu, "lower": math.nan, "noise": math.nan}
        exact_value = table_canaries.canary(name)
        row = {
            "mechanism": name,
            **part,
            "exact": exact_value,
            "caught": "  holds" if exact_value <= 1.0 else "  VIOLATED",
        }
        yield _timing.judged(row, "exact", least=table_canaries.LEAST)
        for mutant, exact in table_canaries.broken(name).items():
            caught = exact > 1.0
            yield {
                **{"mechanism": f"  mutant: {mutant}", **part, "exact": exact},
                **{"caught": "  caught" if caught else "  MISSED", "met": caught, "goal": "caught"},
            }


def of_streams(options: Namespace) -> Iterator[_timing.Row]:
    """The same for learners of streams."""
    for name, case in {**CASES, **LOOSE}.items():
        for part in privacy.audit(case.model, slots=case.slots, runs=options.runs).parts:
            row = {
                **{"mechanism": name, "part": part.part, "claimed": part.claimed, "account": part.accounted},
                **{"exact": part.exact / part.accounted, "lower": part.lower, "noise": part.noise},
                "caught": "  VIOLATED" if part.failures else "  holds",
            }
            yield row if name in LOOSE else _timing.judged(row, "exact", least=0.9)
        for mutant, parts in case.mutants.items():
            with pytest.MonkeyPatch.context() as patch:
                mutant(patch)
                report = privacy.audit(case.model, slots=case.slots, runs=4)
            for part in report.parts:
                if part.part in parts:
                    yield {
                        **{"mechanism": f"  mutant: {mutant.__name__.replace('_', ' ')}", "part": part.part},
                        **{"claimed": part.claimed, "account": part.accounted},
                        **{"exact": part.exact / part.accounted, "lower": math.nan, "noise": math.nan},
                        "caught": "  caught" if part.failures else "  MISSED",
                        "met": bool(part.failures),
                        "goal": "caught",
                    }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("mechanism", "mechanism", "<40"), ("part", "part", "<9"), ("claimed", "claimed", ">8.3f")),
        *(("account", "account", ">8.3f"), ("shown", "exact", ">7.3f"), ("at least", "lower", ">9.3f")),
        *(("noise", "noise", ">7.3f"), ("", "caught", "<10")),
    ]
    return _timing.table(columns, rows, goals=True)


if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, {"--runs": {"type": int, "default": 1000}}, strict=True))
