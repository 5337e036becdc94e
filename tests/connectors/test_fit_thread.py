"""Slow models are computed in threads of the worker, one after the other, and a lane replays its log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from harness import lanes
from harness.driver import Driver
from streampair_connectors.worker.lane_manager import FitThread

from streampair import auc


def forest() -> Any:
    return auc.PrivateForest(
        24.0, 1e-3, 90, warmup=30, trees=3, depth=2, features=list("abc"), noise_key=bytes(32)
    )


def test_one_after_the_other() -> None:
    submit, gate, running = FitThread(), threading.Event(), list[int]()

    def compute(number: int) -> int:
        running.append(number)
        gate.wait()
        assert running == [number]
        running.remove(number)
        return number

    futures = [submit(lambda n=n: compute(n)) for n in range(4)]  # type: ignore[misc]
    gate.set()
    assert [future.result() for future in futures] == [0, 1, 2, 3]


def test_an_error_is_that_of_the_result() -> None:
    future = FitThread()(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_a_lane_with_threads_replays_its_log() -> None:
    submit, futures = FitThread(), list[Future[Any]]()

    def begin(compute: Callable[[], Any]) -> Future[Any]:
        futures.append(submit(compute))
        return futures[-1]

    driver = Driver(forest, snapshot_every=1000, submit=begin)
    events = lanes.stream(100, seed=4)
    for start in range(0, 100, 5):
        driver.feed(events[start : start + 5])
        driver.commit()
        if start % 3 == 0:  # the others are done when they are done
            for future in futures:
                future.result()
    assert len(futures) > 3
    weights = driver.lane.learner.run.weights.copy()
    assert weights.any()
    driver.crash()
    assert driver.lane.next_offset == 100
    assert (driver.lane.learner.run.weights == weights).all()
