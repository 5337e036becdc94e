"""Stochastic descent over a table, a pair at a step."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from streampair import losses, offline, schedules
from streampair.errors import ConfigError


def table(n: int = 60, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, 3)) / 4 + 0.3 * y[:, None], y


@pytest.mark.filterwarnings("ignore:more than half of the records")
@pytest.mark.parametrize("options", [{}, {"pairing": "random"}, {"task": "metric"}])
def test_checks_of_scikit_learn(options: dict[str, Any]) -> None:
    check_estimator(offline.PairSGD(**options, steps=50), on_skip=None)


def naive(
    X: Any, y: Any, etas: Any, radius: float, previous: bool, task: str, l2: float = 0.0
) -> dict[str, Any]:
    """Algorithm 1 by its letter, on full matrices for a metric, with the hinge: each of the outputs."""
    steps = len(etas)
    X = X / np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    # As the learner draws: a seed of its own, then the records.
    coins = np.random.default_rng(int(np.random.RandomState(3).randint(2**31 - 1)))
    n, signs = len(y), np.where(y, 1.0, -1.0)
    first = coins.integers(n, size=1)
    drawn = coins.integers(n, size=steps)
    shifts = None if previous else coins.integers(1, n, size=steps)
    w = np.zeros(3) if task == "auc" else np.zeros((3, 3))
    iterates = [w, w]  # w_{-1} and w_0
    for t in range(steps):
        i = drawn[t]
        j = (drawn[t - 1] if t else first[0]) if shifts is None else (i + shifts[t]) % n
        u = X[i] - X[j]
        if task == "auc":
            c = signs[i] - signs[j]
            g = -c * u if c * (w @ u) < 1.0 else 0.0 * u
        else:
            s = signs[i] * signs[j]
            g = s * np.outer(u, u) if s * (1.0 - u @ w @ u) < 1.0 else np.zeros((3, 3))
        w = w - etas[t] * (g + l2 * w)
        w = w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))
        iterates.append(w)
    numbers = np.arange(1, steps + 1)
    return {
        "average": np.average(iterates[:steps], axis=0, weights=etas),
        "linear": np.average(iterates[:steps], axis=0, weights=numbers),
        "last": w,
    }


@pytest.mark.parametrize("task", ["auc", "metric"])
@pytest.mark.parametrize("pairing", ["previous", "random"])
def test_it_is_the_algorithm_to_the_letter(pairing: Any, task: Any) -> None:
    X, y = table()
    outputs = naive(X, y, np.full(200, 0.05), 0.6, pairing == "previous", task)
    for output, wanted in outputs.items():
        model = offline.PairSGD(
            pairing,
            task=task,
            loss=losses.Hinge(),
            steps=200,
            learning_rate=0.05,
            radius=0.6,
            output=output,
            random_state=np.random.RandomState(3),
        ).fit(X, y)
        found = model.coef_ if task == "auc" else model.metric_
        assert found == pytest.approx(wanted, abs=1e-12)
    for one, other in itertools.combinations(outputs.values(), 2):
        assert np.abs(one - other).max() > 1e-3


#: The settings of the theorems of Yang et al., each by its own formula: parameters, and sizes of the steps.
THEOREMS: dict[str, tuple[dict[str, Any], Any]] = {
    "1": ({"steps": 60**2, "learning_rate": 2.0 * 60**-1.5}, np.full(3600, 2.0 * 3600.0 ** (-3 / 4))),
    "2": ({"steps": 60, "learning_rate": 0.5 * 60**-0.5}, np.full(60, 0.5 / np.sqrt(60.0))),
    "6b": ({"steps": 200, "l2": 0.7}, 2.0 / (0.7 * (np.arange(1, 201) + 1))),
    "7b": ({"steps": 200, "l2": 0.7, "output": "linear"}, 2.0 / (0.7 * (np.arange(1, 201) + 1))),
    "6a": (
        {"steps": 200, "learning_rate": schedules.InverseSqrt(0.4)},
        0.4 / np.sqrt(np.arange(1, 201)),
    ),
}


@pytest.mark.parametrize("task", ["auc", "metric"])
@pytest.mark.parametrize("theorem", THEOREMS)
def test_the_settings_of_the_theorems(theorem: str, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn in parts, so that the number of a step goes on from one part to the next.

    Mutants: steps that begin anew in each part, and steps of 2 / (alpha j), would be seen.
    """
    monkeypatch.setattr(offline.pair_sgd, "_DRAWN", 64)
    X, y = table()
    settings, etas = THEOREMS[theorem]
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Whole(seed))
    wanted = naive(X, y, etas, 0.6, True, task, settings.get("l2", 0.0))[settings.get("output", "average")]
    model = offline.PairSGD(
        **{"task": task, "loss": losses.Hinge(), "radius": 0.6, **settings},
        random_state=np.random.RandomState(3),
    ).fit(X, y)
    found = model.coef_ if task == "auc" else model.metric_
    assert found == pytest.approx(wanted, abs=1e-11)


class Whole:
    """Coins that are the same whether they are drawn at once or in parts."""

    def __init__(self, seed: int) -> None:
        self._coins = random.Random(seed)

    def integers(self, n: int, size: int) -> Any:
        return np.array([self._coins.randrange(n) for _ in range(size)])


@pytest.mark.parametrize("pairing", ["previous", "random"])
def test_what_is_drawn_in_parts_is_one_run(pairing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that ends a part is the partner of the first one of the next."""
    X, y = table()
    met: list[tuple[int, int]] = []
    steps = offline.pair_sgd.pair_steps

    def spy(problem: Any, pairs: Any, *rest: Any, **more: Any) -> Any:
        met.extend(zip(*(places.tolist() for places in pairs), strict=True))
        return steps(problem, pairs, *rest, **more)

    monkeypatch.setattr(offline.pair_sgd, "pair_steps", spy)
    monkeypatch.setattr(offline.pair_sgd, "_DRAWN", 7)
    offline.PairSGD(pairing, steps=100, random_state=1).fit(X, y)
    assert len(met) == 100
    follows = all(later[1] == earlier[0] for earlier, later in itertools.pairwise(met))
    assert follows == (pairing == "previous")
    if pairing == "random":
        assert all(one != other for one, other in met)


@pytest.mark.parametrize("pairing", ["previous", "random"])
@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic(), losses.Square()], ids=repr)
def test_it_ranks_as_well_as_the_descent_on_all_pairs(pairing: Any, loss: losses.PairLoss) -> None:
    X, y = table(2000)
    all_pairs = offline.DPGDC(1e6, 0.0, steps=100).fit(X, y).score(X, y)
    assert offline.PairSGD(pairing, loss=loss, random_state=1).fit(X, y).score(X, y) > all_pairs - 0.005


def test_nothing_is_promised() -> None:
    model = offline.PairSGD(steps=20).fit(*table())
    assert not hasattr(model, "privacy")
    assert "epsilon" not in model.get_params()
    assert (pickle.loads(pickle.dumps(model)).coef_ == model.coef_).all()
    assert not hasattr(clone(model), "coef_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairing": "all"}, "pairing is .all.. Fix: give"),
        ({"output": "best"}, "output is .best.. Fix"),
        ({"l2": -0.1}, "l2 is -0.1. Fix"),
        ({"l2": float("inf")}, "l2 is inf. Fix"),
        ({"steps": 0}, "steps is 0. Fix"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0. Fix"),
        ({"learning_rate": float("nan")}, "learning_rate is nan. Fix"),
        ({"radius": 0.0}, "radius is 0.0. Fix"),
        ({"task": "rank"}, "task is .rank.. Fix"),
        ({"loss": losses.MinimumErrorEntropy(1.0)}, "for relevances. Fix"),
    ],
)
def test_bad_input_is_refused_with_a_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        offline.PairSGD(**options).fit(*table())
    with pytest.raises(ConfigError, match="one class"):
        offline.PairSGD().fit(table()[0], np.zeros(60))
