"""The write-ahead log of a lane: hash-chained entries, and the register that detects a rollback of the log.

A lane is a deterministic state machine, so its log is the truth, and a snapshot is a cache of it
(docs/design.md, "The log is the truth"; docs/privacy 8). This module defines the bytes, the chain and the
entries; it reads and writes no file.

A frame is one entry as bytes, all integers big-endian::

    sequence (8) | length of the body (4) | tag of the entry before (32) | check of these (8) | body | tag
    (32)

- `tag` is keyed BLAKE2b-256 of everything before it in the frame. It covers the tag of the entry before, so
  that no entry can be changed, left out or moved.
- the check covers the head alone: a frame whose head is whole has a length that can be trusted. So a frame
  that is *shorter* than its head says was torn by a crash, and nothing that it announces has happened; one
  of full length that does not verify is damage.
- `body` is msgpack of one of the entries below; an unknown field is refused.

The key is derived from the noise key of a private lane. Without one it is a constant: the chain then detects
damage and not forgery.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from streampair.engine.lane_id import WHOLE_TOPIC
from streampair.engine.snapshot import OR_ANEW, UnusableLogError, configuration_changed
from streampair.errors import SnapshotError
from streampair.privacy.ledger import DIGEST_BYTES

__all__ = [
    "LOG_FORMAT",
    "NOT_ACTING",
    "REGISTER_FORMAT",
    "Acting",
    "Chain",
    "CommitEntry",
    "Digests",
    "GenesisEntry",
    "LogDamagedError",
    "LogKey",
    "ModelEntry",
    "OverrideEntry",
    "Position",
    "Range",
    "RangesEntry",
    "Register",
    "SnapshotEntry",
    "SourceState",
    "StartEntry",
    "Wait",
]

LOG_FORMAT: Final = 1
"""Of the log that this release writes."""

REGISTER_FORMAT: Final = 1
"""Of the register that this release writes."""

_HEAD: Final = struct.Struct(">QI32s")
_CHECK: Final = 8
_TAG: Final = 32
_START: Final = bytes(_TAG)


class LogDamagedError(UnusableLogError):
    """An entry of full length that does not verify, or one that is missing between two others."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Records of one partition that were taken one after the other.

    Attributes
    ----------
    partition
        Their partition.
    first, end
        The position of the first, and the one behind the last. Not every position in between has a record.
    count
        Number of records.
    labels
        Of records that were due: the code of the label of each (`OrderedRecord.label`), one byte each. Empty:
        they were not due.
    early
        Of `OrderedRecord`.
    """

    partition: int
    first: int
    end: int
    count: int
    labels: bytes = b""
    early: bool = False


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Next offset of a partition.

    Attributes
    ----------
    partition, next_offset
        The partition, and the offset behind the last record taken.
    clock
        As of `OrderedRecord`, at that record.
    """

    partition: int
    next_offset: int
    clock: int


class Wait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Waiting time of events for their labels.

    Attributes
    ----------
    after, lateness
        Milliseconds: how long after its event a label may come, and after its timestamp may arrive.
    until
        By partition the offset of the first event that waits otherwise; a partition that is not in it has
        none. Empty: all later events wait so.
    """

    after: int
    lateness: int
    until: dict[int, int] = {}


class Acting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Which scores stop their events, and which share of these is let pass (`engine.exploration`).

    Attributes
    ----------
    threshold, share
        Scores of at least `threshold` stop, but for this share of them.
    key
        Identity of the secret of the coins.
    until
        As of `Wait`.
    """

    threshold: float
    share: float
    key: bytes
    until: dict[int, int] = {}


NOT_ACTING: Final = Acting(math.inf, 1.0, b"")
"""No score stops an event."""


class SourceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Positions of a lane that reads a whole topic.

    Attributes
    ----------
    positions
        One for each partition of which a record was taken.
    ahead
        Ranges that were announced before a crash and are still to be taken, before any other record.
    producer_times
        Whether records of several partitions were ever ordered by timestamps that producers set.
    due
        Where labels come later: where each partition is to be read on for events that become due.
    labels
        Where labels come later: up to which offset each partition of their topic was read, as far as messages
        that are no labels, or came too late, were sent on.
    expired
        Labels before this time that no event has used were sent on, in milliseconds.
    waits
        Where labels come later: how long events wait, those that came first first.
    matched
        Where events are learned when their labels come: where each partition of the labels topic is to be
        read on for labels whose events are still to be found.
    acting
        Where events are explored: which scores stopped events, those that came first first.
    """

    positions: list[Position]
    ahead: list[Range]
    producer_times: bool = False
    due: list[Position] = []
    labels: list[Position] = []
    expired: int = 0
    waits: list[Wait] = []
    matched: list[Position] = []
    acting: list[Acting] = []


class RecordRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A reference to a record of the input: its offset, and a digest of key and value.

    Where a lane reads a whole topic, the offset is an ordinal, and `partition` and `position` are the place.
    """

    offset: int
    digest: bytes
    partition: int = WHOLE_TOPIC
    position: int = -1


class GenesisEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="genesis"):
    """Identity of a lane, fixed for its lifetime: the first entry of a log.

    Attributes
    ----------
    format, writer
        Of the log, and the release that began it.
    app, topic, partition, name, fingerprint
        Of the lane, its learner and its configuration.
    key
        Identity of the noise key; empty without one.
    partitions
        Of the input topic.
    entity
        Where entities are read from; empty where none are declared.
    cluster, topic_id
        Of the input topic; empty where the source has no such names.
    first
        The first record that the partition had; None if it was empty.
    plan
        All fitted numbers of the learner's plan; None while the features are not known.
    privacy
        As of a `CommitEntry`: for readers of a log without a commit.
    settings
        The settings behind the fingerprint, by name; empty where they are not known.
    """

    format: int
    writer: str
    app: str
    topic: str
    partition: int
    name: str
    fingerprint: str
    key: str
    partitions: int
    entity: str
    cluster: str
    first: RecordRef | None
    plan: dict[str, Any] | None
    privacy: dict[str, Any] | None
    topic_id: str = ""
    settings: dict[str, str] = {}

    def check_settings(self, fingerprint: str, settings: Mapping[str, str]) -> None:
        """Refuse settings that are not those that the log began with.

        Raises
        ------
        SnapshotError
            The message names what differs.
        """
        if self.fingerprint != fingerprint:
            raise configuration_changed(
                "the log was begun", self.fingerprint, fingerprint, self.settings, settings
            )


class StartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="attempt"):
    """The start of an attempt of a process from the tip: durable before it releases anything.

    Attributes
    ----------
    writer
        The release of the program.
    void
        Reasons that void the guarantee from this attempt's first record on.
    ledger
        The account including this attempt; None for a learner that keeps none.
    """

    writer: str
    void: list[str]
    ledger: dict[str, Any] | None


class Digests(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="line"):
    """Slots that are about to be released: durable before anything of them leaves.

    Attributes
    ----------
    first, steps
        The slots `first, ..., first + steps - 1`, counted from 1.
    digests
        One digest a slot, concatenated, 0 where a slot releases nothing; empty if the noise has no key.
    """

    first: int
    steps: int
    digests: bytes


class RangesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ranges"):
    """Records that were taken since the entry before, in their order: of a lane that reads a whole topic.

    Durable before anything of them leaves.
    """

    ranges: list[Range]


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="model"):
    """The model that scored some records, where models take so long that they are computed meanwhile.

    Durable before anything of these records leaves. Written while a model is being computed, and when it is
    adopted.

    Attributes
    ----------
    release
        Number of the release whose model was adopted just before these records; None: the model before.
    first, end
        Offset of the first of them, and the one behind the last.
    """

    release: int | None
    first: int
    end: int


class CommitEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tip", omit_defaults=True):
    """A commit: the outputs up to here are stored.

    Attributes
    ----------
    writer
        The release of the program.
    next_offset
        Offset of the next record to take; None before the first.
    seen, slots
        Records taken, and slots released.
    scores
        Digest of the scores since the last snapshot and of the noise's chain: a silent replay must give the
        same.
    last
        The last record taken.
    ledger
        The account, with the next window reserved.
    clean
        Whether the process ends here.
    privacy
        Numbers of the privacy report, for readers of the log without its model; None: not private.
    first
        Offset of the first record taken since the last snapshot, where a replay begins; None: none was.
    source
        Where a lane that reads a whole topic goes on; None: the lane reads one partition, from `next_offset`.
    """

    writer: str
    next_offset: int | None
    seen: int
    slots: int
    scores: bytes
    last: RecordRef | None
    ledger: dict[str, Any] | None
    clean: bool
    privacy: dict[str, Any] | None
    first: int | None
    source: SourceState | None = None


class SnapshotEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="snapshot", omit_defaults=True
):
    """Reference to a snapshot, with the content of all older entries, which may then be deleted.

    Attributes
    ----------
    tip
        The commit that it belongs to.
    content, size
        Digest and size of its bytes.
    genesis, plan, void, accepted
        As of the entries before.
    voiding
        Reasons of the current attempt that void the guarantee from the next record on.
    models
        Entries of earlier attempts about records after the tip: the next attempt scores with the same models.
    """

    tip: CommitEntry
    content: bytes
    size: int
    genesis: GenesisEntry
    plan: dict[str, Any] | None
    void: list[str]
    accepted: list[str]
    voiding: list[str]
    models: list[ModelEntry] = []


class OverrideEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="accepted"):
    """An operator's override of a refused start.

    Attributes
    ----------
    what
        Description with the date: the report repeats it.
    charged
        Forks that it cost.
    from_snapshot
        Whether the lane goes on with the state of its last snapshot, and skips the span to the tip.
    next_offset
        Where it continues to read.
    ledger
        The account after it.
    void
        Reasons that voided the guarantee in lost entries.
    """

    what: str
    charged: int
    from_snapshot: bool
    next_offset: int | None
    ledger: dict[str, Any] | None
    void: list[str]


Entry = (
    GenesisEntry
    | StartEntry
    | Digests
    | RangesEntry
    | ModelEntry
    | CommitEntry
    | SnapshotEntry
    | OverrideEntry
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class SecretEntry(Protocol):
    """Key of a chain: `streampair.privacy.NoiseKey`."""

    def mac(self) -> Callable[[bytes], bytes]:
        """A function to authenticate with."""
        ...


class LogKey:
    """Key of the MACs of a log's chain and of its register.

    Parameters
    ----------
    noise_key
        Noise key of a private lane; None: the chain detects damage, and not forgery.
    """

    def __init__(self, noise_key: SecretEntry | None = None) -> None:
        self._key = hashlib.blake2b(b"streampair log").digest()
        self.id: str = ""
        """Identity of the noise key, which does not reveal it; empty without one."""
        if noise_key is not None:
            mac = noise_key.mac()
            self._key = mac(b"streampair log")
            self.id = mac(b"streampair key id").hex()[:16]

    def tag(self, purpose: bytes, data: bytes, size: int = _TAG) -> bytes:
        """Keyed digest of `data`; `purpose` (up to 16 bytes) keeps uses of the key apart."""
        return hashlib.blake2b(data, key=self._key, digest_size=size, person=purpose).digest()

    def __repr__(self) -> str:
        return f"LogKey({self.id or 'none'})"


class Chain:
    """The hash chain of a log: its last entry, which the next one authenticates.

    Parameters
    ----------
    key
        Of the lane.
    sequence, tag
        Of the last entry; -1 before the first.

    Examples
    --------
    >>> from streampair.engine.wal import StartEntry, Chain, LogKey
    >>> chain = Chain(LogKey())
    >>> frames = [chain.add(StartEntry("0.2", [], None)) for _ in range(3)]
    >>> entries, end, used = Chain.read(LogKey(), b"".join(frames))
    >>> len(entries), end.sequence == chain.sequence
    (3, True)
    >>> entries, end, used = Chain.read(LogKey(), b"".join(frames)[:-1])  # a torn end is no entry
    >>> len(entries)
    2
    """

    def __init__(self, key: LogKey, sequence: int = -1, tag: bytes = _START) -> None:
        self.key = key
        self.sequence = sequence
        self.tag = tag
        self.damage: LogDamagedError | None = None
        """Why `read(damaged=True)` stopped before the end; None: it did not."""
        self._tags: dict[int, str] = {}

    def holds(self, sequence: int, tag: str) -> bool:
        """Whether the log that was read has this entry; `tag` as in `Register`."""
        return self._tags.get(sequence) == tag

    def add(self, entry: Entry) -> bytes:
        """Append an entry to the chain; returns its frame."""
        body = _encode(entry)
        head = _HEAD.pack(self.sequence + 1, len(body), self.tag)
        frame = head + self.key.tag(b"head", head, _CHECK) + body
        self.sequence += 1
        self.tag = self.key.tag(b"entry", frame)
        return frame + self.tag

    @classmethod
    def read(cls, key: LogKey, data: bytes, *, damaged: bool = False) -> tuple[list[Entry], Chain, int]:
        """Entries of a log, the chain behind them, and how many bytes they take.

        Parameters
        ----------
        key
            Of the lane.
        data
            Frames, one after the other: from the genesis on, or from a snapshot on.
        damaged
            Stop at the first entry that does not verify, and set `damage` instead of raising: for tools that
            show or repair a log.

        Returns
        -------
        tuple
            Bytes after the last whole frame are a torn end, which may be cut off before the next is written.

        Raises
        ------
        LogDamagedError
            If a frame of full length does not verify, or does not follow the one before.
        """
        entries: list[Entry] = []
        chain, used = cls(key), 0
        try:
            for entry, end in cls._entries(chain, data):
                entries.append(entry)
                used = end
        except LogDamagedError as error:
            if not damaged:
                raise
            chain.damage = error
        return entries, chain, used

    @classmethod
    def _entries(cls, chain: Chain, data: bytes) -> Iterator[tuple[Entry, int]]:
        key, begin, whole = chain.key, 0, _HEAD.size + _CHECK
        while len(data) - begin >= whole:
            head = data[begin : begin + _HEAD.size]
            sequence, length, previous = _HEAD.unpack(head)
            if key.tag(b"head", head, _CHECK) != data[begin + _HEAD.size : begin + whole]:
                raise cls._damaged(chain, "its head does not verify")
            end = begin + whole + length
            if end + _TAG > len(data):
                break
            tag = data[end : end + _TAG]
            if not hmac.compare_digest(key.tag(b"entry", data[begin:end]), tag):
                raise cls._damaged(chain, "it does not verify")
            try:
                entry = _decode(data[begin + whole : end])
            except (msgspec.DecodeError, ValueError) as error:
                raise cls._damaged(chain, f"it holds what this release does not know ({error})") from None
            if begin and (sequence, previous) != (chain.sequence + 1, chain.tag):
                raise cls._damaged(chain, f"entry {sequence} does not follow it")
            if not begin and not isinstance(entry, SnapshotEntry) and sequence != 0:
                raise cls._damaged(chain, f"it begins with entry {sequence}, which is no snapshot")
            chain.sequence, chain.tag = sequence, tag
            chain._tags[sequence] = truncate_tag(tag)
            begin = end + _TAG
            yield entry, begin

    @staticmethod
    def peek(data: bytes) -> list[Entry]:
        """Entries of a log, without verification: for tools without the key.

        Raises
        ------
        SnapshotError
            If it is no log.
        """
        try:
            return [_decode(frame[_HEAD.size + _CHECK : -_TAG]) for frame in Chain.frames(data)]
        except (msgspec.DecodeError, ValueError) as error:
            raise SnapshotError(f"this is no log ({error})", fix="use the release that wrote it") from None

    @staticmethod
    def frames(data: bytes) -> list[bytes]:
        """The whole frames of a log, as their heads say; nothing is verified."""
        frames: list[bytes] = []
        begin, least = 0, _HEAD.size + _CHECK + _TAG
        while len(data) - begin >= least and (
            end := begin + least + _HEAD.unpack_from(data, begin)[1]
        ) <= len(data):
            frames.append(data[begin:end])
            begin = end
        return frames

    @staticmethod
    def _damaged(chain: Chain, detail: str) -> LogDamagedError:
        where = "at its beginning" if chain.sequence < 0 else f"behind entry {chain.sequence}"
        return LogDamagedError(
            f"the log is damaged {where}: {detail}",
            fix="put the newest copy of the store back, with the key that wrote it; see `streampair "
            f"state recover --help` for what it costs to go on without. {OR_ANEW}",
        )


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mirror of a log's tip outside of the log's storage, to detect a rollback.

    It is the metadata text of the group's committed offset. An entry is durable only when the log, and then
    the register, hold it.

    Attributes
    ----------
    sequence, tag
        Of the last entry; the tag is shortened.
    key
        Identity of the noise key.
    generation
        Of the noise.
    partitions
        Of the input topic.
    slots
        Slots that may have been released up to this entry.
    forks
        Forks charged by then.
    void
        Whether the guarantee is void by then.
    format
        Of the register. Registers of other formats are JSON objects too, with this number.
    """

    sequence: int
    tag: str
    key: str
    generation: int
    partitions: int
    slots: int
    forks: int
    void: bool
    mac: str = ""
    format: int = REGISTER_FORMAT

    def text(self, key: LogKey) -> str:
        """The register as text of less than 300 bytes, authenticated."""
        return msgspec.json.encode(msgspec.structs.replace(self, mac=self._mac(key))).decode()

    def _mac(self, key: LogKey) -> str:
        fields = [getattr(self, name) for name in self.__struct_fields__ if name != "mac"]
        return key.tag(b"register", repr(fields).encode(), 16).hex()

    @classmethod
    def read(cls, key: LogKey, text: str) -> Register | None:
        """The register of a text; None if it is no register (a tool has written over it).

        Raises
        ------
        UnusableLogError
            If it is one of another format.
        SnapshotError
            If it is one, and was written under another key or changed.
        """
        try:
            found = msgspec.json.decode(text, type=_AnyRegister)
        except msgspec.DecodeError:
            return None
        if found.format is None and not found.mac:
            return None
        if found.format != REGISTER_FORMAT:
            raise other_format("the group's register", found.format, REGISTER_FORMAT)
        try:
            register = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return None
        if not hmac.compare_digest(register._mac(key).encode(), register.mac.encode()):
            raise SnapshotError(
                f"the register of the group was written under another key ({register.key or 'none'}), "
                f"this lane has {key.id or 'none'}"
                if register.key != key.id
                else "the register of the group was changed by somebody else",
                fix="use the noise key that this application has always had; without it, start under another "
                "application name: a new account, whose spend comes on top of this one's",
            )
        return register


class _AnyRegister(msgspec.Struct):
    """What a register of any format has; those before formats were numbered have no number."""

    format: int | None = None
    mac: str = ""


class _AnyFirstEntry(msgspec.Struct):
    """What the first entry of a log of any format has."""

    format: int | None = None
    genesis: _AnyFirstEntry | None = None


def log_format(data: bytes) -> int | None:
    """Format of a log by its first entry, which is not verified; None: it cannot be read."""
    frames = Chain.frames(data)
    try:
        first = msgspec.msgpack.decode(frames[0][_HEAD.size + _CHECK : -_TAG], type=_AnyFirstEntry)
    except (IndexError, msgspec.DecodeError, ValueError):
        return None
    return first.format if first.genesis is None else first.genesis.format


def other_format(what: str, found: int | None, known: int) -> UnusableLogError:
    """The error for a log or a register of another format, with both numbers."""
    number = "no format number" if found is None else f"format {found}"
    return UnusableLogError(
        f"{what} has {number}, this release reads {known}",
        fix=f"run the release that wrote it. {OR_ANEW}",
    )


def truncate_tag(tag: bytes) -> str:
    """The part of a tag that a register keeps."""
    return tag[:16].hex()


def split_digests(digests: bytes) -> list[bytes]:
    """The digests of a line, one for each slot."""
    return [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]


def join_digests(digests: Iterable[bytes]) -> bytes:
    """The digests of slots as a line holds them."""
    return b"".join(digest[:DIGEST_BYTES] for digest in digests)
