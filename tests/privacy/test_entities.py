"""Entities: the plan dominates every admissible pattern, and the table errs only by charging too much."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ftrl import dense

from streampair import _kernels
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import (
    BLT,
    Admission,
    EntityLimit,
    EntitySpend,
    Toeplitz,
    entity_pattern,
    fifo_pattern,
    pattern_sensitivity,
)

MEMORY = BLT(np.array([0.3, 0.15]), np.array([0.02, 0.4]), None)


def naive_influence(slots: tuple[int, ...], n: int, size: int, own: float) -> np.ndarray:
    """v_e slot by slot, as PRIVACY.md 8 says it."""
    v = np.zeros(n)
    for t in range(1, n + 1):
        share = sum(1 for slot in slots if t - size <= slot < t) / size
        v[t - 1] = (1 - share) + share * own if t in slots else share
    return v


def naive_admissible(slots: tuple[int, ...], limit: EntityLimit) -> bool:
    gaps = [b - a for a, b in itertools.pairwise(slots)]
    return len(slots) <= limit.records and min(gaps, default=limit.separation) >= limit.separation


# ---- the plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["root", "memory", "identity"])
def test_the_plan_dominates_every_admissible_pattern(size: int, strategy: str) -> None:
    """Brute force over all places of the records of an entity in a short run."""
    n = 11
    column = {
        "root": Toeplitz.square_root(n).column,
        "memory": MEMORY.column(n),
        "identity": np.eye(n)[0],
    }[strategy]
    matrix = dense(column.tolist())
    norms = {}
    for count in range(4):
        for slots in itertools.combinations(range(1, n + 1), count):
            for own in (1.0, 2.0):
                norms[slots, own] = float(np.linalg.norm(matrix @ naive_influence(slots, n, size, own)))
    for records, separation in itertools.product((1, 2, 3), (1, 2, 3, 5)):
        limit = EntityLimit(records, separation)
        pattern = np.zeros(n)
        planned = entity_pattern(fifo_pattern(size, n), limit, n)
        pattern[: len(planned)] = planned
        bound = float(np.linalg.norm(matrix @ pattern))
        worst = max(norm for (slots, _), norm in norms.items() if naive_admissible(slots, limit))
        assert worst <= bound * (1 + 1e-12)
        assert worst == pytest.approx(bound)  # reached by the entity that comes first and densest
        # Twins: the records' squares summed, and an own step that forgets the partners of its own.
        single = float(np.linalg.norm(matrix @ np.pad(fifo_pattern(size, n), (0, n - min(size + 1, n)))))
        if limit.within(n) > 1 and separation <= size:
            assert worst > 1.01 * math.sqrt(limit.within(n)) * single


def test_twenty_records_cost_what_the_specification_says() -> None:
    """20 records 40 steps apart cost x15.7, not x4.5 (PRIVACY.md 8): the square root over 2e4 steps."""
    root, single = Toeplitz.square_root(20_000), fifo_pattern(32)
    many = pattern_sensitivity(root, entity_pattern(single, EntityLimit(20, 40), 20_000))
    assert many / pattern_sensitivity(root, single) == pytest.approx(15.7, abs=0.15)


@given(
    size=st.integers(1, 4),
    gaps=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    rest=st.integers(0, 60),
    own=st.sampled_from([1.0, 2.0]),
)
def test_the_lazy_spend_is_the_dense_one(size: int, gaps: list[int], rest: int, own: float) -> None:
    slots = tuple(itertools.accumulate(gaps))
    n = slots[-1] + rest
    spend = EntitySpend(MEMORY, size, own=own)
    for slot in slots:
        spend.learned(slot)
    image = dense(MEMORY.column(n).tolist()) @ naive_influence(slots, n, size, own)
    assert spend.norm(n) == pytest.approx(float(np.linalg.norm(image)), rel=1e-9)
    with pytest.raises(ValueError, match="is before"):
        spend.norm(0)


def test_the_spend_of_an_entity_on_an_endless_stream_stays_finite() -> None:
    spend = EntitySpend(MEMORY, 4)
    spend.learned(3)
    last = spend.norm(10**9)
    assert last == pytest.approx(pattern_sensitivity(MEMORY, fifo_pattern(4)), rel=1e-9)


# ---- admission -------------------------------------------------------------------------------------------

entity = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", "1", ""]), st.sampled_from([b"a", b"b"]))


@given(
    visits=st.lists(st.tuples(entity, st.integers(0, 4)), max_size=60),
    records=st.integers(1, 4),
    separation=st.integers(1, 9),
    cut=st.integers(0, 60),
)
def test_the_table_against_a_dict(
    visits: list[tuple[Any, int]], records: int, separation: int, cut: int
) -> None:
    limit = EntityLimit(records, separation)
    admission = Admission(limit)
    known: dict[Any, list[int]] = {}
    slot = 0
    for i, (who, step) in enumerate(visits):
        slot += step
        if i == cut:
            restored = Admission(limit)
            restored.load_state(admission.to_state())
            admission = restored
        mine = known.setdefault((type(who), who), [])
        expected = len(mine) < records and (not mine or slot - mine[-1] >= separation)
        if expected:
            mine.append(slot)
        assert admission.admit(who, slot) == expected
    assert admission.entities == len({who for who, slots in known.items() if slots})


@settings(max_examples=20, deadline=None)
@given(capacity=st.integers(1, 3000), seed=st.integers(0, 5))
def test_a_full_table_admits_less_and_never_more(capacity: int, seed: int) -> None:
    """Beyond the capacity entities share accounts: every error is on the safe side. It grows no more."""
    limit = EntityLimit(2, 3)
    rng = np.random.default_rng(seed)
    small, exact = Admission(limit, capacity=capacity), Admission(limit)
    admitted: dict[int, int] = {}
    for slot, who in enumerate(rng.integers(0, 4000, 6000).tolist()):
        truth = exact.admit(who, slot)
        got = small.admit(who, slot)
        if got:
            admitted[who] = admitted.get(who, 0) + 1
            assert admitted[who] <= 2
        if small.entities <= capacity:
            assert got == truth
    assert small.entities <= capacity + 2**16
    assert len(small._keys) <= 2**13


def test_entities_that_differ_are_told_apart_and_others_refused() -> None:
    admission = Admission(EntityLimit(1))
    assert [admission.admit(who, 1) for who in ("1", b"1", 1, "1", np.int64(1))] == [True] * 3 + [False] * 2
    for who in (1.5, None, ("a",)):
        with pytest.raises(TypeError, match="text, bytes or a whole number"):
            admission.admit(who, 2)


def test_ten_million_entities_fit_as_documented() -> None:
    """The table that ten million entities end in, without filling it entry by entry."""
    admission = Admission(EntityLimit(3))
    cells = 1024
    while cells * 0.7 < 10_000_000:
        cells *= 2
    assert cells == 2**24
    bytes_a_cell = sum(part.itemsize for part in (admission._keys, admission._last, admission._count))
    assert bytes_a_cell * cells < 303e6


@given(keys=st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=40, unique=True))
def test_a_key_is_found_where_it_was_put(keys: list[int]) -> None:
    table = np.zeros(64, dtype=np.uint64)
    places = []
    for key in keys:
        at = _kernels.entity_cell(table, np.uint64(key))
        assert table[at] == 0
        table[at] = key
        places.append(at)
    assert [_kernels.entity_cell(table, np.uint64(key)) for key in keys] == places
    assert len(set(places)) == len(keys)


@pytest.mark.parametrize(
    "damage", [{"keys": np.zeros(2, dtype=np.uint64)}, {"count": np.array([1])}, {"count": np.array([1, 99])}]
)
def test_a_damaged_table_is_refused(damage: dict[str, Any]) -> None:
    admission = Admission(EntityLimit(2))
    admission.admit("a", 1)
    admission.admit("b", 1)
    with pytest.raises(SnapshotError):
        Admission(EntityLimit(2)).load_state({**admission.to_state(), **damage})


@pytest.mark.parametrize(
    "parameters", [{"records": 0}, {"records": 1.5}, {"records": 1, "separation": 0}, {"records": 70_000}]
)
def test_a_limit_that_makes_no_sense_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EntityLimit(**parameters)
    with pytest.raises(ConfigError):
        Admission(EntityLimit(1), capacity=0)
