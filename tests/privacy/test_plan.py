"""The fitted numbers of a plan go with a learner: nothing is fitted again on another machine."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from harness.learners import NAMES, PRIVATE, stream

from streampair import auc, losses, metric
from streampair.errors import SnapshotError
from streampair.learners import settings
from streampair.privacy import BLT, EntityLimit
from streampair.privacy.mechanisms import ftrl, moments, moments_plan, output, output_plan, warmup

KEY = bytes(range(32))
MAKES = {
    **PRIVATE,
    # So that classes stand out of the noise: else there is no metric, and nothing to tell runs apart by.
    "metric-moments": partial(
        metric.PairFTRL, 100.0, 1e-3, 60, warmup=10, solver="moments", classes=["a", "b", "c"]
    ),
    "auc-warm-moments": partial(auc.PairFTRL, 1.0, 1e-3, 200, solver="moments"),
    "auc-warm-blt": partial(auc.PairFTRL, 1.0, 1e-3, 60, warmup=10, solver="gradients", strategy="blt"),
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
        solver="moments",
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
Shown = tuple[list[bytes], list[bytes]]


def elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Fit as a machine would whose libraries round otherwise, or stop the search for a fit elsewhere."""

    def off(target: Any, name: str, by: float) -> None:
        true = getattr(target, name)
        patch.setattr(target, name, lambda *args, **options: true(*args, **options) * (1.0 + by))

    off(settings, "mu_from", 3e-15)
    off(ftrl, "pattern_sensitivity", 1e-14)
    off(moments_plan, "pattern_sensitivity", 1e-14)
    off(moments_plan, "placed", 1e-14)
    off(output_plan, "entity_spend", 1e-13)
    off(warmup, "moment_sensitivity", -1e-14)
    off(output_plan, "output_spend", 1e-13)
    off(output_plan, "rho_from", 1e-13)
    off(losses.Logistic, "smoothness", 1e-14)
    off(losses.Hinge, "diameter", 2e-15)
    true = ftrl.fit_blt

    def fit(pattern: Any, horizon: int | None) -> BLT:
        fitted = true(pattern, horizon)
        return BLT(fitted.omega * (1.0 + 1e-4), fitted.decay * (1.0 - 1e-4), horizon)

    patch.setattr(ftrl, "fit_blt", fit)


def run(model: Any, events: list[Any]) -> Shown:
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
@pytest.mark.parametrize("at", [5, 30])
def test_what_is_restored_elsewhere_runs_under_the_same_numbers(
    name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = MAKES[name](noise_key=KEY)
    events = events_of(here)
    run(here, events[:at])
    saved, plan = copy.deepcopy(here.to_state()), here.plan()
    # What is fitted anew: the state of a release that did not write its numbers down, and knew no versions.
    old = {key: value for key, value in saved.items() if key != "plan"}
    since = () if "forest" in name else ("version",)  # forests and partners are younger, and had all at once
    old["rule"] = {key: value for key, value in saved["rule"].items() if key not in (*since, "filling")}
    if old["sums"] is not None and "partner" not in name and "forest" not in name:
        old["sums"] = old["sums"][:2]  # nor what labels and features tell of each other
    rest = tuple(part[at:] for part in run(here.clone(), events))
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
            assert run(there, events[at:]) == rest
            assert there.plan() == plan
        fresh = here.clone()
        run(fresh, events[:1])
        assert fresh.plan() != plan  # it is elsewhere
        twin = restored(here, old)
        assert twin.plan() != plan
        assert run(twin, events[at:]) != rest or name == RANDOM


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
        # The state of a release that wrote no numbers goes on under the plan that is known.
        old = {key: value for key, value in here.to_state().items() if key != "plan"}
        third = here.clone()
        third.load_plan(plan)
        third.load_state(old)
        assert third.plan() == plan
        assert run(here.clone(), events) != expected or name == RANDOM  # the twin that fits anew


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
    for part in (("plan",), ("plan", "rule"), ("plan", "prefix")):
        held = plan
        for key in part:
            held = held[key]
        for key, value in (held or {}).items():
            off = [value * 1.001, value * 0.5, math.nan, math.inf, -value] if type(value) is float else []
            off += [value + 1, -1, 1.5] if type(value) is int else []
            for bad in (*off, None, "much", {"kind": "x"}):
                if bad != value:
                    wrong.append(changed((*part, key), bad))
    for given in wrong:
        with pytest.raises(SnapshotError, match="Fix: "):
            new.load_plan(given)
        assert new.plan() == plan
    new.load_plan(plan)
    with pytest.raises(SnapshotError, match="damaged"):  # and so is one that follows a plan
        new.load_state({**here.to_state(), "plan": changed(("plan", "mu"), plan["plan"]["mu"] * 2)["plan"]})
    assert new.plan() == plan
    new.learn_null()
    with pytest.raises(SnapshotError, match=r"taken records already.*newly made"):
        new.load_plan(plan)


def test_a_run_goes_on_under_the_account_that_it_began_with() -> None:
    """Before Lemma 59 an early record's own step counted empty places, and late steps had a wide grid."""
    new = auc.OnPairStrC(1.0, 1e-3, 300, l2=0.5, features=["a", "b"], noise_key=KEY)
    plan = new.plan()
    assert plan is not None

    def under(**rule: float) -> dict[str, Any]:
        return {**plan, "plan": {**plan["plan"], "rule": rule}}

    written = {"mu": plan["plan"]["mu"], "diameter": 2.0, "alpha": 0.5, "smoothness": 4.0}
    # As the release before wrote and used them.
    before = {"scale": 11.959470664532025}
    sigmas = {1: 10.306359389634585, 40: 4.152751466372011, 299: 1.6068227538892637}
    old = new.clone()
    old.load_plan(under(**written, **before))
    old.learn_one({"a": 0.5, "b": 0.1}, True)
    third = restored(new, old.to_state())
    unplanned = {key: value for key, value in old.to_state().items() if key != "plan"}
    for model in (old, third, restored(new, unplanned)):
        used = model.run.rule.plan
        assert {t: used.sigmas[t] for t in sigmas} == pytest.approx(sigmas, rel=1e-12)
        assert set(used.grids[1:]) == {2.0**-8}
        assert model.plan()["plan"]["rule"].keys() == {*written, *before}
        assert used.mu_spent(300) == pytest.approx(used.mu, rel=1e-9)
    assert new.run.rule.plan.sigma < 0.95 * sigmas[299]
    today = {"scale": plan["plan"]["rule"]["scale"]}
    for wrong in (under(**written, **before, filling=1.0), under(**written, **today), under(**written)):
        with pytest.raises(SnapshotError, match="damaged"):
            new.clone().load_plan(wrong)


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


def test_blocks_end_where_exact_arithmetic_says() -> None:
    for base in (10.0, 200.0, 1e5):
        plan = moments_plan.plan_second_moments(0.5, features=3, base=base, radius=30.0)
        for block in (1, 2, 10, 50, 200):
            growth = moments_plan._growth(block)
            assert growth == pytest.approx(1.1**block, rel=1e-15 * block)
            assert plan.end(block) == math.ceil(base * (growth - 1.0)) + block
    assert np.all(np.diff([moments_plan._growth(block) for block in range(300)]) > 0)


def test_a_run_of_the_first_release_goes_on_under_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its warm-up was longer, and its leader another: both are part of what a replay must repeat."""
    make = partial(auc.PairFTRL, 8.0, 1e-3, 200, features=NAMES, noise_key=KEY, solver="moments")
    events = events_of(make())
    with monkeypatch.context() as patch:
        patch.setattr(auc.PairFTRL, "_choose", lambda learner, features: moments.Moments(version=1))
        model = make()
        wanted = run(model, events)
        first = make()
        run(first, events[:45])
    plan, saved = model.plan(), first.to_state()
    assert "version" not in plan["plan"]["rule"]
    own = make()
    assert own.settings.warmup < model.settings.warmup < 45  # what is released after it is compared below
    assert run(own, events) != wanted  # the twin
    assert own.plan()["plan"]["rule"]["version"] == moments_plan.VERSION
    given = make()
    given.load_plan(plan)
    assert run(given, events) == wanted
    # The first release wrote no plan into a state, a later one did.
    for state in (saved, {key: value for key, value in saved.items() if key != "plan"}):
        other = restored(make(), state)
        assert other.plan() == plan
        assert run(other, events[45:]) == tuple(part[45:] for part in wanted)
    for version in (0.0, moments_plan.VERSION + 1.0, 1.5):
        unknown = copy.deepcopy(plan)
        unknown["plan"]["rule"]["version"] = version
        with pytest.raises(SnapshotError, match="a plan of version"):
            make().load_plan(unknown)


@pytest.mark.parametrize("window", [8, 500])
def test_a_plan_with_more_noise_for_its_forks_goes_on_and_one_with_less_is_refused(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a fork was charged the fullest window and the horizon, which no window may hold both."""
    make = partial(
        auc.PairFTRL, 1.0, 1e-3, 200, features=NAMES, warmup=20, forks=2, window=window, noise_key=KEY,
        solver="moments",
    )  # fmt: skip
    events = events_of(make())

    def earlier(**changes: Any) -> tuple[Any, Any, Any]:
        true = moments_plan.plan_second_moments
        with monkeypatch.context() as patch:
            patch.setattr(moments, "plan_second_moments", lambda *a, **k: replace(true(*a, **k), **changes))
            model = make()
            run(model, events)
            return model.plan(), copy.deepcopy(model.to_state()), model.privacy

    plan, saved, report = earlier(summed=True)
    assert (plan == make().plan()) == (window == 500)
    for load in (lambda model: model.load_plan(plan), lambda model: model.load_state(saved)):
        model = make()
        load(model)
        assert model.plan() == plan
        if model.slots == 0:
            run(model, events)
        assert model.privacy.mu_spent == report.mu_spent
        model.charge(2)
        assert model.privacy.mu_spent <= model.privacy.mu_budget
        assert model.plan() == restored(make(), model.to_state()).plan() == plan
    # Less noise than the second views need, in the plan and in the state.
    for part in (plan, saved):
        for name in ("sigma", "sigma_last"):
            part["plan"]["rule"][name] *= 0.9
    for load in (lambda model: model.load_plan(plan), lambda model: model.load_state(saved)):
        with pytest.raises(SnapshotError, match=r"sigma of the plan is .*, and these parameters give"):
            load(make())


def test_an_entity_goes_on_by_the_solver_that_its_plan_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With entities "auto" meant gradients before."""
    limit = EntityLimit(3, 9, field="who")
    make = partial(
        auc.PairFTRL, 1.0, 1e-3, 200, features=NAMES, entity=limit, warmup=20, noise_key=KEY
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(auc.PairFTRL, "_by_gradients", True, raising=False)
        earlier = make()
    events = events_of(earlier)
    expected, plan, saved = run(earlier, events), earlier.plan(), earlier.to_state()
    assert "strategy" in plan["plan"]["rule"]
    assert "strategy" not in make().plan()["plan"]["rule"]
    new = make()
    new.load_plan(plan)
    assert run(new, events) == expected
    for load in (lambda model: model.load_state(saved), lambda model: model.load_plan(plan)):
        model = make()
        load(model)
        assert model.plan() == restored(make(), model.to_state()).plan() == plan
        assert copy.deepcopy(model).plan() == plan
    wrong = copy.deepcopy(plan)
    wrong["plan"]["rule"]["sigma"] *= 1.1
    model = make()
    for _ in range(2):
        before = model.plan()
        with pytest.raises(SnapshotError):
            model.load_plan(wrong)
        assert model.plan() == before
        model.load_plan(plan)
    told = {"params": make(solver="moments").to_state()["params"]}
    with pytest.raises(SnapshotError):
        make(solver="moments").load_plan({**plan, **told})


def test_an_entity_that_was_charged_as_a_group_goes_on_under_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = partial(
        auc.OnPairStrC, 1.0, 1e-3, 120, l2=0.1, features=NAMES, entity=EntityLimit(3, 40, field="who"),
        noise_key=KEY,
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(output, "plan_output", partial(output_plan.plan_output, grouped=True))
        earlier = make()
    events = events_of(earlier)
    expected = run(earlier, events)
    plan, new = earlier.plan(), make()
    assert new.run.rule.plan.sigma < 0.95 * earlier.run.rule.plan.sigma
    new.load_plan(plan)
    assert run(new, events) == expected
    assert new.plan() == plan
    assert new.privacy.mu_spent == earlier.privacy.mu_spent
    assert restored(make(), earlier.to_state()).plan() == plan
    for factor in (0.9, 1.1):  # less noise than entities need, and noise of no plan
        plan["plan"]["rule"]["scale"] *= factor
        with pytest.raises(SnapshotError, match="scale of the plan"):
            make().load_plan(plan)
