"""One pass in which each record meets the one before: how far a record moves it (Lemmas 68 and 69)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from streampair import losses, offline
from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem
from streampair.offline.dpegd import halves
from streampair.offline.pair_sgd import pair_steps
from streampair.privacy import delta_from, epsilon_from
from streampair.privacy.mechanisms.offline import VectorGate, epsilon_of_draws, neighbours_move


def passed(problem: PairwiseProblem, eta: float, start: Any) -> tuple[Any, Any]:
    """The mean of the iterates of a pass, and the last."""
    order, total = np.arange(problem.n), np.zeros(problem.dim)
    last, before = pair_steps(problem, (order[1:], order[:-1]), eta, start, start, total)
    return (total + before + last - 2.0 * start) / (problem.n - 1), last


@pytest.mark.parametrize("jump", [0.0, 1.5])
@pytest.mark.parametrize("steps", [1, 2, 3, 30])
@pytest.mark.parametrize("radius", [9.0, 0.3])
def test_the_second_record_is_the_worst(jump: float, steps: int, radius: float) -> None:
    """Each record by itself, step by step."""
    eta, diameter, worst = 0.1, 2.0, []
    for record in range(steps + 1):
        v, total = 0.0, 0.0
        for t in range(1, steps + 1):  # step t has records t - 1 and t, counted from 0
            v = math.hypot(v, eta * jump) if v else 0.0
            v += eta * diameter * (record in (t - 1, t))
            total += min(v, 2.0 * radius)
        worst.append(total / steps)
    assert neighbours_move(steps, eta, diameter=diameter, jump=jump, radius=radius) == pytest.approx(
        max(worst)
    )
    assert max(worst) == worst[1]


def of_last(n: int, place: int, loss: losses.PairLoss, radius: float, form: Any) -> tuple[float, float]:
    """How far the mean of a pass moves by the record at a place, and what is claimed."""
    rows, labels = np.tile([-1.0, 0.0], (n, 1)), -np.ones(n)
    sides = []
    for far in (False, True):
        x, y = rows.copy(), labels.copy()
        if far:
            x[place], y[place] = [1.0, 0.0], 1.0
        dim = 2 if form == "raw" else 3
        sides.append(PairwiseProblem(x, y, loss, form, radius, dim, None, np.zeros(dim)))
    eta = 0.002 * radius
    means = [passed(side, eta, np.zeros(side.dim))[0] for side in sides]
    claim = neighbours_move(n - 1, eta, diameter=sides[0].diameter, jump=0.0, radius=radius)
    return float(np.linalg.norm(means[0] - means[1])), claim


@pytest.mark.parametrize("form", ["raw", "metric"])
@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SquaredHinge(), losses.Square()], ids=repr)
def test_a_pass_moves_by_no_more_and_nearly_so(loss: losses.PairLoss, form: Any) -> None:
    """And a mutant that forgets that a record has two pairs would be seen, where D is reached."""
    for place in (0, 1, 20, 39):
        move, claim = of_last(40, place, loss, 0.02, form)
        assert move <= claim
        if place == 1:
            assert move > claim / 3.0
            if form == "raw" and loss.decreasing:  # else D is that of pairs that this record is not in
                assert move > 0.85 * claim > claim / 2.0  # a mutant of one pair claims half


def kinks(axes: int, eta: float) -> tuple[PairwiseProblem, PairwiseProblem, Any]:
    """Two tables, and a start, from which a hinge parts two runs further, axis by axis.

    The second record makes two runs part by a hair along each axis; the margin of the pair of an axis is so
    near 1 that one run steps along it, and the other does not.
    """
    d = axes + 1
    v = np.full(d, 0.1 / math.sqrt(axes))
    v[0] = math.sqrt(1.0 - 0.01)
    start = np.full(d, 0.25 - 0.1 * eta / math.sqrt(axes))
    start[0] = -0.5
    rows, labels = [v, v, v], [1.0, 1.0, 1.0]
    for k in range(1, d):  # between two axes records at 0 change the class, without a gradient
        rows += [np.zeros(d), np.zeros(d), -np.eye(d)[k], np.eye(d)[k]]
        labels += [1.0, -1.0, -1.0, 1.0]
    one = PairwiseProblem(np.array(rows), np.array(labels), losses.Hinge(), "raw", 9.0, d, None, np.zeros(d))
    far, flipped = one.rows.copy(), one.labels.copy()
    far[1], flipped[1] = -v, -1.0
    return one, PairwiseProblem(far, flipped, losses.Hinge(), "raw", 9.0, d, None, np.zeros(d)), start


def test_two_runs_part_at_the_kinks_of_a_hinge() -> None:
    """A mutant that takes the hinge for smooth, and so claims 2 eta D, would be seen: it is passed."""
    eta = 0.001
    one, other, start = kinks(60, eta)
    (mean, last), (mean2, last2) = (passed(problem, eta, start) for problem in (one, other))
    move, steps = float(np.linalg.norm(mean - mean2)), one.n - 1
    options: Any = {"diameter": one.diameter, "radius": one.radius}
    claim = neighbours_move(steps, eta, jump=one.lipschitz, **options)
    assert claim / 3.0 < move <= claim
    assert move > 1.3 * neighbours_move(steps, eta, jump=0.0, **options)
    assert np.linalg.norm(last - last2) > 1.8 * 2.0 * eta * one.diameter


def test_which_lemma_is_taken() -> None:
    rng = np.random.default_rng(1)
    y = rng.random(200) < 0.5
    X = rng.normal(size=(200, 3)) / 4 + 0.3 * y[:, None]
    for loss, lemma in ((losses.Logistic(), "Lemma 68"), (losses.Hinge(), "Lemma 69")):
        model = offline.LocalizedPairSGD(1.0, 1e-5, loss=loss, learning_rate=0.1).fit(X, y)
        diameter = loss.diameter(1.0, 1.0)
        claimed = [line["sensitivity"] for line in model.privacy.card]
        for number, part in enumerate(halves(200), 1):
            n, eta = part.stop - part.start, 0.1 * 4.0**-number
            expected = diameter * eta * (2.0 - 1.0 / (n - 1))  # all but one of the iterates move by two steps
            if lemma == "Lemma 68":
                assert claimed[number - 1] == pytest.approx(expected, rel=0.011)  # the grid
            elif n > 2:
                assert claimed[number - 1] > 1.05 * expected
        assert all(lemma in line["lemma"] for line in model.privacy.card)
    metric = offline.LocalizedPairSGD(1.0, 1e-5, task="metric", loss=losses.Hinge()).fit(X, y)
    assert metric.privacy.epsilon_spent == 1.0


# ---- Algorithm 3 with the constants of the paper -------------------------------------------------------


def letter(
    X: Any, y: Any, coins: Any, radius: float, epsilon: float, delta: float
) -> tuple[Any, list[float]]:
    """Algorithm 3 and Theorem 10 of Yang et al., for the logistic loss, without noise: weights and sigmas.

    With the two choices of `LocalizedPairSGD`: phases begin in the ball, and a rest of records without a pair
    is merged into the phase before.
    """
    X = X / np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    (n, d), signs = X.shape, np.where(y, 1.0, -1.0)
    constant, smooth = losses.Logistic().lipschitz(1.0, radius), 4.0
    often = math.log(4.0 / delta)
    eta = 2.0 * radius / constant
    eta *= min(often / math.sqrt(n), epsilon / (12.0 * often * math.sqrt(2.0 * d * math.log(2.5 / delta))))
    assert eta <= 2.0 / smooth
    order = coins.permutation(n)
    X, signs = X[order], signs[order]
    sizes, w, sigmas = [], np.zeros(d), []
    while n - sum(sizes) >= 4 and (n >> (len(sizes) + 1)) >= 2:
        sizes.append(n >> (len(sizes) + 1))
    sizes.append(n - sum(sizes))
    begun = 0
    for k, size in enumerate(sizes, 1):
        rate = eta / 4.0**k
        steps = math.ceil(size * often)
        drawn = coins.integers(size, size=steps + 1)
        iterates = [w, w]
        for t in range(1, steps + 1):
            i, j = begun + drawn[t], begun + drawn[t - 1]
            c, u = signs[i] - signs[j], X[i] - X[j]
            g = -c * u / (1.0 + math.exp(c * float(w @ u)))
            w = w - rate * g
            w = w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))
            iterates.append(w)
        w = np.mean(iterates[:steps], axis=0)  # w_{j-2}, j = 1, ..., T
        sigmas.append(12.0 * constant * rate * often * math.sqrt(2.0 * math.log(2.5 / delta)) / epsilon)
        begun += size
    return w, sigmas


def test_algorithm_3_is_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights but for the noise, which is of the size that the paper has. Half of the steps would be seen."""
    rng = np.random.default_rng(1)
    y = rng.random(300) < 0.5
    X = rng.normal(size=(300, 3)) / 4 + 0.3 * y[:, None]
    privatize, seen = VectorGate.privatize, []

    def silent(gate: VectorGate, vector: Any) -> Any:
        seen.append(gate.plan.sigma)
        privatize(gate, vector)
        return vector

    monkeypatch.setattr(VectorGate, "privatize", silent)
    draws = np.random.RandomState(3)
    model = offline.LocalizedPairSGD(2.0, 1e-3, calibration="paper", random_state=draws).fit(X, y)
    coins = np.random.default_rng(int(np.random.RandomState(3).randint(2**31 - 1)))
    wanted, sigmas = letter(X, y, coins, 1.0, 2.0, 1e-3)
    assert model.coef_ == pytest.approx(wanted, abs=1e-12)
    assert np.abs(wanted).max() > 0.01
    assert seen == pytest.approx(sigmas)
    report = model.privacy
    assert report.releases == len(sigmas) == len(halves(300))
    assert f"epsilon is {report.epsilon_spent:.6g}, and that is what holds" in report.details


def test_epsilon_is_that_of_two_steps_for_each_draw() -> None:
    """Of the part that spends most, from its noise and the law of the draws alone."""
    rng = np.random.default_rng(1)
    y = rng.random(200) < 0.5
    X = rng.normal(size=(200, 2)) / 4 + 0.3 * y[:, None]
    model = offline.LocalizedPairSGD(8.0, 1e-3, calibration="paper", learning_rate=0.01, radius=9.0).fit(X, y)
    diameter, constant = losses.Logistic().diameter(1.0, 9.0), losses.Logistic().lipschitz(1.0, 9.0)
    often = math.log(4e3)
    sigma = 12.0 * constant * often * math.sqrt(2.0 * math.log(2.5e3)) / 8.0  # for steps of size 1
    spent = []
    for part in halves(200):
        n = part.stop - part.start
        draws = math.ceil(n * often) - 1
        law = scipy.stats.binom(draws, 1.0 / n).pmf(np.arange(draws + 1))

        def delta(epsilon: float, law: Any = law) -> float:
            moves = 2.0 * diameter * np.arange(len(law)) / sigma
            return math.fsum(p * delta_from(epsilon, mu) for p, mu in zip(law, moves, strict=True) if mu)

        spent.append(scipy.optimize.brentq(lambda e, d=delta: d(e) - 1e-3, 1e-9, 50.0))
    # Rounding adds to the claim.
    assert max(spent) <= model.privacy.epsilon_spent < 1.03 * max(spent)


def test_the_letter_keeps_its_promise() -> None:
    """The constants of Theorem 10 spend less than they promise, for every epsilon that is usual."""
    rng = np.random.default_rng(1)
    y = rng.random(120) < 0.5
    X = rng.normal(size=(120, 2)) / 4 + 0.3 * y[:, None]
    for task in ("auc", "metric"):
        spent = []
        for epsilon in (0.5, 1.0, 4.0):
            model = offline.LocalizedPairSGD(epsilon, 1e-5, task=task, calibration="paper").fit(X, y)
            spent.append(model.privacy.epsilon_spent)
            assert 0.1 * epsilon < spent[-1] < epsilon
            assert epsilon_from(model.privacy.mu_spent, 1e-5) > spent[-1]  # for a record drawn every time
        assert sorted(spent) == spent


@pytest.mark.parametrize("form", ["raw", "metric"])
def test_a_record_moves_by_two_steps_each_time_it_is_drawn(form: Any) -> None:
    """Two runs with the same draws. A mutant that counts one step for each draw would be passed."""
    n, eta, loss, furthest = 20, 1e-4, losses.Logistic(), 0.0
    rows, labels = np.tile([-1.0, 0.0], (n, 1)), -np.ones(n)
    far, flipped = rows.copy(), labels.copy()
    far[7], flipped[7] = [1.0, 0.0], 1.0
    dim = 2 if form == "raw" else 3
    sides = [
        PairwiseProblem(a, b, loss, form, 0.02, dim, None, np.zeros(dim))
        for a, b in ((rows, labels), (far, flipped))
    ]
    for seed in range(30):
        drawn = np.random.default_rng(seed).integers(n, size=61)
        ends = [
            pair_steps(side, (drawn[1:], drawn[:-1]), eta, np.zeros(dim), np.zeros(dim), np.zeros(dim))[1]
            for side in sides
        ]
        times = int((drawn[:60] == 7).sum())  # `ends` are w_{T-1}
        move = float(np.linalg.norm(ends[0] - ends[1]))
        assert move <= 2.0 * times * eta * sides[0].diameter * (1.0 + 1e-9)
        if times:
            furthest = max(furthest, move / (times * eta * sides[0].diameter))
    if form == "raw":  # D is reached
        assert furthest > 1.5


def test_epsilon_by_the_law_of_the_draws() -> None:
    """Against the divergence of the two mixtures itself, by quadrature, for moves along one line.

    That is no more than what is claimed, for it is convex; a mutant that takes the mean number of draws would
    be passed.
    """
    draws, chance, unit, sigma, delta = 60, 1 / 20, 1.0, 12.0, 1e-4
    moves = [unit * c for c in range(draws + 1)]
    epsilon = epsilon_of_draws(draws, chance, moves, sigma, delta)
    weights = scipy.stats.binom.pmf(np.arange(draws + 1), draws, chance)
    x = np.linspace(-150.0, 250.0, 400_001)
    here = scipy.stats.norm.pdf(x, 0.0, sigma)
    there = sum(p * scipy.stats.norm.pdf(x, m, sigma) for p, m in zip(weights, moves, strict=True))

    def divergence(threshold: float) -> float:
        over = [np.maximum(a - math.exp(threshold) * b, 0.0) for a, b in ((here, there), (there, here))]
        return max(float(scipy.integrate.trapezoid(each, x)) for each in over)

    assert divergence(epsilon) <= delta
    assert math.fsum(
        p * delta_from(epsilon, m / sigma) for p, m in zip(weights, moves, strict=True) if m
    ) == pytest.approx(delta, rel=1e-6)
    of_the_mean = epsilon_from(draws * chance * unit / sigma, delta)
    assert divergence(of_the_mean) > delta
    # What comes beyond the last move counts as the last move.
    assert epsilon_of_draws(draws, chance, moves[:12], sigma, delta) < epsilon + 1e-3
    assert epsilon_of_draws(draws, chance, [*moves[:12], 1e9], sigma, delta) > epsilon - 1e-9
    assert epsilon_of_draws(draws, chance, [0.0, 1e-9], sigma, delta) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"calibration": "paper", "loss": losses.Hinge()},
            "for a smooth loss and a delta above 0. Fix: give",
        ),
        ({"calibration": "paper", "delta": 0.0}, "for a smooth loss and a delta above 0. Fix: give"),
        ({"calibration": "paper", "learning_rate": 9.0}, "learning rate above 0 and at most"),
        ({"calibration": "paper", "learning_rate": 0.0}, "learning_rate is 0.0. Fix"),
        ({"learning_rate": 9.0}, "learning rate above 0 and at most"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0. Fix"),
        ({"learning_rate": math.inf, "loss": losses.Hinge()}, "learning_rate is inf. Fix"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    X = np.array([[0.1], [0.2], [-0.1], [0.4]])
    with pytest.raises(ConfigError, match=message):
        offline.LocalizedPairSGD(**options).fit(X, [0, 1, 0, 1])
