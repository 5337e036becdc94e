"""The fitted numbers of a plan go with a learner: nothing is fitted again on another machine."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from harness.learners import NAMES, PRIVATE, stream

from streampair import auc, losses, metric, privacy
from streampair.base import validation
from streampair.errors import SnapshotError
from streampair.privacy import EntityLimit
from streampair.privacy.mechanisms import ftrl, output_perturbation, second_moments, standardization
from streampair.privacy.sensitivity import BLT

KEY = bytes(range(32))
MAKES = {
    **PRIVATE,
    # So that classes stand out of the noise: else there is no metric, and nothing to tell runs apart by.
    "metric-moments": partial(
        metric.PairFTRL,
        24.0,
        1e-3,
        60,
        warmup=10,
        mechanism=privacy.SecondMoments(),
        classes=["a", "b", "c"],
    ),
    "auc-warm-moments": partial(auc.PairFTRL, 1.0, 1e-3, 200, mechanism=privacy.SecondMoments()),
    "auc-warm-blt": partial(
        auc.PairFTRL, 1.0, 1e-3, 60, warmup=10, mechanism=privacy.PairGradients(strategy="blt")
    ),
    "auc-entities": partial(
        auc.PairFTRL, 1.0, 1e-3, 60, entity=EntityLimit(3, 2, field="who"), features=NAMES, warmup=10
    ),
    "auc-entities-moments": partial(
        auc.PairFTRL,
        1.0,
        1e-3,
        60,
        entity=EntityLimit(3, 2, field="who"),
        features=NAMES,
        warmup=10,
        mechanism=privacy.SecondMoments(),
        forks=1,
        window=8,
    ),
    "auc-strongly-entities": partial(
        auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, entity=EntityLimit(3, 2, field="who"), features=NAMES
    ),
    "auc-forks": partial(auc.PairFTRL, 1.0, 1e-3, warmup=10, forks=2, window=8),
    "auc-strongly-forks": partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, forks=1, window=8, warmup=10),
}
# The first 64 outputs of the paper, with this ridge term, depend on no record and on nothing fitted.
RANDOM = "auc-paper"
every_learner = pytest.mark.parametrize("name", MAKES)
Observed = tuple[list[bytes], list[bytes]]


def elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Fit as a machine would whose libraries round otherwise, or stop the search for a fit elsewhere."""

    def off(target: Any, name: str, by: float) -> None:
        true = getattr(target, name)
        patch.setattr(target, name, lambda *args, **options: true(*args, **options) * (1.0 + by))

    off(validation, "planned_mu", 3e-15)
    off(ftrl, "pattern_sensitivity", 1e-14)
    off(second_moments, "pattern_sensitivity", 1e-14)
    off(second_moments, "placed", 1e-14)
    off(output_perturbation, "entity_spend", 1e-13)
    off(standardization, "moment_sensitivity", -1e-14)
    off(output_perturbation, "output_spend", 1e-13)
    off(output_perturbation, "rho_from", 1e-13)
    off(losses.Logistic, "smoothness", 1e-14)
    off(losses.Hinge, "diameter", 2e-15)
    true = ftrl.fit_blt

    def fit(pattern: Any, horizon: int | None) -> BLT:
        fitted = true(pattern, horizon)
        return BLT(fitted.omega * (1.0 + 1e-4), fitted.decay * (1.0 - 1e-4), horizon)

    patch.setattr(ftrl, "fit_blt", fit)


def run(model: Any, events: list[Any]) -> Observed:
    """The digest of every slot, and what was released."""
    digests: list[bytes] = []
    model.bind_noise("lane", digests)
    weights = []
    for x, y in events:
        model.learn_one(x, y)
        weights.append(model.weights_vector.tobytes())
    return digests, weights


def events_of(model: Any) -> list[Any]:
    return [({**x, "who": i % 7}, y) for i, (x, y) in enumerate(stream(model, 60))]


def restored(model: Any, saved: Any) -> Any:
    other = model.clone()
    other.bind_noise("lane")
    other.load_state(saved)
    return other


@every_learner
@pytest.mark.parametrize("slot", [5, 30])
def test_what_is_restored_elsewhere_runs_under_the_same_numbers(
    name: str, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = MAKES[name](noise_key=KEY)
    events = events_of(here)
    run(here, events[:slot])
    saved, plan = copy.deepcopy(here.to_state()), here.plan()
    rest = tuple(part[slot:] for part in run(here.clone(), events))
    pickled = pickle.dumps(restored(here, saved))

    def unpickled() -> Any:
        other = pickle.loads(pickled)
        other.bind_noise("lane", key=KEY)  # no pickle holds it
        return other

    ways: list[Callable[[], Any]] = [lambda: restored(here, saved), unpickled]
    with monkeypatch.context() as patch:
        elsewhere(patch)
        for way in ways:
            there = way()
            assert there.plan() == plan
            assert run(there, events[slot:]) == rest
            assert there.plan() == plan
        fresh = here.clone()
        run(fresh, events[:1])
        assert fresh.plan() != plan  # it is elsewhere


@every_learner
def test_a_new_learner_that_is_given_the_plan_elsewhere_does_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = MAKES[name](noise_key=KEY)
    assert (here.plan() is None) == (here.features is None)
    events = events_of(here)
    expected = run(here, events)
    plan = here.plan()
    text = json.dumps(plan, allow_nan=False)
    assert json.loads(text) == plan  # plain values, which a text keeps bit for bit
    with monkeypatch.context() as patch:
        elsewhere(patch)
        there = here.clone()
        there.load_plan(json.loads(text))
        assert there.plan() == plan
        assert there.slots == 0
        assert run(there, events) == expected
        assert there.privacy.mu_budget == here.privacy.mu_budget
        assert run(here.clone(), events) != expected or name == RANDOM  # the mutant that fits anew


@every_learner
def test_a_plan_of_something_else_is_refused_and_changes_nothing(name: str) -> None:
    here = MAKES[name](noise_key=KEY, features=NAMES)
    plan = here.plan()
    new = here.clone()

    def changed(path: tuple[Any, ...], value: Any) -> Any:
        other = copy.deepcopy(plan)
        inner = other
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return other

    wrong = [None, {}, [], "plan", changed(("version",), 2), changed(("params", "epsilon"), "2.0")]
    wrong += [changed(("names",), value) for value in (None, NAMES[:-1], [*NAMES, "other"], NAMES * 2, 3)]
    wrong += [changed(("plan",), value) for value in (None, {}, {**plan["plan"], "more": 1.0})]
    for part in (("plan",), ("plan", "mechanism"), ("plan", "standardization")):
        section = plan
        for key in part:
            section = section[key]
        for key, value in (section or {}).items():
            off = [value * 1.001, value * 0.5, math.nan, math.inf, -value] if type(value) is float else []
            off += [value + 1, -1, 1.5] if type(value) is int else []
            for bad in (*off, None, "much", {"kind": "x"}):
                if bad != value:
                    wrong.append(changed((*part, key), bad))
    for plan_given in wrong:
        with pytest.raises(SnapshotError, match="Fix: "):
            new.load_plan(plan_given)
        assert new.plan() == plan
    new.load_plan(plan)
    with pytest.raises(SnapshotError, match="damaged"):  # and so is one that follows a plan
        new.load_state({**here.to_state(), "plan": changed(("plan", "mu"), plan["plan"]["mu"] * 2)["plan"]})
    assert new.plan() == plan
    new.learn_null()
    with pytest.raises(SnapshotError, match=r"taken records already.*newly made"):
        new.load_plan(plan)


def test_slots_that_wait_for_a_first_record_wait_under_a_plan_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may be older than the record that named the features, and the plan younger."""
    here = auc.PairFTRL(1.0, 1e-3, 60, noise_key=KEY)
    events = [({}, None), ({}, None), *stream(here, 20)]
    run(here, events[:2])
    waiting = here.to_state()
    for x, y in events[2:]:
        here.learn_one(x, y)
    digests, weights = run(here.clone(), events)
    elsewhere(monkeypatch)
    there = here.clone()
    there.bind_noise("lane")
    there.load_plan(here.plan())
    there.load_state(waiting)
    assert (there.slots, there.slots_waiting, there.plan()) == (2, 2, None)
    # The slots that waited are released with the first record.
    assert run(there, events[2:]) == (digests, weights[2:])
    assert there.plan() == here.plan()


def test_settings_are_made_once_whatever_is_loaded() -> None:
    selected: list[Any] = []

    class Counting(auc.PairFTRL):
        def _select(self, names: Any) -> Any:
            selected.append(names)
            return validation.select_ftrl(self, names)

    make = partial(Counting, 1.0, 1e-3, 60, features=NAMES, warmup=10, noise_key=KEY)
    here = make()
    plan = here.plan()
    run(here, events_of(here)[:20])
    selected.clear()
    there = make()
    there.load_plan(plan)
    there.load_state(here.to_state())
    assert (there.slots, there.plan(), selected) == (20, plan, [tuple(NAMES)])


def test_blocks_end_where_exact_arithmetic_says() -> None:
    for base in (10.0, 200.0, 1e5):
        plan = second_moments.plan_second_moments(0.5, features=3, base=base, radius=30.0)
        for block in (1, 2, 10, 50, 200):
            growth = second_moments._growth(block)
            assert growth == pytest.approx(1.1**block, rel=1e-15 * block)
            assert plan.end(block) == math.ceil(base * (growth - 1.0)) + block
    assert np.all(np.diff([second_moments._growth(block) for block in range(300)]) > 0)


@pytest.mark.parametrize("name", ["sigma", "sigma_last"])
def test_a_plan_with_less_noise_than_its_forks_need_is_refused(name: str) -> None:
    make = partial(
        auc.PairFTRL, 1.0, 1e-3, 200, features=NAMES, warmup=20, forks=2, window=8, noise_key=KEY,
        mechanism=privacy.SecondMoments(),
    )  # fmt: skip
    model = make()
    run(model, events_of(model))
    plan, saved = model.plan(), copy.deepcopy(model.to_state())
    for part in (plan, saved):
        part["plan"]["mechanism"][name] *= 0.9
    with pytest.raises(SnapshotError, match=r"sigma.* of the plan is .*, and these parameters give"):
        make().load_plan(plan)
    with pytest.raises(SnapshotError, match=r"sigma.* of the plan is .*, and these parameters give"):
        make().load_state(saved)
