"""Scaling by declared bounds, and the projection on the ball."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import preprocessing
from streampair.errors import ConfigError


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(allow_nan=False, allow_infinity=False))
def test_bounds(low: float, width: float, value: float) -> None:
    high = low + width
    scale = preprocessing.Bounds({"a": (low, high)})
    out = scale.transform_one({"a": value})["a"]
    assert -1.0 <= out <= 1.0
    inside = min(max(value, low), high)
    assert out == pytest.approx(2 * (inside - low) / (high - low) - 1, abs=1e-9)
    assert scale.transform_one({"a": low})["a"] == -1.0
    assert scale.transform_one({"a": high})["a"] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("value", [None, "3", math.inf])
def test_what_is_no_number_passes_unchanged(value: Any) -> None:
    x = {"a": value, "b": 7.0}
    for model in (preprocessing.Bounds({"a": (0, 1)}), preprocessing.UnitBall()):
        assert model.transform_one(x) == x
        assert model.transform_one(x) is not x
    assert math.isnan(preprocessing.Bounds({"a": (0, 1)}).transform_one({"a": math.nan})["a"])


def test_features_without_bounds_and_absent_ones() -> None:
    scale = preprocessing.Bounds({"a": (0, 10), "absent": (0, 1)})
    assert scale.transform_one({"a": 5, "b": 5}) == {"a": 0.0, "b": 5}


@pytest.mark.parametrize(
    "bounds",
    [{"a": (1, 1)}, {"a": (2, 1)}, {"a": 3}, {"a": (0,)}, {"a": ("0", 1)}, {"a": (0, math.inf)},
     {"a": (math.nan, 1)}, {"a": (-1e308, 1e308)}, [("a", (0, 1))]],
    ids=str,
)  # fmt: skip
def test_bad_bounds(bounds: Any) -> None:
    with pytest.raises(ConfigError, match="bounds"):
        preprocessing.Bounds(bounds)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_unit_ball(values: list[float], radius: float) -> None:
    x = {str(i): v for i, v in enumerate(values)}
    out = preprocessing.UnitBall(radius).transform_one(x)
    norm = math.hypot(*values)
    assert math.hypot(*out.values()) <= radius * (1 + 1e-12)
    if norm <= radius:
        assert out == x
    else:
        assert out == pytest.approx({n: v * (radius / norm) for n, v in x.items()}, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, "1"])
def test_bad_radius(radius: Any) -> None:
    with pytest.raises(ConfigError, match="radius"):
        preprocessing.UnitBall(radius)
