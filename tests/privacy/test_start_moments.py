"""A private learner that begins with the released moments of a table (docs/privacy 4.6, Lemma 99)."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import KEY
from naive import start_moments as naive
from scipy import stats
from sklearn.metrics import roc_auc_score

from streampair import auc, history, models, privacy, ranking
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import compose
from streampair.privacy.mechanisms import start_moments
from streampair.privacy.mechanisms.second_moments import plan_second_moments, ridge_of
from streampair.privacy.mechanisms.start_moments import MOST_CENTRE, RUNS_A_DROP, StartMoments, most_squares
from streampair.privacy.noise import BLTNoise

D, WARM = 4, 300
NAMES = [f"x{i}" for i in range(D)]
BOUNDS: dict[Any, tuple[float, float]] = dict.fromkeys(NAMES, (-1.0, 1.0))
BUDGET: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3}
WEIGHTS = np.array([2.0, -1.0, 0.5, 0.0])
ROWS = 6000


def table(rows: int, seed: int, weights: np.ndarray = WEIGHTS, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    mixed = np.eye(D) + 0.4 * np.eye(D, k=1)
    x = np.clip(rng.normal(shift, 0.25, (rows, D)) @ mixed, -1.0, 1.0)
    frame = pd.DataFrame(x, columns=NAMES)
    frame["relevance"] = np.clip(x @ weights + 0.5 * rng.normal(size=rows), -1.0, 1.0)
    frame["y"] = frame["relevance"] > 0.2
    return frame.assign(id=np.arange(rows))


def released(learner: Any, label: str, folder: Path, rows: int = ROWS) -> models.Model:
    frame = table(rows, seed=1)
    job = history.Job(learner, label=label, rows=rows, row_id="id", salt="salt")
    model = history.fit(job, [frame], bytes(32), account=folder / "account.json")
    return models.loads(models.dumps(model))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    return released(auc.PairFTRL(**BUDGET, bounds=BOUNDS), "y", tmp_path_factory.mktemp("auc"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    learner = ranking.PairFTRL(**BUDGET, bounds=BOUNDS, relevance=(-1.0, 1.0))
    return released(learner, "relevance", tmp_path_factory.mktemp("ranking"))


def lane(model: models.Model | None, **options: Any) -> Any:
    made = auc.PairFTRL(**BUDGET, **{"bounds": BOUNDS, "warmup": WARM, "noise_key": KEY, **options})
    return made if model is None else model.to_online(made)


def teach(learner: Any, frame: pd.DataFrame, label: str = "y") -> Any:
    learner.learn_many(frame[NAMES], frame[label])
    return learner


def moments_of(model: models.Model, **options: Any) -> StartMoments:
    found = lane(model, **options)._private.start.moments
    assert found is not None
    return found


# ---- what is pooled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [None, 1500])
def test_a_model_is_that_of_pooled_moments(model: models.Model, horizon: int | None) -> None:
    """Those of the slow reference, before a release, at each release, and at the horizon."""
    learner, moments = lane(model, horizon=horizon), moments_of(model)
    stream = table(1500, seed=2)
    teach(learner, stream[:WARM])
    state, plan = learner.run.state, learner.run.state.plan
    assert state.releases == 0
    assert state.pooled
    seen = 0
    for start in range(WARM, 1500, 100):
        teach(learner, stream[start : start + 100])
        assert state.pooled
        weighted, known, slots = state._weighted.copy(), state._numbers[1], int(state._numbers[2])
        second, cross, noise = moments.second, moments.cross, moments.noise
        if state.releases:
            table_share, own_share = naive.shares(
                moments.noise, 1.0 / known, moments.rows, slots, plan.horizon, moments.second.tolist()
            )
            means = weighted / known
            cells = np.zeros((D, D))
            places = [(i, j) for i in range(D) for j in range(i + 1)]
            for (i, j), value in zip(places, means, strict=False):
                cells[i, j] = cells[j, i] = value if i == j else value / math.sqrt(2.0)
            second = table_share * second + own_share * cells
            cross = table_share * cross + own_share * means[-D:]
            noise = table_share**2 * noise + own_share**2 / known
            seen += 1
        weight, rate = state._weight, 0.5 * (1.0 + moments.centre)
        w, _ = ridge_of(second, cross / (2.0 * weight), rate, math.sqrt(D * noise), noise)
        w *= min(1.0, plan.radius / float(np.linalg.norm(w)))
        assert learner.weights_vector == pytest.approx(w, rel=1e-9)
    assert seen > 3
    assert learner.horizon_left == (None if horizon is None else 0)


def test_the_table_counts_for_no_more_records_than_the_learner_will_see(model: models.Model) -> None:
    moments = replace(moments_of(model), sigma=1e-9)
    assert moments.shares(0.0, 100, 100) == pytest.approx((0.5, 0.5))
    assert moments.shares(0.0, 100, 300) == pytest.approx((0.75, 0.25))
    assert moments.shares(0.0, 100, None) == pytest.approx(
        (moments.rows / (moments.rows + 100), 100 / (moments.rows + 100))
    )
    assert moments.shares(math.inf, 0, 100) == (1.0, 0.0)
    noisy = moments_of(model)
    for arguments in ((1e-4, 100, 50), (1e-6, 1000, None)):
        noise, slots, most = arguments
        wanted = naive.shares(noisy.noise, noise, noisy.rows, slots, most, noisy.second.tolist())
        assert noisy.shares(*arguments) == pytest.approx(wanted)


def test_effective_records_are_those_of_the_records_weights() -> None:
    for horizon, anytime in ((None, None), (900, None), (900, 0.6)):
        plan = plan_second_moments(1.0, features=D, base=60.0, radius=3.0, horizon=horizon, anytime=anytime)
        keep = float(plan.strategy.theta[0])
        for steps in (40, 500, 899, 900):
            last = None
            ends = plan._ends_before(steps + (steps != horizon))
            if steps == horizon:
                blocks = range(1, len(ends) + 2)
                last = plan.sigma_last, [plan.weight(block) / plan.units for block in blocks]
            weights = naive.record_weights(ends, steps, keep, plan.sigma, last)
            assert sum(weights) == pytest.approx(plan.information(steps))
            assert plan.effective_records(steps) == pytest.approx(naive.effective_records(weights))


def test_a_start_is_no_worse_than_the_table(model: models.Model) -> None:
    """In the warm-up, at its end and behind it, for a stream of the table's distribution."""
    stream = table(3000, seed=2)
    scores, learner = np.zeros(3000), lane(model)
    for start in range(0, 3000, 100):
        scores[start : start + 100] = learner.score_many(stream[NAMES][start : start + 100])
        teach(learner, stream[start : start + 100])
    alone = np.asarray(model.score_many(stream[NAMES]))
    assert scores[:WARM] == pytest.approx(alone[:WARM], rel=1e-12)
    for stop in (500, 1000, 3000):
        ours, theirs = (roc_auc_score(stream["y"][:stop], found[:stop]) for found in (scores, alone))
        assert ours > theirs - 0.003


# ---- the comparison ------------------------------------------------------------------------------------


def test_the_bound_holds_its_level_and_is_near_it() -> None:
    for cells in (1, 4, 20, 210, 5050):
        spent = 0.0
        for look in range(1, 60):
            bound = most_squares(cells, look)
            level = 1.0 / (2 * RUNS_A_DROP * look * (look + 1))
            assert stats.chi2.sf(bound, cells) <= level
            assert bound <= 1.2 * stats.chi2.isf(level, cells) + 10.0
            assert bound >= naive.most_squares(cells, look, RUNS_A_DROP) * (1.0 - 1e-12)
            spent += 2.0 * stats.chi2.sf(bound, cells)
        assert spent <= 1.0 / RUNS_A_DROP


def test_the_largest_eigenvalue_is_that_of_the_reference() -> None:
    rng = np.random.default_rng(1)
    for d in (1, 3, 6):
        root = rng.normal(size=(d, d))
        matrix = root @ root.T
        found = start_moments.largest_eigenvalue(matrix)
        assert found == pytest.approx(naive.largest_eigenvalue(matrix.tolist()), rel=1e-6)
    assert start_moments.largest_eigenvalue(-np.eye(3)) == 0.0


def drawn(rng: np.random.Generator, moments: StartMoments, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """The table's means and other noise of this variance in each packed coordinate."""
    d = len(moments.cross)
    noise = rng.normal(size=(d, d)) * math.sqrt(variance)
    noise = np.tril(noise, -1) / math.sqrt(2.0) + np.diag(noise.diagonal())
    return noise + np.tril(noise, -1).T, rng.normal(size=d) * math.sqrt(variance)


def test_noise_of_either_side_is_allowed_for(model: models.Model) -> None:
    """A difference of the table's noise alone, of the learner's alone, and of both; by chance once in 1e4."""
    truth, rng = moments_of(model), np.random.default_rng(3)
    for table_noise, own_noise in ((1e-4, 1e-9), (1e-9, 1e-4), (1e-4, 1e-4)):
        noisy = replace(truth, rows=10**9, sigma=math.sqrt(table_noise) * 10**9)  # hardly any sampling
        for _ in range(200):
            second, cross = drawn(rng, noisy, table_noise)
            found = replace(noisy, second=truth.second + second, cross=truth.cross + cross)
            second, cross = drawn(rng, noisy, own_noise)
            assert found.is_of(truth.second + second, truth.cross + cross, own_noise, 1e9, 2)
            if table_noise != own_noise:  # far more than the noise that there is
                assert not found.is_of(
                    truth.second + 30.0 * (found.second - truth.second + second),
                    truth.cross + 30.0 * (found.cross - truth.cross + cross),
                    own_noise,
                    1e9,
                    2,
                )


def test_sampling_is_allowed_for_whatever_the_records_are_like(model: models.Model) -> None:
    """Rare indicators on the unit sphere, and hardly any noise."""
    rng, n = np.random.default_rng(4), 400
    shares = np.array([0.9, 0.07, 0.02, 0.01])

    def means(records: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.eye(D)[rng.choice(D, size=records, p=shares)]
        s = np.where(rng.random(records) < 0.1 + 0.5 * x[:, 0], 1.0, -1.0)
        return x.T @ x / records, s @ x / records

    like = moments_of(model)
    for _ in range(300):
        second, cross = means(n)
        found = replace(like, second=second, cross=cross, rows=n, sigma=1e-6 * n)
        assert found.is_of(*means(100), 1e-12, 100.0, 2)
    flat = np.eye(D) / D
    assert not found.is_of(flat, np.zeros(D), 1e-12, 100.0, 2)


def permuted(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns=dict(zip(NAMES, NAMES[::-1], strict=True)))


def test_moments_of_another_stream_are_dropped_for_good(model: models.Model) -> None:
    """The models are then those of the releases alone, also when the stream is the table's again."""
    learner = lane(model)
    teach(learner, permuted(table(1500, seed=2)))
    state = learner.run.state
    assert state.pooled is False
    assert "were dropped" in " ".join(learner.privacy.notes)
    teach(learner, table(6000, seed=5))
    assert state.pooled is False
    weights = learner.weights_vector.copy()
    alone = pickle.loads(pickle.dumps(learner)).run.state
    alone._table, alone._origin = None, None
    assert alone._compute_model()[0].tolist() == weights.tolist()
    again = pickle.loads(pickle.dumps(learner)).run.state
    again._pooled = True
    assert again._compute_model()[0].tolist() != weights.tolist()


def test_moments_are_dropped_when_a_stream_changes(model: models.Model) -> None:
    learner = teach(lane(model), table(1500, seed=2))
    assert learner.run.state.pooled
    teach(learner, permuted(table(6000, seed=5)))
    assert learner.run.state.pooled is False


def test_a_warm_up_of_other_means_keeps_its_own_standardisation(model: models.Model) -> None:
    shifted = teach(lane(model, features=NAMES), table(WARM, seed=2, shift=0.3))
    assert shifted.run.state.pooled is None
    assert "the warm-up has found other means" in " ".join(shifted.privacy.notes)
    plain = teach(lane(None, features=NAMES), table(WARM, seed=2, shift=0.3))
    assert shifted.run.design.factor.tolist() == plain.run.design.factor.tolist()
    assert shifted.run.design.cap == plain.run.design.cap
    same = teach(lane(model), table(WARM, seed=2))
    moments = moments_of(model)
    assert same.run.design.mean.tolist() == moments.mean.tolist()
    assert same.run.design.cap == moments.cap
    rarer = table(WARM, seed=2)
    rarer["y"] &= np.arange(WARM) % 3 == 0
    assert teach(lane(model), rarer).run.state.pooled is None


def test_means_are_compared_within_noise_and_sampling(model: models.Model) -> None:
    moments, rng = moments_of(model), np.random.default_rng(6)
    spread = moments.cap / (moments.CAP * moments.factor)
    noise = (moments.sample_sigma / moments.sample) ** 2
    for _ in range(200):
        mean = moments.mean + math.sqrt(2.0 * noise) * rng.normal(size=D)
        mean += spread * rng.normal(size=D) / math.sqrt(WARM)
        assert moments.has_means(mean, moments.centre, noise, WARM)
    for cell in range(D):
        mean = moments.mean.copy()
        mean[cell] += 12.0 * math.sqrt(2.0 * noise + D * spread[cell] ** 2 / WARM)
        assert not moments.has_means(mean, moments.centre, noise, WARM)
    assert not moments.has_means(moments.mean, moments.centre + 0.5, noise, 10_000)


def test_means_of_a_rare_class_are_compared_as_the_table_clips_them(model: models.Model) -> None:
    """Of 0.2 % of one class, which the table has as 1 %, in a sample and a warm-up that would tell."""
    for side in (-1.0, 1.0):
        moments = replace(moments_of(model), centre=side * MOST_CENTRE, sample=10**6)
        for label, same in ((0.996, True), (1.0, True), (0.98, True), (0.9, False), (-0.996, False)):
            assert moments.has_means(moments.mean, side * label, 1e-12, 10**6) is same


# ---- where moments are used ----------------------------------------------------------------------------


def test_moments_are_for_the_same_features_bounds_and_mechanism(
    model: models.Model, ranks: models.Model
) -> None:
    """Elsewhere the weights alone are carried, as of any other model, and the report says so."""
    others: list[Callable[[], Any]] = [
        lambda: lane(model, bounds={**BOUNDS, "x0": (-1.0, 2.0)}),
        lambda: lane(model, bounds={**BOUNDS, "new": (0.0, 1.0)}),
        lambda: lane(model, mechanism=privacy.DecayedMoments(64)),
        lambda: lane(model, mechanism=privacy.PairGradients()),
        lambda: lane(model, auc_share=0.2),
    ]
    for make in others:
        learner = make()
        assert learner.run._moments is None
        frame = table(WARM, seed=2).assign(new=0.5)
        learner.learn_many(frame[list(learner.feature_names)], frame["y"])
        assert not learner.run.state.pooled
        assert "are not used, but the weights are" in " ".join(learner.privacy.notes)
    assert lane(model).run._moments is not None
    assert "compared with the warm-up's release" in " ".join(lane(model).privacy.notes)
    for relevance, there in (((-1.0, 1.0), True), ((-2.0, 1.0), False)):
        learner = ranking.PairFTRL(**BUDGET, bounds=BOUNDS, relevance=relevance, warmup=WARM, noise_key=KEY)
        assert (ranks.to_online(learner)._private.start.moments is not None) == there


def test_a_ranking_begins_with_the_moments_of_a_table(ranks: models.Model) -> None:
    learner = ranking.PairFTRL(**BUDGET, bounds=BOUNDS, relevance=(-1.0, 1.0), warmup=WARM, noise_key=KEY)
    ranks.to_online(learner)
    stream = table(3000, seed=2)
    teach(learner, stream[: WARM + 1], "relevance")
    assert learner.run.state.pooled
    rest = stream[WARM + 1 :]
    tau, alone = (
        stats.kendalltau(rest["relevance"], np.asarray(each.score_many(rest[NAMES]))).statistic
        for each in (learner, ranks)
    )
    assert tau > alone - 0.01
    teach(learner, rest, "relevance")
    assert learner.run.state.pooled


# ---- account -------------------------------------------------------------------------------------------


def test_noise_and_account_are_those_of_the_learner_alone_and_of_the_table(model: models.Model) -> None:
    with_table, without = lane(model), lane(None, features=NAMES)
    assert with_table.run.written() == without.run.written()
    stream = table(1500, seed=2)
    for learner in (with_table, without):
        teach(learner, stream)
    assert with_table.run.card() == without.run.card()
    ours, theirs = with_table.privacy, without.privacy
    assert (ours.releases, ours.card) == (theirs.releases, theirs.card)
    assert model.privacy is not None
    for name in ("mu_spent", "mu_budget"):
        assert getattr(ours, name) == compose([model.privacy[name], getattr(theirs, name)])


def test_what_is_assumed_of_the_table_travels_on(model: models.Model) -> None:
    """Into the report of the learner, its model, and the report of one that begins with that."""
    assert model.privacy is not None
    assert model.privacy["assumed"] == history.ASSUMED
    learner = teach(lane(model), table(WARM + 100, seed=2))
    for _ in range(2):
        notes = " ".join(learner.privacy.notes)
        assert "Assumed of the table" in notes
        assert all(text in notes for text in history.ASSUMED)
        exported = models.loads(models.dumps(learner))
        assert exported.privacy is not None
        assert exported.privacy["assumed"] == history.ASSUMED
        learner = exported.to_online(auc.PairFTRL(**BUDGET, bounds=BOUNDS, noise_key=KEY))
    public = model.to_online(auc.PairFTRL(**BUDGET, bounds=BOUNDS, noise_key=KEY), public=True)
    assert "Assumed of the table" not in " ".join(public.privacy.notes)
    plain = models.loads(models.dumps(lane(None, features=NAMES)))
    assert plain.privacy is not None
    assert "assumed" not in plain.privacy


def test_the_model_of_a_learner_has_no_moments(model: models.Model) -> None:
    assert b'"moments"' in models.dumps(model)
    assert b'"moments"' not in models.dumps(teach(lane(model), table(WARM + 100, seed=2)))


# ---- state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", [True, False])
def test_a_copy_goes_on_with_the_same_bits(like: bool, model: models.Model) -> None:
    """As after a crash: by pickle, by state, with and without the model at hand; dropped stays dropped."""
    stream = table(2500, seed=2) if like else permuted(table(2500, seed=2))
    for slots in (0, WARM - 10, WARM, WARM + 50, 1500):
        learner = teach(lane(model), stream[:slots])
        copied = pickle.loads(pickle.dumps(learner))
        copied.bind_noise("", key=KEY)
        loaded, fresh = lane(model), lane(None)
        for other in (loaded, fresh):
            other.load_state(learner.to_state())
        everyone = (learner, copied, loaded, fresh)
        assert len({each.run.state.pooled for each in everyone if each.run is not None}) == 1
        for start in range(slots, 2500, 250):
            part = stream[start : start + 250]
            scores = {np.asarray(each.score_many(part[NAMES])).tobytes() for each in everyone}
            assert len(scores) == 1
            for each in everyone:
                teach(each, part)
            assert len({each.run.state.pooled for each in everyone}) == 1
        assert learner.run.state.pooled is like
        assert len({each.weights_vector.tobytes() for each in everyone}) == 1


def test_a_state_of_a_learner_that_began_otherwise_is_refused(model: models.Model) -> None:
    state = teach(lane(model), table(WARM + 50, seed=2)).to_state()
    fields = json.loads(models.dumps(model))
    fields["moments"]["sigma"] *= 2.0
    other = models.loads(json.dumps(fields).encode())
    with pytest.raises(SnapshotError, match="began with another model"):
        lane(other).load_state(state)
    with pytest.raises(SnapshotError):
        lane(None, features=NAMES).load_state({name: state[name] for name in state if name != "start"})
    for name, value in (("second", np.zeros((D, 2))), ("table", [0, 1.0, 0.0, 1.0, 1, 1.0])):
        state = teach(lane(model), table(WARM + 50, seed=2)).to_state()
        state["start"][name] = value
        with pytest.raises(SnapshotError):
            lane(None).load_state(state)


def test_a_damaged_file_is_refused(model: models.Model) -> None:
    good = json.loads(models.dumps(model))
    for name, value in (
        *(("rows", 0), ("sigma", -1.0), ("sample", 0), ("centre", 1.5), ("sample_sigma", 0.0)),
        *(("rows", 10**400), ("sample", 2**31), ("sigma", 1e300), ("sigma", 1e-160), ("centre", 0.99)),
    ):
        fields = json.loads(json.dumps(good))
        fields["moments"][name] = value
        with pytest.raises(SnapshotError, match="damaged"):
            models.loads(json.dumps(fields).encode())
    for change in ({"scaling": None}, {"features": [*good["features"], "new"]}):
        with pytest.raises(SnapshotError, match="damaged"):
            models.loads(json.dumps({**good, **change}).encode())


def test_a_learner_begins_with_no_moments_that_its_state_could_not_have(model: models.Model) -> None:
    """Else it would write states that no learner can load."""
    parts: list[tuple[dict[str, Any], str]] = [
        ({"factor": [0.0, 1.0, 1.0, 1.0]}, "standardisation"),
        ({"factor": [-1.0, 1.0, 1.0, 1.0]}, "standardisation"),
        ({"factor": [1e60, 1.0, 1.0, 1.0]}, "standardisation"),
        ({"cap": 1e300}, "standardisation"),
        ({"mean": [1e300, 0.0, 0.0, 0.0]}, "moments"),
    ]
    for part, what in parts:
        fields = json.loads(models.dumps(model))
        fields["scaling"] |= part
        edited, learner = models.loads(json.dumps(fields).encode()), lane(None)
        with pytest.raises(ConfigError, match=what):
            edited.to_online(learner)
        teach(model.to_online(learner), table(WARM + 50, seed=2))
        lane(None).load_state(learner.to_state())


def test_no_noise_is_drawn_for_the_start(model: models.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The releases take as many normals with a table as without."""
    drawn: list[int] = []
    true = BLTNoise.rows

    def rows(self: Any, count: int, stream: Any) -> Any:
        drawn.append(count)
        return true(self, count, stream)

    monkeypatch.setattr(BLTNoise, "rows", rows)
    counts = []
    for learner in (lane(model), lane(None, features=NAMES)):
        drawn.clear()
        teach(learner, table(1500, seed=2))
        counts.append(list(drawn))
    assert counts[0] == counts[1]
