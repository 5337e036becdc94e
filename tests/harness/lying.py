"""A lane whose storage lies, over many lives; and a world that keeps count of what has really left.

Scripts of lives are drawn at random: records, commits, crashes at any durable step, clean stops, and lies:
an old store is put back, a log is cut, a bit flips, the register is lost, records change, and an operator
accepts it. The world knows every release that has left, so it knows how many second views there are, which
the account must have charged (docs/privacy 8). The learner is a chain of digests in plain Python: what a
lane does with a private learner hangs on nothing else, and 100,000 scripts take minutes.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from harness.driver import CommittedOffset, Died, Driver, MemoryStore
from streampair.engine import Event, LogAppend, LogKey, Monitoring, Record, RecordRef, Register, Scored
from streampair.engine.wal import Chain, CommitEntry, OverrideEntry, SnapshotEntry, StartEntry
from streampair.errors import PrivacyError, StreampairError
from streampair.privacy import NoiseKey, Origin
from streampair.privacy.noise import SILENT

START = b"start"
KEY = NoiseKey(bytes(range(32)))
OTHER = NoiseKey(bytes(range(1, 33)))
WHEN = "2026-11-22"


class View(NamedTuple):
    """One release: its slot, what was released before it, and itself."""

    slot: int
    before: bytes
    digest: bytes


@dataclasses.dataclass(frozen=True)
class Report:
    """Of a privacy report what a lane and its log repeat."""

    guarantee: str
    releases: int
    kind: str = "holds"
    epsilon_spent: float = 0.0
    epsilon_budget: float = 1.0
    delta: float = 1e-6
    mu_spent: float = 0.0
    mu_budget: float = 1.0
    horizon: int | None = None
    horizon_left: int | None = None
    unit: str = "record"


class Chained:
    """A private learner that learns nothing: each release is a digest of all records before it.

    Parameters
    ----------
    key
        None: no two releases are ever the same.
    window, forks
        As of `PrivateModel`.
    every
        Slots from one release to the next; those between them release nothing, and have no digest.
    late
        Whether the features, and so the plan, are not known before a record with `c` above 0.
    """

    seed: int | None = None
    entity: Any = None
    null_slots = 0
    refused_records = 0
    horizon_left: int | None = None
    _drawn = itertools.count()

    def __init__(
        self, key: NoiseKey | None, window: int, forks: int, *, every: int = 1, late: bool = False
    ) -> None:
        self.noise_key = key
        self.window, self.forks = window, forks
        self.chain = self.released = START
        self.every = every
        self.made: list[View] = []
        self.charged = 0
        self._known = not late
        self._settled = 0
        self._waiting: list[bytes] = []
        self._name = b""
        self._digests: list[bytes] | None = None
        self._void: list[str] = []
        self._accepted: list[str] = []

    @property
    def slots(self) -> int:
        return self._settled + len(self._waiting)

    @property
    def slots_waiting(self) -> int:
        return len(self._waiting)

    @property
    def privacy(self) -> Report:
        guarantee = "; ".join(["holds", *(f"vouched by the operator on {word}" for word in self._accepted)])
        return Report(guarantee, self._settled, "void" if self._void else "holds")

    @property
    def privacy_summary(self) -> Report:
        return self.privacy

    def plan(self) -> Mapping[str, Any] | None:
        return {"sigma": 1.5} if self._known else None

    def load_plan(self, plan: Mapping[str, Any]) -> None:
        assert dict(plan) == {"sigma": 1.5}
        self._known = True

    @property
    def noise_digest(self) -> bytes:
        return b"" if self.noise_key is None else hashlib.blake2b(b"ledger" + self.chain).digest()

    def score_one(self, x: Any) -> float:
        return int.from_bytes(self.released[:6]) / 2**48

    def learn_one(self, x: Any, y: Any, origin: Origin | None = None) -> None:
        self._known = self._known or x["c"] > 0
        self.learn_null(origin)

    def take_or_raise(self, x: Any, y: Any, origin: Origin | None = None) -> float:
        score = self.score_one(x)
        self.learn_one(x, y, origin)
        return score

    def learn_null(self, origin: Origin | None = None) -> None:
        context = b"" if origin is None or origin.context is None else origin.context
        self._waiting.append(context)
        if self._known:
            for waiting in self._waiting:
                self._release(waiting)
            self._waiting.clear()

    def _release(self, context: bytes) -> None:
        drawn = b"" if self.noise_key is not None else b"%d" % next(self._drawn)
        digest = hashlib.blake2b(b"|".join((self.chain, self._name, drawn, context)), digest_size=16).digest()
        self._settled += 1
        releases = self._settled % self.every == 0
        if releases:
            self.made.append(View(self._settled, self.released, digest))
            self.released = digest
        self.chain = digest
        if self.noise_key is not None and self._digests is not None:
            digest_told = hashlib.blake2b(b"ledger" + digest, digest_size=32).digest()
            self._digests.append(digest_told if releases else SILENT)

    def bind_noise(self, name: str, digests: list[bytes] | None = None) -> None:
        self._name, self._digests = name.encode(), digests

    def charge(self, forks: int, *, vouched: bool = False) -> None:
        self.charged = forks

    def mark(self, *, void: Iterable[str] = (), accepted: Iterable[str] = ()) -> None:
        self._void, self._accepted = list(void), list(accepted)

    def mark_restarted(self, clean: bool) -> None:
        raise AssertionError("the log says how a run ended")

    def to_state(self) -> dict[str, object]:
        return {
            "chain": self.chain,
            "released": self.released,
            "settled": self._settled,
            "waiting": list(self._waiting),
            "known": self._known,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.chain, self._settled, self._known = state["chain"], state["settled"], state["known"]
        self.released = state["released"]
        self._waiting = list(state["waiting"])


def decode(record: Record) -> Event:
    """A record is one byte: what it says, and at 3 no label, so that its slot is a null one."""
    assert record.value is not None
    c = record.value[0]
    return Event({"c": c}, None if c == 3 else True)


def frames(log: bytes) -> list[bytes]:
    """The whole frames of a log, as their heads say."""
    found, start = [], 0
    while len(log) - start >= 84:
        end = start + 84 + int.from_bytes(log[start + 8 : start + 12])
        if end <= len(log):
            found.append(log[start:end])
        start = end
    return found


def second_views(views: Iterable[View], size: int) -> int:
    """How many forks have really left: what the account must have charged at least.

    A fork pays for one more view of each of `size` consecutive slots, so it is the larger of two counts: ways
    of going on from the same release, beyond the first; and windows that cover all views of all slots, beyond
    the first of each (the fewest: each begins where one is needed that none covers yet).
    """
    ways: dict[bytes, int] = {}
    extra: dict[int, int] = {}
    for view in views:
        ways[view.before] = ways.get(view.before, 0) + 1
        extra[view.slot] = extra.get(view.slot, -1) + 1
    begun: list[int] = []
    for slot in sorted(extra):
        covering = sum(slot < begin + size for begin in begun)
        begun += [slot] * (extra[slot] - covering)
    return max(len(begun), sum(ways.values()) - len(ways))


class Refused(Exception):
    """A start was refused that nothing had lied to."""


@dataclasses.dataclass
class Truth:
    """What was so before the first lie."""

    store: MemoryStore
    group: CommittedOffset
    topic: list[Record]
    start: int
    accepted: bool = False


class World(Driver):
    """One lane over many lives, some of them after a lie.

    Parameters
    ----------
    key, size, limit, every, late
        Of the learner.
    options
        As of `Driver`.
    """

    def __init__(
        self,
        *,
        key: NoiseKey | None = KEY,
        size: int = 3,
        limit: int = 1000,
        every: int = 1,
        late: bool = False,
        **options: Any,
    ) -> None:
        self.key, self.size, self.limit, self.every, self.late = key, size, limit, every, late
        self.views: set[View] = set()
        self.voided = self.vouched = False
        self.kept: list[MemoryStore] = []
        self.old_snapshots: list[bytes] = []
        self.truth: Truth | None = None
        self.refused = ""
        self.tear = 0
        self._states: dict[bytes, tuple[int, bytes]] = {}
        self._needed = 0
        super().__init__(self._learner, decode, monitoring=Monitoring(auc_window=2), **options)
        self.keep()

    def _learner(self) -> Chained:
        return Chained(self.key, self.size, self.limit, every=self.every, late=self.late)

    # What leaves

    @property
    def scores(self) -> list[Scored]:  # type: ignore[override]
        """What the driver adds to once a line is durable: then the releases of these records have left."""
        return []

    @scores.setter
    def scores(self, scores: list[Scored]) -> None:
        if not hasattr(self, "lane"):
            return
        made = self.lane.learner.made
        self.views |= set(made)
        self._needed = second_views(self.views, self.size)
        self.voided |= bool(made) and bool(self.lane._void)
        made.clear()
        self.check()

    @property
    def charged(self) -> int:
        account = self.lane._reservations
        assert account is not None
        return account.ledger.charged

    def check(self) -> None:
        """No view has left that is not charged, and no guarantee outlives its reason."""
        assert self._needed <= self.charged <= self.limit, (self._needed, self.charged)
        assert self.lane.learner.charged == self.charged
        report = self.lane.privacy
        assert not self.voided or report.kind == "void"
        assert not self.vouched or report.kind == "void" or "vouched by the operator" in report.guarantee

    # A start

    def start(self, *, die_after: int | None = None) -> None:
        """As of `Driver`; nothing is released by it, and the state must be that of the log's last commit."""
        super().start(die_after=die_after)
        self.lane.learner.made.clear()
        tags, entries = self.entries()
        for tag, entry in zip(reversed(tags), reversed(entries), strict=True):
            if isinstance(entry, OverrideEntry) and entry.from_snapshot:
                break
            if isinstance(entry, CommitEntry | SnapshotEntry):
                learner = self.lane.learner
                assert (learner.slots, learner.chain) == self._states[tag]
                break
        self.truth, self.refused = None, ""
        self.check()

    def try_to_start(self, *, die_after: int | None = None) -> None:
        """A start after a lie, perhaps; a refusal must have written nothing."""
        if self.truth is not None and self.nothing_knows():
            if self.views:
                self.group = copy.copy(self.truth.group)  # where both storages have lost all, nobody can know
            else:
                self.vouched = False
        store, group = copy.copy(self.store), copy.copy(self.group)
        snapshots = dict(store.snapshots)
        try:
            self.start(die_after=die_after)
        except StreampairError as error:
            if self.truth is None and not self.exhausted(error):
                raise Refused(str(error)) from error
            self.truth = self.truth or self.now()
            self.refused = str(error)
            assert (self.store.log, self.store.snapshots) == (store.log, snapshots)
            assert self.group == group

    def exhausted(self, error: StreampairError) -> bool:
        """Whether the account may refuse: all its forks are used, or nothing is known of all the records."""
        return isinstance(error, PrivacyError) and ("fork(s)" in str(error) or "has features" in str(error))

    def entries(self) -> tuple[list[bytes], list[Any]]:
        """The log's entries and their tags, unverified."""
        entries = Chain.peek(self.store.log)
        return [frame[-32:] for frame in frames(self.store.log)][: len(entries)], entries

    def nothing_knows(self) -> bool:
        """Whether neither the log nor the group tells that there was ever anything."""
        group = self.group
        try:
            if group.register and Register.read(LogKey(self.key), group.register) is not None:
                return False
            if (group.offset or 0) > self._facts.get("start", 0):
                return False
            entries = Chain.peek(self.store.log)
        except StreampairError:
            return False
        return not any(isinstance(entry, StartEntry | SnapshotEntry) for entry in entries)

    def record(self, offset: int) -> RecordRef | None:
        """None also where retention has taken it."""
        return None if offset < self._facts.get("start", 0) else super().record(offset)

    # What is durable

    def append(self, append: LogAppend) -> None:
        """As of `Driver`; a process that dies before it may leave a torn end."""
        try:
            super().append(append)
        except Died:
            frames = b"".join(append.frames)
            if self.tear and frames and not self.store.log.endswith(frames):
                self.store.log += frames[: self.tear % len(frames)]
            raise

    def commit(self, *, clean: bool = False, snapshot: bool | None = None) -> None:
        """As of `Driver`; the world knows the state by the commit's tag."""
        learner, chain = self.lane.learner, self.lane._log.chain
        state = (learner.slots, learner.chain)
        try:
            super().commit(clean=clean, snapshot=snapshot)
        finally:
            self._states[chain.tag] = state
            self.old_snapshots += [s for s in self.store.snapshots.values() if s not in self.old_snapshots]

    def keep(self) -> None:
        """Copy the store, to be put back some time."""
        self.kept.append(MemoryStore(self.store.log, dict(self.store.snapshots)))

    # Lies

    def now(self) -> Truth:
        """What is so now."""
        store = MemoryStore(self.store.log, dict(self.store.snapshots))
        return Truth(store, copy.copy(self.group), list(self.topic), self._facts.get("start", 0))

    def newest(self) -> None:
        """What the store holds now, and the group, is the newest there is."""
        assert self.truth is not None
        self.truth.store, self.truth.group = self.now().store, copy.copy(self.group)

    def repair(self) -> None:
        """Put the newest of everything back."""
        truth = self.truth
        assert truth is not None
        self.store, self.group, self.topic = truth.store, truth.group, truth.topic
        self._facts["start"] = truth.start
        if not truth.accepted:  # a log that was accepted may have read other records than there are now
            self.truth = None
        self.try_to_start()

    def go_on(self) -> None:
        """Accept what the refusal offers, as an operator does who tells the truth as far as he knows it."""
        truth = self.truth
        assert truth is not None
        hows: dict[str, Literal["register", "rollback", "span"]] = {
            "--ignore-register": "register",
            "--accept-rollback": "rollback",
            "--skip-span": "span",
        }
        kind = next((kind for option, kind in hows.items() if option in self.refused), None)
        if "the log is damaged" in self.refused:
            kind = "rollback"  # it ends where the damage begins
        # "If the store is the newest there is": he sees that files are short, and not that a bit has flipped.
        if kind is None or (kind == "register" and len(self.store.log) < len(truth.store.log)):
            self.repair()
            return
        before = self.now()
        try:
            self.override(kind, WHEN)
        except StreampairError:
            assert (self.store, self.group) == (before.store, before.group)
            self.repair()
            return
        self.vouched = True
        self.kept.append(truth.store)  # it may turn up again
        self.newest()
        truth.accepted = True
        self.try_to_start()


# ---- scripts ---------------------------------------------------------------------------------------------

Op = tuple[str, int, int]

WORK = ["feed"] * 5 + ["commit"] * 2 + ["save", "stop", "crash", "crash", "die", "die", "keep", "void"]
LIES = ["old", "old", "old_log", "old_snapshot", "cut", "cut_entry", "flip", "lose", "reset", "overwrite"]
LIES += ["reorder", "reorder", "swap", "expire", "recreate", "key"]


class Script(NamedTuple):
    """What a world is like, and what happens in it."""

    world: dict[str, Any]
    ops: list[Op]

    @classmethod
    def draw(cls, seed: int) -> Script:
        """The same for the same seed."""
        rng = random.Random(seed)
        world = {
            "key": None if rng.random() < 0.15 else KEY,
            "size": rng.choice((2, 3, 5)),
            "limit": rng.choice((1000, 1000, 1000, 0, 1, 2)),
            "late": rng.random() < 0.15,
            "payloads_change": rng.random() < 0.1,
            "snapshot_every": rng.choice((1, 2, 100)),
            "every": random.Random(seed).choice((1, 1, 2, 3)),
        }
        share = rng.choice((0.0, 0.2, 0.4))
        ops = [
            (
                rng.choice(LIES if rng.random() < share else WORK),
                rng.randrange(1 << 16),
                rng.randrange(1 << 16),
            )
            for _ in range(rng.choice((4, 6, 8, 10, 12, 20)))
        ]
        return cls(world, ops)


def play(script: Script) -> World | None:
    """Let a script happen; None where the account has refused to go on, as it may.

    Raises
    ------
    AssertionError
        If a view has left that is not charged, a guarantee has outlived its reason, a refusal has written, or
        a lane goes on from another state than that of its last commit.
    Refused
        If a start is refused that nothing has lied to.
    """
    world = World(**script.world)
    for op in script.ops:
        try:
            happen(world, *op)
        except PrivacyError as error:
            if not world.exhausted(error):
                raise
            return None
    return world


def happen(world: World, what: str, a: int, b: int) -> None:
    """One step of a script."""
    if what in LIES:
        world.truth = world.truth or world.now()
        lie(world, what, a, b)
        return
    if world.refused:
        if b % 3 == 0:
            world.go_on()
        elif b % 3 == 1:
            world.repair()
        else:
            world.try_to_start()
        if world.refused:
            return
    if what == "keep":
        world.keep()
    elif what == "void":
        world._options["on_bad"] = "fail" if world._options.get("on_bad", "dlq") == "dlq" else "dlq"
        world.try_to_start()
    elif what == "crash":
        world.try_to_start()
        if not world.refused and b % 2:
            world.catch_up(1 + a % 4)
    elif what == "die":
        die(world, a, b)
    else:
        work(world, what, a, b)


def work(world: World, what: str, a: int, b: int) -> None:
    """What a lane does that lives."""
    if what == "feed":
        for i in range(1 + a % 4):
            world.topic.append(Record(len(world.topic), bytes([(b >> 2 * i) % 4])))
        world.catch_up(1 + b % 3)
    elif what == "commit":
        world.commit()
    elif what == "save":
        world.commit(snapshot=True)
    elif what == "stop":
        world.commit(clean=True)
        world.try_to_start()


def die(world: World, a: int, b: int) -> None:
    """Die at some durable step of work, and perhaps again at one of the starts that follow."""
    world.tear = b
    world.die_after = a % 5
    try:
        work(world, "feed", a >> 3, b)
        work(world, ("commit", "save", "stop")[b % 3], a, b)
    except Died:
        pass
    for again in ((a >> 6) % 4, (a >> 8) % 4, None):
        try:
            world.try_to_start(die_after=again)
        except Died:
            continue
        break
    world.die_after, world.tear = None, 0


def lie(world: World, what: str, a: int, b: int) -> None:
    """Let storage lie, and start."""
    store, topic, group = world.store, world.topic, world.group
    if what == "old":
        old = world.kept[a % len(world.kept)]
        world.store = MemoryStore(old.log, dict(old.snapshots))
    elif what == "old_log":
        store.log = world.kept[a % len(world.kept)].log
    elif what == "old_snapshot":
        for name in store.snapshots:
            store.snapshots[name] = world.old_snapshots[a % len(world.old_snapshots)]
    elif what == "cut":
        store.log = store.log[: a % (len(store.log) + 1)]
    elif what == "cut_entry":
        whole = frames(store.log)
        store.log = b"".join(whole[: max(len(whole) - a % 4, 0)])
    elif what == "flip" and store.log:
        position = a % len(store.log)
        store.log = (
            store.log[:position] + bytes([store.log[position] ^ (1 << b % 8)]) + store.log[position + 1 :]
        )
    elif what == "lose":
        world.group = CommittedOffset()
    elif what == "reset":
        world.group = CommittedOffset("", a % (len(topic) + 1))
    elif what == "overwrite":
        world.group = CommittedOffset("by hand", group.offset)
    elif what == "expire":
        world._facts["start"] = max(world._facts.get("start", 0), a % ((group.offset or 0) + 1))
    elif what in ("reorder", "swap", "recreate"):
        change(world, what, a, b)
    elif what == "key":
        mine, world.key = world.key, None if b % 2 and world.key is not None else OTHER
        world.try_to_start()
        if world.refused:
            world.key = mine
        else:
            assert not world.views
        return
    world.try_to_start()


def change(world: World, what: str, a: int, b: int) -> None:
    """Other records at the same offsets: those that are not committed, any two, or all."""
    topic = list(world.topic)
    if what == "reorder":
        done = world.group.offset or 0
        values = [record.value for record in topic[done:]]
        random.Random(b).shuffle(values)
        topic[done:] = [Record(done + i, value) for i, value in enumerate(values)]
    elif what == "swap" and topic:
        i, j = a % len(topic), b % len(topic)
        topic[i], topic[j] = Record(i, topic[j].value), Record(j, topic[i].value)
    elif what == "recreate":
        rng = random.Random(b)
        topic = [Record(i, bytes([rng.randrange(4)])) for i in range(a % (len(topic) + 3))]
    world.topic = topic
