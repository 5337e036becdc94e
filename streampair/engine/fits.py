"""Slow models of a lane's learner: computed in the background, adopted between records that the log names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from streampair.engine.protocols import DeferredFits
from streampair.engine.records import Record, Scored
from streampair.engine.wal import ModelEntry

__all__ = ["Fits", "PendingModel"]


class PendingModel(Protocol):
    """A model that is being computed: a `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Whether it is computed."""
        ...

    def result(self) -> Any:
        """The model, waiting for it if need be; raises what its computation raised."""
        ...


class _Computed:
    def __init__(self, compute: Callable[[], Any]) -> None:
        self._model = compute()

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._model


class Fits:
    """Computes the slow models of a learner, one at a time, and decides from which record on each is used.

    At most one model is adopted in a call of `process`, before its first record. Until then the model before
    scores. Releases that come while a model is computed do not replace it; the newest of them is next.
    Records that the log knows, in a replay or from an attempt that died, are scored with the models that the
    log names; before their end no other model is adopted.

    Parameters
    ----------
    learner
        Of the lane.
    submit
        Runs a computation somewhere; None: at once, and the lane waits.
    """

    def __init__(
        self, learner: DeferredFits, submit: Callable[[Callable[[], Any]], PendingModel] | None
    ) -> None:
        self._learner = learner
        self._submit = _Computed if submit is None else submit
        self._pending: tuple[int, PendingModel] | None = None
        self._adopted: int | None = None  # and not announced yet
        self._logged: list[tuple[int, int]] = []  # offset and release of adoptions to come
        self._until = 0
        learner.defer_fits()

    def follow(self, entries: Sequence[ModelEntry], next_offset: int) -> None:
        """Follow the entries of a log about records from `next_offset` on."""
        self._until = max((entry.end for entry in entries), default=0)
        self._logged = [
            (entry.first, entry.release)
            for entry in entries
            if entry.release is not None and entry.first >= next_offset
        ]
        self._learner.defer_fits([release for _, release in self._logged])

    def parts(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """The records in parts, before each of which the model is adopted that the log names."""
        start = 0
        while self._logged:
            first, release = self._logged[0]
            stop = next((i for i in range(start, len(records)) if records[i].offset >= first), None)
            if stop is None:
                break
            if stop > start:
                yield records[start:stop]
            del self._logged[0]
            self._adopt_logged(release)
            start = stop
        if start < len(records) or not start:
            yield records[start:] if start else records

    def _adopt_logged(self, release: int) -> None:
        pending = self._pending
        if pending is not None and pending[0] <= release:
            self._pending = None
        if pending is not None and pending[0] == release:
            self._learner.adopt(release, pending[1].result())
            return
        fit = self._learner.fit_due(release)
        # None: the topic has lost records. In a replay the digest of the scores then differs.
        if fit is not None:
            self._learner.adopt(release, fit.compute())

    def adopt(self, next_offset: int) -> None:
        """Adopt the computed model, unless the log says what scores the records from `next_offset`."""
        if self._pending is None or next_offset < self._until or not self._pending[1].done():
            return
        release, model = self._pending
        self._pending = None
        self._learner.adopt(release, model.result())
        self._adopted = release

    def start(self) -> None:
        """Begin to compute the newest model, unless another is being computed."""
        if self._pending is None:
            fit = self._learner.fit_due()
            if fit is not None:
                self._pending = fit.release, self._submit(fit.compute)

    def announce(self, scores: Sequence[Scored]) -> ModelEntry | None:
        """Log entry of a model for the records just taken; None: there is none."""
        if not scores or (self._adopted is None and self._pending is None):
            return None
        release, self._adopted = self._adopted, None
        first, end = scores[0].offset, scores[-1].offset + 1
        return None if end <= self._until else ModelEntry(release, first, end)
