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
    """Type of a label; None: no label."""
    if isinstance(label, str):
        return "text"
    if isinstance(label, bytes):
        return "bytes"
    if isinstance(label, bool | np.bool_):
        return "a truth value"
    return "a number" if isinstance(label, int | float | np.integer | np.floating) else None


def _opposite(label: Any) -> Any:
    """The other label where there are only two, as False for True and 0 for 1; None: there are many."""
    if _kind(label) not in ("a truth value", "a number") or label not in (0, 1):
        return None
    return not label if _kind(label) == "a truth value" else 1 - label


class TwoLabels:
    """The label that ranks high, and what ranks low.

    Labels are compared by `==` after they were read as cells are, so that 1, 1.0, True and "1" are one label.

    Parameters
    ----------
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The one that ranks low; then there is no third. None: the opposite of True, False, 1 or 0; beside any
        other `positive` all labels of its type.

    Raises
    ------
    ConfigError
        If one of them is no label, or both are the same.

    Attributes
    ----------
    positive
        As given.
    negative
        The label that ranks low; None: all of the type of `positive` do.
    high, low
        Both as they are compared.

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
                    f"{name} is {short(label)}, which is no label", fix="give text, a number, True or False"
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
        """What labels there can be."""
        if self.negative is None:
            return f"positive={self.positive!r} is {_kind(self.high)}"
        return f"there are only positive={self.positive!r} and negative={self.negative!r}"
