"""Gradients of pairs with the records of a buffer, or with a partner that the warm-up has released.

    python benchmarks/partners.py [--data DIR] [--seeds 5] [--json] [NAME ...]

`auc.PairFTRL` by gradients on random 80/20 splits, delta one over the rows, a declared horizon:
held-out AUC, mean and standard error over the splits; the same splits for each column. `buffer` are the
defaults, FIFO(32), where a horizon below 5000 has no warm-up; `warm-up` has as long a one as the released
partner takes, so that what differs is the partner alone; `moments` is the default of the class. `gain` is
what the released partner adds to `warm-up`. `noise` is how much more of it, a coordinate, the gradients have
with the buffer than with the released partner.
"""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import numpy as np

from streampair import auc, privacy

NAMES = ("phishing", "german", "diabetes", "usps", "synthetic", "letter", "ijcnn1", "adult", "bank")
EPSILONS = (0.25, 1.0)
FIRST_SPLIT = 8000
COLUMN_NAMES = ("moments", "buffer", "warm-up", "released", "gain")


def interval(values: list[float], sign: str = "") -> str:
    """Mean and standard error."""
    return f"{np.mean(values):{sign}.3f} +- {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set and epsilon."""
    warnings.simplefilter("ignore")
    for name in options.names or NAMES:
        if not _sets.there(name, options.data):
            continue
        data = _sets.load(name, options.data)
        for epsilon in EPSILONS:
            found: dict[str, list[float]] = {}
            sigmas = {}
            for train, test in _sets.splits(len(data.x), options.seeds, FIRST_SPLIT):
                budget: dict[str, Any] = {"epsilon": epsilon, "horizon": len(train)}
                default = auc.PairFTRL(
                    **budget,
                    delta=1.0 / len(data.x),
                    features=list(data.x.columns),
                    mechanism=privacy.AnchorGradients(),
                )
                for column, settings in {
                    "moments": {},
                    "buffer": {"mechanism": privacy.PairGradients()},
                    "warm-up": {"mechanism": privacy.PairGradients(), "warmup": default.settings.warmup},
                    "released": {"mechanism": privacy.AnchorGradients()},
                }.items():
                    model = _sets.private(data, auc.PairFTRL, train, **budget, **settings)
                    found.setdefault(column, []).append(_sets.judged(data, model, test))
                    sigmas[column] = model.run.state.plan.sigma
            row: _timing.Row = {"data": name, "rows": len(data.x), "features": data.x.shape[1]}
            row |= {column: interval(values) for column, values in found.items()}
            gains = np.subtract(found["released"], found["warm-up"]).tolist()
            noise = sigmas["warm-up"] / sigmas["released"]
            yield row | {"epsilon": epsilon, "gain": interval(gains, "+"), "noise": noise}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("data", "data", "<10"), ("rows", "rows", ">6"), ("d", "features", ">5")),
        *(("eps", "epsilon", ">6g"), ("noise", "noise", ">7.2f")),
    ]
    return _timing.table([*columns, *((name, name, ">17") for name in COLUMN_NAMES)], rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"of {', '.join(NAMES)}; all without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--seeds": {"type": int, "default": 5, "help": "splits"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
