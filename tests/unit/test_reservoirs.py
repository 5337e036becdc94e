"""Which events enter a regret's sample: batches against a reference that takes them one by one."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from streampair.evaluation.reservoirs import Reservoirs


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strata", [1, 2])
def test_batches_enter_as_events_do(strata: int, seed: int) -> None:
    """Sizes of batches, and shares of the labels, on all sides of what a reservoir holds."""
    rng = np.random.default_rng(seed)
    steps, records, exact = rng.integers(2, 30, 3).tolist()
    sample = Reservoirs(strata, steps=steps, records=records, exact=exact, seed=seed)
    reference = naive.Draw(strata, steps, records, exact, seed)
    for size in (1, 3, exact, 200, 5000):
        labels = (rng.random(size) < rng.choice([0.5, 0.02])) * (strata - 1)
        wanted = [(i, c, *hit) for i, c in enumerate(labels.tolist()) if (hit := reference.event(c))]
        assert [tuple(hit) for hit in sample.draw(labels.astype(np.uint8))] == wanted
        assert [sample.left(c) for c in range(strata)] == reference.left()
    for ours, theirs in zip(sample.steps, reference.steps, strict=True):
        assert ours.ranks.tolist() == theirs.rank
        assert ours.order.tolist() == theirs.order


def test_nothing_enters_a_closed_sample() -> None:
    sample = Reservoirs(2, steps=16, records=16, exact=4, seed=1)
    sample.closed = True
    assert sample.draw(np.tile(np.array([0, 1], dtype=np.uint8), 50)) == []
    assert sample.seen == [50, 50]
