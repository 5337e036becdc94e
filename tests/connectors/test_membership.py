"""Static members: counting takeovers, and what a member says when it joins. The rest is in tests/broker."""

from __future__ import annotations

import random

from aiokafka import errors as kafka_errors
from streampair_connectors.kafka.membership import Assignor, StaticMemberConflicts, is_fenced


def naive(times: list[float], limit: int, seconds: float) -> int | None:
    """The first takeover that is one too many: that many within a window that ends with it."""
    for last, now in enumerate(times):
        if sum(now - seconds <= earlier <= now for earlier in times[: last + 1]) >= limit:
            return last
    return None


def first_error(takeovers: StaticMemberConflicts, times: list[float]) -> int | None:
    return next((number for number, time in enumerate(times) if takeovers.record(time) is not None), None)


def test_three_within_a_minute_are_too_many() -> None:
    coin = random.Random(3)
    caught = {"two are enough": 0, "never forgets": 0, "counts nothing": 0}
    for _ in range(300):
        times, now = [], 1000.0
        for _ in range(6):
            now += coin.choice([1.0, 20.0, 29.0, 31.0, 61.0])
            times.append(now)
        expected = naive(times, 3, 60.0)
        assert first_error(StaticMemberConflicts("a"), times) == expected
        mutants = {
            "two are enough": StaticMemberConflicts("a", limit=2),
            "never forgets": StaticMemberConflicts("a", seconds=1e9),
            "counts nothing": StaticMemberConflicts("a", limit=10**6),
        }
        for name, mutant in mutants.items():
            caught[name] += first_error(mutant, times) != expected
    assert min(caught.values()) > 50, caught


def test_the_error_names_both_the_cause_and_the_fix() -> None:
    takeovers = StaticMemberConflicts("worker-0")
    assert [takeovers.record(time) for time in (5.0, 6.0)] == [None, None]
    error = takeovers.record(7.0)
    assert error is not None
    assert not error.retriable
    assert "'worker-0'" in error.problem
    assert "STREAMPAIR_KAFKA__GROUP_INSTANCE_ID" in str(error.fix)


def test_the_client_has_a_name_for_the_error_of_a_taken_id() -> None:
    """The client looks a code up in its table, and wraps what it finds into text."""
    found = kafka_errors.for_code(82)()
    assert is_fenced(found)
    assert is_fenced(kafka_errors.KafkaError(repr(found)))
    assert not is_fenced(kafka_errors.KafkaError(repr(kafka_errors.UnknownError())))


def test_a_member_that_asks_says_something_new_each_time() -> None:
    one, other = Assignor(), Assignor()
    said = [one.metadata(["t"]).encode()]
    for _ in range(3):
        one.request_assignment()
        said.append(one.metadata(["t"]).encode())
    assert len(set(said)) == 4
    assert one.metadata(["t"]).encode() == said[-1]
    assert other.metadata(["t"]).encode() == said[0]  # nothing is shared
