"""Snapshots of a lane: the envelope of a state, the times of releases, and what is in it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from streampair.engine.lane_id import LaneId
from streampair.errors import ConfigError, SnapshotError

__all__ = [
    "FORMAT_VERSION",
    "KEPT",
    "MIN_KEY_BYTES",
    "OR_ANEW",
    "Dates",
    "ReleaseDate",
    "Saving",
    "Snapshot",
    "UnusableLogError",
    "configuration_changed",
    "dated",
    "pack",
    "rows_of",
    "setting_changes",
    "since_of",
    "summary",
    "unpack",
    "unreadable",
]

ReleaseDate = tuple[int, int, float, int | None, int]

OR_ANEW: Final = (
    "For a learner that is not private, `streampair state recover CONFIG --begin-anew` begins a new model at "
    "the group's offset, so that no event is scored twice or skipped"
)
"""What else can be done where a log cannot be used."""

KEPT = 8
"""Number of dates of each kind that are kept: the first one, and the latest."""


class UnusableLogError(SnapshotError):
    """A log that is gone, cut, damaged or of another format, of a lane that has scored.

    A lane without an account can begin a new model at the group's offset (`LoggedLane.begin_anew`).
    """


class Dates:
    """Dates of releases and of forks, a bounded number of each.

    A lane has no clock: it gets the time with a commit. The dates show when a process got so far, which no
    plan shows. They are for operators, and in no public output (docs/privacy 7).

    Attributes
    ----------
    releases
        Milliseconds since the epoch, releases by then, mu spent, slots left (None: no horizon), and records
        taken, one slot each.
    forks
        Milliseconds since the epoch, forks charged by then.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine.snapshot import Dates
    >>> dates = Dates()
    >>> dates.note(1_700_000_000_000, auc.PairFTRL(1.0, 1e-4, 100).privacy, 1, 7)
    >>> dates.releases, dates.forks
    ([], [(1700000000000, 1)])
    """

    def __init__(self) -> None:
        self.releases: list[ReleaseDate] = []
        self.forks: list[tuple[int, int]] = []
        self._released = 0
        self._charged = 0

    def note(self, when: int, report: Any, forks: int, records: int) -> None:
        """Date the releases and forks since the last call; without a valid date they never get one."""
        known = dated(when)
        if known and report.releases > self._released:
            self.releases.append((when, report.releases, report.mu_spent, report.horizon_left, records))
            _bound(self.releases)
        self._released = report.releases
        if known and forks > self._charged:
            self.forks.append((when, forks))
            _bound(self.forks)
        self.forks = [row for row in self.forks if row[1] <= forks]  # one may have been waived
        self._charged = forks

    def to_state(self) -> dict[str, Any]:
        """State for `load`, as plain values; {} while it is empty."""
        if not (self.releases or self.forks or self._charged):
            return {}
        return {
            "releases": [list(row) for row in self.releases],
            "forks": [list(row) for row in self.forks],
            "charged": self._charged,
        }

    def load(self, report: Mapping[str, Any] | None) -> None:
        """Restore the dates from a `summary`; unreadable dates are ignored."""
        if report is None:
            return
        kept = report.get("dates")
        self.releases, self.forks = rows_of(kept)
        counted = report.get("releases")
        self._released = counted if isinstance(counted, int) else 0
        charged = kept.get("charged") if isinstance(kept, Mapping) else None
        self._charged = charged if isinstance(charged, int) else 0


def _bound(rows: list[Any]) -> None:
    if len(rows) > KEPT:
        del rows[1]


def rows_of(kept: Any) -> tuple[list[ReleaseDate], list[tuple[int, int]]]:
    """Releases and forks from the state of a `Dates`; empty lists if it is unreadable."""
    try:
        releases = [(int(t), int(n), float(m), left, int(slot)) for t, n, m, left, slot in kept["releases"]]
        forks = [(int(t), int(n)) for t, n in kept["forks"]]
    except (KeyError, TypeError, ValueError):
        return [], []
    good = all(dated(row[0]) for row in [*releases, *forks])
    good = good and all(left is None or isinstance(left, int) for *_, left, _ in releases)
    return (releases[-KEPT:], forks[-KEPT:]) if good else ([], [])


MAGIC: Final = b"streampair\x00"
#: Written by this release, and read.
FORMAT_VERSION: Final = 1
#: Shortest signing key that is taken: 128 bits.
MIN_KEY_BYTES: Final = 16

_HEAD: Final = len(MAGIC) + 2 + 1
_PREFIX: Final = _HEAD + 32 + 32
_SIGNED: Final = 1
_EXT_ARRAY: Final = 1
_EXT_INT: Final = 2
# Little-endian on every machine, so that a snapshot moves between processors.
_DTYPES: Final = {
    "bool": np.dtype("?"),
    "int8": np.dtype("<i1"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("<u1"),
    "uint64": np.dtype("<u8"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}


def pack(body: Mapping[str, object], *, signing_key: bytes | None = None) -> bytes:
    """Serialise a tree of plain values.

    Parameters
    ----------
    body
        None, bool, int, float, str, bytes, list, dict with text keys, and numpy arrays of bool, int8, int32,
        int64, uint8, uint64, float32 or float64.
    signing_key
        At least 16 bytes. With it the result carries an HMAC-SHA256 tag.

    Returns
    -------
    bytes

    Raises
    ------
    SnapshotError
        If the tree holds anything else.
    ConfigError
        If the key is too short.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.engine.snapshot import pack, unpack
    >>> unpack(pack({"weights": np.array([1.0, 2.0])}))["weights"]
    array([1., 2.])
    """
    payload = msgspec.msgpack.encode(_plain(body, "body"))
    head = FORMAT_VERSION.to_bytes(2, "big") + bytes([_SIGNED if signing_key is not None else 0])
    checksum = hashlib.blake2b(head + payload, digest_size=32).digest()
    tag = bytes(32) if signing_key is None else _tag(signing_key, head + payload)
    return b"".join((MAGIC, head, checksum, tag, payload))


def unpack(data: bytes, *, signing_keys: Sequence[bytes] = ()) -> dict[str, Any]:
    """Read the output of `pack`; everything is checked before anything is returned.

    Parameters
    ----------
    data
        The bytes of one snapshot.
    signing_keys
        If there are any, the snapshot must carry a valid tag of one of them.

    Returns
    -------
    dict
        Arrays are writable and own their memory.

    Raises
    ------
    SnapshotError
        If the bytes are not a snapshot, are cut short or damaged, were written by another format version, or
        are not signed with one of `signing_keys`.
    """
    if not data.startswith(MAGIC):
        what = "it is empty" if not data else "it does not begin like one"
        raise SnapshotError(
            f"this is not a streampair snapshot: {what}",
            fix="check the path of the store; move the file away to start without it",
        )
    if len(data) < _PREFIX:
        raise _damaged(f"only {len(data)} bytes are left of it")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "big")
    if version != FORMAT_VERSION:
        raise UnusableLogError(
            f"the snapshot has format version {version}, this release reads {FORMAT_VERSION}",
            fix=f"run the release that wrote it, or a newer one. {OR_ANEW}",
        )
    head, payload = data[len(MAGIC) : _HEAD], data[_PREFIX:]
    if hashlib.blake2b(head + payload, digest_size=32).digest() != data[_HEAD : _HEAD + 32]:
        raise _damaged("its checksum does not match")
    if signing_keys:
        if not head[2] & _SIGNED:
            raise SnapshotError(
                "the snapshot is not signed, but this lane has a signing key",
                fix="restore the signed snapshot that this lane wrote, or start from an empty store",
            )
        tags = [_tag(key, head + payload) for key in signing_keys]
        if not any(hmac.compare_digest(tag, data[_HEAD + 32 : _PREFIX]) for tag in tags):
            raise SnapshotError(
                "the signature of the snapshot does not match the signing key",
                fix="use the key that the snapshot was written with, after the new one if there is one; if "
                "the key is right, somebody changed the snapshot: do not trust the store",
            )
    try:
        body = msgspec.msgpack.decode(payload, ext_hook=_ext_hook)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise _damaged(f"its body cannot be read ({error})") from error
    if not isinstance(body, dict):
        raise _damaged("its body is not a table")
    return body


def is_signed(data: bytes) -> bool:
    """Whether the snapshot claims to carry a tag (which only `unpack` with the key can check)."""
    return len(data) >= _PREFIX and data.startswith(MAGIC) and bool(data[_HEAD - 1] & _SIGNED)


def check_key(signing_key: bytes) -> None:
    """Refuse a key that is too short to sign with.

    Raises
    ------
    ConfigError
    """
    if not isinstance(signing_key, bytes) or len(signing_key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"the signing key must be at least {MIN_KEY_BYTES} bytes",
            fix="make one with secrets.token_bytes(32), and keep it in a file of mode 0600",
        )


def _tag(signing_key: bytes, message: bytes) -> bytes:
    check_key(signing_key)
    # The label keeps this use of the key apart from any other use of the same key.
    return hmac.new(signing_key, b"streampair snapshot\x00" + message, hashlib.sha256).digest()


def _damaged(detail: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot is damaged: {detail}",
        fix="put back an undamaged copy of the newest state; an older one is refused. `streampair state "
        "show` says what the lane can go on with",
    )


def _plain(value: object, path: str) -> object:
    """The same tree in types that msgpack has; `path` is for the message."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        assert isinstance(value, int)
        if -(2**63) <= value < 2**64:
            return value
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_EXT_INT, value.to_bytes(size, "big", signed=True))
    if kind is dict:
        assert isinstance(value, dict)
        for key in value:
            if type(key) is not str:
                raise _unknown(f"the key {key!r} of {path}", type(key))
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if kind is list:
        assert isinstance(value, list)
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if kind is np.ndarray:
        assert isinstance(value, np.ndarray)
        dtype = _DTYPES.get(value.dtype.name)
        if dtype is None:
            raise _unknown(path, value.dtype)
        head = msgspec.msgpack.encode([value.dtype.name, list(value.shape)])
        data = np.ascontiguousarray(value, dtype=dtype).tobytes()
        return msgspec.msgpack.Ext(_EXT_ARRAY, len(head).to_bytes(2, "big") + head + data)
    raise _unknown(path, kind)


def _unknown(path: str, kind: object) -> SnapshotError:
    return SnapshotError(
        f"{path} cannot be saved: a snapshot has no place for {kind}",
        fix="to_state must return plain values, lists, dicts with text keys and numpy arrays",
    )


def _ext_hook(code: int, data: memoryview) -> object:
    raw = bytes(data)
    if code == _EXT_INT:
        return int.from_bytes(raw, "big", signed=True)
    if code != _EXT_ARRAY:
        raise ValueError(f"unknown extension {code}")
    size = int.from_bytes(raw[:2], "big")
    name, shape = msgspec.msgpack.decode(raw[2 : 2 + size], type=tuple[str, list[int]])
    dtype = _DTYPES[name]
    content = raw[2 + size :]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError("an array has another size than its shape says")
    # astype to the machine's own byte order; copy, because frombuffer is read-only.
    return np.frombuffer(content, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True)


_MOST_CHANGES = 5  # of settings, named in an error
_YEAR_10000 = 253_402_300_800_000


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """How a lane saves its state, and which states it restores.

    Parameters
    ----------
    allow_pickle
        Allow pickle for steps that are not ours; needs `signing_keys`.
    signing_keys
        Each at least 16 bytes. The first one signs snapshots, and only those that one of them has signed are
        restored. To change the key, put the new one first.
    fingerprint
        Of the configuration: a snapshot or a log with another one is refused.
    settings
        The settings behind `fingerprint`, by name. A log keeps them, so that a start under other settings
        names what differs.

    Raises
    ------
    ConfigError
        If a key is too short.

    Examples
    --------
    >>> from streampair.engine import Saving
    >>> Saving(allow_pickle=True, signing_keys=[bytes(32)])  # keys are not shown
    Saving(allow_pickle=True, fingerprint='', settings={})
    """

    allow_pickle: bool = False
    signing_keys: Sequence[bytes] = dataclasses.field(default=(), repr=False)
    fingerprint: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.signing_keys:
            check_key(key)


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """Contents of a snapshot, with their types."""

    writer: str
    app: str
    topic: str
    partition: int
    name: str
    fingerprint: str
    next_offset: int | None
    clean: bool
    steps: list[dict[str, Any]]
    auc: dict[str, Any]
    regret: dict[str, Any] | None
    events: dict[str, int]
    stages: dict[str, int]
    seen: int
    bad: list[int]
    ledger: dict[str, Any] | None
    privacy: dict[str, Any] | None
    outside: dict[str, int]
    due: int = 0
    arrivals: dict[str, Any] | None = None
    labels_used: bytes = b""
    labelled: int = 0
    stopped: int = 0
    explored: dict[str, int] = {}
    late_sample: dict[str, Any] | None = None
    before: dict[str, Any] | None = None

    @classmethod
    def read(cls, data: bytes, signing_keys: Sequence[bytes]) -> Snapshot:
        """Read the bytes of a snapshot.

        Raises
        ------
        SnapshotError
            If it is damaged, of another format version, or not signed with one of the keys.
        """
        try:
            return msgspec.convert(unpack(data, signing_keys=signing_keys), cls, strict=True)
        except msgspec.ValidationError as error:
            raise unreadable(error) from error

    def check(self, identity: LaneId, fingerprint: str) -> None:
        """Refuse the snapshot of another lane.

        Raises
        ------
        SnapshotError
        """
        saved = LaneId(self.app, self.topic, self.partition)
        if saved != identity:
            raise SnapshotError(
                "the snapshot belongs to app {!r}, topic {!r}, partition {!r}; this lane is app {!r}, "
                "topic {!r}, partition {!r}".format(*saved, *identity),
                fix="point the store at this lane's own directory",
            )
        if self.fingerprint != fingerprint:
            raise configuration_changed("the snapshot was written", self.fingerprint, fingerprint)


def configuration_changed(
    since: str,
    before: str,
    now: str,
    settings_before: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> SnapshotError:
    """The error of a lane whose settings are not those that it began with.

    Parameters
    ----------
    since
        What was done with the settings before.
    before, now
        Fingerprints: of the settings and, after a dot, of the model that the learner began with.
    settings_before, settings
        The settings themselves, by name; None or empty: not known.
    """
    digest, _, model = now.partition(".")
    digest_before, _, model_before = before.partition(".")
    what, undo = "the configuration", "put the old learner and input settings back"
    if digest == digest_before and model != model_before:
        what = "the model that the learner begins with (learner.start)"
        undo = "put the old model back as learner.start" if model_before else "remove learner.start"
    changes = setting_changes(settings_before, settings or {}) if settings_before else ""
    return SnapshotError(
        f"{what} changed since {since}: {changes or f'the fingerprint was {before!r}, now it is {now!r}'}",
        fix=f"{undo}, or give the new configuration another app name, which starts from the beginning",
    )


def setting_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe how settings differ.

    Parameters
    ----------
    before, now
        Values by name, as text.

    Returns
    -------
    str
        Empty if they do not differ.

    Examples
    --------
    >>> setting_changes({"learner.options.radius": "1.0"}, {"learner.options.radius": "2.0"})
    'learner.options.radius was 1.0, now it is 2.0'
    """
    changes = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old is None:
            changes.append(f"{name} was not set, now it is {new}")
        elif new is None:
            changes.append(f"{name} was {old}, now it is not set")
        elif old != new:
            changes.append(f"{name} was {old}, now it is {new}")
    if len(changes) > _MOST_CHANGES:
        changes[_MOST_CHANGES:] = [f"and {len(changes) - _MOST_CHANGES} more"]
    return "; ".join(changes)


def unreadable(error: Exception) -> SnapshotError:
    """The error of a body with missing parts, or parts of wrong types."""
    return SnapshotError(
        f"the snapshot does not hold what it should ({type(error).__name__}: {error})",
        fix="restore with the release that wrote it",
    )


def summary(
    report: Any, since: int | None = None, dates: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The numbers of a privacy report, for readers of a snapshot without its model.

    Parameters
    ----------
    report
        Of a private learner; None: it is not private.
    since
        Date of the first record in milliseconds, from its source; like all dates of records it is metadata.
        None, 0: unknown.
    dates
        Dates of releases and forks: `Dates.to_state`.
    """
    if report is None:
        return None
    known: dict[str, Any] = {"since": since} if since else {}
    known |= {"dates": dates} if dates else {}
    names = (
        *("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "releases"),
        *("horizon", "horizon_left", "kind", "guarantee", "unit"),
    )
    return {**{name: getattr(report, name) for name in names}, **known}


def since_of(report: dict[str, Any] | None) -> int:
    """The date `since` of a `summary`; 0 if it has none."""
    return dated((report or {}).get("since", 0))


def dated(timestamp: Any) -> int:
    """A timestamp in milliseconds up to the year 9999; 0 for anything else that a producer may set."""
    return timestamp if isinstance(timestamp, int) and 0 < timestamp < _YEAR_10000 else 0
