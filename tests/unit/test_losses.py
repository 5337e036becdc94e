"""Pair losses: values, slopes, and the constants of PRIVACY.md 2."""

from __future__ import annotations

import math
import pickle

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import losses
from streampair.errors import ConfigError

ALL = [losses.Logistic(), losses.Hinge(), losses.SquaredHinge(), losses.Square()]
margins = st.floats(-1e3, 1e3)
bounds = st.floats(0.1, 10.0)


@pytest.mark.parametrize("loss", ALL, ids=str)
@given(m=margins)
def test_value_and_slope(loss: losses.PairLoss, m: float) -> None:
    name = type(loss).__name__
    assert isinstance(loss.value(m), float)
    assert isinstance(loss.slope(m), float)
    assert loss.value(m) == pytest.approx(naive.loss_value(name, m), rel=1e-12, abs=1e-300)
    array = np.array([[m, 0.5], [-m, 1.5]])
    for function, twin in ((loss.value, naive.loss_value), (loss.slope, naive.loss_slope)):
        out = function(array)
        assert out.shape == array.shape
        expected = np.vectorize(lambda v, twin=twin: twin(name, v))(array)
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-300)
    # The slope is a subgradient: the loss lies above its tangent.
    for other in (m - 1.0, m + 0.5):
        tangent = loss.value(m) + loss.slope(m) * (other - m)
        assert loss.value(other) >= tangent - 1e-6 * (1 + abs(tangent))


@pytest.mark.parametrize("m", [-1e300, -800.0, 800.0, 1e300])
def test_logistic_does_not_overflow(m: float) -> None:
    assert losses.Logistic().value(m) == pytest.approx(max(0.0, -m))
    assert losses.Logistic().slope(m) == pytest.approx(-1.0 if m < 0 else 0.0)


def _gradient(loss: losses.PairLoss, w: np.ndarray, z: tuple, p: tuple) -> np.ndarray:
    (x, y), (x2, y2) = z, p
    return loss.slope(float((y - y2) * w @ (x - x2))) * (y - y2) * (x - x2)


def _extreme_records(b: float) -> list[tuple[np.ndarray, float]]:
    angles = np.linspace(0, 2 * math.pi, 24, endpoint=False)
    xs = [b * np.array([math.cos(a), math.sin(a)]) for a in angles] + [np.zeros(2)]
    return [(x, y) for x in xs for y in (-1.0, 1.0)]


@pytest.mark.parametrize("loss", ALL, ids=str)
@pytest.mark.parametrize(("b", "r"), [(1.0, 1.0), (0.5, 3.0), (2.0, 0.3)])
def test_constants_hold_and_are_tight(loss: losses.PairLoss, b: float, r: float) -> None:
    """Every claimed bound holds on extreme records and weights, and is reached within 5 %."""
    records = _extreme_records(b)
    angles = np.linspace(0, 2 * math.pi, 24, endpoint=False)
    weights = [f * r * np.array([math.cos(a), math.sin(a)]) for a in angles for f in (0.5, 1.0)]
    largest = furthest = 0.0
    for w in [*weights, np.zeros(2)]:
        for p in records[::3]:
            gradients = np.array([_gradient(loss, w, z, p) for z in records])
            largest = max(largest, np.linalg.norm(gradients, axis=1).max())
            apart = gradients[:, None, :] - gradients[None, :, :]
            furthest = max(furthest, np.linalg.norm(apart, axis=2).max())
    g, d = loss.lipschitz(b, r), loss.diameter(b, r)
    assert 0.95 * g <= largest <= g * (1 + 1e-12)
    assert furthest <= d * (1 + 1e-12)
    if not isinstance(loss, losses.Square):
        assert d == g  # half of the obvious 2G
        assert furthest >= 0.95 * d
    else:
        assert d == 2 * g


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SquaredHinge(), losses.Square()], ids=str)
@given(b=bounds, r=bounds, u=st.floats(-1, 1), v=st.floats(-1, 1))
def test_smoothness_holds(loss: losses.PairLoss, b: float, r: float, u: float, v: float) -> None:
    x, x2 = b, -b  # the longest difference, in one dimension
    first = loss.slope(2 * u * r * (x - x2)) * 2 * (x - x2)
    second = loss.slope(2 * v * r * (x - x2)) * 2 * (x - x2)
    assert abs(first - second) <= loss.smoothness(b, r) * abs(u - v) * r * (1 + 1e-9) + 1e-9


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


@pytest.mark.parametrize("loss", ALL, ids=str)
def test_clipping(loss: losses.PairLoss) -> None:
    assert loss.diameter(1, 1, clip=0.5) == 1.0
    assert loss.diameter(1, 1, clip=1e6) == loss.diameter(1, 1)


def test_the_hinge_has_no_smoothness() -> None:
    with pytest.raises(ConfigError, match=r"hinge loss is not smooth.*Fix: use losses\.Logistic"):
        losses.Hinge().smoothness(1.0, 1.0)


@pytest.mark.parametrize("loss", ALL, ids=str)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
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
    assert repr(loss) == str(loss) == f"{type(loss).__name__}()"
    assert len({type(other) for other in ALL if other == loss}) == 1
