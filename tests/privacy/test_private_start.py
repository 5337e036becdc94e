"""Private learners that begin with a model: scores, releases and accounts (docs/privacy, Lemma 97)."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import KEY
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses, metric, models, privacy, ranking
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import EntityLimit, compose
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms.second_moments import ridge_of, solve_towards

NAMES = ["a", "b", "c", "d"]
WARM = 40
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "seed": 3}

#: By the kind of mechanism; each takes `warmup`.
LEARNERS: dict[str, Callable[..., Any]] = {
    "moments": lambda **more: auc.PairFTRL(**BUDGET, horizon=200, **more),
    "moments without end": lambda **more: auc.PairFTRL(**BUDGET, **more),
    "moments that fade": lambda **more: auc.PairFTRL(**BUDGET, mechanism=privacy.DecayedMoments(32), **more),
    "gradients": lambda **more: auc.PairFTRL(
        **BUDGET, horizon=200, mechanism=privacy.PairGradients(), **more
    ),
    "gradients, BLT": lambda **more: auc.PairFTRL(
        **BUDGET, mechanism=privacy.PairGradients(loss=losses.Logistic()), **more
    ),
    "output": lambda **more: auc.OnPairStrC(**BUDGET, horizon=200, l2=0.1, **more),
    "output, centred": lambda **more: auc.OnPairC(**BUDGET, horizon=200, releases=9, **more),
    "evaluated": lambda **more: auc.PairFTRL(
        **BUDGET, mechanism=privacy.PairGradients(positive_rate="released"), auc_share=0.2, **more
    ),
    "ranking": lambda **more: ranking.PairFTRL(**BUDGET, **more),
    "ranking, gradients": lambda **more: ranking.PairFTRL(
        **BUDGET, mechanism=privacy.PairGradients(), **more
    ),
}
WITHOUT_WARMUP = [name for name in LEARNERS if not name.startswith(("moments", "ranking"))]


def is_ranking(learner: Any) -> bool:
    return type(learner).__module__.endswith("ranking")


def stream(n: int, seed: int = 0, *, relevances: bool = False) -> list[tuple[dict[str, float], Any]]:
    rng = random.Random(seed)
    out: list[tuple[dict[str, float], Any]] = []
    for _ in range(n):
        y = rng.random() < 0.4
        x = {name: rng.gauss(0.3 * y * (i - 1), 0.3) for i, name in enumerate(NAMES)}
        out.append((x, (2.0 * y - 1.0) * rng.random() if relevances else y))
    return out


def taught(learner: Any, n: int, seed: int = 0) -> Any:
    for x, y in stream(n, seed, relevances=is_ranking(learner)):
        learner.learn_one(x, y)
    return learner


def model_of(learner: Any) -> models.Model:
    return models.loads(models.dumps(learner))


@pytest.fixture(scope="module")
def raw() -> models.Model:
    return model_of(taught(auc.PairOGD(seed=1), 150, seed=7))


@pytest.fixture(scope="module")
def relevances() -> models.Model:
    return model_of(taught(ranking.PairOGD(seed=1), 150, seed=7))


@pytest.fixture(scope="module")
def released() -> models.Model:
    """Of a private learner whose warm-up has ended: its weights are those of standardised values."""
    source = auc.PairFTRL(2.0, 1e-3, 150, bounds={"b": (-3.0, 1.0)}, noise_key=KEY)
    return model_of(taught(source, 150, seed=7))


def begun(name: str, model: models.Model, **more: Any) -> Any:
    return model.to_online(LEARNERS[name](**more), public=True)


def probes() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [x for x, _ in stream(20, seed=3)]
    return [*rows, {"a": 0.5}, {**rows[0], "new": 3.0}, {"a": 1e300, "b": -9.0, "c": 0.0, "d": 1.0}]


# ---- scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_scores_are_those_of_the_model_until_the_warm_up_has_ended(
    name: str, raw: models.Model, released: models.Model, relevances: models.Model
) -> None:
    """One by one, in frames, beside learning, and in a model file; then it has learned something."""
    ranks = name.startswith("ranking")
    for model in [relevances] if ranks else [raw, released]:
        learner = begun(name, model, warmup=WARM)
        assert learner.feature_names == tuple(sorted(NAMES))
        rows = [x for x in probes() if x.get("a") != 1e300 or model is released]
        rest = stream(WARM - 1, seed=5, relevances=ranks)
        for step, (x, y) in enumerate(rest):
            expected = model.score_one(x)
            assert learner.take(x, y) == pytest.approx(expected, rel=1e-12, abs=1e-15)
            if step % 13 == 0:
                exact = [model.score_one(x) for x in rows]
                assert [learner.score_one(x) for x in rows] == pytest.approx(exact, rel=1e-12)
                frame = pd.DataFrame(rows[:20])
                assert np.asarray(learner.score_many(frame)) == pytest.approx(exact[:20], rel=1e-12)
                designs = learner.design_many(rows[:20]) @ learner.weights_vector
                assert designs == pytest.approx(np.array(exact[:20]), rel=1e-9)
                again = model_of(learner)
                assert [again.score_one(x) for x in rows] == exact
                if not ranks:
                    p = [model.predict_proba_one(x)[True] for x in rows]
                    assert [learner.predict_proba_one(x)[True] for x in rows] == pytest.approx(p)
                    assert [again.predict_proba_one(x)[True] for x in rows] == pytest.approx(p)
        assert learner.run.scoring_start is not None
        for x, y in stream(80, seed=6, relevances=ranks):
            learner.learn_one(x, y)
        assert learner.run.scoring_start is None
        assert learner.score_one(rows[0]) != model.score_one(rows[0])
        assert model_of(learner).score_one(rows[0]) == learner.score_one(rows[0])


def test_a_batch_scores_as_single_records_do(raw: models.Model) -> None:
    """Over the end of the warm-up, with the same bits."""
    records = stream(WARM + 30, seed=5)
    one, many = begun("gradients, BLT", raw, warmup=WARM), begun("gradients, BLT", raw, warmup=WARM)
    single = [one.take(x, y) for x, y in records]
    batch = many.prepare_many([x for x, _ in records], [y for _, y in records])
    assert batch is not None
    assert batch.take() == single
    assert one.weights_vector.tolist() == many.weights_vector.tolist()


@pytest.mark.parametrize("name", WITHOUT_WARMUP)
def test_without_a_warm_up_the_learning_begins_at_the_weights(name: str, released: models.Model) -> None:
    """In the learner's coordinates: where records are inside the ball, ranks are those of the model."""
    wide = {each: (-4.0 - 5 * i, 4.0 + 3 * i) for i, each in enumerate(NAMES)}
    source = auc.PairOGD(seed=1)
    learner = begun(name, model_of(taught(source, 150, seed=7)), warmup=0, bounds=wide)
    inside = [x for x, _ in stream(60, seed=3)]
    assert np.argsort([learner.score_one(x) for x in inside]).tolist() == (
        np.argsort([source.score_one(x) for x in inside]).tolist()
    )
    assert np.linalg.norm(learner.weights_vector) <= learner.comparator_radius
    short = begun(name, model_of(source), warmup=0, bounds=wide, radius=0.5)
    assert np.linalg.norm(short.weights_vector) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["moments", "moments that fade", "gradients, BLT"])
def test_what_the_model_knows_outlives_the_warm_up(name: str) -> None:
    """At the warm-up's end there is hardly another release; ranks are near those of the model."""
    model = model_of(taught(auc.PairOGD(seed=1), 2000, seed=7))
    rows, labels = zip(*stream(600, seed=9), strict=True)
    kind, options = type(LEARNERS[name]()), _without_seed(name)
    areas: dict[bool, list[float]] = {True: [], False: []}
    for start, found in areas.items():
        for seed in range(6):
            learner = kind(**{**options, "epsilon": 0.5}, warmup=150, seed=seed)
            if start:
                model.to_online(learner, public=True)
            taught(learner, 150, seed=11 + seed)
            found.append(roc_auc_score(labels, [learner.score_one(x) for x in rows]))
    alone = roc_auc_score(labels, [model.score_one(x) for x in rows])
    assert np.mean(areas[True]) > np.mean(areas[False]) + 0.05
    assert np.mean(areas[True]) > alone - 0.1


# ---- releases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moments", "moments that fade", "ranking"])
def test_sums_do_not_depend_on_the_start(name: str, raw: models.Model, relevances: models.Model) -> None:
    """What is released of moments is the same to the bit: the start is in the models alone."""
    with_start = begun(name, relevances if name == "ranking" else raw, warmup=WARM)
    without = LEARNERS[name](warmup=WARM, features=NAMES)
    for learner in (with_start, without):
        taught(learner, 150, seed=5)
    assert with_start.run.released.tobytes() == without.run.released.tobytes()
    assert with_start.weights_vector.tolist() != without.weights_vector.tolist()


@pytest.mark.parametrize("name", [*LEARNERS])
def test_noise_and_account_are_those_of_the_learner_alone(
    name: str, raw: models.Model, relevances: models.Model
) -> None:
    with_start = begun(name, relevances if name.startswith("ranking") else raw, warmup=WARM)
    without = LEARNERS[name](warmup=WARM, features=NAMES)
    assert with_start.run.written() == without.run.written()
    for learner in (with_start, without):
        taught(learner, 150, seed=5)
    ours, theirs = with_start.privacy, without.privacy
    assert ours.card == theirs.card
    assert (ours.mu_spent, ours.mu_budget, ours.releases) == (
        theirs.mu_spent,
        theirs.mu_budget,
        theirs.releases,
    )


def test_the_solver_goes_to_the_start_where_releases_are_noise_and_leaves_it_where_they_are_not() -> None:
    rng = np.random.default_rng(1)
    d, start = 6, np.array([1.0, 2.0, 0.0, 0.0, -1.0, 0.5])
    second = np.diag(np.linspace(0.1, 0.3, d))
    true = np.array([0.2, -0.1, 0.3, 0.0, 0.0, 0.1])
    # Noise that explains all that is seen: the direction of the start, whatever its scale.
    for scale in (1e-3, 1.0, 1e3):
        w, _ = solve_towards(scale * start, second, 1e-3 * rng.normal(size=d), 5.0, 0.1, 1.0)
        assert w @ start / np.linalg.norm(w) / np.linalg.norm(start) == pytest.approx(1.0, abs=1e-9)
    # No noise and no ridge: the regression, whatever the start.
    w, _ = solve_towards(start, second, second @ true, 1e-12, 0.0, 0.0)
    assert w == pytest.approx(true, abs=1e-9)
    plain, _ = ridge_of(second, second @ true, 0.5, 1e-12)
    other, _ = ridge_of(second, second @ true, 0.5, 1e-12, 0.0, -start, 0.0)
    assert other == pytest.approx(plain, abs=1e-9)


# ---- account ------------------------------------------------------------------------------------------


def test_budgets_add(released: models.Model) -> None:
    """mu^2 of the model's releases and of the learner's own, by the accountant, at the learner's delta."""
    before = released.privacy["mu_spent"]
    assert before > 0.1
    learner = released.to_online(auc.PairFTRL(1.0, 1e-5, horizon=200, warmup=WARM, noise_key=KEY))
    alone = auc.PairFTRL(1.0, 1e-5, horizon=200, warmup=WARM, noise_key=KEY)
    report = learner.privacy
    assert report.mu_spent == before
    assert report.epsilon_spent == promised_epsilon(before, 1e-5)
    assert report.mu_budget == compose([before, alone.privacy.mu_budget])
    assert report.epsilon_budget == promised_epsilon(report.mu_budget, 1e-5)
    for x, y in stream(200, seed=5):
        learner.learn_one(x, y)
        alone.learn_one(x, y)
    report = learner.privacy
    assert report.mu_spent == compose([before, alone.privacy.mu_spent])
    assert report.epsilon_spent == promised_epsilon(report.mu_spent, 1e-5) <= report.epsilon_budget
    assert report.kind == "holds"
    assert f"it includes epsilon {promised_epsilon(before, 1e-5):.4g}" in report.guarantee
    assert "is not known, so it is assumed" in report.guarantee
    # It travels on.
    last = model_of(learner).to_online(auc.PairFTRL(1.0, 1e-5, warmup=0, noise_key=KEY))
    assert last.privacy.mu_spent == report.mu_spent


def test_a_model_that_is_declared_public_adds_nothing_and_the_report_says_so(
    raw: models.Model, released: models.Model
) -> None:
    for model in (raw, released):
        learner = model.to_online(auc.PairFTRL(2.0, 1e-3, warmup=0, noise_key=KEY), public=True)
        report = learner.privacy
        assert (report.mu_spent, report.epsilon_budget, report.kind) == (0.0, 2.0, "holds")
        said = f"it began with a model of {model.class_name} that is declared public: for the records which"
        assert said in report.guarantee
        assert said in model_of(learner).privacy["guarantee"]
    # A model that goes back to one says so, too.
    first = raw.to_online(auc.PairFTRL(1.0, 1e-5, warmup=0, noise_key=KEY), public=True)
    second = model_of(taught(first, 5)).to_online(auc.PairFTRL(1.0, 1e-5, noise_key=KEY))
    assert "goes back to a model that is declared public" in second.privacy.guarantee
    assert second.privacy.mu_spent == first.privacy.mu_spent > 0.0


def altered(model: models.Model, **promise: Any) -> models.Model:
    fields = json.loads(models.dumps(model))
    fields["privacy"] |= promise
    return models.loads(json.dumps(fields).encode())


def test_what_is_in_no_account_is_refused(raw: models.Model, released: models.Model) -> None:
    keyed = altered(released, kind="holds", guarantee="exact")
    refused: list[tuple[models.Model, Any, str]] = [
        (raw, auc.PairFTRL(), "not private: what it discloses .* in no account. Fix: .*declare it public"),
        (altered(released, kind="void"), auc.PairFTRL(), "is void, so its spend is not known. Fix"),
        (altered(released, mu_spent=-1.0), auc.PairFTRL(), "void|spent mu -1.0"),
        (
            keyed,
            auc.PairFTRL(features=NAMES, entity=EntityLimit(3, 5, field="who")),
            "protects no entity. Fix: begin with the model of a learner with entity=",
        ),
        (model_of(taught(auc.Forest(3, 31, seed=1), 50)), auc.PairFTRL(), "a PairFTRL is linear.*auc.Forest"),
        (model_of(auc.PairFTRL(**BUDGET, features=NAMES)), auc.PairFTRL(), "learned nothing. Fix"),
    ]
    for model, learner, message in refused:
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            model.to_online(learner)
        assert learner.run is None or learner.run.start is None
    of_persons = altered(keyed, unit="the contents of all records of one entity: at most 3")
    assert of_persons.to_online(refused[3][1]).privacy.unit.startswith("the contents of all records of one e")
    doubtful = altered(released, kind="unvouched", guarantee="unvouched (restarted)")
    assert doubtful.to_online(auc.PairFTRL()).privacy.kind == "unvouched"


def test_other_refusals(raw: models.Model, relevances: models.Model) -> None:
    used = taught(auc.PairFTRL(**BUDGET), 5)
    twice = begun("moments", raw)
    refused: list[tuple[models.Model, Any, dict[str, Any], str]] = [
        (raw, used, {}, "only once, before its first record. Fix: make a new learner"),
        (raw, twice, {}, "only once"),
        (raw, auc.PairFTRL(features=["a", "b"]), {}, "features= does not name: c, d. Fix: add them"),
        (raw, auc.PairFTRL(), {"records": 5}, "follows from what it releases. Fix: leave records out"),
        (raw, auc.PairFTRL(positive=False), {}, "ranks the label True high"),
        (
            raw,
            ranking.PairFTRL(),
            {},
            "other labels than ranking.PairFTRL learns. Fix: make a new auc.PairFTRL",
        ),
        (relevances, auc.PairFTRL(), {}, "other labels than auc.PairFTRL"),
        (raw, auc.PrivateForest(), {}, "a PrivateForest cannot begin.*leaves.*Fix: make a new auc.PairFTRL"),
        (raw, metric.PairFTRL(), {}, "a metric.PairFTRL cannot begin.*Fix"),
        (
            raw,
            auc.OnPairC(2.0, 1e-2, 2000, l2=1.0, buffer=buffers.FullHistory(), calibration="paper"),
            {},
            "paper's calibration cannot begin.*random points. Fix",
        ),
        (raw, auc.PairOGD(), {}, "is not private, so it promises nothing. Fix: remove the declaration"),
    ]
    for model, learner, more, message in refused:
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            model.to_online(learner, public=True, **more)


# ---- state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [0, WARM - 10, WARM + 50])
@pytest.mark.parametrize("name", ["moments", "gradients, BLT", "output, centred"])
def test_a_copy_goes_on_with_the_same_bits(name: str, slots: int, released: models.Model) -> None:
    """Before and after the warm-up, by pickle and by state; the account goes with it."""
    key = {"noise_key": KEY, "warmup": WARM}
    learner = released.to_online(type(LEARNERS[name]())(**_without_seed(name), **key))
    taught(learner, slots, seed=5)
    copied = pickle.loads(pickle.dumps(learner))
    copied.bind_noise("", key=KEY)
    loaded = released.to_online(type(learner)(**_without_seed(name), **key))
    loaded.load_state(learner.to_state())
    fresh = type(learner)(**_without_seed(name), **key)
    fresh.load_state(learner.to_state())
    for other in (copied, loaded, fresh):
        assert other.privacy.mu_spent == learner.privacy.mu_spent
        assert "that it began with" in other.privacy.guarantee
    for x, y in stream(40, seed=8):
        scores = {other.take(x, y) for other in (learner, copied, loaded, fresh)}
        assert len(scores) == 1


def test_a_state_has_the_centres_of_scaled_features_alone(raw: models.Model) -> None:
    plain = model_of(taught(auc.PairOGD(seed=1, scale=None), 150, seed=7))
    for model, centred in ((raw, True), (plain, False)):
        learner = taught(begun("moments", model), 30, seed=5)
        state = learner.to_state()
        assert ("centre" in learner._private.start.to_state()) == centred
        fresh = LEARNERS["moments"]()
        fresh.load_state(state)
        assert fresh._private.start.same(learner._private.start)
        assert [fresh.score_one(x) for x in probes()] == [learner.score_one(x) for x in probes()]
    assert not begun("moments", raw)._private.start.same(begun("moments", plain)._private.start)


def _without_seed(name: str) -> dict[str, Any]:
    made = LEARNERS[name]()
    names = ("epsilon", "delta", "horizon", "l2", "releases", "mechanism")
    return {field: getattr(made, field) for field in names if hasattr(made, field)}


def test_a_state_of_a_learner_that_began_otherwise_is_refused(
    raw: models.Model, released: models.Model
) -> None:
    state = taught(begun("moments", raw), 30).to_state()
    others = [
        begun("moments", released),
        begun("moments", model_of(taught(auc.PairOGD(seed=1), 149, seed=7))),
    ]
    for other in others:
        before = other.score_one(probes()[0])
        with pytest.raises(SnapshotError, match="began with another model"):
            other.load_state(state)
        assert other.score_one(probes()[0]) == before  # as it was
    charged = altered(released, kind="holds", guarantee="exact")
    state = charged.to_online(LEARNERS["moments"]()).to_state()
    with pytest.raises(SnapshotError, match="declared otherwise"):
        charged.to_online(LEARNERS["moments"](), public=True).load_state(state)
    plain = LEARNERS["moments"](features=NAMES)
    with pytest.raises(SnapshotError, match="or none"):
        begun("moments", raw, features=NAMES).load_state(plain.to_state())


def test_a_learner_under_a_plan_begins_with_a_model(raw: models.Model) -> None:
    plan = begun("moments", raw).plan()
    assert plan is not None
    early, late = LEARNERS["moments"](), begun("moments", raw)
    early.load_plan(plan)
    raw.to_online(early, public=True)
    late.load_plan(plan)
    scores = {learner.score_one(probes()[0]) for learner in (early, late)}
    assert scores == {begun("moments", raw).score_one(probes()[0])}
