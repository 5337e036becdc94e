"""Real workers in virtual time, against a cluster in memory that loses answers, fences and rebalances.

`make simulate` runs more seeds; tests/harness/simulation has what a seed draws, and what must hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from harness.simulation.scenario import FaultError, Run, simulate
from streampair_connectors.kafka import ReadPositions, ordering
from streampair_connectors.stores.topic import TopicLane
from streampair_connectors.worker.lane_manager import Opener
from streampair_connectors.worker.sources import TopicSource

from streampair.errors import CommitOutcomeUnknownError, FencedError

SEEDS, PART = 1000, 100


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Nobody reads what thousands of workers log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_workers_lose_and_double_nothing(first: int) -> None:
    """A commit whose answer is lost, a fence, a rebalance in the middle: each drawn by its seed."""
    for seed in range(first, first + PART):
        simulate(seed)


class EarlierEnds:
    """Where partitions begin and end; the first answer is from a time when they were empty."""

    def __init__(self, lookup: Any) -> None:
        self._lookup, self._first = lookup, True

    async def spans(self, partitions: list[int]) -> dict[int, tuple[int, int]]:
        spans: dict[int, tuple[int, int]] = await self._lookup.spans(partitions)
        first, self._first = self._first, False
        return {number: (start, start if first else end) for number, (start, end) in spans.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup, name)


def test_a_lane_is_opened_whose_owner_read_on_until_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its state is behind the ends that the input had before the fence."""
    opens = Opener.open

    async def opened(self: Opener, *arguments: Any, **named: Any) -> Any:
        lookup, self._lookup = self._lookup, EarlierEnds(self._lookup)  # type: ignore[assignment]
        try:
            return await opens(self, *arguments, **named)
        finally:
            self._lookup = lookup

    monkeypatch.setattr(Opener, "open", opened)
    for seed in range(20):
        simulate(seed)


def first_fault() -> str:
    """What the first seed says that finds a fault."""
    for seed in range(SEEDS):
        try:
            simulate(seed)
        except FaultError as error:
            return str(error)
    return ""


def test_a_seed_repeats_what_it_did() -> None:
    runs: list[Run] = []
    for _ in range(2):
        simulate(5, runs.append)
    assert runs[0].trace == runs[1].trace
    assert runs[0].plan.schedule


def test_it_finds_records_that_a_rebalance_during_a_poll_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll returns, and meanwhile the order is another one: what it has read is in neither."""
    read, take = TopicSource._read, ReadPositions.take

    async def drops(self: TopicSource, wait: float) -> None:
        order, consumer = self._order, self._consumer
        found = await consumer.poll(None, wait)
        if order is self._order:
            self._consumer: Any = Polled(found)
            try:
                await read(self, wait)
            finally:
                self._consumer = consumer

    class Polled:
        def __init__(self, found: Any) -> None:
            self.found = found

        async def poll(self, *_: Any) -> Any:
            return self.found

    def takes_all(self: ReadPositions, found: Any) -> Any:
        for partition, span in found.items():
            if self.position(partition) is not None:
                self.move(partition, span.start)
        return take(self, found)

    monkeypatch.setattr(TopicSource, "_read", drops)
    monkeypatch.setattr(ReadPositions, "take", takes_all)
    monkeypatch.setattr(ordering, "_check", lambda *_: None)
    assert "not scored" in first_fault()


@pytest.mark.parametrize("error", [FencedError, CommitOutcomeUnknownError])
def test_it_finds_an_owner_that_sends_again(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was fenced; or after the answer to a commit was lost, which may have landed."""
    commits = TopicLane._transaction

    async def again(self: TopicLane, sends: Any, append: Any) -> Any:
        while True:
            try:
                return await commits(self, sends, append)
            except error:
                await self._producer.start()
            await asyncio.sleep(0.1)

    monkeypatch.setattr(TopicLane, "_transaction", again)
    fault = first_fault()
    assert "scored twice" in fault or "does not follow" in fault or "not scored" in fault, fault
    assert "make simulate ARGS=" in fault
