"""Projections on the sets that weights are kept in."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import sets
from streampair.errors import ConfigError

BALLS = [sets.L2Ball, sets.FrobeniusBall, sets.PSDCone]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_project(w: list[float], radius: float) -> None:
    before = np.array(w)
    out = sets.L2Ball(radius).project(before)
    assert out is not before
    assert before.tolist() == w
    np.testing.assert_allclose(out, naive.project_ball(w, radius), rtol=1e-12, atol=1e-12)


def inside(kind: type, w: np.ndarray, radius: float) -> bool:
    size = max(float(np.linalg.norm(w)), 1.0)
    definite = kind is not sets.PSDCone or np.linalg.eigvalsh(w)[0] >= -1e-9 * size
    return bool(definite and (w == w.T).all() and np.linalg.norm(w) <= radius * (1 + 1e-9))


@pytest.mark.parametrize("kind", [sets.FrobeniusBall, sets.PSDCone])
@given(d=st.integers(1, 5), seed=st.integers(0, 2**32 - 1), radius=st.sampled_from([0.3, 2.0, 50.0]))
def test_the_nearest_matrix(kind: type, d: int, seed: int, radius: float) -> None:
    """The projection is the point p of a convex set with <w - p, v - p> <= 0 for every v in the set."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(d, d)) * 3.0
    before = w.copy()
    p = kind(radius).project(w)
    assert (w == before).all()
    assert inside(kind, p, radius)
    size = np.linalg.norm(w) * radius
    for _ in range(10):
        v = kind(radius).project(rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-1, 2))
        assert inside(kind, v, radius)
        assert np.sum((w - p) * (v - p)) <= 1e-9 * size
    np.testing.assert_allclose(kind(radius).project(p), p, atol=1e-9)


def test_the_wrong_order_is_further_away() -> None:
    """Ball first, then cone, is another point, and not the nearest: the test above would reject it."""
    w, cone = np.array([[4.0, 0.0], [0.0, -3.0]]), sets.PSDCone(1.0)
    wrong = sets.PSDCone().project(sets.FrobeniusBall(1.0).project(w))
    assert np.linalg.norm(w - cone.project(w)) < np.linalg.norm(w - wrong)
    assert np.sum((w - wrong) * (cone.project(w) - wrong)) > 0.1


@pytest.mark.parametrize("kind", BALLS)
@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, "1"])
def test_bad_radius(kind: type, radius: float) -> None:
    with pytest.raises(ConfigError, match="radius"):
        kind(radius)


def test_only_the_cone_has_no_end() -> None:
    assert sets.PSDCone().radius == math.inf
    for kind in (sets.L2Ball, sets.FrobeniusBall):
        with pytest.raises(ConfigError, match="radius"):
            kind(math.inf)


@pytest.mark.parametrize("kind", [sets.FrobeniusBall, sets.PSDCone])
@pytest.mark.parametrize("w", [np.zeros(3), np.zeros((2, 3)), np.full((2, 2), math.nan)], ids=str)
def test_no_matrix(kind: type, w: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="square matrix"):
        kind(1.0).project(w)


@pytest.mark.parametrize("kind", BALLS)
def test_repr_and_clone(kind: type) -> None:
    ball = kind(2.0)
    assert repr(ball) == repr(ball.clone()) == f"{kind.__name__}(radius=2.0)"
