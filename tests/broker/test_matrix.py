"""Every learner with every buffer, through `streampair run` on a real broker: scores, regret, spend."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from harness.verifier import Nursery, Trial
from harness.worker_process import fetch, wait_for

pytestmark = pytest.mark.verifier

_BUDGET = "epsilon = 2.0, delta = 1e-4, horizon = 300"
_BUFFERS = {
    "FullHistory": '{ class = "streampair.buffers.FullHistory" }',
    "FIFO(1)": '{ class = "streampair.buffers.FIFO", size = 1 }',
    "Reservoir": '{ class = "streampair.buffers.Reservoir", size = 32 }',
}
MATRIX = {
    f"{name} {buffer}": (
        f'class = "streampair.auc.{name}"\noptions = {{ {_BUDGET}, buffer = {made} }}\n'
        'noise_key_file = "noise.key"'
    )
    for name in ("OnPairStrC", "OnPairC")
    for buffer, made in _BUFFERS.items()
}
MATRIX["PairOGD FIFO(1)"] = (
    f'class = "streampair.auc.PairOGD"\noptions = {{ seed = 1, buffer = {_BUFFERS["FIFO(1)"]} }}'
)


@pytest.mark.parametrize("kind", MATRIX)
def test_every_learner_and_buffer_on_a_broker(
    trial: Callable[..., Trial], nursery: Nursery, kind: str
) -> None:
    """Scores are complete; regret and what was spent are on the page of metrics."""
    private = kind.startswith("OnPair")
    one = trial(learner=MATRIX[kind], partitions=1)
    one.feed(200)
    with nursery.start(one.app) as worker:
        url = str(worker.await_log("started")["metrics"])
        one.await_done(worker)
        text = wait_for(
            "the numbers of all events",
            lambda: (page := fetch(url)) and series(page, "lag") == [0.0] and page,
            explain=worker.log,
        )
        assert worker.stop() == 0, worker.log()
    found = one.evidence()
    assert found.offsets[0][0] == 200
    assert len(found.scores) == 200
    assert found.duplicates == 0
    assert series(text, "regret_total")
    assert series(text, "regret_average")
    spent = series(text, "privacy_epsilon_spent")
    assert bool(spent) == private
    if private:
        assert 0 < spent[0] <= 2.0 + 1e-9
        assert series(text, "privacy_epsilon_budget") == [2.0]
        assert series(text, "privacy_forks") == [0.0]
    else:
        assert "streampair_privacy_" not in text
    one.verify(f"none: {kind}")


def series(page: str, name: str) -> list[float]:
    """Values of a series on a page of metrics."""
    return [float(v) for v in re.findall(rf"^streampair_{name}\{{[^}}]*\}} (\S+)$", page, re.M)]
