"""Another release takes over: one worker after the other, after a kill, and with a log of another format."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from harness.verifier import Nursery, Trial

MakeTrial = Callable[..., Trial]

pytestmark = pytest.mark.broker

BEFORE = ("0.0.1", None)
"""A release with the same formats."""

AFTER = ("99.0", 99)
"""A release whose logs have another format."""


def test_workers_are_upgraded_and_downgraded_one_after_the_other(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(partitions=3, instance=None)
    one.feed(60)
    workers = [nursery.start(one.app, release=BEFORE) for _ in range(2)]
    try:
        one.await_done(*workers)
        one.restart_each(nursery, workers, 40)
        one.await_done(*workers)
        one.restart_each(nursery, workers, 40, release=BEFORE)
        one.await_done(*workers)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.end() for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    one.verify("rolling upgrade and downgrade")


def test_a_lane_that_was_killed_is_stopped_by_its_own_release_first(
    trial: MakeTrial, nursery: Nursery
) -> None:
    one = trial()
    one.feed(60)
    with nursery.start(one.app, release=BEFORE, snapshot_seconds=float("inf")) as worker:
        one.await_done(worker)
        worker.kill()
    one.feed(60)
    with nursery.start(one.app) as worker:
        assert worker.end() == 1, worker.log()
        assert "ended without a clean stop under release 0.0.1, and this is" in worker.log()
        assert "start release 0.0.1 once more and stop it with SIGTERM, then upgrade" in worker.log()
    with nursery.start(one.app, release=BEFORE) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.feed(60)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.verify("upgrade after a kill")


def test_a_log_of_another_format_is_refused_and_its_own_release_goes_on(
    trial: MakeTrial, nursery: Nursery
) -> None:
    one = trial()
    one.feed(60)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    before = one.look()
    one.feed(60)
    with nursery.start(one.app, release=AFTER) as worker:
        assert worker.end() == 1, worker.log()
        assert "the log has format 1, this release reads 99" in worker.log()
    assert one.look(before) == before, "it has written nothing"
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.verify("downgrade after a refused start")
