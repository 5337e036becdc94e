"""The state of an application at rest: what its lanes hold, and how they go on where a start is refused."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from streampair.engine import ExternalState, LogDamagedError, LoggedLane, ReplayRequest
from streampair.engine.recovery import Acceptance, How, NothingToAcceptError, RecoveredState
from streampair.engine.wal import Chain, Register
from streampair.errors import ConfigError, SnapshotError, SourceError, StoreError, StreampairError
from streampair.privacy import NoiseKey, epsilon_from
from streampair_connectors import kafka
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Config
from streampair_connectors.kafka import Committed, Partition, RecordReader, read_register
from streampair_connectors.stores.offline import StoredLane, offline_store, require_no_members
from streampair_connectors.worker.factory import build_logged_lane, taken_cells
from streampair_connectors.worker.lane_manager import external_state

__all__ = ["LaneState", "Plan", "States", "open_states"]


@dataclass(frozen=True)
class LaneState:
    """One lane as its store and its group have it.

    Attributes
    ----------
    partition
        Of the input.
    sequence
        Of the last entry of the log.
    offset
        Where the lane goes on to read; None: at the start.
    slots, released
        Slots up to the last commit, and the last that may have been released; 0 where nothing is private.
    snapshot
        Its `size` and `offset`; None: there is none.
    forks, forks_planned, pending
        Second views charged for good, how many the plan has room for, and whether one more is charged until a
        replay has caught up; None without an account.
    void, accepted
        What voids the guarantee, and what an operator has accepted.
    key, partitions, cluster
        As when the log began: identity of the noise key, partitions of the input, the cluster.
    writer
        The release that wrote the last commit.
    register
        Whether the group's agrees: ``"agrees"``, ``"older"`` (its last entry was not announced yet),
        ``"newer"`` (the log is an older copy), ``"missing"``, ``"other key or changed"``, ``"not asked"``.
    group_offset
        That the group has committed.
    refused, fix
        What `run` would say in place of starting, and how to mend it; None: it would start.
    damage
        Where the log is damaged; None: nowhere.
    replay
        First offset and end of the events that a start learns again from the last snapshot; None: none. What
        comes of that is not looked at here, and may still refuse the start.
    """

    partition: int
    sequence: int = -1
    offset: int | None = None
    slots: int = 0
    released: int = 0
    snapshot: dict[str, int | None] | None = None
    forks: int | None = None
    forks_planned: int | None = None
    pending: bool | None = None
    void: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    key: str = ""
    partitions: int = 0
    cluster: str = ""
    writer: str = ""
    register: str = "not asked"
    group_offset: int | None = None
    refused: str | None = None
    fix: str | None = None
    damage: str | None = None
    replay: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """What an operator's word would do to a lane; `States.carry_out` does it.

    Attributes
    ----------
    partition, accepted
        The lane, and what it comes to.
    delta
        At which epsilon holds; None without an account.
    """

    partition: int
    accepted: Acceptance
    delta: float | None
    seen: StoredLane
    used: int
    start: int

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        mu, delta, (before, after) = self.accepted.mu, self.delta, self.accepted.charged
        fields: dict[str, Any] = {
            "partition": self.partition,
            "refused": self.accepted.problem,
            "forks_charged": self.accepted.forks,
            "forks": [before, after],
            "report": f"vouched by the operator on {self.accepted.statement}" if delta is not None else None,
        }
        if mu is not None and delta is not None:
            fields |= {"mu": list(mu), "epsilon": [epsilon_from(m, delta) for m in mu], "delta": delta}
        return fields


@dataclass(frozen=True)
class _Seen:
    at_rest: StoredLane
    lane: LoggedLane
    wanted: ReplayRequest
    facts: ExternalState
    committed: Committed | None


class States:
    """Looks at the lanes of an application; made by `open_states`."""

    def __init__(
        self, config: Config, lookup: RecordReader | None, partitions: int, cluster: str, compacted: bool
    ) -> None:
        self.config = config
        self.store = offline_store(config)
        self._lookup = lookup
        self._partitions = partitions
        self._cluster = cluster
        self._compacted = compacted

    async def show(self) -> list[LaneState]:
        """All lanes; changes nothing, and a worker may run meanwhile."""
        return [await self._state(partition) for partition in await self.store.lanes()]

    async def plan(self, how: How, partitions: Sequence[int] | None) -> list[Plan]:
        """What it comes to to go on without the register, the newest entries, or the way from the snapshot.

        Parameters
        ----------
        how
            As of `LoggedLane.accept`.
        partitions
            Of the input; None: all whose start is refused for that.

        Raises
        ------
        StreampairError
            None is, a worker runs, or a lane cannot go on so.
        """
        await require_no_members(self.config)
        plans, nothing = [], None
        for partition in await self.store.lanes() if partitions is None else partitions:
            try:
                plans.append(await self._plan(how, partition))
            except NothingToAcceptError as error:
                if partitions is not None:
                    raise
                nothing = error
        if not plans:
            raise nothing or StoreError(
                "the store has no lane of this application",
                fix="run it first; or see that store.kind and store.directory are those that it ran with",
            )
        return plans

    async def carry_out(self, plan: Plan) -> None:
        """Make a plan durable."""
        append = plan.accepted.append
        offset = plan.start if append.next_offset is None else append.next_offset
        await self.store.amend(plan.partition, plan.seen, plan.used, append, offset)

    async def _plan(self, how: How, partition: int) -> Plan:
        seen = await self._see(partition)
        lane, wanted = seen.lane, seen.wanted
        if seen.at_rest.damage is not None and lane.log.chain.damage is None:
            lane.log.chain.damage = LogDamagedError(seen.at_rest.damage.problem, fix=seen.at_rest.damage.fix)
        content = wanted.content
        snapshot = None if content is None else seen.at_rest.snapshot(content)
        when = datetime.datetime.now(datetime.UTC).date().isoformat()
        accepted = lane.accept(how, seen.facts, when, snapshot)
        delta = None if accepted.mu is None else lane.privacy.delta
        return Plan(partition, accepted, delta, seen.at_rest, wanted.used, seen.facts.start)

    async def _see(self, partition: int) -> _Seen:
        """Read the register, then the log: it is then never the older of the two by our own doing."""
        source = Partition(self.config.input.topic, partition)
        committed = None
        span = (0, 0)
        if self._lookup is not None:
            found = await read_register(self.config.require_kafka(), self.config.app, [source])
            committed, span = found[source], await self._lookup.range(source)
        at_rest = await self.store.look(partition)
        lane = self.make(partition)
        wanted = lane.read(at_rest.frames, damaged=True)
        if self._lookup is None:
            return _Seen(at_rest, lane, wanted, ExternalState(registers=False), None)
        facts = await external_state(
            self._lookup,
            source,
            wanted,
            committed,
            span=span,
            partitions=self._partitions,
            cluster=self._cluster,
        )
        return _Seen(at_rest, lane, wanted, facts, committed)

    def make(self, partition: int) -> LoggedLane:
        """A fresh lane, not started."""
        config, secret = self.config, self.store.secret()
        return build_logged_lane(
            config,
            json_decoder(config.input, **taken_cells(config)),
            topic=config.input.topic,
            partition=partition,
            noise_key=None if secret is None else NoiseKey(secret),
            payloads_change=self._compacted,
        )

    async def _state(self, partition: int) -> LaneState:
        refused: StreampairError | None = None
        register, group_offset, damage = "not asked", None, None
        try:
            seen = await self._see(partition)
        except SourceError:
            raise
        except StreampairError as error:  # another key or configuration: it is shown unverified
            refused, at_rest = error, await self.store.look(partition)
            known, sequence = RecoveredState.of(Chain.peek(at_rest.frames)), -1
        else:
            at_rest, log = seen.at_rest, seen.lane.log
            known, sequence = log.known, log.chain.sequence
            found = at_rest.damage or log.chain.damage
            damage = None if found is None else found.problem
            if self._lookup is not None:
                register, group_offset = _register(log.chain, seen.committed), seen.facts.offset
            if damage is not None:
                refused = found
            elif self._lookup is not None:
                refused = _refusal(seen)
        if known is None:
            problem = damage or "the store has no log of this lane"
            return LaneState(
                partition=partition,
                register=register,
                group_offset=group_offset,
                refused=problem if refused is None else refused.problem,
                fix=None if refused is None else refused.fix,
                damage=damage,
            )
        tip, saved, ledger = known.tip, known.saved, known.ledger
        return LaneState(
            partition=partition,
            sequence=sequence,
            offset=known.next_offset,
            slots=0 if tip is None else tip.slots,
            released=known.released,
            snapshot=None if saved is None else {"size": saved.size, "offset": saved.tip.next_offset},
            forks=None if ledger is None else ledger["forks"],
            forks_planned=None if ledger is None else ledger["limit"],
            pending=None if ledger is None else ledger["pending"],
            void=list(known.void),
            accepted=list(known.accepted),
            key=known.genesis.key,
            partitions=known.genesis.partitions,
            cluster=known.genesis.cluster,
            writer=known.genesis.writer if tip is None else tip.writer,
            register=register,
            group_offset=group_offset,
            refused=None if refused is None else refused.problem,
            fix=None if refused is None else refused.fix,
            damage=damage,
            replay=known.replay,
        )


def _refusal(seen: _Seen) -> StreampairError | None:
    """What a start would say; it is a lane that is thrown away."""
    try:
        content = seen.wanted.content
        seen.lane.start(seen.facts, None if content is None else seen.at_rest.snapshot(content))
    except StreampairError as error:
        return error
    return None


def _register(chain: Chain, committed: Committed | None) -> str:
    try:
        register = None if committed is None else Register.read(chain.key, committed.metadata)
    except SnapshotError:
        return "other key or changed"
    if register is None:
        return "missing"
    if not chain.holds(register.sequence, register.tag):
        return "newer"
    return "agrees" if register.sequence == chain.sequence else "older"


@asynccontextmanager
async def open_states(config: Config, *, broker: bool = True) -> AsyncIterator[States]:
    """Connect to what a command needs.

    Parameters
    ----------
    config
        Of the application.
    broker
        Whether the broker has to answer. Without it only a directory can be looked at.

    Raises
    ------
    SourceError
        No broker answers, or the input topic does not exist.
    """
    lookup: RecordReader | None = None
    try:
        settings = config.require_kafka()
        topics = await kafka.describe_topics(settings)
        if config.input.topic not in topics:
            raise SourceError(
                f"topic {config.input.topic!r} (input.topic) does not exist",
                fix="correct the name, or kafka.bootstrap_servers",
                retriable=False,
            )
        cluster = await kafka.cluster_id(settings)
        compacted = bool(await kafka.is_compacted(settings, config.input.topic))
    except (ConfigError, SourceError):
        if broker or config.store.in_kafka:
            raise
        yield States(config, None, 1, "", False)
        return
    lookup = RecordReader(settings)
    try:
        yield States(config, lookup, topics[config.input.topic], cluster, compacted)
    finally:
        await lookup.stop()
