"""Sizes of the steps, through every learner that takes them."""

from __future__ import annotations

import math
from typing import Any

import naive
import numpy as np
import pytest
from harness.support import in_one_case

from streampair import auc, buffers, losses, metric, ranking, schedules
from streampair.errors import ConfigError

#: Each schedule with its name in the reference implementation, and its formula.
SCHEDULES = {
    "constant": (schedules.Constant(0.3), lambda j: 0.3),
    "sqrt": (schedules.InverseSqrt(0.3), lambda j: 0.3 / math.sqrt(j)),
    "time": (schedules.InverseTime(0.8), lambda j: 2.0 / (0.8 * (j + 1))),
}


def stream(n: int = 60) -> Any:
    rng = np.random.default_rng(4)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, 3)) + y[:, None], y


@pytest.mark.parametrize("name", SCHEDULES)
def test_sizes_are_those_of_the_formula(name: str) -> None:
    schedule, formula = SCHEDULES[name]
    assert schedule.sizes(5, 4) == pytest.approx([formula(j) for j in range(5, 9)])


@pytest.mark.parametrize("average", [True, False, "linear"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_an_online_learner_takes_these_steps(name: str, average: Any) -> None:
    """By records and by tables. A mutant that averages by the steps in place of j would be seen."""
    X, y = stream()
    schedule, formula = SCHEDULES[name]
    reference = naive.PairOGD(
        3,
        "Logistic",
        "fifo",
        2,
        formula(1) * {"time": 2.0}.get(name, 1.0),
        1.5,
        0.1,
        schedule=name,
        linear=average == "linear",
    )
    made = [
        auc.PairOGD(
            loss=losses.Logistic(),
            buffer=buffers.FIFO(2),
            learning_rate=schedule,
            scale=None,
            radius=1.5,
            l2=0.1,
            average=average,
        )
        for _ in range(2)
    ]
    for row, label in zip(X, y, strict=True):
        reference.learn(row.tolist(), 1.0 if label else -1.0)
        made[0].learn_one(dict(enumerate(row.tolist())), bool(label))
    made[1].learn_many(X, y)
    wanted = reference.average if average else reference.last
    for model in made:
        assert list(model.weights.values()) == pytest.approx(wanted, abs=1e-11)


@pytest.mark.parametrize(
    "buffer", [buffers.FIFO(1), buffers.FIFO(40), buffers.ClassReservoir(3), buffers.FullHistory()], ids=str
)
@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Square()], ids=str)
def test_each_weight_has_steps_of_its_own(buffer: buffers.Buffer, loss: losses.PairLoss) -> None:
    """Through each kernel that steps a linear score, on features of very different units."""
    X, y = stream()
    X *= [1.0, 1e-3, 40.0]
    policy = {0: "fifo", 3: "full", 4: "classes"}[buffer.code]
    reference = naive.PairOGD(
        3, type(loss).__name__, policy, buffer.size, 0.25, 0.6, 0.1, 3, schedule="adagrad"
    )
    steps = schedules.AdaGrad(0.25)
    made = [auc.PairOGD(loss, buffer, steps, scale=None, radius=0.6, l2=0.1, seed=3) for _ in range(2)]
    for row, label in zip(X, y, strict=True):
        reference.learn(row.tolist(), 1.0 if label else -1.0)
        made[0].learn_one(dict(enumerate(row.tolist())), bool(label))
    made[1].learn_many(X, y)
    for model in made:
        assert list(model.weights.values()) == pytest.approx(reference.last, abs=1e-9)


def test_the_first_step_of_a_weight_has_the_rate() -> None:
    """Whatever the unit of its feature; a weight without a gradient stays."""
    model = auc.PairOGD(learning_rate=schedules.AdaGrad(0.25), scale=None)
    for i in range(2):
        model.learn_one({"small": 1e-9 * i, "large": -1e9 * i, "same": 1.0}, i == 1)
    assert model.weights == {"small": 0.25, "large": -0.25, "same": 0.0}


def test_what_adagrad_cannot_be_given_to() -> None:
    steps = schedules.AdaGrad(0.1)
    for average in (True, "linear"):
        with pytest.raises(ConfigError, match="last iterate"):
            auc.PairOGD(learning_rate=steps, average=average)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="last iterate"):
        ranking.PairOGD(learning_rate=steps)
    assert ranking.PairOGD(learning_rate=steps, average=False).average is False
    with pytest.raises(ConfigError, match="differ by weight"):
        metric.PairOGD(learning_rate=steps, average=False)
    with pytest.raises(ConfigError, match="depend on the gradients"):
        steps.sizes(1, 3)
    with pytest.raises(ConfigError, match="rate is 0"):
        schedules.AdaGrad(0)


@pytest.mark.parametrize(
    ("scale", "steps"),
    [("running", schedules.AdaGrad(1 / 16, start=1.0)), (None, schedules.AdaGrad(0.125))],
    ids=["scaled", "unscaled"],
)
def test_the_name_is_a_schedule_with_sixteen_partners(scale: Any, steps: Any) -> None:
    X, y = stream()
    made = [
        auc.PairOGD(scale=scale),
        auc.PairOGD(learning_rate=steps, buffer=buffers.FIFO(16), scale=scale),
    ]
    for model in made:
        model.learn_many(X, y)
    assert made[0].weights == made[1].weights
    with pytest.raises(ConfigError, match="learning_rate is 'adagrad'"):
        auc.SPAUC(learning_rate="adagrad")  # type: ignore[arg-type]


def test_one_keyword_is_algorithm_2() -> None:
    """A number, another schedule or None: one partner, one step size, and the average of the iterates."""
    X, y = stream()
    for rate in (0.3, schedules.InverseSqrt(0.3)):
        model = auc.PairOGD(learning_rate=rate, scale=None)
        reference = naive.PairOGD(3, "Hinge", "fifo", 1, 0.3, 2.0)
        model.learn_many(X, y)
        for row, label in zip(X, y, strict=True):
            reference.learn(row.tolist(), 1.0 if label else -1.0)
        assert list(model.weights.values()) == pytest.approx(reference.average, abs=1e-11)
        assert model.buffer_records == 1
    assert auc.PairOGD(learning_rate=None).to_state()["params"] != auc.PairOGD().to_state()["params"]


def test_sums_of_squares_are_saved_and_checked() -> None:
    X, y = stream()
    whole, first, second = (auc.PairOGD() for _ in range(3))
    whole.learn_many(X, y)
    first.learn_many(X[:30], y[:30])
    second.load_state(first.to_state())
    second.learn_many(X[30:], y[30:])
    assert second.weights == whole.weights
    state = first.to_state()
    with pytest.raises(Exception, match="sums of squares below 0"):
        auc.PairOGD().load_state({**state, "previous": -state["previous"]})


def test_a_beginning_counts_in_the_squares_of_each_weight() -> None:
    """Records that it is worth make the steps shorter."""
    X, y = stream(12)
    start, moved = {0: 0.5, 1: -0.5, 2: 0.1}, []
    for records in (0, 100):
        model = auc.PairOGD()
        model.begin_at(start, records=records)
        model.learn_many(X, y)
        moved.append(float(np.linalg.norm(np.array(list(model.weights.values())) - list(start.values()))))
    assert 0.0 < moved[1] < 0.5 * moved[0]


def test_a_number_is_the_schedule_of_the_square_root() -> None:
    X, y = stream()
    for make in (auc.PairOGD, metric.PairOGD):
        one, other = make(learning_rate=0.2), make(learning_rate=schedules.InverseSqrt(0.2))
        one.learn_many(X, y)
        other.learn_many(X, y)
        assert one.weights == other.weights


def test_the_other_tasks_take_schedules() -> None:
    X, y = stream()
    for make in (ranking.PairOGD, metric.PairOGD):
        found = []
        for schedule, _ in SCHEDULES.values():
            for average in (True, "linear"):
                model = make(learning_rate=schedule, average=average)
                model.learn_many(X, y.astype(float))
                found.append(tuple(model.weights.values()))
        assert len(set(found)) == len(found)


def test_a_saved_learner_goes_on_with_its_steps() -> None:
    X, y = stream()
    whole = auc.PairOGD(learning_rate=schedules.InverseTime(0.5), average="linear")
    whole.learn_many(X, y)
    first = auc.PairOGD(learning_rate=schedules.InverseTime(0.5), average="linear")
    first.learn_many(X[:30], y[:30])
    second = auc.PairOGD(learning_rate=schedules.InverseTime(0.5), average="linear")
    second.load_state(first.to_state())
    second.learn_many(X[30:], y[30:])
    assert second.weights == whole.weights
    other = auc.PairOGD(learning_rate=schedules.InverseTime(0.6), average="linear")
    with pytest.raises(Exception, match="InverseTime"):
        other.load_state(first.to_state())


@pytest.mark.parametrize("average", [True, "linear"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_beginning_counts_as_so_many_steps(name: str, average: Any) -> None:
    X, y = stream(12)
    schedule, formula = SCHEDULES[name]
    start = {0: 0.5, 1: -0.5, 2: 0.1}
    averaged = auc.PairOGD(learning_rate=schedule, average=average, scale=None)
    last = auc.PairOGD(learning_rate=schedule, average=False, scale=None)
    iterates = [np.array(list(start.values()))] * 2  # w_{-1} and w_0
    for model in (averaged, last):
        model.begin_at(start, records=100)
    for row, label in zip(X, y, strict=True):
        for model in (averaged, last):
            model.learn_one(dict(enumerate(row.tolist())), bool(label))
        iterates.append(np.array(list(last.weights.values())))
    del iterates[2]  # the first record has no partner: no step
    worth = [(float(j) if average == "linear" else formula(j)) for j in range(1, len(iterates) - 1)]
    before = sum((float(j) if average == "linear" else formula(j)) for j in range(1, 101))
    wanted = before * iterates[0] + sum(a * w for a, w in zip(worth, iterates, strict=False))
    wanted /= before + sum(worth)
    assert list(averaged.weights.values()) == pytest.approx(wanted, abs=1e-12)


@in_one_case("value", [-1.0, math.inf, math.nan, True, "fast", 1e13])
def test_what_squares_cannot_begin_at_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"start is .*Fix: give a number from 0 to 1e12"):
        schedules.AdaGrad(0.1, start=value)


@pytest.mark.parametrize("make", [schedules.Constant, schedules.InverseSqrt, schedules.InverseTime])
@in_one_case("value", [0.0, -1.0, math.inf, math.nan, True, "fast", 1e13])
def test_what_is_no_size_is_refused(make: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="Fix: give a finite"):
        make(value)
