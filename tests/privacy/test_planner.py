"""The planner: what it says before there is data, against runs on data of the kind that it assumes."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from harness.support import in_one_case
from river import datasets
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import roc_auc_score

from streampair import auc, metric, privacy, ranking
from streampair.assurance.reference_tasks import Distances, Relevances
from streampair.assurance.simulated_runs import Designs, designs
from streampair.errors import ConfigError

BEST = 0.85


def measured(mechanism: str, settings: dict[str, Any], n: int, d: int, rate: float, seed: int) -> float:
    """AUC that the learned direction has on the reference task."""
    rng = np.random.default_rng(seed)
    gap = math.sqrt(2) * NormalDist().inv_cdf(BEST)
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    y = rng.random(n) < rate
    x = rng.normal(size=(n, d)) + np.outer(y - rate, gap * u)
    model = getattr(auc, mechanism)(
        features=list(range(d)), bounds=dict.fromkeys(range(d), (-4, 4)), **settings
    )
    model.learn_many(x, y)
    w = model.weights_vector * model.run.design.factor
    return NormalDist().cdf(gap / math.sqrt(2) * float(w @ u / np.linalg.norm(w)))


@pytest.mark.parametrize(
    ("n", "d", "rate", "epsilon"), [(2000, 8, 0.5, 1.0), (6000, 20, 0.2, 1.0), (20_000, 12, 0.5, 0.3)]
)
def test_what_it_expects_is_what_runs_measure(n: int, d: int, rate: float, epsilon: float) -> None:
    """An expected AUC that no run reaches: real runs, with noise."""
    found = privacy.plan(n, d, epsilon=epsilon, positive_rate=rate, auc=BEST)
    for forecast in found.forecasts:
        runs = [measured(forecast.mechanism, forecast.settings, n, d, rate, seed) for seed in range(4)]
        # Within .05, or a third of what is lost and four standard errors: a forecast, not a bound.
        room = max(0.05, found.auc_without_privacy - forecast.auc)
        assert abs(float(np.mean(runs)) - forecast.auc) <= room + 4 * np.std(runs) / 2


def test_more_budget_and_more_records_are_never_worse() -> None:
    """A plan that takes a worse mechanism where a better one is allowed."""
    found = privacy.plan(20_000, 20, positive_rate=0.1)
    for forecast in found.forecasts:
        values = [value for _, value in forecast.curve]
        assert values == sorted(values)
        assert 0.0 <= forecast.loss <= 0.5
    assert [f.auc for f in found.forecasts] == sorted((f.auc for f in found.forecasts), reverse=True)
    assert found.best.mechanism == "PairFTRL"
    assert found.best.settings == {"epsilon": 1.0, "delta": 1 / 20_000, "horizon": 20_000}
    more = privacy.plan(200_000, 20, delta=1 / 20_000, positive_rate=0.1)
    rarer = privacy.plan(20_000, 20, positive_rate=0.01)
    assert more.best.auc > found.best.auc > rarer.best.auc
    assert more.best.useful_from == found.best.useful_from
    assert rarer.best.useful_from > found.best.useful_from  # type: ignore[operator]
    assert "recommended: auc.PairFTRL(epsilon=1.0" in str(found)


def test_the_claimed_threshold_is_where_the_loss_becomes_small() -> None:
    """A number of records that is said to be enough, and is not."""
    found = privacy.plan(10_000, 10, delta=1e-4)
    for forecast in found.forecasts:
        start = forecast.useful_from
        if start is None or forecast.settings.get("l2"):
            continue
        again = privacy.plan(start, 10, delta=1e-4)
        (same,) = [
            f
            for f in again.forecasts
            if (f.mechanism, f.settings.get("mechanism"), "horizon" in f.settings)
            == (forecast.mechanism, forecast.settings.get("mechanism"), "horizon" in forecast.settings)
        ]
        assert same.loss <= 0.02


def test_long_streams_of_gradients_have_the_warm_up_of_their_horizon() -> None:
    """Beyond 4096 records the plan is that of a stream without end, with a little more noise."""
    below, above = (
        next(
            f
            for f in privacy.plan(n, 5, delta=1e-4, family="ranking").forecasts
            if f.mechanism == "PairFTRL" and f.settings.get("horizon") == n
        )
        for n in (4096, 4097)
    )
    if ranking.PairFTRL(horizon=4096).settings.mechanism.__class__.__name__ == "FTRL":
        assert 1.0 < above.noise / below.noise < 1.1
    else:
        assert above.noise == pytest.approx(below.noise, rel=0.01)


@in_one_case(
    ("options", "word"),
    [
        ({"n": 5}, "n is 5"),
        ({"n": 1e9}, r"n is 1000000000\. Fix: give a whole number from 10 to 1e\+08"),
        ({"n": 1000.5}, r"n is 1000\.5\. Fix: give a whole number"),
        ({"n": math.nan}, "n is nan"),
        ({"n": math.inf}, "n is inf"),
        ({"n": "1000"}, "n is '1000'"),
        ({"n": True}, "n is True"),
        ({"d": 2.5}, r"d is 2\.5"),
        ({"d": 0}, "d is 0"),
        ({"positive_rate": 0.0}, "positive_rate"),
        ({"auc": 0.4}, "auc is"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 1000.0}, "lower epsilon: no delta can be kept at 1000"),
        ({"family": "forest"}, "family"),
        ({"family": "metric", "d": 300}, "d is 300"),
        ({"level": 0.9}, "level is 0.9"),
        ({"gain": 0.7}, "gain"),
        ({"one_hot": (3, 3)}, r"one_hot is \(3, 3\), and d 5"),
        ({"one_hot": (0,)}, "one_hot"),
        ({"one_hot": (1.5,)}, r"one_hot is 1\.5"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], word: str) -> None:
    """A plan for numbers that no stream has."""
    with pytest.raises(ConfigError, match=word):
        privacy.plan(**{"n": 1000, "d": 5, **options})


def test_a_whole_float_is_a_count() -> None:
    assert privacy.plan(1e3, 5.0) == privacy.plan(1000, 5) == privacy.plan(np.int64(1000), np.int32(5))


@pytest.mark.parametrize("family", ["auc", "ranking", "metric"])
@pytest.mark.parametrize("n", [10, 50, 99, 100])
def test_a_short_stream_has_a_plan(n: int, family: str) -> None:
    """Below 100 records PairFTRL takes gradients by itself; components are still measured by moments."""
    found = privacy.plan(n, 4, family=family)
    assert all(0.5 <= forecast.auc <= found.auc_without_privacy for forecast in found.forecasts)
    assert math.isfinite(found.best.noise)
    endless = found.best_without_horizon
    assert endless is None or math.isfinite(endless.noise)
    if family == "auc":
        noise = [forecast.noise for forecast in found.components]
        assert noise == sorted(noise)
        assert all(forecast.pays_from is None or forecast.pays_from > n for forecast in found.components)
        longer = privacy.plan(10 * n, 4, delta=found.delta)
        assert noise > [forecast.noise for forecast in longer.components]


# ---- the band ------------------------------------------------------------------------------------------


def of_design(made: Designs, run: int, settings: dict[str, Any], n: int) -> float:
    """AUC of a learner of n records of a simulated run's correlated features, whose bounds are -1 and 1."""
    rng = np.random.default_rng(1000 + run)
    gap = math.sqrt(2) * NormalDist().inv_cdf(BEST)
    y = rng.random(n) < 0.5
    x = rng.normal(size=(n, made.m)) @ made.root[run] + np.outer(y - 0.5, gap * made.gap[run])
    names = list(range(made.m))
    model = auc.PairFTRL(features=names, bounds=dict.fromkeys(names, (-1, 1)), seed=run, **settings)
    model.learn_many(made.mean[run] + made.std[run] * x, y)
    found = made.root[run] @ (model.weights_vector * model.run.design.factor * made.std[run])  # type: ignore[union-attr]
    cosine = float(found @ made.best[run] / np.linalg.norm(found)) if found.any() else 0.0
    return NormalDist().cdf(gap / math.sqrt(2) * cosine)


@pytest.mark.parametrize(("n", "d", "epsilon"), [(1500, 4, 0.1), (1000, 8, 0.3), (6000, 20, 1.0)])
def test_the_band_holds_four_of_five_runs(n: int, d: int, epsilon: float) -> None:
    """At (1500, 4, .1) a loss of .008 was promised, where runs lost .05 and some of them all.

    The noise of the warm-up was forgotten: a wrong mean and spread cost more than the noise of the model.
    """
    best = privacy.plan(n, d, epsilon=epsilon, auc=BEST)
    (found,) = [
        f
        for f in best.forecasts
        if f.call() == f"auc.PairFTRL(epsilon={epsilon}, delta={1 / n}, horizon={n})"
    ]
    runs = np.array([of_design(designs(d), run, found.settings, n) for run in range(0, 64, 2)])
    assert abs(runs.mean() - found.auc) <= 0.005 + 3 * runs.std() / math.sqrt(len(runs))
    low, high = found.auc_band
    assert low < found.auc < high
    assert found.loss_band == (best.auc_without_privacy - high, best.auc_without_privacy - low)
    assert 0.6 <= np.mean((low - 0.005 <= runs) & (runs <= high + 0.005)) <= 0.95


def of_others() -> dict[str, tuple[np.ndarray, np.ndarray, float, tuple[int, ...]]]:
    """Data of other packages: features, labels, AUC of logistic regression on new records, text fields."""
    cancer, progression = load_breast_cancer(), load_diabetes()
    phishing = list(datasets.Phishing())
    x = np.array([list(features.values()) for features, _ in phishing])
    y = np.array([label for _, label in phishing], dtype=bool)
    columns = [x[:, [j]] == np.unique(x[:, j]) for j in range(3)]
    return {
        "breast cancer": (cancer.data, cancer.target == 0, 0.995, ()),
        "diabetes": (progression.data, progression.target > 140, 0.828, ()),
        "phishing": (x, y, 0.967, ()),
        "phishing, texts": (np.hstack(columns).astype(float), y, 0.972, tuple(c.shape[1] for c in columns)),
    }


@pytest.mark.parametrize("name", of_others())
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_runs_on_data_of_other_packages_are_in_the_band(name: str, epsilon: float) -> None:
    """Bounds are the ends of each column. Real signal is in fewer directions: runs may do a little better.

    At epsilon .1 runs on breast cancer have a standard deviation of .14.
    """
    x, y, best, one_hot = of_others()[name]
    low, high = x.min(axis=0), x.max(axis=0)
    x = 2.0 * (x - low) / (high - low) - 1.0
    n, d = 7 * len(x) // 10, x.shape[1]
    names = list(range(d))
    reached = []
    for seed in range(64):
        order = np.random.default_rng(seed).permutation(len(x))
        model = auc.PairFTRL(
            epsilon, 1 / n, n, features=names, bounds=dict.fromkeys(names, (-1, 1)), seed=seed
        )
        model.learn_many(x[order[:n]], y[order[:n]])
        weights = model.weights_vector * model.run.design.factor  # type: ignore[union-attr]
        reached.append(roc_auc_score(y[order[n:]], x[order[n:]] @ weights))
    found = privacy.plan(n, d, epsilon=epsilon, positive_rate=float(y.mean()), auc=best, one_hot=one_hot)
    (forecast,) = [
        f
        for f in found.forecasts
        if f.mechanism == "PairFTRL" and set(f.settings) == {"epsilon", "delta", "horizon"}
    ]
    least, most = forecast.auc_band
    room = 0.03 + 3 * np.std(reached) / math.sqrt(len(reached))
    assert least - room <= np.mean(reached) <= most + room


def test_columns_of_a_text_field_exclude_each_other() -> None:
    made = designs(6, (3, 2))
    found = [int((values < 1e-9).sum()) for values in np.linalg.eigvalsh(made.covariance)]
    assert found == [2] * 64  # the columns of each text add up to 1
    assert (np.linalg.eigvalsh(designs(6).covariance) > 0.01).all()
    assert np.allclose(np.einsum("rii->ri", made.covariance), 1.0)
    assert len(designs(500, (40,) * 12).gap[0]) == 32
    texts, numbers = (privacy.plan(1000, 6, epsilon=0.1, one_hot=size) for size in ((3, 3), ()))
    assert texts.best.loss_band != numbers.best.loss_band


# ---- rankings and metrics ------------------------------------------------------------------------------


def of_ranking(mechanism: str, settings: dict[str, Any], n: int, d: int, seed: int) -> float:
    """Share of pairs that the learned direction has in order on the reference task."""
    rng = np.random.default_rng(seed)
    rho = math.sin(math.pi * (BEST - 0.5))
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    x = rng.normal(size=(n, d))
    y = np.clip(0.5 * (rho * (x @ u) + math.sqrt(1 - rho**2) * rng.normal(size=n)), -1.0, 1.0)
    model = getattr(ranking, mechanism)(
        features=list(range(d)), bounds=dict.fromkeys(range(d), (-4, 4)), **settings
    )
    model.learn_many(x, y)
    w = model.weights_vector * model.run.design.factor
    return 0.5 + math.asin(rho * float(w @ u / np.linalg.norm(w))) / math.pi


def of_metric(mechanism: str, settings: dict[str, Any], n: int, d: int, seed: int) -> float:
    """Share of distances in order, of new records of the reference task."""
    rng = np.random.default_rng(seed)
    gap = Distances(d, BEST).gap
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)

    def records(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.random(count) < 0.5
        return rng.normal(size=(count, d)) + np.outer(y - 0.5, gap * u), y

    model = getattr(metric, mechanism)(
        features=list(range(d)), bounds=dict.fromkeys(range(d), (-5, 5)), **settings
    )
    model.learn_many(*records(n))
    x, y = records(4000)
    z = model.transform_many(x)
    i, j = rng.integers(4000, size=(2, 8000))
    apart = np.square(z[i] - z[j]).sum(axis=1)
    same, other = apart[y[i] == y[j]], apart[y[i] != y[j]]
    return float((same[:, None] < other[None, :]).mean())


@pytest.mark.parametrize(
    ("family", "measure", "room"), [("ranking", of_ranking, 0.03), ("metric", of_metric, 0.05)]
)
def test_what_it_expects_of_rankings_and_metrics(family: str, measure: Any, room: float) -> None:
    """An expected quality that no run reaches."""
    n, d = 8000, 6
    found = privacy.plan(n, d, family=family, auc=BEST)
    expected = {}
    for forecast in found.forecasts:
        runs = [measure(forecast.mechanism, forecast.settings, n, d, seed) for seed in range(2)]
        expected[forecast.call()] = float(np.mean(runs))
        assert (
            abs(expected[forecast.call()] - forecast.auc) <= room + found.auc_without_privacy - forecast.auc
        )
    assert max(expected.values()) - expected[found.best.call()] <= 0.02
    assert found.best.call().startswith(f"{family}.")


def test_levels_are_shares_of_pairs_in_order() -> None:
    """Against draws from the reference tasks, with weights that have as much error."""
    rng = np.random.default_rng(5)
    for error in (0.0, 0.4, 1.5):
        task = Relevances(5, BEST)
        rho = task.correlation / math.sqrt(1.0 + error**2)
        x = rng.normal(size=200_000)
        y = rho * x + math.sqrt(1.0 - rho**2) * rng.normal(size=len(x))
        drawn = float(np.mean((x[::2] - x[1::2]) * (y[::2] - y[1::2]) > 0.0))
        assert abs(task.level(error) - drawn) < 0.01
        apart = Distances(30, BEST)
        noise = rng.normal(size=(30, 30))
        noise += noise.T
        w = np.zeros((30, 30))
        w[0, 0] = 1.0
        values, vectors = np.linalg.eigh(w + error * noise / np.linalg.norm(noise))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        same, other = (math.sqrt(2.0) * rng.normal(size=(100_000, 30)) for _ in range(2))
        other[:, 0] += apart.gap
        drawn = float(np.mean(np.square(same @ root).sum(1) < np.square(other @ root).sum(1)))
        assert abs(apart.level(error) - drawn) < 0.03


def test_leaves_tell_more_than_noise_from_some_thousand_records_on() -> None:
    """As the learner decides it: one record less than that has none."""
    found = privacy.plan(40_000, 22, delta=1 / 40_000)
    assert found.trees_from is not None
    assert f"PrivateForest, from {found.trees_from:,} records on" in str(found)
    options = {"delta": 1 / 40_000, "features": [f"x{i}" for i in range(22)]}
    enough = privacy.plan(40_000, 22, delta=1 / 40_000, epsilon=0.5).trees_from
    assert enough is not None
    assert enough > found.trees_from
    for horizon, has in ((found.trees_from, True), (found.trees_from // 2, False)):
        rule = auc.PrivateForest(1.0, horizon=horizon, **options).run.state  # type: ignore[arg-type]
        assert hasattr(rule, "trees") is has
    assert privacy.plan(40_000, 1000).trees_from is None
    assert privacy.plan(1000, 4, family="ranking").trees_from is None


# ---- what else one may ask ------------------------------------------------------------------------------


def test_components_pay_by_noise_and_gain_alone() -> None:
    """A plan that takes random components where they lose more than they gain."""
    found = privacy.plan(40_000, 22, delta=1 / 40_000, gain=0.05)
    noises = [c.noise for c in found.components]
    assert noises == sorted(noises)
    assert all(c.loss == pytest.approx(min(0.05 * math.sqrt(c.noise), 0.5)) for c in found.components)
    (some,) = (c for c in found.components if c.components == 64)
    assert some.pays_from is not None
    by_components = {c.components: c for c in privacy.plan(some.pays_from, 22, delta=1 / 40_000).components}
    assert 0.04 < by_components[64].loss <= 0.05
    assert found.best_components is not None
    assert found.best_components.components == 128  # 256 are even with the linear features on ijcnn1 there
    less = privacy.plan(40_000, 22, delta=1 / 40_000, gain=0.0)
    assert less.best_components is None
    assert "use the linear features" in str(less)
    assert not privacy.plan(1000, 4, family="ranking").components


def test_a_level_and_an_entity_can_be_asked_for() -> None:
    """A level that the planned stream does not reach; noise without the share of an entity."""
    found = privacy.plan(20_000, 20)
    low, high = (privacy.plan(20_000, 20, level=level) for level in (0.7, 0.84))
    assert low.best.useful_from < high.best.useful_from  # type: ignore[operator]
    reached = privacy.plan(high.best.useful_from, 20, delta=1 / 20_000)  # type: ignore[arg-type]
    assert reached.best.auc >= 0.84
    assert found.best_without_horizon is not None
    assert "horizon" not in found.best_without_horizon.settings
    entity = privacy.EntityLimit(records=3, separation=10)
    shared = privacy.plan(2000, 5, entity=entity)
    assert shared.best.settings["entity"] == entity
    assert shared.best.noise > 1.5 * privacy.plan(2000, 5).best.noise
