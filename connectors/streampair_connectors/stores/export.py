"""Export and import of a state: one file with the log and the snapshot of every lane."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from streampair import __version__
from streampair.engine.source import lane_name
from streampair.engine.wal import Register
from streampair.errors import StoreError
from streampair_connectors.config import Config
from streampair_connectors.kafka import read_register
from streampair_connectors.stores.encryption import Seal
from streampair_connectors.stores.inspection import States, open_states
from streampair_connectors.stores.offline import from_snapshot, require_no_members
from streampair_connectors.worker.factory import draws_key, input_partitions

__all__ = ["export_state", "import_state"]

_MAGIC = b"streampair state 1\n"


class _Lane(msgspec.Struct, forbid_unknown_fields=True):
    partition: int
    log: bytes
    content: str | None
    snapshot: bytes | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    writer: str
    app: str
    topic: str
    sealed: bool
    lanes: list[_Lane]


async def export_state(config: Config, path: Path) -> dict[str, Any]:
    """Write log and snapshot of every lane to one file of mode 0600, sealed if there is a key.

    Raises
    ------
    StreampairError
        A worker runs, a lane cannot be read, or the file exists.
    """
    async with open_states(config) as states:
        await require_no_members(config)
        seal, lanes = _seal(states), []
        for partition in await states.store.lanes():
            at_rest = await states.store.read_lane(partition)
            lane = states.make(partition)
            if at_rest.damage is not None:
                raise at_rest.damage
            request = lane.read(at_rest.frames)
            if not request.used:
                raise StoreError(
                    f"the log of {lane_name(partition)} has no entry: its worker died at its first start",
                    fix="start `streampair run` once, and stop it: that starts its log",
                )
            parts, content = from_snapshot(at_rest.frames[: request.used])
            snapshot = None if content is None else at_rest.snapshot(content)
            if snapshot is not None:
                lane.log.check_content(snapshot)
            lanes.append(
                _Lane(
                    partition,
                    seal.seal(b"".join(parts), _context(config, partition, "log")),
                    content,
                    None if snapshot is None else seal.seal(snapshot, _context(config, partition, "state")),
                )
            )
        if not lanes:
            raise StoreError(
                "the store has no lane of this application",
                fix="set store.kind and store.directory as in the run",
            )
    body = _File(__version__, config.app, config.input.topic, seal.seals, lanes)
    data = _MAGIC + msgspec.msgpack.encode(body)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}",
            fix="name a new file in a directory that this user can write",
        ) from None
    summary = {"file": str(path), "bytes": len(data), "sealed": seal.seals}
    return {**summary, "partitions": [lane.partition for lane in lanes], "keeps_key": draws_key(config)}


async def import_state(config: Config, path: Path) -> dict[str, Any]:
    """Write the lanes of an export into an empty store. Offsets and registers stay as they are.

    Raises
    ------
    StreampairError
        A worker runs, a lane exists already, the file does not verify, or is not the newest state.
    """
    body = _read(path)
    if (body.app, body.topic) != (config.app, config.input.topic):
        raise StoreError(
            f"{path} is of app {body.app!r}, topic {body.topic!r}; the configuration has app {config.app!r}, "
            f"topic {config.input.topic!r}",
            fix="import it with the configuration of the export; only [store] may differ",
        )
    async with open_states(config) as states:
        await require_no_members(config)
        seal = _seal(states) if body.sealed else Seal()
        checked = []
        for lane in body.lanes:
            frames = seal.open(lane.log, _context(config, lane.partition, "log"))
            snapshot = None
            if lane.snapshot is not None:
                snapshot = seal.open(lane.snapshot, _context(config, lane.partition, "state"))
            await _check(states, lane.partition, frames, lane.content, snapshot)
            checked.append((lane.partition, frames, lane.content, snapshot))
        for partition, *content in checked:
            await states.store.put(partition, *content)  # type: ignore[arg-type]
    return {"file": str(path), "partitions": [lane.partition for lane in body.lanes]}


async def _check(
    states: States, partition: int, frames: bytes, content: str | None, snapshot: bytes | None
) -> None:
    """Refuse a lane that does not verify, exists already, or does not match the group's register."""
    config = states.config
    existing = await states.store.read_lane(partition)
    if existing.frames or existing.damage:
        raise StoreError(
            f"the store has a lane of {lane_name(partition)} already",
            fix="import into an empty store; an existing lane is never overwritten",
        )
    lane = states.make(partition)
    request = lane.read(frames)
    if request.content != content or request.used != len(frames):
        raise StoreError("the file is incomplete", fix="export the state again")
    if snapshot is not None:
        lane.log.check_content(snapshot)
    # The register is beside the offset of the lane's first partition.
    (first,) = input_partitions(config, partition, 1)
    committed = (await read_register(config.require_kafka(), config.app, [first]))[first]
    chain = lane.log.chain
    register = None if committed is None else Register.read(chain.key, committed.metadata)
    # As at a start: the last entries of a killed worker may be missing in the register.
    if register is None or not chain.holds(register.sequence, register.tag):
        known = "has no register" if register is None else f"knows entry {register.sequence}"
        raise StoreError(
            f"the file ends with entry {chain.sequence} of {lane_name(partition)}, and the group {known}: "
            "it is not the newest state",
            fix="start `streampair run` where the state is, stop it, and export again; if the group's "
            "register is lost, `streampair state recover CONFIG --ignore-register` there first",
        )


def _read(path: Path) -> _File:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", fix="name the exported file") from None
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("it has another header")
        return msgspec.msgpack.decode(data[len(_MAGIC) :], type=_File)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(
            f"{path} is not an exported state ({error})",
            fix="name a file written by `streampair state export`",
        ) from None


def _seal(states: States) -> Seal:
    """Seal with all keys of a configuration, so that a file can move between stores."""
    config, kept = states.config, states.store.secret()
    noise = config.learner.noise_key()
    keys = [*config.store.sealing_keys(), *([] if noise is None else [noise])]
    return Seal([*keys, *([] if kept is None else [kept])])


def _context(config: Config, partition: int, what: str) -> bytes:
    return repr(("export", config.app, config.input.topic, partition, what)).encode()
