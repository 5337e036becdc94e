"""Scaling that depends on one record only, and so is safe in front of a private learner."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from river import base, utils

from streampair import _features
from streampair.errors import ConfigError

__all__ = ["Bounds", "UnitBall"]


def _real(value: object) -> float | None:
    """The value as a finite float, or None if it is no such thing."""
    try:
        number = _features.as_number(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class Bounds(base.MiniBatchTransformer):
    """Scale features from their declared bounds to [-1, 1].

    A value outside its bounds is clipped. Features without bounds pass unchanged, and so do values that are
    not finite numbers: the learner behind refuses them with a message that names the feature.

    Parameters
    ----------
    bounds
        ``{name: (low, high)}``, with low < high, both finite. They must be public: declared from knowledge of
        what the feature can be, never measured on the stream.

    Raises
    ------
    ConfigError
        If a pair is not two finite numbers in rising order.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (PRIVACY.md 7).

    Examples
    --------
    >>> from streampair import preprocessing
    >>> scale = preprocessing.Bounds({"age": (0, 120), "amount": (0, 1000)})
    >>> scale.transform_one({"age": 90, "amount": 5000.0, "clicks": 3})
    {'age': 0.5, 'amount': 1.0, 'clicks': 3}
    """

    def __init__(self, bounds: Mapping[Any, tuple[float, float]]) -> None:
        self.bounds = bounds
        if not isinstance(bounds, Mapping):
            raise ConfigError(f"bounds is {bounds!r}", fix="give a dict such as {'age': (0, 120)}")
        self._scale: dict[Hashable, tuple[float, float, float]] = {}
        for name, pair in bounds.items():
            try:
                low, high = (_features.as_number(v) for v in pair)
            except (TypeError, ValueError, OverflowError):
                raise ConfigError(
                    f"the bounds of {name!r} are {pair!r}", fix="give two numbers, (low, high)"
                ) from None
            if not (low < high and math.isfinite(high - low)):
                raise ConfigError(
                    f"the bounds of {name!r} are {pair!r}", fix="give two finite numbers with low < high"
                )
            self._scale[name] = (low, high, 2.0 / (high - low))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"bounds": {"gallup": (0.0, 100.0)}}

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The record with its bounded features in [-1, 1]; x itself is not changed."""
        out = dict(x)
        for name, (low, high, factor) in self._scale.items():
            if name in out and (value := _real(out[name])) is not None:
                out[name] = min((min(max(value, low), high) - low) * factor - 1.0, 1.0)
        return out

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame of numbers; a frame of the same kind."""
        frame = _features.open_frame(X)
        columns, rows = _features.frame_rows(frame)
        out = rows.copy()
        for j, name in enumerate(columns):
            if name in self._scale:
                low, high, factor = self._scale[name]
                finite = np.isfinite(rows[:, j])
                scaled = (np.clip(rows[:, j], low, high) - low) * factor - 1.0
                out[:, j] = np.where(finite, np.minimum(scaled, 1.0), rows[:, j])
        return utils.dataframe.to_native_frame(out, like=frame, columns=columns)


class UnitBall(base.MiniBatchTransformer):
    """Project each record onto the l2 ball: a longer vector is scaled to length `radius`, a shorter one kept.

    A record with a value that is not a finite number passes unchanged: the learner behind refuses it.

    Parameters
    ----------
    radius
        Finite, above 0.

    Raises
    ------
    ConfigError
        If the radius is not finite and above 0.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (PRIVACY.md 7).

    Examples
    --------
    >>> from streampair import preprocessing
    >>> preprocessing.UnitBall().transform_one({"a": 3.0, "b": 4.0})
    {'a': 0.6, 'b': 0.8}
    """

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = radius
        if not (isinstance(radius, int | float) and math.isfinite(radius) and radius > 0.0):
            raise ConfigError(f"radius is {radius!r}", fix="give a finite radius above 0")

    def _divisor(self, values: Iterable[float]) -> float:
        norm = math.hypot(*values)  # does not overflow where the sum of squares would
        return norm / self.radius if norm > self.radius else 1.0

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The projected record; x itself is not changed."""
        values: list[float] = []
        for value in x.values():
            number = _real(value)
            if number is None:
                return dict(x)
            values.append(number)
        divisor = self._divisor(values)
        return {name: value / divisor for name, value in zip(x, values, strict=True)}

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame of numbers; a frame of the same kind."""
        frame = _features.open_frame(X)
        columns, rows = _features.frame_rows(frame)
        divisors = [self._divisor(row) if np.isfinite(row).all() else 1.0 for row in rows]
        out = rows / np.array(divisors).reshape(-1, 1)
        return utils.dataframe.to_native_frame(out, like=frame, columns=columns)
