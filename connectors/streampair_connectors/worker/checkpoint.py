"""A checkpoint: outputs, state and offsets of all lanes, made durable in numbered steps.

The steps and their reasons are in docs/design.md, "The steps of a commit".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StreampairError
from streampair_connectors.stores import Store
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = ["Checkpoint", "Outcome", "for_each"]


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


async def for_each(
    lanes: Iterable[OpenLane], do: Callable[[OpenLane], Awaitable[None]]
) -> tuple[list[OpenLane], list[tuple[OpenLane, SourceError]]]:
    """Do something with the store of each lane, side by side.

    Returns
    -------
    tuple
        The lanes with which it was done, and those that belong to somebody else now, with what was said.

    Raises
    ------
    StreampairError
        With one of them it could not be done; with the others it was.
    """
    lanes = list(lanes)
    results = await asyncio.gather(*map(do, lanes), return_exceptions=True)
    done: list[OpenLane] = []
    fenced: list[tuple[OpenLane, SourceError]] = []
    failed: BaseException | None = None
    for held, result in zip(lanes, results, strict=True):
        if result is None:
            done.append(held)
        elif isinstance(result, FencedError | CommitOutcomeUnknownError):
            fenced.append((held, result))
        elif failed is None or not isinstance(result, StreampairError):
            failed = result
    if failed is not None:
        raise failed
    return done, fenced


class Checkpoint:
    """Commits lanes.

    Parameters
    ----------
    store
        Of the lanes.
    on_trouble
        Told what keeps outputs from being stored.
    count
        Told what came of the commit of each lane: one of `series.OUTCOMES`.
    """

    def __init__(
        self,
        store: Store,
        on_trouble: Callable[[str], None],
        count: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._store = store
        self._on_trouble = on_trouble
        self._count = count

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
            # 1 to 3 lines are durable, outputs and dead letters stored, if they do not ride on the commit
            try:
                ready = await self._each(lanes, lambda held: held.store.release(give_up), outcome)
                outcome.stored = await self._store.flush(give_up, self._on_trouble)
            except SourceError as error:
                if not (error.retriable and give_up.is_set()):
                    raise
                outcome.stored = False  # a lane that waited for a register takes nothing any more
            if outcome.stored:
                # 4 and 5 snapshot, log, offset and register: by the store, lane by lane; 6 then follows
                outcome.committed = await self._each(ready, lambda held: self._one(held, clean), outcome)
        finally:
            if timer is not None:
                timer.cancel()
        outcome.seconds = time.perf_counter() - begin
        return outcome

    async def _each(
        self, lanes: Iterable[OpenLane], do: Callable[[OpenLane], Awaitable[None]], outcome: Outcome
    ) -> list[OpenLane]:
        done, fenced = await for_each(lanes, do)
        outcome.fenced += fenced
        return done

    async def _one(self, held: OpenLane, clean: bool) -> None:
        commit = held.lane.commit(snapshot=held.snapshot_due, clean=clean, when=round(time.time() * 1000))
        try:
            await held.store.commit(commit)
        except BaseException as error:
            known = {FencedError: "fenced", CommitOutcomeUnknownError: "unknown"}
            self._count(next((name for kind, name in known.items() if isinstance(error, kind)), "failed"))
            raise
        self._count("committed")
        held.lane.committed()
        held.dirty = False
        if commit.content is not None:
            held.saved_at = time.monotonic()
