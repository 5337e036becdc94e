"""A checkpoint: outputs, state and offsets of all lanes, made durable in numbered steps (DESIGN.md 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from streampair.errors import Fenced, OutcomeUnknown, SourceError, StreampairError
from streampair_connectors.lanes import OpenLane
from streampair_connectors.stores import Store

__all__ = ["Checkpoint", "Outcome"]


class Outcome:
    """What came of a checkpoint.

    Attributes
    ----------
    stored
        Whether all outputs were stored in time. If not, nothing was committed.
    committed
        Lanes whose commit is durable.
    fenced
        Lanes that belong to somebody else now, with what was said.
    seconds
        How long it took.
    """

    def __init__(self) -> None:
        self.stored = True
        self.committed: list[OpenLane] = []
        self.fenced: list[tuple[OpenLane, SourceError]] = []
        self.seconds = 0.0


class Checkpoint:
    """Commits lanes.

    Parameters
    ----------
    store
        Of the lanes.
    on_trouble
        Told what keeps outputs from being stored.
    """

    def __init__(self, store: Store, on_trouble: Callable[[str], None]) -> None:
        self._store = store
        self._on_trouble = on_trouble

    async def run(
        self, lanes: Iterable[OpenLane], *, clean: bool, give_up: asyncio.Event, seconds: float | None = None
    ) -> Outcome:
        """Commit lanes; the steps of each are in one order, and lanes do not wait for each other.

        Parameters
        ----------
        lanes
            Those that have anything to commit.
        clean
            Whether they end here.
        give_up
            Set when there is no point in waiting for outputs any longer.
        seconds
            How long to wait for them; None: until `give_up`.

        Raises
        ------
        StreampairError
            A lane could not be committed. What it holds is of no use any more; others are committed.
        """
        begin = time.perf_counter()
        outcome = Outcome()
        timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            give_up = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(seconds, give_up.set)
        try:
            # 1 outputs and dead letters that need not ride on the commit are stored
            outcome.stored = await self._store.flush(give_up, self._on_trouble)
            if outcome.stored:
                await self._all(list(lanes), clean, outcome)
        finally:
            if timer is not None:
                timer.cancel()
        outcome.seconds = time.perf_counter() - begin
        return outcome

    async def _all(self, lanes: list[OpenLane], clean: bool, outcome: Outcome) -> None:
        # 2 snapshot, 3 log, 4 offset and register: by the store, lane by lane
        results = await asyncio.gather(*(self._one(held, clean) for held in lanes), return_exceptions=True)
        failed: BaseException | None = None
        for held, result in zip(lanes, results, strict=True):
            if result is None:
                outcome.committed.append(held)
            elif isinstance(result, Fenced | OutcomeUnknown):
                outcome.fenced.append((held, result))
            elif failed is None or not isinstance(result, StreampairError):
                failed = result
        if failed is not None:
            raise failed

    async def _one(self, held: OpenLane, clean: bool) -> None:
        commit = held.lane.commit(snapshot=held.snapshot_due, clean=clean)
        await held.store.commit(commit)
        held.lane.committed()
        held.dirty = False
        if commit.content is not None:
            held.saved_at = time.monotonic()
