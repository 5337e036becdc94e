"""A private forest that begins with the released leaves and bins of a table (docs/privacy 4.6, Lemma 99)."""

from __future__ import annotations

import base64
import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import KEY
from naive import start_moments as naive
from scipy import optimize, stats
from sklearn.metrics import roc_auc_score

from streampair import auc, history, models
from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import vectors
from streampair.privacy import EntityLimit, compose
from streampair.privacy.mechanisms import dp_forest
from streampair.privacy.mechanisms.leaf_weights import leaf_weights
from streampair.privacy.mechanisms.start_moments import RUNS_A_DROP, Cuts, StartMoments, most_squares
from streampair.privacy.mechanisms.synthetic_sample import ReleasedStatistics, synthetic_rows

ROWS, WARM, TREES, DEPTH = 8000, 400, 12, 4
BOUNDS: dict[Any, tuple[float, float]] = {
    **dict.fromkeys(("a", "b"), (-1.0, 1.0)),
    **dict.fromkeys(("c=x", "c=y", "c=z"), (0.0, 1.0)),
}
NAMES = list(BOUNDS)
OPTIONS: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "bounds": BOUNDS, "trees": TREES, "depth": DEPTH}


def table(rows: int, seed: int, flip: float = 1.0) -> pd.DataFrame:
    """Positive where a and b have one sign (other signs: `flip` -1), which no second moment tells."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (rows, 2))
    kind = rng.choice(3, size=rows, p=[0.6, 0.3, 0.1])
    score = 3.0 * flip * np.sign(x[:, 0] * x[:, 1]) + 0.8 * (kind == 1) + rng.normal(size=rows)
    frame = pd.DataFrame(x, columns=["a", "b"])
    for place, value in enumerate("xyz"):
        frame[f"c={value}"] = (kind == place).astype(float)
    return frame.assign(y=score > 0.0, id=np.arange(rows))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    job = history.Job(auc.PrivateForest(**OPTIONS), label="y", rows=ROWS, row_id="id", salt="salt")
    account = tmp_path_factory.mktemp("forest") / "account.json"
    made = history.fit(job, [table(ROWS, seed=1)], bytes(32), account=account)
    return models.loads(models.dumps(made))


def lane(model: models.Model | None, **options: Any) -> Any:
    made = auc.PrivateForest(**{**OPTIONS, "warmup": WARM, "noise_key": KEY, **options})
    return made if model is None else model.to_online(made)


def teach(learner: Any, frame: pd.DataFrame) -> Any:
    learner.learn_many(frame[NAMES], frame["y"])
    return learner


def started(model: models.Model) -> StartMoments:
    found: StartMoments = lane(model)._private.start.moments
    assert found.leaves is not None
    return found


# ---- what is pooled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [None, 3000])
def test_a_model_is_that_of_pooled_leaves(model: models.Model, horizon: int | None) -> None:
    """In the warm-up and until the first release that of the table; then of means by the slow reference."""
    learner, moments, stream = lane(model, horizon=horizon), started(model), table(3000, seed=2)
    assert moments.leaves is not None
    seen = 0
    for start, stop in itertools.pairwise((0, 200, WARM, WARM + 20, 700, 1300, 2000, 3000)):
        part = stream[start:stop]
        state = learner.run.state
        if not state.releases:
            assert learner.score_many(part[NAMES]).tolist() == model.score_many(part[NAMES]).tolist()
            assert learner.predict_proba_one(part[NAMES].iloc[0].to_dict()) == pytest.approx(
                model.predict_proba_one(part[NAMES].iloc[0].to_dict())
            )
            exported = models.loads(models.dumps(learner))
            assert exported.score_many(part[NAMES]).tolist() == model.score_many(part[NAMES]).tolist()
        teach(learner, part)
        state, plan = learner.run.state, learner.run.state.plan
        if not state.releases:
            continue
        assert state.pooled
        known, slots = float(state._numbers[1]), int(state._numbers[2])
        cells = len(moments.leaves)
        sampled = (2 * TREES * plan.leaf**2 + 3 * plan.mark**2) / cells
        a, b = naive.leaf_shares(moments.noise, 1.0 / known, moments.rows, slots, plan.horizon, sampled)
        assert 0.0 < b < 1.0
        mean = a * moments.leaves + b * state._weighted[plan.packed :] / known
        noise = a * a * moments.noise + b * b / known
        shares = (mean[: 2 * plan.leaves] / plan.leaf).reshape(2, TREES, -1)
        total, signs = (float(vectors.dot(part.ravel(), np.ones(plan.leaves))) / TREES for part in shares)
        linear, _ = super(dp_forest.DPForestState, state)._compute_model()
        scale, shift, middle, factor = state.scaling
        ends = np.clip((np.clip([shift, scale + shift], -1.0, 1.0) - middle) * factor, -state.cap, state.cap)
        released = ReleasedStatistics(
            *(shares[0] / total, shares[1] / total, mean[2 * plan.leaves :] / (plan.mark * total)),
            *(math.sqrt(noise) / (plan.mark * total), signs / total, math.sqrt(noise) / (plan.leaf * total)),
            *(state._means()[0], ends, total / (a * a / moments.rows + b * b / slots)),
        )
        unit = 2.0 * state._label_slope
        size = dp_forest._ROWS[1]
        fitted = leaf_weights(released, synthetic_rows(released, unit * linear, state.cap, state.trees, size))
        assert fitted is not None
        found = learner.run.weights
        assert found[: len(NAMES)] == pytest.approx(fitted.factor * unit * linear, rel=1e-5)
        d = len(NAMES)
        assert found[d : d + plan.leaves] == pytest.approx(fitted.leaves.ravel(), rel=1e-4, abs=1e-6)
        seen += 1
    assert seen == 4
    assert b"moments" not in models.dumps(learner)


def test_a_forest_that_begins_with_a_table_is_no_worse(model: models.Model) -> None:
    """And better than one that begins with nothing."""
    stream = table(4000, seed=2)
    scores = []
    for learner in (lane(model), lane(None)):
        found = np.zeros(4000)
        for start in range(0, 4000, 500):
            part = stream[start : start + 500]
            if learner.run is not None:
                found[start : start + 500] = learner.score_many(part[NAMES])
            teach(learner, part)
        scores.append(found)
    alone = np.asarray(model.score_many(stream[NAMES]))
    ours, cold, theirs = (roc_auc_score(stream["y"], found) for found in (*scores, alone))
    assert ours > theirs - 0.003 > cold + 0.02
    assert theirs > 0.9


# ---- the comparison ------------------------------------------------------------------------------------


def test_leaves_are_compared_as_by_the_slow_reference(model: models.Model) -> None:
    moments, plan = started(model), lane(model).run.state.plan
    assert moments.leaves is not None
    table, rng = moments.leaves, np.random.default_rng(5)
    move = rng.normal(size=len(table))

    def excess(size: float, noise: float, records: float, look: int) -> float:
        """What means that far away differ by, over the most that chance explains."""
        square, share = naive.leaf_distance(
            *((table + size * move).tolist(), table.tolist(), (noise, moments.noise)),
            *((records, moments.rows), plan.leaves, (plan.leaf, plan.mark)),
        )
        largest = 1.0 + (TREES + len(plan.sizes) - 1) * share
        degrees = len(table) / largest
        level = 1.0 / (3 * RUNS_A_DROP * look * (look + 1))
        assert most_squares(degrees, look, 3) >= stats.gamma.isf(level, 0.5 * degrees, scale=2.0)
        return float(square / (largest * most_squares(degrees, look, 3)))

    for look, (noise, records) in enumerate([(1e-5, 900.0), (1e-9, 50.0), (1e-9, 1e9)], start=2):
        size = optimize.brentq(lambda s, *more: excess(s, *more) - 1.0, 1e-6, 10.0, (noise, records, look))
        for part, same in ((0.5, True), (0.999, True), (1.001, False), (2.0, False)):
            ours = table + part * size * move
            assert moments.has_leaves(ours, noise, records, look, plan.cuts) is same


def test_sampling_of_leaves_is_allowed_for_however_trees_overlap() -> None:
    """Trees that are all the same, and noise of two records in each sum."""
    rng, trees, leaves, n, noise = np.random.default_rng(6), 40, 4, 2000, 2.0
    cuts = Cuts(trees * leaves, np.full(2 * trees * leaves, math.sqrt(2.0)), trees)
    share = np.array([0.7, 0.2, 0.07, 0.03])

    def means(records: int, positive: float = 0.3) -> np.ndarray:
        leaf = rng.choice(leaves, size=records, p=share)
        label = np.where(rng.random(records) < positive, 1.0, -1.0)
        one = np.eye(leaves)[leaf]
        both = np.concatenate([np.tile(one.mean(axis=0), trees), np.tile(label @ one / records, trees)])
        return np.asarray(both + noise / records * rng.normal(size=len(both)))

    def found() -> StartMoments:
        d = np.eye(2)
        return StartMoments(d, d[0], n, noise, d[0], d[0] + 1.0, 0.0, 1.0, n, 1.0, means(n))

    for _ in range(300):
        assert found().has_leaves(means(100), (noise / 100) ** 2, 100.0, 2, cuts)
    assert not found().has_leaves(means(2000, positive=0.5), (noise / 2000) ** 2, 2000.0, 2, cuts)


def test_a_change_that_leaves_alone_show_drops_the_table_for_good(model: models.Model) -> None:
    """Labels of the other signs: means and second moments stay. Then the models are those of the releases."""
    learner = teach(lane(model), table(6000, seed=2, flip=-1.0))
    state = learner.run.state
    assert state.pooled is False
    second, cross = state._own_means()
    records = state.plan.effective_records(state.steps)
    assert started(model).is_of(second, cross, 1.0 / state._numbers[1], records, 2)
    assert "were dropped" in " ".join(learner.privacy.notes)
    teach(learner, table(6000, seed=3))
    assert state.pooled is False
    alone = pickle.loads(pickle.dumps(learner)).run.state
    alone._table = None
    assert alone._compute_model()[0].tolist() == learner.run.weights.tolist()
    kept = teach(lane(model), table(6000, seed=2))
    assert kept.run.state.pooled


def test_a_forest_of_other_means_keeps_its_own_standardisation(model: models.Model) -> None:
    """Of the table it has the weights of the linear part, until its releases say more."""
    stream = table(WARM, seed=2)
    stream["a"] = 0.5 + 0.5 * stream["a"]
    learner, cold = teach(lane(model), stream), teach(lane(None), stream)
    assert learner.run.state.pooled is None
    assert learner.run.design.factor.tolist() == cold.run.design.factor.tolist()
    assert learner.run.design.cap == cold.run.design.cap
    assert not learner.run.weights[len(NAMES) :].any()
    teach(learner, table(1000, seed=3))
    assert np.isfinite(learner.score_many(stream[NAMES])).all()


# ---- account and refusals ------------------------------------------------------------------------------


def test_noise_and_account_of_a_forest_are_those_without_the_table(model: models.Model) -> None:
    ours, theirs = lane(model), lane(None)
    for learner in (ours, theirs):
        teach(learner, table(1500, seed=2))
    assert ours.run.written() == theirs.run.written()
    assert ours.run.card() == theirs.run.card()
    assert model.privacy is not None
    assert model.privacy["assumed"] == history.ASSUMED
    with_table, without = ours.privacy, theirs.privacy
    for name in ("mu_spent", "mu_budget"):
        assert getattr(with_table, name) == compose([model.privacy[name], getattr(without, name)])
    assert "pooled with the released ones" in " ".join(with_table.notes)
    public = model.to_online(auc.PrivateForest(**OPTIONS, seed=1), public=True)
    assert public.privacy.mu_budget == without.mu_budget


def test_a_forest_of_other_trees_is_refused_and_the_learner_is_as_before(
    model: models.Model, tmp_path: Path
) -> None:
    """A forest that is too short for leaves begins as a `PairFTRL`."""
    plain = auc.PairFTRL(epsilon=8.0, delta=1e-3, bounds=BOUNDS)
    job = history.Job(plain, label="y", rows=1000, row_id="id", salt="salt")
    linear = history.fit(job, [table(1000, seed=1)], bytes(32), account=tmp_path / "account.json")
    bare = json.loads(models.dumps(model))
    moments = bare.pop("moments")
    unlike = json.loads(models.dumps(model))
    other = auc.PrivateForest(**{**OPTIONS, "bounds": {"a": (-1, 1), "d": (-1, 1)}}, seed=1)
    for name in ("split_fields", "split_values"):  # the trees in another order
        data = base64.b64decode(unlike[name]["data"])
        size = len(data) // TREES
        turned = b"".join(data[i : i + size] for i in range(0, len(data), size)[::-1])
        unlike[name]["data"] = base64.b64encode(turned).decode()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (model, {"trees": 10}, "12 trees of depth 4, .* 10 .*Fix: .*trees=12 and depth=4"),
        (model, {"depth": 5}, "of depth 4, and this PrivateForest 12 of depth 5"),
        (model, {"bounds": {**BOUNDS, "a": (-1, 2)}}, "has others: a. Fix: give the learner the features"),
        (model, {"bounds": {**BOUNDS, "new": (0, 1)}}, "has others: new. Fix"),
        (model, {"bounds": {}, "features": ["a", "b"]}, "has others: c=x, c=y, c=z"),
        (model, {"trees": None, "horizon": 500}, "no leaves, since a horizon of 500 is too short"),
        (model, {"positive": "yes", "negative": "no"}, "ranks the label True high"),
        (model, {"entity": EntityLimit(2), "features": NAMES}, "the sum of both protects no entity"),
        (models.loads(json.dumps(bare).encode()), {}, "no sums of its leaves"),
        (models.loads(models.dumps(other)), {}, "no sums of its leaves"),
    ]
    for begun_from, options, message in cases:
        learner = auc.PrivateForest(**{**OPTIONS, "seed": 1, **options})
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            begun_from.to_online(learner)
        assert learner._private.start is None
    with pytest.raises(ConfigError, match="not those that a PrivateForest of these features has"):
        models.loads(json.dumps(unlike).encode()).to_online(auc.PrivateForest(**OPTIONS))
    short = auc.PrivateForest(**{**OPTIONS, "trees": None, "horizon": 500})
    assert linear.to_online(short).run.state.pools
    with pytest.raises(ConfigError, match="no sums of its leaves"):
        linear.to_online(auc.PrivateForest(**OPTIONS))
    with pytest.raises(ConfigError, match="is linear, and cannot begin"):
        model.to_online(auc.PairFTRL(epsilon=1.0, delta=1e-3, bounds=BOUNDS))
    with pytest.raises(ConfigError, match="records=5"):
        model.to_online(auc.PrivateForest(**OPTIONS), records=5)
    fields = json.loads(models.dumps(model))
    for change in ({"sums": {**moments["sums"], "shape": [3]}}, {"sigma": 0.0}):
        with pytest.raises(SnapshotError, match="damaged"):
            models.loads(json.dumps({**fields, "moments": {**moments, **change}}).encode())


# ---- state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_a_copy_of_a_forest_goes_on_with_the_same_bits(same: bool, model: models.Model) -> None:
    """As after a crash, also of a lane that computes models in another thread, before and after a drop."""
    stream = table(5000, seed=2, flip=1.0 if same else -1.0)
    learner = lane(model)
    for slots in (0, WARM, WARM + 100, 4000):
        teach(learner, stream[learner.slots : slots])
        everyone = [pickle.loads(pickle.dumps(learner)), lane(model), lane(None)]
        everyone[0].bind_noise("", key=KEY)
        for each in everyone[1:]:
            each.load_state(learner.to_state())
        for each in everyone:
            teach(each, stream[slots : slots + 600])
        assert len({np.asarray(each.score_many(stream[NAMES])).tobytes() for each in everyone}) == 1
        assert len({each.run.state.pooled for each in everyone}) == 1
    assert learner.run.state.pooled is same


def test_a_model_from_before_a_drop_is_the_same_when_it_is_computed_after_it(model: models.Model) -> None:
    """Of a release that was made while the table counted, adopted after a restart behind the drop."""
    stream = table(6000, seed=2, flip=-1.0)
    live, again = lane(model), lane(None)
    live.defer_fits([1])
    teach(live, stream[:WARM])
    while not live.run.state.releases:
        teach(live, stream[live.slots : live.slots + 50])
    assert live.run.state.pooled
    wanted = live.fit_due(1).compute()
    while live.run.state.pooled:
        teach(live, stream[live.slots : live.slots + 50])
    again.defer_fits([1])
    again.load_state(live.to_state())
    found = again.fit_due(1).compute()
    assert found[0].tolist() == wanted[0].tolist()
    assert again.fit_due().compute()[0].tolist() != wanted[0].tolist()


def test_a_damaged_state_of_a_forest_is_refused(model: models.Model) -> None:
    for name in ("leaves", "leaf_weights"):
        state = teach(lane(model), table(WARM + 100, seed=2)).to_state()
        state["start"][name] = state["start"][name][:-1].copy()
        with pytest.raises(SnapshotError):
            lane(None).load_state(state)
