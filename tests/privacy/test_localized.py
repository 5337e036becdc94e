"""One pass in which each record meets the one before: how far a record moves it (Lemmas 68 and 69)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streampair import batch, losses
from streampair.batch.base import Problem
from streampair.batch.epochs import halves
from streampair.batch.stochastic import pair_steps
from streampair.errors import ConfigError
from streampair.privacy.mechanisms.descent import neighbours_move


def passed(problem: Problem, eta: float, start: Any) -> tuple[Any, Any]:
    """The mean of the iterates of a pass, and the last."""
    at, total = np.arange(problem.n), np.zeros(problem.dim)
    last, before = pair_steps(problem, (at[1:], at[:-1]), eta, start, start, total)
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
        sides.append(Problem(x, y, loss, form, radius, dim, None, np.zeros(dim)))
    eta = 0.002 * radius
    means = [passed(side, eta, np.zeros(side.dim))[0] for side in sides]
    claim = neighbours_move(n - 1, eta, diameter=sides[0].diameter, jump=0.0, radius=radius)
    return float(np.linalg.norm(means[0] - means[1])), claim


@pytest.mark.parametrize("form", ["raw", "metric"])
@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SquaredHinge(), losses.Square()], ids=repr)
def test_a_pass_moves_by_no_more_and_nearly_so(loss: losses.PairLoss, form: Any) -> None:
    """And a twin that forgets that a record has two pairs would be seen, where D is reached."""
    for place in (0, 1, 20, 39):
        move, claim = of_last(40, place, loss, 0.02, form)
        assert move <= claim
        if place == 1:
            assert move > claim / 3.0
            if form == "raw" and loss.decreasing:  # else D is that of pairs that this record is not in
                assert move > 0.85 * claim > claim / 2.0  # a twin of one pair claims half


def kinks(axes: int, eta: float) -> tuple[Problem, Problem, Any]:
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
    one = Problem(np.array(rows), np.array(labels), losses.Hinge(), "raw", 9.0, d, None, np.zeros(d))
    far, flipped = one.rows.copy(), one.labels.copy()
    far[1], flipped[1] = -v, -1.0
    return one, Problem(far, flipped, losses.Hinge(), "raw", 9.0, d, None, np.zeros(d)), start


def test_two_runs_part_at_the_kinks_of_a_hinge() -> None:
    """A twin that takes the hinge for smooth, and so claims 2 eta D, would be seen: it is passed."""
    eta = 0.001
    one, other, start = kinks(60, eta)
    (mean, last), (mean2, last2) = (passed(problem, eta, start) for problem in (one, other))
    move, steps = float(np.linalg.norm(mean - mean2)), one.n - 1
    given: Any = {"diameter": one.diameter, "radius": one.radius}
    claim = neighbours_move(steps, eta, jump=one.lipschitz, **given)
    assert claim / 3.0 < move <= claim
    assert move > 1.3 * neighbours_move(steps, eta, jump=0.0, **given)
    assert np.linalg.norm(last - last2) > 1.8 * 2.0 * eta * one.diameter


def test_which_lemma_is_taken() -> None:
    rng = np.random.default_rng(1)
    y = rng.random(200) < 0.5
    X = rng.normal(size=(200, 3)) / 4 + 0.3 * y[:, None]
    for loss, lemma in ((losses.Logistic(), "Lemma 68"), (losses.Hinge(), "Lemma 69")):
        model = batch.LocalizedPairSGD(1.0, 1e-5, loss=loss, learning_rate=0.1).fit(X, y)
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
    metric = batch.LocalizedPairSGD(1.0, 1e-5, task="metric", loss=losses.Hinge()).fit(X, y)
    assert metric.privacy.epsilon_spent == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"calibration": "paper"}, "drawn again and again.*Fix: use calibration"),
        ({"learning_rate": 9.0}, "learning rate above 0 and at most"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0. Fix"),
        ({"learning_rate": math.inf, "loss": losses.Hinge()}, "learning_rate is inf. Fix"),
    ],
)
def test_bad_parameters_are_told(given: dict[str, Any], message: str) -> None:
    X = np.array([[0.1], [0.2], [-0.1], [0.4]])
    with pytest.raises(ConfigError, match=message):
        batch.LocalizedPairSGD(**given).fit(X, [0, 1, 0, 1])
