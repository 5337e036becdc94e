"""Durations: a text with a unit, such as "500ms", "90s", "15m", "6h" or "30d"."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

__all__ = ["Duration", "at_least", "duration_text"]

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")


class Duration(int):
    """A duration in milliseconds, which is written with its unit.

    Examples
    --------
    >>> from streampair_connectors.config import Duration
    >>> wait = Duration.of("15m")
    >>> int(wait), wait.seconds, f"{wait}"
    (900000, 900.0, '15m')
    """

    @classmethod
    def of(cls, text: object) -> Duration:
        """Return the duration that a text says.

        Raises
        ------
        ValueError
            It says none.
        """
        if isinstance(text, Duration):
            return text
        found = _DURATION.fullmatch(text) if isinstance(text, str) else None
        if isinstance(text, int | float) and not isinstance(text, bool) and 0 <= text < math.inf:
            raise ValueError(f'{text} has no unit; write "{cls(round(1000 * text))}" if it is in seconds')
        if found is None:
            raise ValueError(
                f'{text!r} is not a duration; write a whole number and its unit, as "500ms", "90s", "15m", '
                '"6h" or "30d"'
            )
        return cls(int(found[1]) * _UNITS[found[2]])

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self / 1000

    def __str__(self) -> str:
        unit = next(unit for unit, size in _UNITS.items() if self % size == 0)
        return f"{self // _UNITS[unit]}{unit}" if self else "0s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.to_string_ser_schema()
        )


def at_least(text: str) -> AfterValidator:
    """Refuse a duration that is shorter.

    Examples
    --------
    >>> at_least("1s").func(Duration.of("500ms"))
    Traceback (most recent call last):
    ValueError: 500ms is too short; write at least 1s
    """
    least = Duration.of(text)

    def check(value: Duration) -> Duration:
        if value < least:
            raise ValueError(f"{value} is too short; write at least {least}")
        return value

    return AfterValidator(check)


def duration_text(milliseconds: int) -> str:
    """Return a duration, for people.

    Examples
    --------
    >>> from streampair_connectors.config import duration_text
    >>> duration_text(86_400_000), duration_text(90_000)
    ('24 hours', '90 seconds')
    """
    for size, name in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.3g} {name}"
    return f"{milliseconds / 1000:.3g} seconds"
