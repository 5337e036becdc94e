"""A process that forks: two learners go on from one budget, and both say so (docs/privacy 7.1)."""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest
from harness.learners import NAMES, PRIVATE, stream, taught, through_pickle, through_state

from streampair import auc
from streampair.base import dp_session

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(tell: Callable[[], str]) -> str:
    """What a child of this process, by `os.fork`, has to say."""
    here, there = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(there, tell().encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0) == (pid, 0)
    return text


def ever_after(model: Any) -> set[str]:
    """What is said of a learner, and of all that comes from it, whatever a lane vouches for."""
    ways = [lambda m: m, copy.deepcopy, copy.copy, through_pickle, through_state]
    ways.append(lambda m: m.clone(include_attributes=True))
    kinds = set()
    for way in ways:
        other = way(way(model))
        other.mark_restarted(clean=True)
        other.charge(0, vouched=True)
        for x, y in stream(other, 3):
            other.learn_one(x, y)
        kinds.add(
            other.privacy.kind + (" (the process forked)" if "process forked" in str(other.privacy) else "")
        )
    return kinds


FORKED = {"unvouched (the process forked)"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("auc-moments", bytes(range(32))),
        ("auc-warm-up", None),
        ("auc-toeplitz", None),
        ("auc-strongly", None),
        ("metric-endless", bytes(range(32))),
    ],
)
def test_both_sides_of_a_fork_say_so_for_good(name: str, key: bytes | None) -> None:
    model = taught(PRIVATE[name](noise_key=key), 12)
    model.to_state()
    assert model.privacy.kind == "holds"
    assert in_child(lambda: " | ".join(ever_after(model))) == " | ".join(FORKED)
    assert ever_after(model) == FORKED
    # A new learner has no past, and its parent keeps its own.
    assert model.clone().privacy.kind == "holds"
    assert taught(model.clone(), 3).privacy.kind == "holds"
    assert model.privacy.kind == "unvouched"


def test_what_has_taken_no_record_is_two_new_learners() -> None:
    """The first record counts, not the first release: sums of a warm-up would be released twice."""
    fresh = auc.PairFTRL(delta=1e-3, features=NAMES, warmup=50)
    waiting = auc.PairFTRL(delta=1e-3)
    waiting.learn_null()
    first = taught(fresh.clone(), 1)
    assert in_child(lambda: taught(fresh, 5).privacy.kind + taught(waiting, 5).privacy.kind) == "holds" * 2
    assert taught(fresh, 5).privacy.kind == taught(waiting, 5).privacy.kind == "holds"
    assert first.privacy.releases == 0
    assert first.privacy.kind == "unvouched"
    # A restored learner has released, though it has taken nothing yet since.
    last = through_state(fresh)
    last.mark_restarted(clean=True)
    assert last.privacy.kind == "holds"
    assert in_child(lambda: last.privacy.kind) == "unvouched"
    assert last.privacy.kind == "unvouched"


def test_a_fork_by_multiprocessing_is_one() -> None:
    model = taught(auc.PairFTRL(delta=1e-3, warmup=5), 3)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(model.privacy.kind))
    child.start()
    assert queue.get() == "unvouched"
    child.join()
    assert model.privacy.kind == "unvouched"


def test_a_learner_that_does_not_look_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: nobody counts forks; the parent's side is forgotten."""
    with monkeypatch.context() as patch:
        patch.setattr(dp_session, "process_splits", lambda: 0)
        model = taught(auc.PairFTRL(delta=1e-3, warmup=5), 3)
        assert in_child(lambda: " | ".join(ever_after(model))) == "holds"
        assert ever_after(model) == {"holds"}
    with monkeypatch.context() as patch:
        patch.setattr(dp_session, "process_splits", os.getpid)
        model = taught(auc.PairFTRL(delta=1e-3, warmup=5), 3)
        assert in_child(lambda: " | ".join(ever_after(model))) == " | ".join(FORKED)
        assert ever_after(model) == {"holds"}
