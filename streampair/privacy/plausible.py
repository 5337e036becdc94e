"""Warnings about budgets that hold and give no useful privacy, or under which nothing can be learned."""

from __future__ import annotations

import warnings

from streampair.errors import PrivacyWarning

__all__ = ["doubts", "warn_if_doubtful"]

_MOST_EPSILON = 20.0
_LEAST_RECORDS = 10
# Assumed length of a stream without a horizon: no useful one is shorter.
_RECORDS = 100


def doubts(epsilon: float, delta: float, records: int | None, unit: str = "records") -> list[str]:
    """Return warnings about a budget, each with its fix; computed from public numbers alone.

    Parameters
    ----------
    epsilon, delta
        The promised budget of a record.
    records
        Number of records; None: unknown.
    unit
        Name of the unit that is counted, in the plural.

    Examples
    --------
    >>> from streampair.privacy.plausible import doubts
    >>> doubts(1.0, 1e-6, 100_000)
    []
    >>> [text.partition(":")[0] for text in doubts(50.0, 0.01, 1000)]
    ['epsilon is 50', 'delta is 0.01, and there are 1,000 records']
    """
    found = []
    if epsilon > _MOST_EPSILON:
        found.append(
            f"epsilon is {epsilon:g}: one record may change the odds of any conclusion by a factor of "
            f"e^{epsilon:g}, which protects nobody; use 10 or less, better 1"
        )
    known = _RECORDS if records is None else records
    if delta * known > 1.0 + 1e-9:
        count = f"there are {known:,} {unit}" if records is not None else f"no stream is shorter than {known}"
        found.append(
            f"delta is {delta:g}, and {count}: publishing one record in full has a delta of one over their "
            f"number, so this much permits it; use {1.0 / known:.1g} or less"
        )
    if records is not None and records < _LEAST_RECORDS:
        found.append(
            f"the horizon is {records}: with so few records a model is mostly noise; "
            "streampair.privacy.plan estimates how many are needed"
        )
    return found


def warn_if_doubtful(
    epsilon: float, delta: float, records: int | None, unit: str = "records", *, stacklevel: int
) -> None:
    """Issue each of the `doubts` as a warning; `stacklevel` as in `warnings.warn`, from the caller."""
    for text in doubts(epsilon, delta, records, unit):
        warnings.warn(text, PrivacyWarning, stacklevel=stacklevel + 1)
