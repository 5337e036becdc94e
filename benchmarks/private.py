"""What a private learner's noise, ledger and entities cost: ratios and rates of one run, one thread.

    python benchmarks/private.py [--rounds 9] [--json]

The first table has the time of learning one record (nine features: River's Phishing, over and over) beside
River's LogisticRegression.learn_one; the variants take turns, round by round, and each line is the median of
its ratios. `replay-safe` is noise from a key, where each slot's noise depends on the slot before it; `fixed
seed` is for experiments. The goal is 0.3 for replay-safe noise under gradients with FIFO(32).

The second table has rates of one operation after another: ledger reservations (goal: 1e5 a second), the notes
that the ledger keeps of a batch, the admission of entities, and the durable log of the directory store.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _timing
import numpy as np
from river import datasets, linear_model
from streampair_connectors.stores import DirectoryStore

from streampair import auc, privacy
from streampair.engine import LogAppend
from streampair.engine.wal import Chain, Digests, LogKey, join_digests
from streampair.privacy.user_level import Admission

DATA = list(datasets.Phishing())
NAMES = sorted(DATA[0][0])
ROWS = np.array([[x[name] for name in NAMES] for x, _ in DATA])
LABELS = np.array([y for _, y in DATA])
GOAL_OF = "gradients, replay-safe, learn_one"


def learners() -> dict[str, tuple[Any, bool]]:
    """Each variant, and whether it learns many rows at once."""

    def private(columns: list[Any], **options: Any) -> Any:
        return auc.PairFTRL(horizon=10**8, features=columns, **options)

    gradients: dict[str, Any] = {"mechanism": privacy.PairGradients(), "warmup": 0}
    moments: dict[str, Any] = {"mechanism": privacy.SecondMoments(), "warmup": 100}
    numbers = list(range(len(NAMES)))
    made: dict[str, tuple[Any, bool]] = {"LogisticRegression": (linear_model.LogisticRegression(), False)}
    for name, options in (("gradients", gradients), ("moments", moments)):
        for noise in ("replay-safe", "fixed seed"):
            noise_options = {"noise_key": os.urandom(32)} if noise == "replay-safe" else {"seed": 1}
            made[f"{name}, {noise}, learn_one"] = (private(NAMES, **options, **noise_options), False)
            made[f"{name}, {noise}, learn_many"] = (private(numbers, **options, **noise_options), True)
    return made


def seconds(model: Any, many: bool) -> float:
    """Time of the data set, by record."""
    start = time.process_time()
    if many:
        model.learn_many(ROWS, LABELS)
    else:
        learn = model.learn_one
        for x, y in DATA:
            learn(x, y)
    return (time.process_time() - start) / len(DATA)


def rate(work: Callable[[int], object], count: int, rounds: int) -> float:
    """Operations a second: the median of the rounds."""
    clock = _timing.timed(partial(work, count), time.perf_counter)
    return count / statistics.median(_timing.turns({"work": clock}, rounds)["work"])


def operations(rounds: int) -> Iterator[tuple[str, float]]:
    """The second table: operations a second."""
    ledger = privacy.Ledger("lane", size=4096, limit=0, keyed=True)
    ledger.begin()
    digests = [bytes([i % 256]) * 32 for i in range(4096)]

    def reserve(count: int) -> None:
        for _ in range(count):
            ledger.release(ledger.start + 1, digests[:1])
            ledger.reserve(ledger.start + 1)

    def note(count: int) -> None:
        for _ in range(count // 4096):
            ledger.release(ledger.start + 1, digests)
            ledger.reserve(ledger.start + 4096)

    admission = Admission(privacy.EntityLimit(3, 10))
    slot = 0

    def admit(count: int) -> None:
        nonlocal slot
        for _ in range(count):
            slot += 1
            admission.admit(slot % 1_000_003, slot)

    yield "ledger: a reservation and its first release", rate(reserve, 20_000, rounds)
    yield "ledger: slots noted, 4096 a line", rate(note, 4096 * 50, rounds)
    yield "entities: admissions", rate(admit, 50_000, rounds)
    with tempfile.TemporaryDirectory() as directory:
        lane = DirectoryStore(Path(directory)).open("bench")
        chain, digest_bytes = Chain(LogKey(privacy.NoiseKey(bytes(32)))), join_digests(digests[:500])

        def append(count: int) -> None:
            for _ in range(count):
                lane.append(LogAppend((chain.add(Digests(1, 500, digest_bytes)),), "", 0))

        yield "log: durable lines of 500 slots", rate(append, 50, rounds)
        lane.close()


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Median microseconds a record and median of the ratios to LogisticRegression; then the operations."""
    variants = {name: partial(seconds, *variant) for name, variant in learners().items()}
    times = _timing.turns(variants, options.rounds, warm=1)
    for name, values in times.items():
        row = {"name": name, "microseconds": statistics.median(values) * 1e6}
        row["ratio"] = _timing.ratio(times["LogisticRegression"], values)
        # Replay-safe noise under gradients with FIFO(32), record by record.
        yield _timing.judged(row, "ratio", least=0.3 if name == GOAL_OF else None)
    for name, value in operations(options.rounds):
        row = {"name": name, "rate": value}
        yield _timing.judged(row, "rate", least=1e5 if "reservation" in name else None)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    rows = list(rows)
    columns = [
        *(("learning one record, d = 9", "name", "<44"), ("us", "microseconds", ">9.2f")),
        ("LogisticRegression us / us", "ratio", ">29.2f"),
    ]
    yield from _timing.table(columns, (row for row in rows if "ratio" in row), goals=True)
    yield ""
    columns = [("operations", "name", "<44"), ("a second", "rate", ">13,.0f")]
    yield from _timing.table(columns, (row for row in rows if "rate" in row), goals=True)


if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, {"--rounds": {"type": int, "default": 9}}))
