"""How far the gradient of a pair of a metric moves when one of its records is replaced, by search.

    python benchmarks/diameter.py [--starts 20]

The logistic loss, records in the unit ball, the matrix in the unit ball of the Frobenius norm: symmetric, and
positive semi-definite as Xue et al. (2021) keep it. At most 5.66 is proved (docs/privacy, Lemma 92). A
search proves no bound; it shows what is reached.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

DIM = 3


def moved(parameters, definite):
    """The largest move, over the classes, for three records and a matrix."""
    records = parameters[: 3 * DIM].reshape(3, DIM)
    partner, one, other = records / np.maximum(1.0, np.linalg.norm(records, axis=1))[:, None]
    root = parameters[3 * DIM :].reshape(DIM, DIM)
    w = root @ root.T if definite else root + root.T
    w = w / max(1.0, float(np.linalg.norm(w)))
    gradients = [
        [s * expit(-s * (1.0 - u @ w @ u)) * np.outer(u, u) for s in (1.0, -1.0)]
        for u in (one - partner, other - partner)
    ]
    return max(float(np.linalg.norm(a - b)) for a, b in itertools.product(*gradients))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--starts", type=int, default=20)
    starts = parser.parse_args().starts
    rng = np.random.default_rng(0)
    for definite, name in ((False, "symmetric"), (True, "positive semi-definite")):
        found = [
            minimize(
                lambda p, definite=definite: -moved(p, definite),
                1.5 * rng.normal(size=3 * DIM + DIM**2),
                method="Nelder-Mead",
                options={"maxiter": 6000, "maxfev": 6000, "xatol": 1e-8, "fatol": 1e-9},
            ).fun
            for _ in range(starts)
        ]
        print(f"{name}: D is at least {-min(found):.3f}", flush=True)


if __name__ == "__main__":
    main()
