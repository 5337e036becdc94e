"""The blocks of the full history, and the kernels that read and write them."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import naive
import numpy as np
import pytest
from harness.every_loss import MARGIN
from hypothesis import assume, given
from hypothesis import strategies as st

from streampair import losses
from streampair.base import buffer_storage
from streampair.kernels import history as history_kernels

LOSSES = [*MARGIN, losses.MinimumErrorEntropy(0.75)]
eighths = st.integers(-32, 32).map(lambda v: v / 8)  # exact in float32, too


def stored(records: list[tuple[list[float], float]], single: bool = False) -> buffer_storage.RecordBlocks:
    """A history of these records; each has as many features as the one before, or more."""
    history = buffer_storage.RecordBlocks(single)
    columns = 0
    for t, (x, y) in enumerate(records):
        if len(x) > columns:
            history.close(t)
            columns = len(x)
        history.reserve(t, 1, columns)
        history_kernels.history_store(np.array(x), y, history.table, t, single)
    return history


def read_back(history: buffer_storage.RecordBlocks, records: int) -> list[tuple[list[float], float]]:
    return [
        (row.tolist(), float(label))
        for block in history.to_state(records)
        for row, label in zip(block["rows"], block["labels"], strict=True)
    ]


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[list[float], float]]:
    """Up to 60 records; features keep coming."""
    lengths = sorted(draw(st.lists(st.integers(1, 7), min_size=1, max_size=60)))
    label = st.sampled_from([-1.0, 1.0, 0.25])
    return [(draw(st.lists(eighths, min_size=n, max_size=n)), draw(label)) for n in lengths]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@given(records=streams(), block=st.sampled_from([64, 300, 1 << 20]), data=st.data())
def test_gradient_against_the_reference(
    loss: losses.PairLoss, single: bool, records: list[Any], block: int, data: st.DataObject
) -> None:
    before, buffer_storage._BLOCK_BYTES = buffer_storage._BLOCK_BYTES, block
    try:
        history = stored(records, single)
    finally:
        buffer_storage._BLOCK_BYTES = before
    assert read_back(history, len(records)) == records
    d = max(len(x) for x, _ in records)
    vector = st.lists(eighths, min_size=d, max_size=d)
    w, x = [v / 4 for v in data.draw(vector)], data.draw(vector)
    y = data.draw(st.sampled_from([-1.0, 1.0, 0.5]))
    seen = data.draw(st.integers(0, len(records)))
    margins = [
        (y - b) * naive.dot(w, [p - q for p, q in zip(x, a + [0.0] * d, strict=False)]) for a, b in records
    ]
    assume(not isinstance(loss, losses.Hinge) or all(not abs(m - 1.0) < 1e-9 for m in margins))
    out = np.full(d, 3.0)  # it adds
    history_kernels.history_gradient(
        np.array(w), np.array(x), y, history.table, seen, single, loss.code, loss.width, out
    )
    wanted = naive.history_gradient(w, x, y, records[:seen], type(loss).__name__, loss.width)
    assert out - 3.0 == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_many_rows_against_the_reference(loss: losses.PairLoss) -> None:
    """More than the kernel goes through at a time."""
    rng = np.random.default_rng(0)
    records = [(rng.normal(size=4).tolist(), float(rng.choice([-1.0, 0.5, 1.0]))) for _ in range(700)]
    history, w, x = stored(records), rng.normal(size=4), rng.normal(size=4)
    out = np.zeros(4)
    history_kernels.history_gradient(w, x, 1.0, history.table, 700, False, loss.code, loss.width, out)
    wanted = naive.history_gradient(w.tolist(), x.tolist(), 1.0, records, type(loss).__name__, loss.width)
    assert out == pytest.approx(np.array(wanted), rel=1e-9)


def test_blocks_grow_and_never_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_storage, "_BLOCK_BYTES", 4096)
    history = buffer_storage.RecordBlocks()
    places: list[tuple[int, ...]] = []
    for t in range(3000):
        history.reserve(t, 1, 2)
        assert history.table.tolist()[: len(places)] == places
        places = history.table.tolist()
        history_kernels.history_store(np.array([t, -t]), 1.0, history.table, t, False)
        assert history.room <= t + 1 + max(64, min(t, 256))
    assert [row[3] for row in places[:4]] == [64, 64, 128, 256]
    assert {row[3] for row in places[4:]} == {256}
    assert [x[0] for x, _ in read_back(history, 3000)] == list(range(3000))
    assert history.nbytes <= 1.1 * 3000 * 24
    history.reserve(3000, 1000, 2)
    assert history.room >= 4000
    assert {row[3] for row in history.table[4:].tolist()} == {256}


@pytest.mark.parametrize(("single", "most"), [(False, 1.2), (True, 0.6)])
def test_a_long_history_never_takes_much_more_than_its_raw_array(single: bool, most: float) -> None:
    n, d = 30_000, 20
    x = np.linspace(0.0, 1.0, d)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        history = buffer_storage.RecordBlocks(single)
        for t in range(n):
            if t >= history.room:
                history.reserve(t, 1, d)
                table = history.table
            history_kernels.history_store(x, 1.0, table, t, single)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # One block of 1 MiB is a fifth of this raw array; it is nothing beside a long one.
    assert peak <= most * n * d * 8 + 2**20
    # An array that doubles when it is full would hold the old one and the new one at once.
    assert peak < 3 * history.nbytes / 2


def test_closing_gives_back_what_is_not_used() -> None:
    history = stored([([1.0], 1.0)] * 10)
    history.close(10)
    assert (history.room, history.nbytes) == (10, 160)
    history.reserve(10, 1, 2)
    assert history.table[:, 2].tolist() == [1, 2]
    history.close(10)
    history.close(0)
    assert (history.room, history.nbytes, len(history.table)) == (0, 0, 0)


def test_a_state_of_full_blocks_is_no_copy_and_cannot_be_written() -> None:
    history = stored([([float(t)], 1.0) for t in range(100)])
    full, last = history.to_state(100)
    assert full["rows"].ctypes.data == history.table[0, 0]
    assert last["rows"].ctypes.data != history.table[1, 0]
    for array in (full["rows"], full["labels"], last["rows"], last["labels"]):
        assert not array.flags.writeable


@pytest.mark.parametrize("single", [False, True])
def test_a_loaded_history_goes_on(single: bool) -> None:
    records = [([float(t)] * (1 + t // 40), 1.0 - 2.0 * (t % 2)) for t in range(100)]
    history, copy = stored(records, single), buffer_storage.RecordBlocks(single)
    assert copy.load_state(history.to_state(100), 3) == 100
    assert copy.table[:, 0].tolist() != history.table[:, 0].tolist()
    assert copy.table[:, 2:].tolist() == history.table[:, 2:].tolist()
    copy.reserve(100, 1, 3)
    history_kernels.history_store(np.array([7.0, 8.0, 9.0]), -1.0, copy.table, 100, single)
    assert read_back(copy, 101) == [*records, ([7.0, 8.0, 9.0], -1.0)]
    assert read_back(history, 100) == records


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: {**b, "rows": b["rows"].astype(np.float32)},
        lambda b: {**b, "labels": b["labels"][:-1]},
        lambda b: {**b, "labels": b["labels"].astype(np.int64)},
        lambda b: {**b, "rows": b["rows"][:, :0]},
        lambda b: {**b, "rows": b["rows"][:0], "labels": b["labels"][:0]},
        lambda b: {**b, "rows": np.zeros((len(b["rows"]), 9))},
        lambda b: {**b, "rows": b["rows"] * math.nan},
        lambda b: {**b, "rows": b["rows"].ravel()},
        lambda b: {"rows": np.zeros((9999, 2)), "labels": np.zeros(9999)},
    ],
)
def test_a_damaged_state_is_refused(damage: Any) -> None:
    history = stored([([1.0, 2.0], 1.0)] * 70)
    state = history.to_state(70)
    with pytest.raises(ValueError, match=r"block|finite"):
        history.load_state([state[0], damage(state[1])], 2)
    assert history.to_state(70)[1]["rows"].tolist() == state[1]["rows"].tolist()
