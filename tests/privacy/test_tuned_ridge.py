"""A ridge that is chosen by the releases: independent halves, a function of releases, no other epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import naive
import numpy as np
import pytest
from harness.learners import stream
from scipy import stats

from streampair import auc, metric, privacy, ranking
from streampair.errors import ConfigError
from streampair.kernels import symmetric
from streampair.privacy.mechanisms.second_moments import RIDGES, MomentsState, ridge_of, tuned_ridge

D = 3


def learner(tune: bool = True, **options: Any) -> auc.PairFTRL:
    arguments = {"epsilon": 1.0, "delta": 1e-4, "horizon": 800, "warmup": 100, "seed": 4, **options}
    return auc.PairFTRL(mechanism=privacy.SecondMoments(tune=tune), **arguments)


def taught(model: auc.PairFTRL, count: int = 800) -> auc.PairFTRL:
    for x, y in stream(model, count):
        model.learn_one(x, y)
    return model


def state(model: auc.PairFTRL) -> MomentsState:
    assert model.run is not None
    assert isinstance(model.run.state, MomentsState)
    return model.run.state


# ---- the halves ------------------------------------------------------------------------------------------


def noises(split: Any, draws: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Noise of both halves in units of that of the release, packed, a row a draw."""
    rng, truth, std = np.random.default_rng(1), np.eye(D), 0.1
    right_std, size = np.array([0.1, 0.2, 0.4]), D * (D + 1) // 2
    found = []
    for _ in range(draws):
        z, coins = rng.normal(size=(2, size + D))
        # `matrix` takes the rows of the upper triangle, whose cells have the same law.
        noisy = truth + std * naive.matrix(z[:size].tolist())
        first, second = ((np.empty((D, D)), np.empty(D)) for _ in range(2))
        split(noisy, right_std * z[size:], std * std, right_std**2, coins, first, second)
        found.append(
            [np.concatenate((naive.vector((s - truth) / std), c / right_std)) for s, c in (first, second)]
        )
    both = np.array(found)
    return both[:, 0], both[:, 1]


def independent(split: Any) -> bool:
    """Whether both have twice the variance and none in common, within 5 standard errors."""
    first, second = noises(split)
    n = len(first)
    sizes = all(
        np.all(np.abs((z * z).mean(axis=0) - 2.0) < 5.0 * 2.0 * math.sqrt(2.0 / n)) for z in (first, second)
    )
    apart = np.abs((first[:, :, None] * second[:, None, :]).mean(axis=0)) < 5.0 * 2.0 / math.sqrt(n)
    return bool(sizes and apart.all())


def test_the_halves_have_independent_noise_of_twice_the_variance() -> None:
    assert independent(symmetric.split_noise)

    def same_sign(*arguments: Any) -> None:
        symmetric.split_noise(*arguments)
        for kept, other in zip(arguments[-2], arguments[-1], strict=True):
            other[:] = kept

    def too_little(noisy: Any, right: Any, noise: float, variances: Any, coins: Any, *out: Any) -> None:
        symmetric.split_noise(noisy, right, noise, variances, 0.8 * coins, *out)

    assert not independent(same_sign)
    assert not independent(too_little)


# ---- the choice ------------------------------------------------------------------------------------------

CASES = {
    # Features, how fast eigenvalues fall, std of the noise, how the signal falls with them, correlation.
    "the usual ridge is too small": (24, 2.0, 0.01, 1.5, 0.2),
    "the usual ridge is too large": (40, 1.5, 0.002, 0.5, 0.95),
}
Choose = Callable[..., float]


def gains(case: str, choose: Choose, draws: int = 30) -> np.ndarray:
    """By how much a chosen ridge raises the correlation with the best score, for each draw of the noise."""
    d, decay, std, power, correlation = CASES[case]
    rng, ridge = np.random.default_rng(2), std * math.sqrt(d)
    values = np.arange(1.0, d + 1.0) ** -decay
    second = np.diag(values / values.sum())
    found = []
    for k in range(draws):
        cross = second.diagonal() ** power * rng.normal(size=d)
        cross *= 0.5 * correlation / math.sqrt(cross @ np.linalg.solve(second, cross))
        noisy = second + naive.matrix(rng.normal(0.0, std, d * (d + 1) // 2).tolist())
        seen, seen_std = cross + 0.6 * std * rng.normal(size=d), 0.6 * std
        chosen = choose(noisy, seen, ridge, std * std, np.full(d, seen_std * seen_std), k)
        usual, tuned = (ridge_of(noisy, seen, 0.5, r, std * std)[0] for r in (ridge, chosen))
        worth = [float(w @ cross / math.sqrt(w @ second @ w)) for w in (usual, tuned)]
        found.append((worth[1] - worth[0]) / (0.5 * correlation))
    return np.array(found)


def better(case: str, choose: Choose = tuned_ridge) -> bool:
    return bool(stats.ttest_1samp(gains(case, choose), 0.0, alternative="greater").pvalue < 1e-4)


def test_a_chosen_ridge_is_better_where_the_usual_one_is_wrong() -> None:
    for case in CASES:
        assert better(case)


def test_a_choice_that_is_judged_by_what_was_fitted_is_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: moments that judge the weights that were fitted to them."""

    def on_itself(noisy: Any, seen: Any, ridge: float, noise: float, variances: Any, _: int) -> float:
        ridges, scores = ridge * np.array(RIDGES), np.zeros(len(RIDGES))
        symmetric.add_ridge_scores((noisy, seen), (noisy, seen), ridges, noise, scores)
        return float(ridges[scores.argmax()])

    assert not better("the usual ridge is too small", on_itself)


# ---- the learner -----------------------------------------------------------------------------------------


def test_it_releases_and_spends_what_the_usual_ridge_does() -> None:
    tuned, usual = (taught(learner(tune)) for tune in (True, False))
    assert np.array_equal(state(tuned).released, state(usual).released)
    assert tuned.plan()["plan"] == usual.plan()["plan"]
    assert tuned.privacy.epsilon_spent == usual.privacy.epsilon_spent
    assert not np.array_equal(tuned.weights_vector, usual.weights_vector)
    assert "its ridge strength too" in str(tuned.privacy.details)
    assert "ridge" not in str(usual.privacy.details)


def test_a_model_is_a_function_of_the_releases() -> None:
    """Of another learner, with other noise and records, that is given the same releases."""
    one, other = state(taught(learner())), state(taught(learner(seed=9)))
    assert not np.array_equal(one.average, other.average)
    for name in ("_running", "_weighted", "_numbers", "_start", "_last"):
        getattr(other, name)[:] = getattr(one, name)
    other._put_centre(one._centre)
    other._ridges, other._stale = (-1, 0.0), True
    assert np.array_equal(one.average, other.average)
    assert one._ridges == other._ridges


def test_a_restored_learner_chooses_as_the_one_before() -> None:
    for horizon in (800, None):
        model, records = learner(horizon=horizon), stream(learner(), 500)
        for i, (x, y) in enumerate(records):
            model.learn_one(x, y)
            if i == 300:
                assert model.weights_vector.any()  # a ridge is chosen here, and again at later releases
        again = learner(horizon=horizon)
        again.load_state(model.to_state())
        moved = state(again)
        moved._stale = True  # whether the model came with the state, or is computed anew
        assert np.array_equal(model.weights_vector, again.weights_vector)
        assert np.array_equal(state(model).noise, moved.noise)


def test_it_is_told_how_exact_the_chosen_weights_are() -> None:
    """The noise that is reported is that of weights under the chosen ridge."""
    model, usual = (state(taught(learner(tune))) for tune in (True, False))
    model._ridge(*model._means()[:2])
    model._ridges = (model.releases, math.sqrt(model.plan.features / model._numbers[1]))
    assert np.array_equal(model.noise, usual.noise)
    model._noises, model._ridges = (-1, None), (-1, 0.0)
    assert not np.array_equal(model.noise, usual.noise)


def test_with_a_start_model_the_ridge_is_the_usual_one() -> None:
    """The candidates' weights shrink to 0, those of such a learner to its start."""
    model, usual = (state(taught(learner(tune))) for tune in (True, False))
    second, cross, _ = model._means()
    assert model._ridge(second, cross) != usual._ridge(second, cross)
    model._origin = np.ones(model.plan.features)
    assert model._ridge(second, cross) == usual._ridge(second, cross)


def test_it_is_for_two_classes_and_for_entities_too() -> None:
    tuned = privacy.SecondMoments(tune=True)
    for kind, more in ((ranking.PairFTRL, {}), (metric.PairFTRL, {"classes": ["a", "b"]})):
        with pytest.raises(ConfigError, match="leave tune out of it"):
            kind(mechanism=tuned, **more)
    for wrong in (1, "yes", None):
        with pytest.raises(ConfigError, match="tune is"):
            auc.PairFTRL(mechanism=privacy.SecondMoments(tune=wrong))  # type: ignore[arg-type]
    limit = privacy.EntityLimit(3, 10)
    assert auc.PairFTRL(features=["a"], entity=limit, mechanism=tuned).settings.entity == limit
