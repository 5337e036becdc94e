"""How many random outputs Algorithms 3 and 4 of Huai et al. (2020) begin with, by the scale of the records.

    python benchmarks/scale.py [--seeds 20]

T_1 = max(ceil(16 (L + alpha)^2 / alpha^2), 7) falls with L, and L with the square of the largest norm of a
record, which the paper does not state. Records in a ball of radius b, weights in one of radius 1 and a ridge
of alpha are records in the unit ball, weights in a ball of radius b and a ridge of alpha / b^2: so they are
run. alpha is 10^-3 for OffPairStrC, as in the paper's experiments, and 1 / sqrt(n) for OffPairC. Records are
scaled by the range of each feature first. The columns: T_1; the AUC on records that were not learned without
noise, and with the paper's noise at epsilon 2.5 and delta 1 / n; and what the exact account makes of this
epsilon.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from _sets import DATA
from papers import protocol
from papers.data_sets import rows_of

from streampair import losses, offline
from streampair.privacy.contraction import paper_warmup

SCALES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
WITHOUT_NOISE = 1e6


def loaded(name):
    rows = rows_of(DATA, name)
    columns = [[row[i] for row in rows] for i in range(len(rows[0]) - 1)]
    return protocol.sample(name, columns, [row[-1] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    smooth = losses.Logistic().smoothness(1.0, 1.0)  # of records in the unit ball
    cases = [
        *(("OffPairStrC", "hepatitis", 90), ("OffPairStrC", "breast_cancer", 90)),
        *(("OffPairStrC", "diabetes", 350), ("OffPairC", "diabetes", 350)),
    ]
    print(f"mean and standard error of the AUC over {seeds} seeds")
    names = f"{'algorithm':<13}{'set':<15}{'n':>4}{'ball':>7}{'T_1':>12}"
    print(f"{names}{'no noise':>16}{'epsilon 2.5':>16}{'spent':>8}")
    for name, data, n in cases:
        everything = loaded(data)
        for ball in SCALES:
            alpha = (1e-3 if name == "OffPairStrC" else 1.0 / math.sqrt(n)) / ball**2
            found = []
            for seed in range(seeds):
                known, others = protocol.split(everything, n, seed)
                row, spent = [], 0.0
                for epsilon in (WITHOUT_NOISE, 2.5):
                    model = getattr(offline, name)(
                        epsilon, 1.0 / n, l2=alpha, radius=ball, calibration="paper", random_state=seed
                    ).fit(known.rows, known.positive)
                    row.append(protocol.ranked(model, others))
                    spent = model.privacy.epsilon_spent
                found.append(row)
            mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / math.sqrt(seeds)
            cells = "".join(f"{f'{m:.3f} +- {e:.3f}':>16}" for m, e in zip(mean, error, strict=True))
            first = paper_warmup(alpha, smooth)
            print(f"{name:<13}{data:<15}{n:>4}{ball:>7g}{first:>12}{cells}{spent:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
