"""Noise of the moments on the way to a horizon and at its end, for several weights of one against the other.

    python benchmarks/anytime.py [--horizon 100000] [--json]

Computed, not measured: the noise of the mean record as it is known after a share of the horizon, over that
of one release of as many records for the whole budget. Without a horizon no schedule of short blocks is below
2 at any time: of rows with weights f(u) of the records at a share u of the stream so far, noise squared over
one shot's is `2 int f^2/u / (int f)^2 >= 4`, with equality for f(u) = u.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator

import _timing

from streampair.privacy import mu_from
from streampair.privacy.mechanisms.second_moments import plan_second_moments, second_moments_diameter

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
WEIGHTS = (None, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each weight; None is the plan of before."""
    horizon = options.horizon
    mu = mu_from(1.0, 1.0 / horizon)
    for anytime in WEIGHTS:
        plan = plan_second_moments(
            mu, features=10, base=horizon / 9.0, radius=30.0, horizon=horizon, anytime=anytime
        )
        row: _timing.Row = {"anytime": "before" if anytime is None else f"{anytime:g}"}
        for share in SHARES:
            slots = int(share * horizon)
            one = second_moments_diameter() / mu / slots
            row[f"{share:.0%}"] = 1.0 / math.sqrt(plan.information(slots)) / one
        yield row


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [("anytime", "anytime", "<8"), *((name := f"{share:.0%}", name, ">8.2f") for share in SHARES)]
    return _timing.table(columns, rows)


if __name__ == "__main__":
    flags = {"--horizon": {"type": int, "default": 100_000, "help": "learned slots"}}
    sys.exit(_timing.main(__doc__, measure, page, flags))
