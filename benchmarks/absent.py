"""Words that a bag of words lacks, left out of the record or given as 0: AUC of the second half, 3 seeds.

    python benchmarks/absent.py [--records 10000]

A record has up to 30 words of a vocabulary, the frequent ones more often. Each word has a weight, and the
label is drawn with the logistic curve of their sum.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from river import linear_model, preprocessing
from sklearn.metrics import roc_auc_score

from streampair import auc

LEARNERS = {
    "Forest": lambda: auc.Forest(seed=1),
    "PairOGD": lambda: auc.PairOGD(seed=1),
    "LogisticRegression": lambda: preprocessing.StandardScaler() | linear_model.LogisticRegression(),
}


def bags(vocabulary: int, seed: int) -> Iterator[tuple[dict[str, float], bool]]:
    """Records of the words that they have."""
    coin = random.Random(seed)
    names = [f"word{i}" for i in range(vocabulary)]
    weights = [coin.gauss(0, 1) for _ in names]
    often = [(i + 1) ** -0.7 for i in range(vocabulary)]
    while True:
        words = sorted(set(coin.choices(range(vocabulary), often, k=30)))
        margin = 3.0 * sum(weights[i] for i in words) / math.sqrt(30)
        yield {names[i]: 1.0 for i in words}, coin.random() < 1.0 / (1.0 + math.exp(-margin))


def judged(model: Any, vocabulary: int, records: int, seed: int, *, zeros: bool) -> tuple[float, float]:
    """AUC of the second half, and microseconds a record."""
    nothing = {f"word{i}": 0.0 for i in range(vocabulary)} if zeros else {}
    stream = [({**nothing, **x}, y) for x, y in itertools.islice(bags(vocabulary, seed), records)]
    scores, begin = [], time.process_time()
    for x, y in stream:
        scores.append(model.predict_proba_one(x).get(True, 0.5))
        model.learn_one(x, y)
    took = time.process_time() - begin
    half = records // 2
    return roc_auc_score([y for _, y in stream[half:]], scores[half:]), took / records * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000)
    options = parser.parse_args()
    print(f"{'words':>5}  {'learner':<20}{'left out':>10}{'us':>8}{'as 0':>10}{'us':>8}")
    for vocabulary, (name, make) in itertools.product((100, 500, 1000), LEARNERS.items()):
        cells = ""
        for zeros in (False, True):
            runs = [judged(make(), vocabulary, options.records, seed, zeros=zeros) for seed in range(3)]
            found, took = (statistics.mean(column) for column in zip(*runs, strict=True))
            cells += f"{found:10.3f}{took:8.1f}"
        print(f"{vocabulary:>5}  {name:<20}{cells}", flush=True)


if __name__ == "__main__":
    main()
