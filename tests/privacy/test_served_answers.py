"""Serving moves no account: what a server answers is computed from releases (docs/privacy, Lemma 4).

Neighbouring streams, with the released values of one in the place of the other's: then model files, scores,
reasons and what a server says of its model must be the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from harness.serving import Serving
from test_post_processing import NAMES, PREFIX, SLOTS, Tape, settings, stream, thread

from streampair import auc, models

LEARNERS: dict[str, Callable[[], Any]] = {
    "PairFTRL": lambda: auc.PairFTRL(**settings(horizon=SLOTS)),
    "PairFTRL, evaluated": lambda: auc.PairFTRL(**settings(horizon=SLOTS, auc_share=0.4)),
    # So much budget that its leaves tell more than noise.
    "PrivateForest": lambda: auc.PrivateForest(**{**settings(trees=3, depth=2), "epsilon": 24.0}),
}
# In the warm-up and after it; a number, a label, a gap, and what is no record.
OTHERS: list[tuple[int, tuple[Any, Any]]] = [
    (PREFIX - 3, (dict.fromkeys(NAMES, 0.9), True)),
    (SLOTS // 2, (dict.fromkeys(NAMES, -0.9), False)),
    (SLOTS // 2 + 1, ({**dict.fromkeys(NAMES, 0.5), "b": None}, True)),
    (SLOTS - 9, ("no record", None)),
]
EVENTS = [{"a": 0.3, "b": -0.2, "c": 0.1}, {"a": 5.0, "b": 0.0, "c": -5.0}]
TIME = 1_700_000_000_000


def served(make: Callable[[], Any], records: list[Any], time: int) -> list[models.Model]:
    """The models that a lane would publish."""
    learner, found = make(), []
    for slot, (x, y) in enumerate(records, start=1):
        learner.learn_one(x, y)
        if slot % 40 == 0:
            found.append(models.export(learner, time=time))
    return found


def answers(model: models.Model) -> list[tuple[int, Any]]:
    """All that clients learn of a model from its server."""
    row = [list(event.values()) for event in EVENTS]
    tensor = {
        "name": "x",
        "datatype": "FP64",
        "shape": [len(row), len(NAMES)],
        "data": [value for values in row for value in values],
    }
    with Serving.of(model) as serving:
        found = [
            serving.post("/score", EVENTS[0]),
            serving.post("/score", EVENTS),
            serving.post("/score?explain=true", EVENTS[0]),
            serving.post("/v2/models/fraud/infer", {"inputs": [tensor]}),
            serving.get("/v2/models/fraud"),
            serving.get("/readyz"),
            serving.get("/openapi.json"),
        ]
    return [(answer.status, answer.json) for answer in found]


def forced(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], place: int, other: Any) -> Any:
    """Models of two neighbouring streams, of which the second releases what the first has released."""
    records = stream(make(), 0)
    tape = Tape()
    thread(monkeypatch, tape)
    one = served(make, records, TIME)
    assert tape.released
    tape.position = 0
    two = served(make, [*records[:place], other, *records[place + 1 :]], TIME + 1)
    assert tape.position == len(tape.released)
    return one, two


@pytest.mark.parametrize(("place", "other"), OTHERS)
@pytest.mark.parametrize("name", LEARNERS)
def test_equal_releases_give_equal_model_files(
    monkeypatch: pytest.MonkeyPatch, name: str, place: int, other: Any
) -> None:
    one, two = forced(monkeypatch, LEARNERS[name], place, other)
    for ours, theirs in zip(one, two, strict=True):
        plain = [msgspec.json.decode(models.dumps(model)) for model in (ours, theirs)]
        assert [document.pop("time") for document in plain] == [TIME, TIME + 1]  # of a record: public
        assert msgspec.json.encode(plain[0]) == msgspec.json.encode(plain[1])
    assert len({tuple(model.score_many(EVENTS)) for model in one}) > 1  # and it has learned


@pytest.mark.parametrize("name", LEARNERS)
def test_equal_releases_give_equal_answers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, other = OTHERS[1]
    one, two = forced(monkeypatch, LEARNERS[name], place, other)
    ours, theirs = answers(one[-1]), answers(two[-1])
    assert (ours[0][1]["model"]["time"], theirs[0][1]["model"]["time"]) == (TIME, TIME + 1)
    assert [status for status, _ in ours[:2]] == [200, 200]
    assert _without_time(ours) == _without_time(theirs)


def test_without_the_tape_the_answers_differ() -> None:
    make = LEARNERS["PairFTRL"]
    place, other = OTHERS[1]
    records = stream(make(), 0)
    one = served(make, records, TIME)[-1]
    two = served(make, [*records[:place], other, *records[place + 1 :]], TIME)[-1]
    assert one.score_one(EVENTS[0]) != two.score_one(EVENTS[0])


def _without_time(value: Any) -> Any:
    """Without the time of the newest record, and the age that follows from it."""
    if isinstance(value, dict):
        return {key: _without_time(each) for key, each in value.items() if key not in ("time", "age_seconds")}
    if isinstance(value, list | tuple):
        return [_without_time(each) for each in value]
    return value
