"""Buffer policies: parameters, and the law of the reservoirs as the kernel runs them."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from harness.support import in_one_case

from streampair import auc, buffers
from streampair.errors import ConfigError


@in_one_case("size", [0, -1, 1.5, True, None, "3", 10**7])
@pytest.mark.parametrize("kind", [buffers.FIFO, buffers.Reservoir, buffers.ClassReservoir])
def test_bad_size(kind: type[buffers.Buffer], size: int) -> None:
    with pytest.raises(ConfigError, match="buffer size"):
        kind(size)


@pytest.mark.parametrize(
    "options", [{"dtype": "float16"}, {"dtype": None}, {"max_records": 0}, {"max_records": 1.5}], ids=str
)
def test_bad_history(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(dtype|max_records) is .*Fix: "):
        buffers.FullHistory(**options)


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (buffers.FIFO(), "FIFO(size=1)"),
        (buffers.FIFO(32), "FIFO(size=32)"),
        (buffers.Reservoir(), "Reservoir(size=200, replacement=False, max_uses=None)"),
        (buffers.Reservoir(5, replacement=True), "Reservoir(size=5, replacement=True, max_uses=None)"),
        (buffers.ClassReservoir(), "ClassReservoir(size=100)"),
        (buffers.FullHistory("float32", 9), "FullHistory(dtype='float32', max_records=9)"),
    ],
)
def test_as_parameters(buffer: buffers.Buffer, text: str) -> None:
    assert repr(buffer) == str(buffer) == text
    assert buffer.clone() == buffer == pickle.loads(pickle.dumps(buffer))
    assert hash(buffer.clone()) == hash(buffer)
    assert buffer != buffers.FIFO(7)


def _kept(buffer: buffers.Buffer, n: int, seed: int) -> list[int]:
    """Which of the records 1..n are in the buffer at the end (each record's feature is its number)."""
    model = auc.PairOGD(buffer=buffer, seed=seed)
    for t in range(1, n + 1):
        model.learn_one({"t": t}, True)
    return model.to_state()["values"].astype(int).tolist()


def test_fifo_keeps_the_last() -> None:
    for n in range(1, 9):
        assert sorted(_kept(buffers.FIFO(3), n, 0)) == list(range(max(1, n - 2), n + 1))


def _is_uniform_sample(counts: np.ndarray, expected: float, variance: float) -> bool:
    return bool((np.abs(counts - expected) < 5 * math.sqrt(variance)).all())


@pytest.mark.parametrize("replacement", [False, True])
def test_reservoir_is_a_uniform_sample(replacement: bool) -> None:
    n, size, runs = 12, 4, 1500
    counts = np.zeros(n)
    for seed in range(runs):
        kept = _kept(buffers.Reservoir(size, replacement), n, seed)
        assert len(kept) == size
        if not replacement:
            assert len(set(kept)) == size
        for t in kept:
            counts[t - 1] += 1
    p = size / n
    variance = runs * (size * (1 / n) * (1 - 1 / n) if replacement else p * (1 - p))
    assert _is_uniform_sample(counts, runs * p, variance)
    # A sampler that is a little kind to the last record must be told apart.
    bent = counts.copy()
    bent[-1] *= 1.35
    assert not _is_uniform_sample(bent, runs * p, variance)


def test_class_reservoirs_sample_each_class() -> None:
    """Records 1..30, every fifth positive: four of 24 negatives, four of six positives."""
    n, size, runs = 30, 4, 1500
    counts = np.zeros(n)
    for seed in range(runs):
        model = auc.PairOGD(buffer=buffers.ClassReservoir(size), seed=seed)
        for t in range(1, n + 1):
            model.learn_one({"t": t}, t % 5 == 0)
        state = model.to_state()
        labels, times = state["labels"], state["values"].astype(int)
        assert labels.tolist() == [-1.0] * size + [1.0] * size
        assert ((times % 5 == 0) == (labels > 0)).all()
        for t in times:
            counts[t - 1] += 1
    positive = np.arange(1, n + 1) % 5 == 0
    for chosen, past in ((positive, 6), (~positive, 24)):
        p = size / past
        assert _is_uniform_sample(counts[chosen], runs * p, runs * p * (1 - p))
    assert not _is_uniform_sample(counts[positive], runs * size / 24, runs * size / 24)


def test_reservoir_with_replacement_starts_full_and_its_rows_are_independent() -> None:
    assert _kept(buffers.Reservoir(4, replacement=True), 1, 0) == [1, 1, 1, 1]
    pairs = np.zeros((3, 3))
    runs = 3000
    for seed in range(runs):
        first, second = _kept(buffers.Reservoir(2, replacement=True), 3, seed)
        pairs[first - 1, second - 1] += 1
    assert _is_uniform_sample(pairs, runs / 9, runs / 9 * 8 / 9)


def test_unseeded_reservoirs_differ() -> None:
    assert len({auc.PairOGD().to_state()["scalars"]["SEED"] for _ in range(3)}) == 3
