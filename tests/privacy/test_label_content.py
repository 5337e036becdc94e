"""Labels that come later are content of their event: they move no slot, no order, no time, no other event.

docs/privacy 8, and the table of hazards.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from harness.due_lanes import AFTER, BEGIN, LATENESS, Event, Message, Trace, label, run
from harness.support import at_row

from streampair import auc, buffers, privacy
from streampair.engine.labels import LabelTable
from streampair.engine.records import LABEL_STOPPED
from streampair.kernels import label_table
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms import ftrl
from streampair.privacy.noise import ToeplitzNoise

KEY = b"a key for tests only, 32 bytes.."
COUNT, PLACE = 60, 23


def events() -> list[Event]:
    coin = random.Random(3)
    return [
        Event(b"e%d" % n, BEGIN + 300 * n + coin.randrange(200), n % 2, {"a": round(coin.gauss(0, 1), 3)})
        for n in range(COUNT)
    ]


STREAM = events()
VICTIM = STREAM[PLACE]
OTHERS = [
    label(each, n % 3 == 0, random.Random(n).randrange(-LATENESS, AFTER), partition=n % 2)
    for n, each in enumerate(STREAM)
    if n % 4 and each is not VICTIM
]
NOTHING: list[Message] = []
TRUE = [label(VICTIM, True, 4_000)]

HOSTILE: dict[str, Callable[[], list[Message]]] = {
    "another value": lambda: [label(VICTIM, False, 4_000)],
    "does not come": lambda: NOTHING,
    "says that the event was stopped": lambda: [label(VICTIM, "declined", 4_000)],
    "comes late": lambda: [label(VICTIM, True, AFTER + 1)],
    "comes before its event": lambda: [label(VICTIM, True, -LATENESS - 1, arrives=VICTIM.time)],
    "stamped in time, comes when its event was learned": lambda: [
        label(VICTIM, True, 4_000, arrives=VICTIM.time + 3 * AFTER)
    ],
    "comes twice": lambda: [*TRUE, label(VICTIM, True, 5_000, partition=1)],
    "comes twice, and differs": lambda: [label(VICTIM, False, 6_000, partition=1), *TRUE],
    "comes for ids that no event has": lambda: [
        Message(b"nobody %d" % n, VICTIM.time + n, b'{"y": true}', n % 2, VICTIM.time) for n in range(3000)
    ],
    "comes 100,000 times": lambda: [
        label(VICTIM, n % 2 == 0, n % (2 * AFTER), partition=n % 2) for n in range(100_000)
    ],
    "cannot be read": lambda: [
        Message(key, VICTIM.time + n, value, n % 2, VICTIM.time + n)
        for n in range(500)
        for key, value in [
            (VICTIM.id, None),
            (VICTIM.id, b"oops"),
            (None, b'{"y": true}'),
            (VICTIM.id, b'{"y": "x"}'),
            (VICTIM.id, b"[" * 5000),
        ]
    ],
    "has any time": lambda: [
        Message(VICTIM.id, time, b'{"y": true}', 1, VICTIM.time) for time in (-1, 0, 2**62, BEGIN - 10**9)
    ],
}


def learner() -> auc.PairFTRL:
    return auc.PairFTRL(
        *(1.0, 1e-4),
        horizon=400,
        warmup=0,
        window=8,
        features=["a"],
        noise_key=KEY,
        mechanism=privacy.PairGradients(buffer=buffers.FIFO(4)),
    )


def traced(messages: list[Message], directory: Path | None = None) -> Trace:
    return run(learner(), STREAM, [*OTHERS, *messages], directory=directory)


@pytest.fixture(scope="module")
def usual() -> Trace:
    return traced(TRUE)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    """What a lane does with each hostile label, played once."""
    return functools.cache(lambda name: traced(HOSTILE[name](), tmp_path_factory.mktemp("labels")))


def test_a_label_changes_the_slot_of_its_event_alone(usual: Trace, traces: Callable[[str], Trace]) -> None:
    for name in HOSTILE:
        with at_row(name):
            check_one_slot(traces(name), usual)


def check_one_slot(hostile: Trace, usual: Trace) -> None:
    place = next(n for n, (_, p, q) in enumerate(usual.order) if (p, q) == (PLACE % 2, PLACE // 2))
    # The order, and the ticks at which events are taken and released.
    assert hostile.order == usual.order
    assert hostile.slots == usual.slots
    assert hostile.shape == usual.shape
    assert hostile.slots[-1] == COUNT
    assert usual.codes[place] == 2
    assert [*hostile.codes[:place], *hostile.codes[place + 1 :]] == [
        *usual.codes[:place],
        *usual.codes[place + 1 :],
    ]
    np.testing.assert_array_equal(hostile.sums[:place], usual.sums[:place])


def test_each_hostile_label_does_what_it_is_meant_to(usual: Trace, traces: Callable[[str], Trace]) -> None:
    """Else the test above would show nothing."""
    place = next(n for n, (_, p, q) in enumerate(usual.order) if (p, q) == (PLACE % 2, PLACE // 2))
    found = {name: traces(name).codes[place] for name in HOSTILE}
    twice = {"comes twice", "comes twice, and differs", "comes 100,000 times"}
    codes = {"another value": 1, "says that the event was stopped": LABEL_STOPPED, **dict.fromkeys(twice, 2)}
    assert found == {name: codes.get(name, 0) for name in HOSTILE}


# ---- an audit --------------------------------------------------------------------------------------------

MU, DELTA = 3.0, 1e-3
STEPS, SIZE, SPOT = 40, 4, 17
REJECT = 3.719  # one-sided, p = 1e-4
#: Records at 0 of the other label around the canary: it makes a pair with each, and nothing else does.
AROUND = [Event(b"e%d" % n, BEGIN + 500 * n, 0, {"a": 0.0}) for n in range(STEPS)]
CANARY = AROUND[SPOT]
LABELS = [label(each, False, 1_000) for each in AROUND if each is not CANARY]
OWN_LABEL = {
    "true": [label(CANARY, True, 3_000)],
    "false": [label(CANARY, False, 3_000)],
    "late": [label(CANARY, True, AFTER + 1)],
    "none": NOTHING,
    "stopped": [label(CANARY, "declined", 3_000)],
    "twice": [label(CANARY, True, 3_000), label(CANARY, False, 4_000)],
    "in time and late": [label(CANARY, True, 3_000), label(CANARY, True, AFTER + 1)],
}
IN_TIME = ("true", "false", "none", "stopped", "twice")


def canary_learner(key: bytes) -> auc.PairFTRL:
    return auc.PairFTRL(
        *(promised_epsilon(MU, DELTA), DELTA),
        horizon=STEPS,
        warmup=0,
        radius=1e-3,  # no pair is ever satisfied, so each keeps its full gradient
        features=["a"],
        noise_key=key,
        mechanism=privacy.PairGradients(buffer=buffers.FIFO(SIZE)),
    )


def released(
    key: bytes, x: float, label: str, *, absent: object = None, unlabelled: int = 0, shared: bool = False
) -> np.ndarray:
    """Noisy sum of the gradients after each slot.

    `unlabelled` events after the canary are at -1, and have no label of their own; `shared`: with its id.
    """
    stream = list(AROUND)
    stream[SPOT] = CANARY._replace(x={"a": x})
    bare = range(SPOT + 1, SPOT + 1 + unlabelled)
    for n in bare:
        stream[n] = stream[n]._replace(id=CANARY.id if shared else stream[n].id, x={"a": -1.0})
    labels = [each for each in LABELS if each.id not in {AROUND[n].id for n in bare}]
    trace = run(canary_learner(key), stream, [*labels, *OWN_LABEL[label]], absent=absent)
    return np.array(trace.sums)[:, 0]


class Audit:
    """How far apart two neighbouring streams are in what a lane releases: the canary's content differs.

    Parameters
    ----------
    labels
        Labels that the canary may have.
    options
        As of `released`.

    Attributes
    ----------
    exact
        The largest distance of two contents, in standard deviations of the noise (mu).
    """

    def __init__(self, labels: Sequence[str] = tuple(OWN_LABEL), **options: Any) -> None:
        self._options = options
        model = canary_learner(KEY)
        model.learn_one({"a": 0.0}, True)
        assert model.run is not None
        plan = model.run.state.plan
        # Times C, what is released has independent noise of plan.sigma in each number.
        self._white = functools.partial(_whitened, naive.dense(plan.strategy.column) / plan.sigma)
        with pytest.MonkeyPatch.context() as silent:
            silent.setattr(ftrl, "ToeplitzNoise", lambda column, dim, sigma: ToeplitzNoise(column, dim, 0.0))
            white = {
                (x, label): self._white(released(KEY, x, label, **options))
                for x in (1.0, -1.0)
                for label in labels
            }
        self.exact, self._sides = max(
            (float(np.linalg.norm(white[one] - white[other])), (one, other))
            for one, other in itertools.combinations(white, 2)
        )
        self._direction = white[self._sides[0]] - white[self._sides[1]]

    def measured(self, runs: int) -> tuple[float, float]:
        """The distance in runs with noise, and its standard error."""
        found = np.array(
            [
                [
                    self._white(released(b"key %26d %d" % (number, side), x, label, **self._options))
                    @ self._direction
                    for number in range(runs)
                ]
                for side, (x, label) in enumerate(self._sides)
            ]
        )
        mu = abs(float(found[0].mean() - found[1].mean())) / math.sqrt(
            float(found.var(axis=1, ddof=1).mean())
        )
        return mu, math.sqrt(2.0 / runs + mu**2 / (4.0 * runs))


def _whitened(c: np.ndarray, sums: np.ndarray) -> np.ndarray:
    return np.asarray(c @ np.diff(sums, prepend=0.0))


@pytest.mark.parametrize("runs", [60, pytest.param(600, marks=pytest.mark.verifier)])
def test_an_audit_by_labels_stays_below_the_claim(runs: int) -> None:
    """The label of the canary is another, comes late, comes twice or does not come; so do its features."""
    for absent in (None, False):
        with at_row(absent):
            audit = Audit(absent=absent)
            assert 0.9 * MU < audit.exact <= MU
            mu, error = audit.measured(runs)
            assert abs(mu - audit.exact) < 4.5 * error
            assert promised_epsilon(mu - REJECT * error, DELTA) < promised_epsilon(MU, DELTA)
    for options in ({"unlabelled": 2}, {"unlabelled": 2, "absent": False}):
        assert Audit(**options).exact <= MU


def test_a_label_of_an_id_that_several_events_have_is_used_once() -> None:
    assert Audit(IN_TIME, unlabelled=3, shared=True).exact <= MU


def used_twice(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A label stays unused."""
    take = LabelTable._take

    def forgets(table: LabelTable, *events: Any) -> Any:
        taken = take(table, *events)
        for segment in table._segments:
            segment.used[:], segment.following[:], segment.index[:] = 0, 0, 0
            label_table.label_index(
                *(segment.digests, segment.used, segment.following, segment.index), 0, segment.count
            )
        return taken

    patch.setattr(LabelTable, "_take", forgets)
    return {"labels": IN_TIME, "unlabelled": 3, "shared": True}


def carried_forward(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An event without a label has that of the event before."""
    join, last = LabelTable.join, [0]

    def carries(table: LabelTable, *events: Any) -> Any:
        joined = join(table, *events)
        for n, code in enumerate(joined.codes):
            last[0] = joined.codes[n] = code or last[0]
        return joined

    patch.setattr(LabelTable, "join", carries)
    return {"unlabelled": 3}


def test_the_audit_by_labels_catches_mutants() -> None:
    """By the distance of what is released without noise, which needs no runs."""
    for mutant in (used_twice, carried_forward):
        with at_row(mutant), pytest.MonkeyPatch.context() as patch:
            assert Audit(**mutant(patch)).exact > 1.05 * MU


def test_a_label_of_an_id_that_two_events_have_is_content_of_both() -> None:
    """Which of them it is for depends on its time. So the report says that an id must name one event."""
    assert Audit(unlabelled=1, shared=True).exact > 1.1 * MU
