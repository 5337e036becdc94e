"""Numbers that are times: in which unit since 1970 they lie from 1990 to 2100.

These ranges of seconds, milliseconds, microseconds and nanoseconds have no number in common, so that a number
in the wrong unit is found.
"""

from __future__ import annotations

__all__ = ["UNITS", "unit_of"]

_FIRST, _LAST = 631_152_000, 4_102_444_800  # 1990-01-01 and 2100-01-01, in seconds since 1970

UNITS = {"seconds": 1, "milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
"""How many of each unit are a second."""


def unit_of(moment: float) -> str | None:
    """The unit of a number that is a time from 1990 to 2100, since 1970; None: in no unit it is one.

    Examples
    --------
    >>> unit_of(1_704_067_200), unit_of(1_704_067_200_000), unit_of(20_240_101)
    ('seconds', 'milliseconds', None)
    """
    for unit, count in UNITS.items():
        if _FIRST * count <= moment < _LAST * count:
            return unit
    return None
