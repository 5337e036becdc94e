"""DP-SGD (Abadi et al. 2016) on a linear scorer, with the best of many settings. For `history_rivals.py`.

    PYTHON benchmarks/_dpsgd.py DATA.npz SCORES.npy DELTA EPSILON NOISES

In an environment of its own, `pip install dp-accounting`. DATA.npz has `x` (n, d) in [-1, 1] and `labels`
(n,) to learn, and `test` (m, d) with `test_labels` (m,). Each row is in a batch by a coin of its own; its
gradient of the logistic loss is clipped, Gaussian noise is added to the sum, and Adam takes the step. The
noise is the least that the PLD accountant of dp-accounting allows, for rows that are added or removed.

Tuning costs nothing here: every setting is tried with one noise, the best three with all, and the best of
these on the test rows is the one that counts. Of more than 100,000 rows so many are used to find the best
setting, and it alone learns all. A second form has features with their true means and spreads.
Prints for both forms the setting, and the seconds of the processor that one run of it took; the scores are
(forms, noises, m).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from importlib.metadata import version

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant

CLIPS, RATES, SHARES, EPOCHS = (0.1, 1.0, 4.0), (0.01, 0.03, 0.1), (0.01, 0.05, 0.25), (10, 40)
SEARCHED, FINALISTS = 100_000, 3


@functools.cache
def noise_of(share: float, steps: int, epsilon: float, delta: float) -> float:
    """The least standard deviation of the noise, in clips."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: PLDAccountant(relation), event, epsilon, delta, tol=1e-3
    )


def learned(
    x: np.ndarray, labels: np.ndarray, setting: tuple[float, float, float, int], sigma: float, seed: int
) -> np.ndarray:
    """Weights (d + 1,), the intercept last: the mean of those of the second half of all steps."""
    (clip, rate, share, epochs), rng = setting, np.random.default_rng(seed)
    n, width = x.shape
    first, second, w, total = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
    steps = round(epochs / share)
    for step in range(1, steps + 1):
        rows = rng.choice(n, rng.binomial(n, share), replace=False, shuffle=False)
        batch = x[rows]
        slopes = 0.5 + 0.5 * np.tanh(0.5 * (batch @ w)) - labels[rows]
        lengths = np.abs(slopes) * np.sqrt(np.einsum("ij,ij->i", batch, batch))
        slopes *= np.minimum(1.0, clip / np.maximum(lengths, 1e-12))
        gradient = (slopes @ batch + clip * sigma * rng.normal(size=width)) / (share * n)
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient * gradient - second)
        w -= rate * (first / (1.0 - 0.9**step)) / (np.sqrt(second / (1.0 - 0.999**step)) + 1e-8)
        if 2 * step > steps:
            total += w
    return total


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Share of pairs in order; scores of continuous noise have no ties that count."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = int(labels.sum())
    return float(
        (ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))
    )


def best(data: dict[str, np.ndarray], epsilon: float, delta: float, noises: int) -> tuple[dict, np.ndarray]:
    """The best setting, the seconds of a run, and its scores (noises, m)."""
    x, test = (np.hstack([data[name], np.ones((len(data[name]), 1))]) for name in ("x", "test"))
    labels = data["labels"].astype(float)

    def scores(setting: tuple[float, float, float, int], seed: int, rows: int = len(x)) -> np.ndarray:
        share, epochs = setting[2:]
        sigma = noise_of(share, round(epochs / share), epsilon, delta)
        return test @ learned(x[:rows], labels[:rows], setting, sigma, seed)

    def worth(found: list[np.ndarray]) -> float:
        return float(np.mean([auc(data["test_labels"], each) for each in found]))

    settings = itertools.product(CLIPS, RATES, SHARES, EPOCHS)
    ranked = sorted(settings, key=lambda setting: -worth([scores(setting, 0, SEARCHED)]))
    ranked = ranked[: FINALISTS if len(x) <= SEARCHED else 1]
    tried = {}
    for setting in ranked:
        start = time.process_time()
        tried[setting] = [scores(setting, seed) for seed in range(1, noises + 1)], time.process_time() - start
    setting = max(tried, key=lambda setting: worth(tried[setting][0]))
    found, seconds = tried[setting]
    row = {
        **dict(zip(("clip", "rate", "share", "epochs"), setting, strict=True)),
        "seconds": seconds / noises,
    }
    return row, np.array(found)


def main(data_path: str, out_path: str, delta: str, epsilon: str, noises: str) -> None:
    with np.load(data_path) as file:
        data = {name: file[name] for name in ("x", "labels", "test", "test_labels")}
    mean, spread = data["x"].mean(axis=0), data["x"].std(axis=0)
    spread[spread == 0.0] = 1.0
    free = data | {name: (data[name] - mean) / spread for name in ("x", "test")}
    rows = [best(form, float(epsilon), float(delta), int(noises)) for form in (data, free)]
    print(json.dumps({"version": version("dp-accounting"), "rows": [row for row, _ in rows]}))
    np.save(out_path, np.array([scores for _, scores in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
