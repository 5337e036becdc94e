"""Checkpoints: outputs, state and offsets of all lanes, made durable in numbered steps.

The steps and their reasons are in docs/design.md, "The steps of a commit".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StreampairError
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.stores import Store
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = ["Checkpoint", "Outcome", "for_each"]


class Outcome:
    """Result of a checkpoint.

    Attributes
    ----------
    stored
        Whether all outputs were stored in time. If not, no lane was committed.
    committed
        Lanes whose commit is durable.
    fenced
        Lanes that another worker owns now, with their errors.
    seconds
        Duration.
    """

    def __init__(self) -> None:
        self.stored = True
        self.committed: list[OpenLane] = []
        self.fenced: list[tuple[OpenLane, SourceError]] = []
        self.seconds = 0.0


async def for_each(
    lanes: Iterable[OpenLane], action: Callable[[OpenLane], Awaitable[None]]
) -> tuple[list[OpenLane], list[tuple[OpenLane, SourceError]]]:
    """Run an action on all lanes concurrently.

    Returns
    -------
    tuple
        The lanes for which it succeeded, and those that another worker owns now, with their errors.

    Raises
    ------
    StreampairError
        The action failed for a lane; for the others it ran to its end.
    """
    lanes = list(lanes)
    results = await asyncio.gather(*map(action, lanes), return_exceptions=True)
    done: list[OpenLane] = []
    fenced: list[tuple[OpenLane, SourceError]] = []
    failed: BaseException | None = None
    for lane, result in zip(lanes, results, strict=True):
        if result is None:
            done.append(lane)
        elif isinstance(result, FencedError | CommitOutcomeUnknownError):
            fenced.append((lane, result))
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
        Called with the reason why outputs cannot be stored.
    count
        Called with the result of each lane's commit: one of `metric_definitions.OUTCOMES`.
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
        self, lanes: Iterable[OpenLane], *, clean: bool, give_up: asyncio.Event, seconds: float | None = None
    ) -> Outcome:
        """Commit lanes. The steps of a lane are ordered; lanes run concurrently.

        Parameters
        ----------
        lanes
            Those with something to commit.
        clean
            Whether this is their last commit before they are closed.
        give_up
            Set when waiting for outputs shall end.
        seconds
            How long to wait for outputs; None: until `give_up`.

        Raises
        ------
        StreampairError
            A lane could not be committed, and its state in memory is invalid; others are committed.
        """
        begin = self._host.monotonic()
        outcome = Outcome()
        timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            give_up = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(seconds, give_up.set)
        try:
            # 1 to 3 lines, then outputs and dead letters are stored, unless they are part of the commit
            try:
                ready = await self._each(lanes, lambda lane: lane.store.release(give_up), outcome)
                outcome.stored = await self._store.flush(give_up, self._on_trouble)
            except SourceError as error:
                if not (error.retriable and give_up.is_set()):
                    raise
                outcome.stored = False  # a lane that waits for its register accepts no more outputs
            if outcome.stored:
                # 4 and 5 snapshot, log, offset and register: by the store, lane by lane; then 6
                outcome.committed = await self._each(
                    ready, lambda lane: self._commit_lane(lane, clean), outcome
                )
        finally:
            if timer is not None:
                timer.cancel()
        outcome.seconds = self._host.monotonic() - begin
        return outcome

    async def _each(
        self, lanes: Iterable[OpenLane], action: Callable[[OpenLane], Awaitable[None]], outcome: Outcome
    ) -> list[OpenLane]:
        done, fenced = await for_each(lanes, action)
        outcome.fenced += fenced
        return done

    async def _commit_lane(self, lane: OpenLane, clean: bool) -> None:
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
