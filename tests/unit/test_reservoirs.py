"""Which events enter a regret's sample: against references that take items one by one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import naive
import numpy as np
import pytest
from numpy.typing import NDArray

from streampair.evaluation import Regret
from streampair.evaluation.reservoirs import BLOCK, SkipReservoir, StepReservoir


@dataclasses.dataclass
class Ranked:
    number: int
    rank: float


def drawn(size: int, seed: int, batches: list[int]) -> SkipReservoir:
    """A uniform sample of the numbers of so many items."""
    sample = SkipReservoir(size, seed, 3)
    for count in batches:
        for number, place in sample.advance(count):
            sample.put(place, number)
    return sample


def steps_of(size: int, seed: int, shift: int, batches: list[int]) -> StepReservoir:
    """A sample of so many steps."""
    sample = StepReservoir(size, seed, 3, shift)
    for count in batches:
        for number, place, rank, _ in sample.advance(count):
            sample.put(place, Ranked(number, rank))
    return sample


@pytest.mark.parametrize("seed", range(4))
def test_records_enter_as_in_the_reference(seed: int) -> None:
    """More of them than a block has, however the stream is cut."""
    n, entered = 30_000 * BLOCK, 0
    reference = naive.Uniform(20, seed, 3)
    for item in range(20_000):
        entered += reference.put(item)
    for batches in ([1] * 20_000, [7] * 2857 + [1], [20_000]):
        assert drawn(20, seed, batches).items == reference.items
    many = naive.Uniform(2 * BLOCK, seed, 3)
    for item in range(6 * BLOCK):
        entered += many.put(item)
    assert entered > 4 * BLOCK
    assert drawn(2 * BLOCK, seed, [6 * BLOCK]).items == many.items
    assert drawn(20, seed, [n]).ahead[0][0] >= n


@pytest.mark.parametrize("seed", range(4))
def test_steps_enter_as_in_the_reference(seed: int) -> None:
    size, n = 40, 20 * BLOCK
    reference, entries = naive.Thinning(size, seed, 3, 5), {}
    for item in range(n):
        entry = reference.put()
        if entry is not None:
            entries[item] = entry
    sample, found = StepReservoir(size, seed, 3, 5), {}
    for number, place, rank, chance in sample.advance(n):
        sample.put(place, Ranked(number, rank))
        found[number] = place, chance
    assert found == entries
    assert reference.block > 1
    assert [item.number for item in sample.items] == reference.order
    assert [item.rank for item in sample.items] == pytest.approx(reference.ranks, rel=1e-9)
    for batches in ([1] * n, [n // 2, n // 2]):
        assert steps_of(size, seed, 5, batches).items == sample.items


def inclusions(samples: list[list[int]], n: int) -> NDArray[np.float64]:
    """How often each item was in a sample."""
    return np.bincount(np.concatenate(samples), minlength=n) / len(samples)


def test_every_record_is_as_likely_in_the_sample() -> None:
    size, n, seeds = 16, 200, 3000
    found = inclusions([drawn(size, seed, [n]).items for seed in range(seeds)], n)
    deviation = (found - size / n) / math.sqrt(size / n * (1.0 - size / n) / seeds)
    assert abs(deviation).max() < 4.5
    assert 0.8 < np.mean(deviation**2) < 1.2


def test_steps_are_as_likely_in_the_sample_as_by_their_definition() -> None:
    """Which gives each item a rank, and keeps the smallest."""
    size, n, shift, seeds = 16, 200, 8, 3000
    found = inclusions(
        [[item.number for item in steps_of(size, seed, shift, [n]).items] for seed in range(seeds)], n
    )
    j, rng, rounds = np.arange(n), np.random.default_rng(0), 30_000
    odds = 2.0 * (np.sqrt(shift + j + 1.0) - np.sqrt(shift + j))
    ranks = rng.exponential(size=(rounds, n)) / odds
    smallest = np.argpartition(ranks, size, axis=1)[:, : size + 1]
    expected = inclusions(list(smallest), n)
    error = np.sqrt(expected * (1.0 - expected) * (1.0 / seeds + 1.0 / rounds))
    deviation = (found - expected) / error
    assert abs(deviation).max() < 4.5
    assert 0.8 < np.mean(deviation**2) < 1.2


class Late(SkipReservoir):
    """Mutant: skips one too many."""

    def _more(self) -> list[tuple[Any, ...]]:
        return [(number + 1, place) for number, place in super()._more()]


def represented(make: Any, runs: int) -> NDArray[np.float64]:
    """By how much each of 100 items is represented, on average over the seeds."""
    out = np.zeros(100)
    for seed in range(runs):
        sample = make(seed)
        for number, place, *rank in sample.advance(100):
            sample.put(place, Ranked(number, rank[0]) if rank else number)
        if isinstance(sample, StepReservoir):
            out[[item.number for item in sample.items]] += sample.stand_for()
        else:
            out[sample.items] += 100 / len(sample.items)
    return out / runs


@pytest.mark.parametrize("steps", [False, True])
def test_every_item_is_represented_once_on_average(steps: bool) -> None:
    """Also those that are skipped over. With 2000 runs the standard error of each is below 0.08."""
    mean = represented(
        lambda seed: StepReservoir(20, seed, 3, 5) if steps else SkipReservoir(20, seed, 3), 2000
    )
    assert np.abs(mean - 1.0).max() < 0.4
    for part in np.split(mean, 5):
        assert abs(part.mean() - 1.0) < 0.05


def test_a_uniform_sample_that_is_off_by_one_is_noticed() -> None:
    mean = represented(lambda seed: Late(20, seed, 3), 1000)
    assert any(abs(part.mean() - 1.0) > 0.05 for part in np.split(mean, 5))


def test_steps_favour_the_early() -> None:
    early = [sum(item.number < 500 for item in steps_of(50, seed, 5, [5000]).items) for seed in range(50)]
    assert 12 < np.mean(early) < 20  # sqrt(500 / 5000) of 50; a uniform sample would have 5


def test_a_partner_is_any_of_the_records_before() -> None:
    """Of the other class, each as likely as the other."""
    shares = []
    for seed in range(300):
        regret = Regret(pairs=64, exact=2, seed=seed)
        for y in (True, False):
            regret.observe({"a": 1.0}, y, 0.0, lambda x: 0.0)
        regret.draw(bytes([0, 1, 1] * 300), lambda indices: (["a"], np.ones((len(indices), 1))))
        for steps, other in zip(regret._steps, (True, False), strict=True):
            for step in steps.items:
                if step.partner is not None and step.record.id > 300:
                    assert (step.partner.label == 1.0) == other
                    shares.append(step.partner.id / step.record.id)
    share, n = np.sort(shares), len(shares)
    # Kolmogorov and Smirnov. Pairs of a sample share partners, so the bound is wider than 1.63.
    assert np.abs(share - (np.arange(n) + 0.5) / n).max() < 2.5 / math.sqrt(n)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strata", [1, 2])
def test_batches_enter_as_events_do(strata: int, seed: int) -> None:
    """Sizes of batches, and shares of the labels, on all sides of what a reservoir holds."""
    rng = np.random.default_rng(seed)
    pairs, exact = rng.integers(16, 60), int(rng.integers(2, 30))
    regret = Regret(pairs=int(pairs), exact=exact, seed=seed, label=None if strata == 2 else float)
    reference = naive.Draw(strata, int(pairs // strata), exact, seed)
    number = 0
    for size in (*[1] * exact, 3, 200, *[1] * 50, 2000):
        labels = (rng.random(size) < rng.choice([0.5, 0.02])).tolist()
        y: list[Any] = labels if strata == 2 else list(range(number, number + size))
        if size == 1:
            enters = regret.enters(y[0])
            regret.observe({"a": 1.0}, y[0], 0.0, lambda x: 0.0)
        else:
            assert regret.draw(y, lambda indices: [{"a": 1.0}] * len(indices)) is not None
        for label in labels:
            entered = reference.event(int(label) if strata == 2 else 0)
        assert size > 1 or enters == (entered or number < exact)
        number += size
    for c in range(strata):
        assert [kept.id for kept in regret._records[c].items] == reference.records[c].items
        found = {
            place: (step.record.id, None if step.partner is None else step.partner.id, step.weight)
            for place, step in enumerate(regret._steps[c].items)
        }
        assert found == reference.pairs[c]
    assert regret.n_seen == number


def test_nothing_enters_a_sample_that_was_given_up() -> None:
    regret = Regret(exact=2)
    for y in (True, False):
        regret.observe({"a": "text"}, y, 0.0, lambda x: 0.0)
    assert regret.draw(bytes([0, 1] * 50), lambda indices: [{"a": 1.0}] * len(indices)) == []
    assert regret.n_seen == 102
