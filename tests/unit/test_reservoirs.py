"""Which events enter a regret's sample: against references that take items one by one."""

from __future__ import annotations

import itertools
import random
from typing import Any

import naive
import numpy as np
import pytest

from streampair.evaluation import Regret
from streampair.evaluation.reservoirs import SkipReservoir, StepReservoir


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [False, True])
def test_items_enter_as_in_the_reference(steps: bool, seed: int) -> None:
    ours = StepReservoir(19, 5) if steps else SkipReservoir(20)
    reference = naive.Thinning(19, 5) if steps else naive.Uniform(20)
    items = [-1] * 20
    draws = random.Random(seed), random.Random(seed)
    for item in range(3000):
        assert ours.next == reference.hit
        if item < ours.next:
            reference.count += 1
            continue
        items[reference.take(draws[1].random)] = item
        assert ours.put(item, item, draws[0]) == items.index(item)
        assert ours.ids.tolist() == items
    assert ours.next > 3020
    if isinstance(ours, StepReservoir) and isinstance(reference, naive.Thinning):
        assert (ours.ranks.tolist(), ours.order.tolist()) == (reference.rank, reference.order)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strata", [1, 2])
def test_batches_enter_as_events_do(strata: int, seed: int) -> None:
    """Sizes of batches, and shares of the labels, on all sides of what a reservoir holds."""
    rng = np.random.default_rng(seed)
    pairs, exact = rng.integers(16, 60), int(rng.integers(2, 30))
    regret = Regret(pairs=int(pairs), exact=exact, seed=seed, label=None if strata == 2 else float)
    reference = naive.Draw(strata, pairs // strata, pairs // strata, exact, seed)
    records: dict[int, int] = {}
    steps: dict[int, tuple[int, int | None, float]] = {}
    number = 0
    for size in (*[1] * exact, 3, 200, 5000):
        labels = (rng.random(size) < rng.choice([0.5, 0.02])).tolist()
        y: list[Any] = labels if strata == 2 else list(range(number, number + size))
        if size == 1:
            regret.observe({"a": 1.0}, y[0], 0.0, lambda x: 0.0)
        else:
            assert regret.draw(y, lambda index: (["a"], [1.0])) is not None
        for label in labels:
            hit = reference.event(int(label) if strata == 2 else 0)
            if hit is not None:
                record, step, partner, weight = hit
                if step >= 0:
                    steps[step] = number, records.get(partner), weight
                if record >= 0:
                    records[record] = number
            number += 1
        assert [regret._left(c) for c in range(strata)] == reference.left()
    columns = [(each.ids, each.partners, each.weights) for each in regret._steps]
    rows = itertools.chain.from_iterable(zip(*each, strict=True) for each in columns)
    found = {
        place: (step, None if partner < 0 else partner, weight)
        for place, (step, partner, weight) in enumerate(rows)
        if step >= 0
    }
    assert found == steps
    past = itertools.chain.from_iterable(each.ids for each in regret._records)
    assert {place: record for place, record in enumerate(past) if record >= 0} == records


def test_nothing_enters_a_sample_that_was_given_up() -> None:
    regret = Regret(exact=2)
    for y in (True, False):
        regret.observe({"a": "text"}, y, 0.0, lambda x: 0.0)
    assert regret.draw(bytes([0, 1] * 50), lambda index: (["a"], [1.0])) == []
    assert regret.n_seen == 102
