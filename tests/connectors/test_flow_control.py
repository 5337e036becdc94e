"""The pace of a worker: how much it takes at once, and what runs beside its event loop."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from streampair_connectors.host import Host
from streampair_connectors.worker.flow_control import (
    Commits,
    FencePause,
    Pace,
    commit_interval,
    fetch_buckets,
)
from streampair_connectors.worker.timing import Estimates


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def simulate(costs: list[float], batch_size: int, interval: float) -> tuple[int, float, float]:
    """A worker's loop over events of given costs: events learned, longest time between polls, and in a call
    beside its longest event.
    """
    clock = Clock()
    pace = Pace(batch_size, interval, host=Host(clock))
    index, between, call = 0, 0.0, 0.0

    async def body() -> None:
        nonlocal index, between, call
        while index < len(costs):
            begin = clock.now
            stop = min(index + pace.records, len(costs))
            pace.polled()
            while index < stop and not pace.over:
                part = costs[index : min(index + pace.slice, stop)]
                start = clock.now

                def work(part: list[float] = part) -> None:
                    clock.now += sum(part)

                await pace.run(work, len(part))
                call = max(call, clock.now - start - max(part))
                index += len(part)
            between = max(between, clock.now - begin)

    asyncio.run(body())
    return index, between, call


@pytest.mark.parametrize("interval", [600.0, 10.0])
@pytest.mark.parametrize("cost", [1e-6, 1e-4, 0.01, 0.3, 2.0, 60.0])
def test_a_learner_of_any_speed_polls_in_time(cost: float, interval: float) -> None:
    count = 3000 if cost < 0.1 else 60
    learned, between, call = simulate([cost] * count, 1000, interval)
    assert learned == count
    # One event takes as long as it takes; what can be shared out is.
    assert between <= max(interval / 10 if interval < 10 else 1.0, cost) * 1.01
    assert call <= 0.05 * 1.01


def test_one_that_slows_down_in_the_middle_puts_the_rest_back() -> None:
    """A thousand were taken at a microsecond each, then each takes a second: it still polls, learning all."""
    costs = [1e-6] * 5000 + [1.0] * 40 + [1e-6] * 100
    learned, between, _ = simulate(costs, 1000, 600.0)
    assert learned == len(costs)
    assert between < 600.0 / 2
    coin = random.Random(1)
    wild = [coin.choice([1e-6, 1e-3, 0.5, 3.0]) for _ in range(400)]
    learned, between, _ = simulate(wild, 1000, 60.0)
    assert learned == 400
    assert between < 60.0


def test_a_fast_learner_takes_whole_batches() -> None:
    pace = Pace(1000)
    pace.learned(1, 1e-5)
    assert (pace.records, pace.slice) == (1000, 1000)
    pace.learned(1000, 0.1)
    assert (pace.records, pace.slice) == (1000, 500)
    # It believes in speed by halves.
    pace.learned(1, 1.0)
    polls = []
    while pace.records < 1000:
        polls.append(pace.records)
        pace.learned(pace.records, 1e-6 * pace.records)
    assert polls == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


async def test_a_fast_call_stays_on_the_loop_and_a_slow_one_does_not() -> None:
    here = threading.get_ident()
    pace = Pace(1000)
    assert await pace.run(threading.get_ident, 1) != here  # nothing is known of it yet
    pace = Pace(1000)
    pace.learned(1000, 0.01)
    assert await pace.run(threading.get_ident, 1000) == here
    pace.learned(1, 3.0)
    assert await pace.run(threading.get_ident, 1) != here


def test_the_loop_goes_on_while_one_event_takes_long() -> None:
    """The event is done once the loop has turned a hundred times; on the loop itself it would never be."""

    async def body() -> tuple[bool, bool]:
        async def turn(turned: threading.Event) -> None:
            for _ in range(100):
                await asyncio.sleep(0)
            turned.set()

        found = []
        for is_mutant in (False, True):
            pace = Pace(1000)
            turned = threading.Event()
            turning = asyncio.create_task(turn(turned))

            def event(turned: threading.Event = turned, seconds: float = 0.2 if is_mutant else 60.0) -> bool:
                return turned.wait(seconds)

            pace.learned(1, 0.0 if is_mutant else 60.0)  # the mutant is taken for a fast one
            found.append(await pace.run(event, 1))
            await turning
        return found[0], found[1]

    assert asyncio.run(body()) == (True, False)


def test_a_cancelled_call_is_waited_for() -> None:
    """What a thread works on is not closed under it."""

    async def body() -> list[str]:
        order: list[str] = []
        go, begun = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go.wait(60)
            order.append("worked")

        async def caller() -> None:
            try:
                await Pace(10).run(work, 1)
            finally:
                order.append("let go")

        task = asyncio.create_task(caller())
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return order

    assert asyncio.run(body()) == ["worked", "let go"]


def test_what_a_call_raises_is_raised() -> None:
    def work() -> None:
        raise ZeroDivisionError

    for seconds in (1e-6, 10.0):
        pace = Pace(10)
        pace.learned(1, seconds)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(pace.run(work, 1))


def test_commits_leave_time_for_what_waits() -> None:
    """A stream at some share of what the worker can do: how long it is from one commit to the next."""

    def seconds(load: float, commit_seconds: float) -> tuple[float, float]:
        """(share of the time that commits take, longest time from one to the next), in ticks of 1 ms."""
        waiting, done, since, committing, longest = 0.0, 0.0, 0.0, 0.0, 0.0
        spent, ticks = 0.0, 20_000
        for _ in range(ticks):
            waiting += load
            if committing > 0:
                committing -= 0.001
                spent += 0.001
                since = 0.0
                continue
            taken = min(waiting, 1.0)
            waiting, done, since = waiting - taken, done + taken, since + 0.001
            interval = commit_interval(0.1, commit_seconds, behind=int(waiting) > int(done))
            if done > 0 and since >= interval:
                committing, done = commit_seconds, 0.0
                longest = max(longest, since)
        return spent / (ticks * 0.001), longest

    share, longest = seconds(load=0.5, commit_seconds=0.04)
    assert longest == pytest.approx(0.1, abs=0.005)
    share, longest = seconds(load=5.0, commit_seconds=0.04)
    assert share == pytest.approx(0.1, abs=0.01)
    assert longest == pytest.approx(0.36, abs=0.005)
    share, longest = seconds(load=0.2, commit_seconds=0.5)
    assert share <= 0.51


def test_a_commit_is_made_with_the_fetch_next_to_the_moment_at_which_it_is_due() -> None:
    """Fetches come 100 ms apart, some of them late: none waits for the next one to be committed."""
    assert [fetch_buckets(every) for every in (0.001, 0.05, 0.07, 0.08, 0.1, 60.0)] == [1, 1, 1, 2, 2, 2]
    clock = Clock()
    commits = Commits(0.1, 10_000, clock=clock)
    commits.committed(0.02)
    clock.now += 0.08
    first = clock.now
    for late in (0.0, 0.04, 0.0, 0.03, 0.045, 0.0):
        clock.now = first + late
        assert commits.due(10, lambda: 0, complete=True)
        clock.now += 0.02
        commits.committed(0.02)
        first += 0.1
    # A batch soon after is not committed by itself, nor one of which a part is still to be processed.
    clock.now = first - 0.06
    assert not commits.due(10, lambda: 0, complete=True)
    clock.now = first
    assert not commits.due(10, lambda: 0)
    # Without another batch it does not wait for long, and a full one does not wait at all.
    assert commits.wait(10) == pytest.approx(0.05)
    assert commits.due(10_000, lambda: 0)
    clock.now = first + 0.0501
    assert commits.due(10, lambda: 0)
    # With a backlog commits keep to their share of the time.
    assert not commits.due(10, lambda: 20, complete=True)


@pytest.mark.parametrize("pause", [0.0, 3600.0])
@pytest.mark.parametrize("cost", [0.001, 0.02, 2.0])
def test_estimates_keep_to_their_share_of_the_time_at_any_rate_of_commits(cost: float, pause: float) -> None:
    clock = Clock()
    estimates = Estimates(clock)
    clock.now += pause
    spent, begin = 0.0, clock.now
    while clock.now < begin + 200.0:
        for _ in range(64):  # commits, one after the other
            if estimates.afford():
                clock.now += cost
                spent += cost
                estimates.spent(cost)
        clock.now += 0.5
    took = clock.now - begin
    assert 0.01 * took <= spent <= 0.02 * took + 0.25 + cost


def test_pauses_after_fences_double_up_to_a_minute_until_a_commit() -> None:
    clock = Clock()
    pause = FencePause(clock=clock)

    def seconds() -> float:
        pause.fenced()
        begin = clock.now
        while pause.active:
            clock.now += 0.5
        return clock.now - begin

    assert not pause.active
    assert [seconds() for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    pause.committed()
    assert [seconds() for _ in range(2)] == [1.0, 2.0]
