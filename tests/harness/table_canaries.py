"""Canaries for learners of whole tables: the worst neighbours that are known, and what they show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from streampair import losses, offline
from streampair.privacy.mechanisms.base import NoisySums
from streampair.privacy.mechanisms.offline import VectorGate, plan_table
from streampair.privacy.noise import NormalStream

EMIT = VectorGate.privatize
#: What a canary has to show of each claim.
LEAST = 0.7


class Secrets:
    """What goes to the gate, in order. It leaves without noise; while `tape` lasts, that leaves instead."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.tape: list[Any] = []
        self.plan: Any = None

    def privatize(self, gate: Any, vector: Any) -> Any:
        self.plan = gate.plan
        self.seen.append(vector.copy())
        return self.tape.pop(0) if self.tape else vector.copy()

    def pop(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


@contextlib.contextmanager
def bare_gate() -> Iterator[Secrets]:
    """What goes to the gate, while it lasts."""
    secrets = Secrets()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorGate, "privatize", lambda gate, vector: secrets.privatize(gate, vector))
        yield secrets


def worst_tables(n: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Neighbours that move a gradient as far as records can: the last record is replaced."""
    rows, labels = np.tile([-1.0, 0.0], (n, 1)), np.zeros(n, dtype=int)
    labels[0] = 1  # a pair of two classes in both, so that both can be learned
    rows[0] = 0.0
    far, flipped = rows.copy(), labels.copy()
    far[-1], flipped[-1] = [1.0, 0.0], 1
    yield rows, labels, far, flipped  # content and label
    yield rows, labels, rows, flipped  # a label alone
    other = rows.copy()
    other[-1] = [0.0, 1.0]
    yield rows, labels, other, labels  # content alone
    yield far, labels, far, flipped  # the label of a record that is far from all others


def claims(model: Any) -> list[float]:
    """The move that is claimed of each vector that has left."""
    return [line["sensitivity"] for line in model.privacy.card for _ in range(line["releases"])]


def moved(make: Callable[[], Any], secrets: Secrets, n: int) -> float:
    """The farthest that a release moves over the neighbours, as a part of its claim: after equal releases."""
    most = 0.0
    for X, y, X2, y2 in worst_tables(n):
        claimed = claims(make().fit(X, y))
        one = secrets.pop()
        secrets.tape = list(one)
        assert claims(make().fit(X2, y2)) == claimed
        moves = [float(np.linalg.norm(a - b)) for a, b in zip(one, secrets.pop(), strict=True)]
        most = max(most, *(move / claim for move, claim in zip(moves, claimed, strict=True)))
    return most


def placed(make: Callable[[], Any], secrets: Secrets, n: int) -> float:
    """`moved` by the first of the worst neighbours, wherever the record is: coins order the records."""
    X, y, X2, y2 = next(worst_tables(n))
    most = 0.0
    for place in range(1, n):
        order = np.arange(n)
        order[[place, -1]] = order[[-1, place]]
        claimed = claims(make().fit(X[order], y[order]))
        one = secrets.pop()
        secrets.tape = list(one)
        make().fit(X2[order], y2[order])
        parts = zip(one, secrets.pop(), claimed, strict=True)
        most = max(most, *(float(np.linalg.norm(a - b)) / claim for a, b, claim in parts))
    return most


def drawn() -> float:
    """The size of the noise that leaves, as a part of what the plan says, by a unit in place of a normal."""
    plan = plan_table(1.0, 1e-6, dim=2, sensitivity=0.1, name="a vector", lemma="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorGate, "privatize", EMIT)
        patch.setattr(NormalStream, "take", lambda stream, count: np.stack((np.ones(count), np.zeros(count))))
        return float(VectorGate(plan, None).privatize(np.zeros(2))[0]) / plan.sigma


AUDITED: dict[str, Callable[[], Any]] = {
    # In a ball this small the slope at 0 is nearly the steepest.
    "DPGDSC": lambda: offline.DPGDSC(12.0, 1e-4, l2=20.0, steps=10, radius=0.05),
    "DPGDC": lambda: offline.DPGDC(12.0, 1e-4, steps=4, learning_rate=0.05, radius=0.05),
    "OffPairStrC": lambda: offline.OffPairStrC(12.0, 1e-4, l2=20.0, radius=0.05, random_state=1),
    "DPEGD": lambda: offline.DPEGD(12.0, 1e-4, learning_rate=0.002, steps=4, radius=0.05, random_state=1),
    "LocalizedPairSGD": lambda: offline.LocalizedPairSGD(
        12.0, 1e-4, learning_rate=0.002, radius=0.05, random_state=149
    ),
    "DPGDC2": lambda: offline.DPGDC2(12.0, 1e-4, steps=4, loss=losses.Hinge()),
    "GradientPerturbation": lambda: offline.GradientPerturbation(12.0, 1e-4, steps=4, loss=losses.Hinge()),
}


CANARIES: dict[str, Callable[[], Any]] = {
    **AUDITED,
    "OffPairStrC, last": lambda: offline.OffPairStrC(
        12.0, 1e-4, l2=20.0, radius=0.05, random_state=1, output="last"
    ),
    "OffPairC": lambda: offline.OffPairC(12.0, 1e-4, l2=20.0, radius=0.05, random_state=1),
    "DPGDSC, pure": lambda: offline.DPGDSC(12.0, 0.0, l2=20.0, steps=10, radius=0.05),
    "DPGDC2, metric, logistic": lambda: offline.DPGDC2(12.0, 1e-4, steps=4, task="metric", radius=0.05),
    "DPGDC2, metric": lambda: offline.DPGDC2(
        12.0, 1e-4, steps=4, loss=losses.Hinge(), task="metric", radius=0.05
    ),
}


def _most(name: str) -> float:
    """The farthest that a release moves, as a part of its claim."""
    with bare_gate() as secrets:
        if name.startswith(("OffPair", "Localized")):
            return placed(CANARIES[name], secrets, 60)
        return moved(CANARIES[name], secrets, 200)


def canary(name: str) -> float:
    """What the worst neighbours show of the claim, exactly: the move over the noise that leaves."""
    return _most(name) / drawn()


def broken(name: str) -> dict[str, float]:
    """The same of two mutants: above 1 one is caught."""
    found, privatize, right = _most(name), NoisySums.privatize, offline.base.PairwiseProblem.diameter.fget
    assert right is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisySums, "privatize", lambda sums, noise: privatize(sums, 0.69 * noise))
        quiet = found / drawn()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            offline.base.PairwiseProblem, "diameter", property(lambda problem: 0.69 * right(problem))
        )
        narrow = _most(name) / drawn()
    return {"too little noise": quiet, "too small a diameter": narrow}
