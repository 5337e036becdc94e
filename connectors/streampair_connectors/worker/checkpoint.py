"""Checkpoints: outputs, state and offsets of the lane, made durable in numbered steps.

The steps and their reasons are in docs/design.md, "The steps of a commit".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.stores import Store
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = ["Checkpoint"]


class Checkpoint:
    """Commits the lane.

    Parameters
    ----------
    store
        Of the lane.
    on_trouble
        Called with the reason why outputs cannot be stored.
    count
        Called with the result of each commit: one of `metric_definitions.OUTCOMES`.
    host
        Its clock.
    """

    def __init__(
        self,
        store: Store,
        on_trouble: Callable[[str], None],
        count: Callable[[str], None] = lambda outcome: None,
        *,
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self._store = store
        self._on_trouble = on_trouble
        self._count = count

    async def run(
        self, lane: OpenLane, *, clean: bool, give_up: asyncio.Event, seconds: float | None = None
    ) -> bool:
        """Commit the lane.

        Parameters
        ----------
        lane
            It has something to commit.
        clean
            Whether this is its last commit before it is closed.
        give_up
            Set when waiting for outputs shall end.
        seconds
            How long to wait for outputs; None: until `give_up`.

        Returns
        -------
        bool
            Whether all outputs were stored in time, and the commit is durable. If not, nothing was committed.

        Raises
        ------
        FencedError, CommitOutcomeUnknownError
            Another worker owns the lane now.
        StreampairError
            The lane could not be committed, and its state in memory is invalid.
        """
        timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            give_up = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(seconds, give_up.set)
        try:
            # 1 to 3 the line, then outputs and dead letters are stored, unless they are part of the commit
            try:
                await lane.store.release(give_up)
                stored = await self._store.flush(give_up, self._on_trouble)
            except (FencedError, CommitOutcomeUnknownError):
                raise
            except SourceError as error:
                if not (error.retriable and give_up.is_set()):
                    raise
                stored = False  # a lane that waits for its register accepts no more outputs
            if stored:
                # 4 and 5 snapshot, log, offset and register, by the store; then 6
                await self._commit(lane, clean)
        finally:
            if timer is not None:
                timer.cancel()
        return stored

    async def _commit(self, lane: OpenLane, clean: bool) -> None:
        commit = lane.logged_lane.commit(snapshot=lane.snapshot_due, clean=clean, when=self._host.now_ms)
        try:
            await lane.store.commit(commit)
        except BaseException as error:
            outcomes = {FencedError: "fenced", CommitOutcomeUnknownError: "unknown"}
            self._count(next((name for kind, name in outcomes.items() if isinstance(error, kind)), "failed"))
            raise
        self._count("committed")
        lane.logged_lane.committed()
        lane.dirty = False
        if commit.content is not None:
            lane.saved_at = self._host.monotonic()
