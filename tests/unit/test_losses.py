"""Pair losses: values, slopes, and the constants of docs/privacy 2."""

from __future__ import annotations

import math
import pickle

import naive
import numpy as np
import pytest
from harness.every_loss import MARGIN
from harness.support import in_one_case
from hypothesis import given
from hypothesis import strategies as st

from streampair import losses
from streampair.errors import ConfigError

CONVEX = [loss for loss in MARGIN if loss.convex]
ALL = [*MARGIN, losses.MinimumErrorEntropy(0.5)]
margins = st.floats(-1e3, 1e3)


@pytest.mark.parametrize("loss", CONVEX, ids=str)
@given(m=margins)
def test_value_and_slope(loss: losses.PairLoss, m: float) -> None:
    name = type(loss).__name__
    assert isinstance(loss.value(m), float)
    assert isinstance(loss.slope(m), float)
    assert loss.value(m) == pytest.approx(naive.loss_value(name, m), rel=1e-12, abs=1e-300)
    array = np.array([[m, 0.5], [-m, 1.5]])
    for function, reference in ((loss.value, naive.loss_value), (loss.slope, naive.loss_slope)):
        out = function(array)
        assert out.shape == array.shape
        expected = np.vectorize(lambda v, reference=reference: reference(name, v))(array)
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-300)
    # The slope is a subgradient: the loss lies above its tangent.
    for other in (m - 1.0, m + 0.5):
        tangent = loss.value(m) + loss.slope(m) * (other - m)
        assert loss.value(other) >= tangent - 1e-6 * (1 + abs(tangent))


@given(e=st.floats(-1e3, 1e3), width=st.floats(0.1, 10.0))
def test_minimum_error_entropy(e: float, width: float) -> None:
    loss = losses.MinimumErrorEntropy(width)
    value, slope = naive.entropy(e, width)
    assert loss.value(e) == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert loss.slope(e) == pytest.approx(slope, rel=1e-12, abs=1e-300)
    assert loss.value(np.array([e]))[0] == loss.value(e) == loss.value(-e) <= width**2
    # Half the square of the error as the width grows.
    assert losses.MinimumErrorEntropy(1e3).value(e / 1e3) == pytest.approx((e / 1e3) ** 2 / 2, rel=1e-5)


@pytest.mark.parametrize("m", [-1e300, -800.0, 800.0, 1e300])
def test_logistic_does_not_overflow(m: float) -> None:
    assert losses.Logistic().value(m) == pytest.approx(max(0.0, -m))
    assert losses.Logistic().slope(m) == pytest.approx(-1.0 if m < 0 else 0.0)


def test_the_table_at_the_unit_ball() -> None:
    sigmoid4 = 1 / (1 + math.exp(-4))
    assert losses.Logistic().lipschitz(1, 1) == pytest.approx(4 * sigmoid4)  # 3.93, not the papers' 2
    assert losses.Logistic().smoothness(1, 1) == 4.0
    assert losses.Hinge().lipschitz(1, 1) == 4.0
    assert losses.SquaredHinge().lipschitz(1, 1) == 40.0
    assert losses.SquaredHinge().smoothness(1, 1) == 32.0
    assert losses.Square().lipschitz(1, 1) == 40.0
    assert losses.Square().smoothness(1, 1) == 32.0
    assert losses.Square().diameter(1, 1) == 80.0
    assert losses.Logistic().diameter(1, 1) == losses.Logistic().lipschitz(1, 1)
    assert losses.Logistic().lipschitz(1, 1, "halved") == pytest.approx(2 / (1 + math.exp(-2)))
    entropy = losses.MinimumErrorEntropy(2.0)
    assert entropy.lipschitz(1, 1) == pytest.approx(2 * 2 * math.exp(-0.5))
    assert entropy.lipschitz(1, 1, "halved") == entropy.lipschitz(1, 1)  # both reach an error of 2
    assert losses.MinimumErrorEntropy(100.0).lipschitz(1, 1) == pytest.approx(2 * 4, rel=1e-3)
    assert entropy.smoothness(1, 1) == 4.0
    assert entropy.diameter(1, 1) == 2 * entropy.lipschitz(1, 1)


def test_the_table_of_metrics() -> None:
    """docs/privacy 2, at B = 1 and R = 1 or 1/8, where the largest PSD margin changes sides."""
    sigmoid = lambda a: 1 / (1 + math.exp(-a))  # noqa: E731
    for r in (1.0, 0.125):
        q = 4 * r
        assert losses.Logistic().lipschitz(1, r, "metric") == pytest.approx(4 * sigmoid(q + 1))
        assert losses.Logistic().lipschitz(1, r, "psd") == pytest.approx(4 * max(sigmoid(q - 1), sigmoid(1)))
        for loss in (losses.SquaredHinge(), losses.Square()):
            assert loss.lipschitz(1, r, "metric") == pytest.approx(16 * (1 + 2 * r))
            assert loss.lipschitz(1, r, "psd") == pytest.approx(8 * max(q, 2))
    for form in ("metric", "psd"):
        assert losses.Hinge().lipschitz(1, 1, form) == 4.0
        assert losses.Hinge().diameter(1, 1, form=form) == 8.0
        assert losses.Hinge().diameter(1, 1, clip=0.5, form=form) == 1.0
        assert losses.Logistic().smoothness(1, 1, form) == 4.0
        assert losses.SquaredHinge().smoothness(1, 1, form) == losses.Square().smoothness(1, 1, form) == 32.0
        with pytest.raises(ConfigError, match="for relevances, not for metrics"):
            losses.MinimumErrorEntropy().lipschitz(1, 1, form)
    with pytest.raises(ConfigError, match=r"form is 'cooked'.*Fix: "):
        losses.Hinge().lipschitz(1, 1, "cooked")  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_width(width: object) -> None:
    with pytest.raises(ConfigError, match="width"):
        losses.MinimumErrorEntropy(width)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ALL, ids=str)
def test_clipping(loss: losses.PairLoss) -> None:
    assert loss.diameter(1, 1, clip=0.1) == 0.2
    assert loss.diameter(1, 1, clip=1e6) == loss.diameter(1, 1)


def test_the_hinge_has_no_smoothness() -> None:
    with pytest.raises(ConfigError, match=r"hinge loss is not smooth.*Fix: use losses\.Logistic"):
        losses.Hinge().smoothness(1.0, 1.0)


@pytest.mark.parametrize("loss", ALL, ids=str)
@in_one_case("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_constants(loss: losses.PairLoss, bad: float) -> None:
    with pytest.raises(ConfigError, match="feature_bound"):
        loss.lipschitz(bad, 1.0)
    with pytest.raises(ConfigError, match="radius"):
        loss.diameter(1.0, bad)
    with pytest.raises(ConfigError, match="clip"):
        loss.diameter(1.0, 1.0, clip=bad)


@pytest.mark.parametrize("loss", ALL, ids=str)
def test_as_parameters(loss: losses.PairLoss) -> None:
    assert loss.clone() == loss == pickle.loads(pickle.dumps(loss))
    assert hash(loss.clone()) == hash(loss)
    assert repr(loss) == str(loss)
    assert eval(repr(loss), vars(losses)) == loss
    assert len({type(other) for other in ALL if other == loss}) == 1
    assert losses.MinimumErrorEntropy(0.5) != losses.MinimumErrorEntropy(0.25)
