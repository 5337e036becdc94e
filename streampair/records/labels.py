"""Positive and negative labels of a binary task."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streampair.errors import ConfigError, RecordError
from streampair.records import features
from streampair.records.features import short

__all__ = ["TwoLabels"]


def _kind(label: Any) -> str | None:
    """Type of a label in words; None: not a label."""
    if isinstance(label, str):
        return "text"
    if isinstance(label, bytes):
        return "bytes"
    if isinstance(label, bool | np.bool_):
        return "a boolean"
    return "a number" if isinstance(label, int | float | np.integer | np.floating) else None


def _opposite(label: Any) -> Any:
    """The other of two labels, such as False for True and 0 for 1; None if the type has more values."""
    if _kind(label) not in ("a boolean", "a number") or label not in (0, 1):
        return None
    return not label if _kind(label) == "a boolean" else 1 - label


class TwoLabels:
    """The positive and the negative label of a binary task.

    Labels are compared by `==` after the conversion of `features.label`, so 1, 1.0, True and "1" are equal.

    Parameters
    ----------
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any third label is then an error. None: the opposite of True, False, 1 or 0;
        for any other `positive`, all other labels of its type.

    Raises
    ------
    ConfigError
        If one of them is not a label, or both are the same.

    Attributes
    ----------
    positive
        As given.
    negative
        The label that ranks low; None: all other labels of the type of `positive`.
    high, low
        Both after conversion.

    Examples
    --------
    >>> from streampair.records.labels import TwoLabels
    >>> TwoLabels(True).negative, TwoLabels(1).negative, TwoLabels("fraud").negative
    (False, 0, None)
    >>> TwoLabels(True).sign(0.0), TwoLabels("fraud").sign("fine")
    (-1.0, -1.0)
    """

    def __init__(self, positive: Any, negative: Any = None) -> None:
        high, low = features.label(positive), features.label(negative)
        if high is None or (isinstance(high, float) and math.isnan(high)):
            raise ConfigError(
                f"positive is {positive!r}, which marks an unknown label",
                fix="name the label that ranks high, for example True, 1 or 'fraud'",
            )
        for name, label in (("positive", positive), ("negative", negative)):
            if label is not None and (_kind(label) is None or label != label):
                raise ConfigError(
                    f"{name} is {short(label)}, which is not a label",
                    fix="give text, a number, True or False",
                )
        if negative is not None and low == high:
            raise ConfigError(f"positive and negative are both {positive!r}", fix="give two different labels")
        self.positive = positive
        # The negative label of "1" is not 0: predictions have the stream's labels.
        self.negative = _opposite(positive) if negative is None else negative
        self.high, self.low = high, features.label(self.negative)

    def sign(self, y: Any) -> float:
        """+1 for the label that ranks high, -1 for one that ranks low.

        Raises
        ------
        RecordError
            If the label is unknown (None, NaN or masked), cannot be compared, or is neither.
        """
        label, y = y, features.label(y)
        try:
            differs = y != y
            unknown = y is None or differs is np.ma.masked or bool(differs)
            high = bool(y == self.high)
            low = not high and self._is_low(y)
        except (TypeError, ValueError):  # an array, or pandas.NA
            raise RecordError(
                f"the label is not a single known value: {short(label)}",
                fix="give one label, for example True or False",
                stage="label",
            ) from None
        if unknown:
            raise RecordError(
                f"the label is {label!r}, so it is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        if high or low:
            return 1.0 if high else -1.0
        raise RecordError(
            f"the label is {short(label)}, and {self._named()}",
            fix="name the label that ranks high as positive=, and the other one as negative=, "
            "for example positive='yes', negative='no'",
            stage="label",
        )

    def _is_low(self, y: Any) -> bool:
        return _kind(y) == _kind(self.high) if self.low is None else bool(y == self.low)

    def _named(self) -> str:
        """Describe the known labels, for an error."""
        if self.negative is None:
            return f"positive={self.positive!r} is {_kind(self.high)}"
        return f"there are only positive={self.positive!r} and negative={self.negative!r}"
