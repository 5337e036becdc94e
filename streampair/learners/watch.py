"""Whether the first records lie within their bounds: for the eyes of whoever runs the learner."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
from numpy.typing import NDArray

from streampair.errors import PrivacyWarning
from streampair.records.design import Design

__all__ = ["BoundsWatch"]

Array = NDArray[np.float64]

_FIRST = 100
_MOST = 0.95


class BoundsWatch:
    """Counts how often each feature of the first 100 whole records lies outside its bounds, then warns once.

    What it says depends on raw data. So it says it where the learner runs, as a `PrivacyWarning`, and nowhere
    else: no release, report or state knows of it, and it raises nothing, not even where warnings are errors.
    An exception would tell something about the records, and cost one its slot.

    Parameters
    ----------
    design
        Features with their bounds.

    Attributes
    ----------
    seen
        Records it has looked at.
    """

    __slots__ = ("_design", "_outside", "seen")

    def __init__(self, design: Design) -> None:
        self._design = design
        self._outside = np.zeros(len(design.names), dtype=np.int64)
        self.seen = 0

    def look(self, rows: Array) -> bool:
        """Look at raw rows (n, d), all of them whole; whether there is more to see."""
        rows = rows[: _FIRST - self.seen]
        scale, shift = self._design.how[:2]
        self._outside += (np.abs(rows * scale + shift) > 1.0 + 1e-9).sum(axis=0)
        self.seen += len(rows)
        if self.seen < _FIRST:
            return True
        self._tell()
        return False

    def _tell(self) -> None:
        names = [
            name for name, n in zip(self._design.names, self._outside, strict=True) if n >= _MOST * _FIRST
        ]
        if not names:
            return
        shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        with contextlib.suppress(PrivacyWarning):  # where warnings are errors
            warnings.warn(
                f"nearly all of the first {_FIRST} values of {shown} lie outside their bounds and are cut "
                "off, so little can be learned from them: declare bounds= (without, values are taken to be "
                "from -1 to 1) from what is publicly known, not from these records",
                PrivacyWarning,
                stacklevel=7,
            )
