"""Projection on the ball."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import sets
from streampair.errors import ConfigError


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_project(w: list[float], radius: float) -> None:
    before = np.array(w)
    out = sets.L2Ball(radius).project(before)
    assert out is not before
    assert before.tolist() == w
    np.testing.assert_allclose(out, naive.project_ball(w, radius), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan, "1"])
def test_bad_radius(radius: float) -> None:
    with pytest.raises(ConfigError, match="radius"):
        sets.L2Ball(radius)


def test_repr_and_clone() -> None:
    ball = sets.L2Ball(2.0)
    assert repr(ball) == repr(ball.clone()) == "L2Ball(radius=2.0)"
