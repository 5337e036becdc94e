"""The stored lane, for `streampair state`: show it, recover where a start is refused, export and import."""

from __future__ import annotations

import datetime
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from streampair import __version__
from streampair.engine import (
    ExternalState,
    LogAppend,
    LogDamagedError,
    LoggedLane,
    ReplayRequest,
    UnusableLogError,
)
from streampair.engine.recovery import Cause, NothingToOverrideError, OverrideResult, RecoveredState
from streampair.engine.wal import Chain, Register
from streampair.errors import ConfigError, SnapshotError, SourceError, StoreError, StreampairError
from streampair.privacy import NoiseKey
from streampair.privacy.accounting import promised_epsilon
from streampair_connectors import kafka
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import Config
from streampair_connectors.kafka import Committed, RecordReader, read_register
from streampair_connectors.kafka.admin import TopicOrigin
from streampair_connectors.stores.encryption import Seal
from streampair_connectors.stores.offline import (
    StoredLane,
    exists_error,
    from_snapshot,
    offline_store,
    require_no_members,
)
from streampair_connectors.worker.factory import build_logged_lane, draws_key, input_partitions, taken_cells
from streampair_connectors.worker.lane_manager import external_state, refuse_other_state

__all__ = [
    "AnewPlan",
    "LaneState",
    "OverridePlan",
    "States",
    "export_state",
    "import_state",
    "open_states",
]

_EXPORT_MAGIC = b"streampair state 1\n"


@dataclass(frozen=True)
class LaneState:
    """State of a lane in its store and its consumer group.

    Attributes
    ----------
    sequence
        Of the last entry of the log.
    offset
        Ordinal of the next record to read; None: nothing was read.
    slots, released
        Slots up to the last commit, and the last one that may have been released; 0 if not private.
    snapshot
        Its `size` and `offset`; None: there is none.
    forks, forks_planned, pending
        Forks charged permanently, their number in the plan, and whether one more is charged until a
        replay is complete; None without an account.
    void, accepted
        Reasons why the guarantee is void, and overrides that an operator has accepted.
    key, partitions, cluster
        From the start of the log: id of the noise key, partitions of the input, the cluster.
    writer
        The release that wrote the last commit.
    register
        Whether the group's agrees: ``"agrees"``, ``"older"`` (its last entry was not announced yet),
        ``"newer"`` (the log is an older copy), ``"missing"``, ``"other key or changed"``, ``"not asked"``.
    group_offset
        Offset committed by the group.
    refused, fix
        Error of a start, and its fix; None: `run` would start.
    damage
        Damage of the log; None: none was found.
    replay
        First offset and end of the events that a start replays after the last snapshot; None: none. The
        replay is not run here, and may still refuse the start.
    """

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
        """As JSON-compatible dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class OverridePlan:
    """Effect of an operator's override on a lane; `States.carry_out` applies it.

    Attributes
    ----------
    accepted
        The result of the override.
    delta
        Delta of the epsilons; None without an account.
    """

    accepted: OverrideResult
    delta: float | None
    seen: StoredLane
    used: int
    starts: Mapping[int, int]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-compatible dictionary."""
        mu, delta, (before, after) = self.accepted.mu, self.delta, self.accepted.charged
        fields: dict[str, Any] = {
            "refused": self.accepted.problem,
            "forks_charged": self.accepted.forks,
            "forks": [before, after],
            "report": f"vouched by the operator on {self.accepted.statement}" if delta is not None else None,
        }
        if mu is not None and delta is not None:
            fields |= {"mu": list(mu), "epsilon": [promised_epsilon(m, delta) for m in mu], "delta": delta}
        return fields


@dataclass(frozen=True)
class AnewPlan:
    """Effect of beginning a new model in place of a log that cannot be used; `States.carry_out` applies it.

    Attributes
    ----------
    problem
        Why a start is refused.
    begins
        The group's offset of each partition, where the new model begins.
    """

    problem: str
    begins: Mapping[int, int]
    append: LogAppend
    starts: Mapping[int, int]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-compatible dictionary."""
        return {
            "refused": self.problem,
            "begins": {str(number): offset for number, offset in self.begins.items()},
        }


@dataclass(frozen=True)
class _Outside:
    """What the group and the topic have of a lane; empty without a broker."""

    committed: Mapping[int, Committed | None] = field(default_factory=dict)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def starts(self) -> dict[int, int]:
        return {number: start for number, (start, _) in self.spans.items()}


@dataclass(frozen=True)
class _LoadedLane:
    at_rest: StoredLane
    lane: LoggedLane
    request: ReplayRequest
    external: ExternalState
    committed: Committed | None
    starts: Mapping[int, int]


class States:
    """Inspects the lane of an application; created by `open_states`."""

    def __init__(
        self,
        config: Config,
        lookup: RecordReader | None,
        partitions: int,
        origin: TopicOrigin,
        compacted: bool,
    ) -> None:
        self.config = config
        self.store = offline_store(config)
        self._lookup = lookup
        self._partitions = partitions
        self._origin = origin
        self._compacted = compacted

    async def begun(self) -> bool:
        """Whether the lane is stored or the group has an offset."""
        stored = await self.store.exists()
        if stored or self._lookup is None:
            return stored
        places = input_partitions(self.config, self._partitions)
        found = await read_register(self.config.require_kafka(), self.config.app, places)
        return any(found.values())

    async def plan(self, cause: Cause | Literal["anew"]) -> OverridePlan | AnewPlan:
        """Return the effect of continuing without the register, the newest entries, the replay, or the log.

        Parameters
        ----------
        cause
            As of `LoggedLane.override`; `"anew"`: as of `LoggedLane.begin_anew`.

        Raises
        ------
        StreampairError
            There is no lane, a worker runs, or the lane cannot continue like this.
        """
        await require_no_members(self.config)
        if not await self.begun():
            raise StoreError(
                "neither the store nor the group has a lane of this application",
                fix="run it first, or set store.directory as in the run",
            )
        return await (self._plan_anew() if cause == "anew" else self._plan(cause))

    async def restored(self) -> LoggedLane:
        """Return the lane as of its last snapshot, started in memory alone: nothing is stored or fenced.

        Raises
        ------
        StreampairError
            The lane is not stored, cannot be read, has no snapshot, or its start is refused.
        """
        if not await self.store.exists():
            raise StoreError(
                f"the store has no lane of {self.config.app}",
                fix="run it first; or see that store.directory is that which it ran with",
            )
        loaded = await self._load()
        if loaded.at_rest.damage is not None:
            raise loaded.at_rest.damage
        if loaded.request.content is None:
            raise StoreError(
                f"the store has no snapshot of {self.config.input.topic} yet",
                fix="stop the worker, which takes one, and repeat the command",
            )
        external = loaded.external if self._lookup is not None else _facts_of_log(loaded)
        loaded.lane.start(external, loaded.at_rest.snapshot(loaded.request.content))
        return loaded.lane

    async def carry_out(self, plan: OverridePlan | AnewPlan) -> None:
        """Apply a plan, durably.

        Raises
        ------
        StreampairError
            As of `plan`; or something has changed since the plan was made.
        """
        if isinstance(plan, AnewPlan):
            now = await self.plan("anew")
            if now.as_dict() != plan.as_dict():
                raise StoreError(
                    "store or offsets have changed since the question", fix="run the command again"
                )
            await self.store.replace(plan.append, plan.starts)
            return
        await self.store.amend(plan.seen, plan.used, plan.accepted.append, plan.starts)

    async def _plan(self, cause: Cause) -> OverridePlan:
        loaded = await self._load()
        lane, request = loaded.lane, loaded.request
        if loaded.at_rest.damage is not None and lane.log.chain.damage is None:
            lane.log.chain.damage = LogDamagedError(
                loaded.at_rest.damage.problem, fix=loaded.at_rest.damage.fix
            )
        content = request.content
        snapshot = None if content is None else loaded.at_rest.snapshot(content)
        when = datetime.datetime.now(datetime.UTC).date().isoformat()
        accepted = lane.override(cause, loaded.external, when, snapshot)
        delta = None if accepted.mu is None else lane.privacy.delta
        return OverridePlan(accepted, delta, loaded.at_rest, request.used, loaded.starts)

    async def _plan_anew(self) -> AnewPlan:
        try:
            refused = self._refusal(await self._load())
        except UnusableLogError as error:
            refused = error
        if refused is None:
            raise NothingToOverrideError("a start is not refused", fix="start `streampair run`")
        if not isinstance(refused, UnusableLogError):
            raise refused  # the log is there, or it is an account
        outside, lane = await self._outside(), self.make(fresh=False)
        external = await self._external(lane.read(b""), outside)
        when = datetime.datetime.now(datetime.UTC).date().isoformat()
        append = lane.begin_anew(external, when)
        begins = {
            number: start if (known := outside.committed[number]) is None else known.offset
            for number, start in outside.starts.items()
        }
        return AnewPlan(refused.problem, begins, append, outside.starts)

    async def _outside(self) -> _Outside:
        sources = input_partitions(self.config, self._partitions)
        if self._lookup is None:
            return _Outside()
        found = await read_register(self.config.require_kafka(), self.config.app, sources)
        committed = {source.partition: found[source] for source in sources}
        return _Outside(committed, await self._lookup.spans(sources))

    async def _external(self, request: ReplayRequest, outside: _Outside) -> ExternalState:
        if self._lookup is None:
            return ExternalState(registers=False)
        return await external_state(
            self._lookup,
            self.config.input.topic,
            request,
            outside.committed,
            spans=outside.spans,
            partitions=self._partitions,
            origin=self._origin,
        )

    async def _load(self) -> _LoadedLane:
        """Read the register, then the log: in this order a running worker cannot make the log look older."""
        outside = await self._outside()
        at_rest = await self.store.read_lane()
        if not at_rest.frames and at_rest.damage is None and self._lookup is not None:
            refuse_other_state(self.config)
        committed = outside.committed
        lane = self.make(fresh=not at_rest.frames and not any(committed.values()))
        request = lane.read(at_rest.frames, damaged=True)
        external = await self._external(request, outside)
        group = committed[min(committed)] if committed else None
        return _LoadedLane(at_rest, lane, request, external, group, outside.starts)

    def make(self, *, fresh: bool = False) -> LoggedLane:
        """Return a new lane, not started.

        Parameters
        ----------
        fresh
            Whether there is neither a log nor an offset of the group: then no noise key was ever used.
        """
        config, secret = self.config, self.store.secret(fresh=fresh)
        return build_logged_lane(
            config,
            event_decoder(config, **taken_cells(config)),
            noise_key=None if secret is None else NoiseKey(secret),
            payloads_change=self._compacted,
        )

    def _refusal(self, loaded: _LoadedLane) -> StreampairError | None:
        """Why a start is refused, as far as the broker says; None: it is not."""
        found = loaded.at_rest.damage or loaded.lane.log.chain.damage
        if found is None and self._lookup is not None:
            return _start_error(loaded)
        return found

    async def show(self) -> LaneState:
        """Return the state of the lane; read-only, also while a worker runs."""
        refused: StreampairError | None = None
        register, group_offset, damage = "not asked", None, None
        try:
            loaded = await self._load()
        except SourceError:
            raise
        except StreampairError as error:  # with another key or configuration the log is shown unverified
            refused, at_rest = error, await self.store.read_lane()
            known, sequence = RecoveredState.of(Chain.peek(at_rest.frames)), -1
        else:
            at_rest, log = loaded.at_rest, loaded.lane.log
            known, sequence = log.known, log.chain.sequence
            found = at_rest.damage or log.chain.damage
            damage = None if found is None else found.problem
            if self._lookup is not None:
                register, group_offset = _register(log.chain, loaded.committed), loaded.external.offset
            refused = self._refusal(loaded)
        if known is None:
            return LaneState(
                register=register,
                group_offset=group_offset,
                refused=None if refused is None else refused.problem,
                fix=None if refused is None else refused.fix,
                damage=damage,
            )
        tip, saved, ledger = known.tip, known.saved, known.ledger
        return LaneState(
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


def _facts_of_log(loaded: _LoadedLane) -> ExternalState:
    """What a topic would say that is just as the log has it: there is no broker to ask."""
    known = loaded.lane.log.known
    assert known is not None  # it has a snapshot
    positions = () if known.source is None else known.source.positions
    return ExternalState(
        end=known.next_offset or 0,
        first=loaded.request.first,
        last=loaded.request.last,
        registers=False,
        spans={each.partition: (0, each.next_offset) for each in positions} or None,
    )


def _start_error(loaded: _LoadedLane) -> StreampairError | None:
    """Error of a start, tried with a throw-away lane; None: it succeeds."""
    try:
        content = loaded.request.content
        loaded.lane.start(loaded.external, None if content is None else loaded.at_rest.snapshot(content))
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
    """Connect to store and broker for a command.

    Parameters
    ----------
    config
        Of the application.
    broker
        Whether the broker and the input topic are required. Without them only the store is inspected.

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
        origin = await kafka.topic_origin(settings, config.input.topic)
        compacted = bool(await kafka.is_compacted(settings, config.input.topic))
    except (ConfigError, SourceError):
        if broker:
            raise
        yield _without_input(config)
        return
    lookup = RecordReader(settings)
    try:
        yield States(config, lookup, topics[config.input.topic], origin, compacted)
    finally:
        await lookup.stop()


class _ExportedLane(msgspec.Struct, forbid_unknown_fields=True):
    log: bytes
    content: str | None
    snapshot: bytes | None


class _ExportFile(msgspec.Struct, forbid_unknown_fields=True):
    writer: str
    app: str
    topic: str
    sealed: bool
    lane: _ExportedLane


async def export_state(config: Config, path: Path) -> dict[str, Any]:
    """Write log and snapshot of the lane to one file of mode 0600, sealed if there is a key.

    Raises
    ------
    StreampairError
        A worker runs, the lane cannot be read, or the file exists.
    """
    await require_no_members(config)
    states = _without_input(config)
    seal = _export_seal(states)
    if not await states.store.exists():
        raise StoreError(
            "the store has no lane of this application",
            fix="set store.directory as in the run",
        )
    lane = await _exported(states, seal)
    body = _ExportFile(__version__, config.app, config.input.topic, seal.seals, lane)
    data = _EXPORT_MAGIC + msgspec.msgpack.encode(body)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, ExitStack() as failed:
            failed.callback(path.unlink)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            failed.pop_all()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}",
            fix="name a new file in a directory that this user can write",
        ) from None
    return {
        "file": str(path),
        "bytes": len(data),
        "sealed": seal.seals,
        "keeps_key": draws_key(config),
    }


def _without_input(config: Config) -> States:
    """For commands that read the store alone: the input topic may be gone, or not be readable."""
    return States(config, None, 1, TopicOrigin("", ""), False)


async def _exported(states: States, seal: Seal) -> _ExportedLane:
    config = states.config
    at_rest = await states.store.read_lane()
    lane = states.make()
    if at_rest.damage is not None:
        raise at_rest.damage
    request = lane.read(at_rest.frames)
    if not request.used:
        raise StoreError(
            f"the log of {config.input.topic} has no entry: its worker died at its first start",
            fix="start `streampair run` once, and stop it: that starts its log",
        )
    parts, content = from_snapshot(at_rest.frames[: request.used])
    snapshot = None if content is None else at_rest.snapshot(content)
    if snapshot is not None:
        lane.log.check_content(snapshot)
    return _ExportedLane(
        seal.seal(b"".join(parts), _export_context(config, "log")),
        content,
        None if snapshot is None else seal.seal(snapshot, _export_context(config, "state")),
    )


async def import_state(config: Config, path: Path) -> dict[str, Any]:
    """Write the lane of an export into an empty store. Offsets and register stay as they are.

    Raises
    ------
    StreampairError
        A worker runs, the lane exists already, the file does not verify, or is not the newest state.
    """
    body = _read_export(path)
    if (body.app, body.topic) != (config.app, config.input.topic):
        raise StoreError(
            f"{path} is of app {body.app!r}, topic {body.topic!r}; the configuration has app {config.app!r}, "
            f"topic {config.input.topic!r}",
            fix="import it with the configuration of the export; only [store] may differ",
        )
    await require_no_members(config)
    states = _without_input(config)
    seal = _export_seal(states) if body.sealed else Seal()
    lane, snapshot = body.lane, None
    frames = seal.open(lane.log, _export_context(config, "log"))
    if lane.snapshot is not None:
        snapshot = seal.open(lane.snapshot, _export_context(config, "state"))
    await _check_newest(states, frames, lane.content, snapshot)
    await states.store.put(frames, lane.content, snapshot)
    return {"file": str(path)}


async def _check_newest(states: States, frames: bytes, content: str | None, snapshot: bytes | None) -> None:
    """Refuse a lane that does not verify, exists already, or does not match the group's register."""
    config = states.config
    existing = await states.store.read_lane()
    if existing.frames or existing.damage:
        raise exists_error(config)
    lane = states.make()
    request = lane.read(frames)
    if request.content != content or request.used != len(frames):
        raise StoreError("the file is incomplete", fix="export the state again")
    if snapshot is not None:
        lane.log.check_content(snapshot)
    # The register is beside the offset of the lane's first partition.
    (first,) = input_partitions(config, 1)
    committed = (await read_register(config.require_kafka(), config.app, [first]))[first]
    chain = lane.log.chain
    register = None if committed is None else Register.read(chain.key, committed.metadata)
    # As at a start: the last entries of a killed worker may be missing in the register.
    if register is None or not chain.holds(register.sequence, register.tag):
        known = "has no register" if register is None else f"knows entry {register.sequence}"
        raise StoreError(
            f"the file ends with entry {chain.sequence} of {config.input.topic}, and the group {known}: it "
            "is not the newest state",
            fix="start `streampair run` where the state is, stop it, and export again; if the group's "
            "register is lost, `streampair state recover CONFIG --ignore-register` there first",
        )


def _read_export(path: Path) -> _ExportFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", fix="name the exported file") from None
    try:
        if not data.startswith(_EXPORT_MAGIC):
            raise ValueError("it has another header")
        return msgspec.msgpack.decode(data[len(_EXPORT_MAGIC) :], type=_ExportFile)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(
            f"{path} is not an exported state ({error})",
            fix="name a file written by `streampair state export`",
        ) from None


def _export_seal(states: States) -> Seal:
    """Seal with all keys of a configuration, so that a file can move between stores."""
    config, kept = states.config, states.store.secret()
    noise = config.learner.noise_key()
    keys = [*config.store.sealing_keys(), *([] if noise is None else [noise])]
    return Seal([*keys, *([] if kept is None else [kept])])


def _export_context(config: Config, what: str) -> bytes:
    return repr(("export", *config.lane_id, what)).encode()
