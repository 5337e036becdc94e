"""The registry of losses: every learner steps along the loss that it was given, or refuses it."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness.every_loss import EVERY, MARGIN
from harness.loss_takers import OF_ERRORS, TAKERS, public_takers
from harness.support import in_one_case

from streampair import auc, buffers, losses, metric
from streampair.errors import ConfigError
from streampair.evaluation.comparator import Pairs, minimise
from streampair.kernels import losses as losses_kernels
from streampair.kernels import pairs, state
from streampair.offline.risk import score_slopes

UNKNOWN = 99


class Unregistered(losses.PairLoss):
    """A loss of a user, with a code that is a hinge's."""

    code = losses_kernels.HINGE

    def _value(self, margin: Any) -> Any:
        return np.exp(-margin)

    def _slope(self, margin: Any) -> Any:
        return -np.exp(-margin)

    def _steepest(self, low: float, high: float) -> float:
        return float(np.exp(-low))

    def _curvature(self) -> float:
        return 1.0


class FlatHinge(losses.Hinge):
    """A subclass of a registered loss: another slope, and a fifth of the noise."""

    def _slope(self, margin: Any) -> Any:
        return 0.2 * super()._slope(margin)

    def _steepest(self, low: float, high: float) -> float:
        return 0.2


def overwritten() -> losses.PairLoss:
    loss = losses.Square()
    loss.decreasing = True  # it halves the diameter
    return loss


def test_every_loss_of_the_module_is_in_the_registry() -> None:
    named = [getattr(losses, name) for name in losses.__all__]
    kinds = {kind for kind in named if inspect.isclass(kind) and not inspect.isabstract(kind)}
    assert kinds == set(losses.registry.values())
    assert [losses.registry[loss.code] for loss in EVERY] == [type(loss) for loss in EVERY]


def test_every_learner_that_takes_a_loss_is_tried() -> None:
    assert public_takers() == {name.split()[0] for name in TAKERS}


@pytest.mark.parametrize("loss", MARGIN, ids=str)
def test_the_pieces_add_up_to_the_slope(loss: losses.PairLoss) -> None:
    if loss.pieces is None:
        return
    for m in np.linspace(-3.0, 3.0, 49):  # the corners among them
        parts = [step + bend * (m - zero) for until, step, bend, zero in loss.pieces if m < until]
        assert sum(parts) == pytest.approx(loss.slope(float(m)))


@pytest.mark.parametrize("loss", EVERY, ids=str)
def test_the_steepest_slope_is_never_passed(loss: losses.PairLoss) -> None:
    for reach in (1.0, 10.0, 1e6):
        slopes = np.abs(loss.slope(np.linspace(-reach, reach, 10_001)))
        assert slopes.max() <= loss.steepest
    assert np.isinf(loss.steepest) or slopes.max() >= 0.5 * loss.steepest or loss.of_errors


# ---- what no learner knows -------------------------------------------------------------------------------


@pytest.mark.parametrize("taker", TAKERS)
@in_one_case("loss", [Unregistered(), FlatHinge(), overwritten(), "hinge"])
def test_every_learner_refuses_a_loss_that_its_steps_do_not_know(taker: str, loss: Any) -> None:
    with pytest.raises(ConfigError, match=r"loss is|set by hand"):
        TAKERS[taker](loss)


@pytest.mark.parametrize("loss", [loss for loss in EVERY if loss.of_errors], ids=str)
@in_one_case("taker", [taker for taker in TAKERS if taker.split()[0] not in OF_ERRORS])
def test_a_loss_of_errors_is_refused_where_it_has_no_guarantee(taker: str, loss: losses.PairLoss) -> None:
    with pytest.raises(ConfigError):
        TAKERS[taker](loss)


def test_no_kernel_takes_an_unknown_code_for_another_loss() -> None:
    """A kernel whose last branch is a loss, taken for every other code."""
    one, many = np.ones(1), np.ones((2, 2))
    places = np.array([0]), np.array([1])
    for code in (UNKNOWN, -1, losses_kernels.ENTROPY):
        for call in (
            lambda code: losses_kernels.loss_slope(code, 0.5),
            lambda code: losses_kernels.loss_value(code, 0.5),
            lambda code: pairs.pair_sums_any(code, one, one, one.copy(), one.copy()),
            lambda code: pairs.pair_descent(
                *(code, False, 0.0, 1.0, np.full(len(places[0]), 0.1), np.ones(len(places[0])), many),
                *(np.array([1.0, -1.0]), *places, *np.zeros((3, 2))),
            ),
        ):
            with pytest.raises(ValueError, match="no loss"):
                call(code)
    with pytest.raises(ValueError, match="no loss"):
        losses_kernels.pair_slope(UNKNOWN, 1.0, 0.5, 0.7)


@pytest.mark.parametrize(
    "model",
    [
        auc.PairOGD(buffer=buffers.FIFO(4)),
        auc.PairOGD(buffer=buffers.FIFO(64)),
        auc.PairOGD(buffer=buffers.FullHistory()),
        metric.PairOGD(),
        metric.PairOGD(buffer=buffers.FullHistory()),
    ],
    ids=repr,
)
def test_a_state_with_an_unknown_code_learns_nothing(model: Any) -> None:
    model = model.clone()
    for i in range(50):
        model.learn_one({"a": i / 100, "b": -i / 90}, i % 2 == 0)
    model._state[state.LOSS] = UNKNOWN
    with pytest.raises(ValueError, match="no loss"):
        model.learn_one({"a": 0.3, "b": 0.2}, True)


def test_other_losses_are_evaluated_by_their_own_slope() -> None:
    """The search for the best fixed weights takes a subclass by what it says, not by its code."""
    rows = np.random.default_rng(1).normal(0.3, 1.0, (200, 3))
    share = np.full(200, 1.0)
    unregistered, hinge = (
        minimise(Pairs(rows), share, loss, 1.0, np.zeros(3)) for loss in (Unregistered(), losses.Hinge())
    )

    def mean(loss: losses.PairLoss, w: Any) -> float:
        return float(loss.value(rows @ w).mean())

    assert mean(Unregistered(), unregistered) < mean(Unregistered(), hinge)


# ---- what they know --------------------------------------------------------------------------------------


@cache
def learned(taker: str, loss: losses.PairLoss) -> Any:
    """What a learner has learned if all losses have the same constants, so the same noise and steps."""
    with pytest.MonkeyPatch.context() as patch:
        for constant in ("lipschitz", "smoothness", "diameter"):
            patch.setattr(losses.PairLoss, constant, lambda *_, **__: 1.0)
        patch.setattr(losses.PairLoss, "steepest", 1.0)
        for kind in losses.registry.values():
            patch.setattr(kind, "decreasing", True)
        return TAKERS[taker](loss)


def apart(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@in_one_case("loss", MARGIN)
@pytest.mark.parametrize("taker", TAKERS)
def test_every_learner_steps_along_its_loss_and_no_other(taker: str, loss: losses.PairLoss) -> None:
    weights = learned(taker, loss)
    assert np.isfinite(weights).all()
    others = {str(other): apart(weights, learned(taker, other)) for other in MARGIN if other != loss}
    assert min(others.values()) > 1e-4, others


@pytest.mark.parametrize("loss", MARGIN, ids=str)
def test_slopes_of_all_pairs_are_those_of_the_loss(loss: losses.PairLoss) -> None:
    rng = np.random.default_rng(4)
    scores, high = rng.normal(size=40), rng.random(40) < 0.4
    found = score_slopes(loss, scores, high)
    slopes = 2.0 * loss.slope(2.0 * (scores[high, None] - scores[~high])) * 2.0 / (40 * 39)
    assert found[high] == pytest.approx(slopes.sum(axis=1))
    assert found[~high] == pytest.approx(-slopes.sum(axis=0))
