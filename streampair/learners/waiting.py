"""What stands in the place of a run before a private learner knows its features."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.learners.identity import Identity
from streampair.learners.run import SlotRun
from streampair.privacy.entities import Admission
from streampair.privacy.mechanisms.base import Release, Settings
from streampair.privacy.mechanisms.link import Link
from streampair.privacy.mechanisms.run import Run
from streampair.privacy.origin import Origin, Origins
from streampair.records.design import check_finite, check_scored

__all__ = ["Waiting"]

Array = NDArray[np.float64]

_CHUNK = 1024


class Waiting:
    """Stands in the place of a `SlotRun` before the feature names are known.

    Parameters
    ----------
    settings
        What is promised.
    identity
        Who the learner is.
    begin
        Makes the run, once a record has named its features, and puts it in this one's place.

    Attributes
    ----------
    pending
        Null slots that will be released once the features are known.
    """

    names: tuple[Hashable, ...] = ()
    weights: Array = np.empty(0)
    warmed = False
    forked = False
    slots = 0
    digest = b""
    rule: Run | None = None
    admission: Admission | None = None
    link = Link()

    def __init__(
        self, settings: Settings, identity: Identity, begin: Callable[[Sequence[Hashable]], SlotRun]
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.mu_warmup = settings.mu_warmup(None)
        self.pending = 0
        self._begin = begin

    def card(self) -> tuple[Release, ...]:
        """Nothing is calibrated yet."""
        return ()

    def take(self, x: Any, label: float, origin: Origin | None = None) -> None:
        """The first record that names features begins the run; what comes before it is a null slot."""
        try:
            names = list(x) if isinstance(x, Mapping) else []
        except Exception:  # a mapping that cannot be read
            names = []
        if names:
            self._start(names).take(x, label, origin)
        else:
            self.null(origin)

    def score_and_take(
        self, x: Any, label: float, origin: Origin | None = None, *, raises: bool = True
    ) -> float:
        """`score`, then `take`; where it is not to raise, NaN is returned."""
        try:
            score = self.score(x)
        except Exception:
            if raises:
                raise
            score = math.nan
        self.take(x, label, origin)
        return score

    def take_frame(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """The columns of a frame name features."""
        self._start(columns).take_frame(columns, rows, labels)

    def null(self, origin: Origin | None = None) -> None:
        """A slot that is released later."""
        horizon, identity = self.settings.horizon, self.identity
        if horizon is None or self.pending < horizon:
            self.pending += 1
            context = None if origin is None else origin.context
            identity.folded = hashlib.blake2b(identity.folded + (context or b"")).digest()

    def _start(self, names: Sequence[Hashable]) -> SlotRun:
        """Fix the feature set, then take the null slots that came before it was known."""
        run = self._begin(names)
        refused = run.counts.refused_records
        first: bytes | None = self.identity.folded
        while self.pending:
            count = min(self.pending, _CHUNK)
            self.pending -= count
            raw, labels = np.full((count, len(names)), math.nan), np.full(count, math.nan)
            run.take_many(raw, labels, Origins([first, *[None] * (count - 1)]))
            first = None
        run.counts.refused_records = refused  # they were null before anybody asked whose they are
        return run

    def vector(self, x: Any) -> Array:
        """Nothing, for a record that could be scored."""
        check_scored(x)
        return np.empty(0)

    def score(self, x: Any) -> float:
        """0, for a record that could be scored."""
        check_scored(x)
        return 0.0

    def vectors(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """Each by itself."""
        return None

    def prepared(self, columns: list[Hashable], rows: Array) -> Array:
        """No columns, for rows that could be scored."""
        check_finite(columns, rows, list(range(len(columns))))
        return np.empty((len(rows), 0))

    def scores(self, columns: list[Hashable], rows: Array) -> Array:
        """0, for rows that could be scored."""
        return np.zeros(len(self.prepared(columns, rows)))

    def to_state(self) -> dict[str, Any]:
        """As of a `SlotRun`, with nothing in it."""
        return {
            "names": None,
            "slots": 0,
            "pending": self.pending,
            "plan": None,
            "standardised": False,
            "sums": None,
            "mean": None,
            "factor": None,
            "rule": None,
            "chain": self.identity.chained,
        }
