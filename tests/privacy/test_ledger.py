"""The ledger's rules against a world that keeps count of what has really left (docs/privacy 8, 9.6)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair.errors import PrivacyError, SnapshotError
from streampair.privacy import Ledger, Line


def digest(previous: bytes, content: int) -> bytes:
    return hashlib.blake2b(previous + bytes([content]), digest_size=32).digest()


@dataclass
class World:
    """One lane over many lives: its ledger and lines on the disk, and the releases that have left."""

    keyed: bool = True
    limit: int = 10**6
    size: int = 12
    make: Callable[..., Ledger] = Ledger
    immutable: bool = True
    lines: list[Line] = field(default_factory=list)
    snapshot: tuple[dict[str, Any], int, bytes] | None = None
    views: set[tuple[bytes, ...]] = field(default_factory=set)
    lives: int = 0

    def start(self) -> None:
        """A new life from the disk."""
        self.lives += 1
        ledger = self.make(
            "lane", size=self.size, limit=self.limit, keyed=self.keyed, immutable=self.immutable
        )
        self.slots, self.chain = 0, b"start"
        if self.snapshot is not None:
            state, self.slots, self.chain = copy.deepcopy(self.snapshot)
            ledger = ledger.from_state(state, ledger)
        self.ledger = ledger
        ledger.begin(self.lines)
        self.base = self.slots
        self.path: list[bytes] = [self.chain]
        self.commit()

    def commit(self, *, clean: bool = False) -> None:
        self.ledger.reserve(self.slots, begun=not clean)
        self.snapshot = copy.deepcopy((self.ledger.to_state(), self.slots, self.chain))
        self.lines = []

    def step(self, contents: list[int], *, dies: bool = False) -> None:
        """Process a batch; `dies`: the process ends before its line is on the disk, so nothing leaves."""
        digests, chain = [], self.chain
        for content in contents:
            # Without a key no two releases are the same.
            noise = content + 8 * self.ledger.generation if self.keyed else 100 + self.lives
            chain = digest(chain, noise % 256)
            digests.append(chain)
        line = self.ledger.release(self.slots + 1, digests if self.keyed else len(digests))
        if dies:
            return
        if line is not None:
            self.lines.append(line)
        self.slots += len(contents)
        for d in digests:
            self.path.append(d)
            # What leaves is known by the step before it: a view is a path through the tree of all releases.
            self.views.add((self.path[-2], d))  # type: ignore[arg-type]
        self.chain = chain

    @property
    def forks(self) -> int:
        """Second views that have really left: branches in the tree of releases."""
        sources = [source for source, _ in self.views]
        return len(sources) - len(set(sources))


CONTENT = st.integers(0, 1)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), keyed=st.booleans(), immutable=st.booleans(), limit=st.sampled_from([0, 1, 2, 1000]))
def test_no_view_leaves_that_is_not_charged(
    data: st.DataObject, keyed: bool, immutable: bool, limit: int
) -> None:
    """Crashes anywhere, replays in the same and another order: no more than is charged."""
    play(World(keyed=keyed, limit=limit, immutable=immutable), data)


def play(world: World, data: st.DataObject) -> None:
    world.start()
    first_read: dict[int, int] = {}  # the record at each place, as first read
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["go", "go", "commit", "crash", "dies", "stop"]))
        try:
            if what in ("go", "dies"):
                n = data.draw(st.integers(1, 4))
                if n > world.ledger.room:
                    with pytest.raises(PrivacyError, match="not reserved"):
                        world.step([0] * (world.ledger.room + 1))
                    world.commit()
                places = range(world.slots, world.slots + n)
                faithful = data.draw(st.booleans())
                contents = [
                    first_read.setdefault(p, data.draw(CONTENT)) if faithful else data.draw(CONTENT)
                    for p in places
                ]
                world.step(contents, dies=what == "dies")
                if what == "dies":
                    world.start()
            elif what == "commit":
                world.commit()
            else:
                if what == "stop":
                    world.commit(clean=True)
                world.start()
        except PrivacyError:
            assert world.ledger.charged >= world.limit
            break
        assert world.forks <= world.ledger.charged <= world.limit
    assert world.forks <= world.limit


class Trusting(Ledger):
    """The mutant: it believes that every replay is faithful."""

    __slots__ = ()

    def begin(self, lines: Sequence[Line] = ()) -> None:
        Ledger.begin(self, lines)
        self._open([])
        self.pending = False


class Forgetful(Ledger):
    """The mutant: at a commit it forgets what a replay has not caught up with."""

    __slots__ = ()

    def reserve(self, start: int, *, begun: bool = True) -> None:
        Ledger.reserve(self, start, begun=begun)
        self._open([])
        self.pending = False


@pytest.mark.parametrize("mutant", [Trusting, Forgetful])
def test_a_ledger_that_lets_a_view_leave_is_caught(mutant: type[Ledger]) -> None:
    """The search for an uncharged view must find one in each faulty ledger."""

    @settings(max_examples=2000, deadline=None, database=None, derandomize=True)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        play(World(make=mutant), data)

    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize("keyed", [True, False])
def test_a_crash_loop_is_charged_each_time_or_refused(keyed: bool) -> None:
    """100 attempts, each with another order of the records: 100 views, 100 charges."""
    world = World(keyed=keyed)
    world.start()
    world.step([0, 0, 0])
    for attempt in range(1, 101):
        world.start()
        assert world.ledger.attempt == attempt + 1
        world.step([attempt % 256] * 3)
        assert world.ledger.charged == world.forks == attempt
    world = World(keyed=keyed, limit=5)
    world.start()
    world.step([0, 0, 0])

    def loop() -> None:
        for attempt in range(1, 101):
            world.start()
            world.step([attempt] * 3)

    with pytest.raises(PrivacyError, match="all 5 fork"):
        loop()
    assert world.forks == 5


def test_a_crash_loop_that_repeats_itself_costs_nothing() -> None:
    world = World(limit=0)
    for _ in range(100):
        world.start()
        world.step([1, 2, 3])
    assert world.forks == world.ledger.charged == 0
    assert sum(line.steps for line in world.lines) <= 3  # they do not grow


def test_the_charge_is_there_before_the_replay_and_waived_after_it() -> None:
    world = World(limit=3)
    world.start()
    world.step([1, 2])
    world.step([3, 4])
    world.start()
    assert world.snapshot is not None
    assert world.snapshot[0]["pending"]  # durable before the first release
    assert world.ledger.charged == 1
    world.step([1, 2, 3])
    world.commit()
    assert world.ledger.charged == 1  # a commit does not end it: one release is still to be reproduced
    world.step([4])
    assert world.ledger.charged == 0
    world.commit()
    assert not world.snapshot[0]["pending"]


def test_the_divergence_after_a_commit_is_charged() -> None:
    """The replay commits before it has caught up, and only then reads another record."""
    world = World()
    world.start()
    world.step([1, 2, 3, 4])
    world.start()
    world.step([1, 2])
    world.commit()
    world.step([9])
    assert world.ledger.forks == world.forks == 1


def test_idle_lanes_and_clean_stops_cost_nothing() -> None:
    for keyed in (True, False):
        world = World(keyed=keyed, limit=0)
        world.start()
        for _ in range(5):
            world.start()  # killed before it did anything
        world.step([1, 2])
        world.commit()
        for _ in range(5):
            world.start()  # killed with nothing after the last commit
        world.step([3])
        world.commit(clean=True)
        world.start()
        world.step([4])
        assert world.ledger.charged == 0


def test_a_payload_that_can_change_is_always_charged_and_gets_other_noise() -> None:
    world = World(immutable=False)
    world.start()
    world.step([1, 2])
    world.start()
    assert world.ledger.generation == 1
    assert world.ledger.forks == 1
    world.step([1, 2])
    assert world.ledger.charged == 1


@pytest.mark.parametrize(
    "damage",
    [{"window": -1}, {"forks": "1"}, {"size": True}, {"behind": [1]}, {"extra": 1}, {"lane": "other"}],
)
def test_a_damaged_ledger_is_refused(damage: dict[str, Any]) -> None:
    ledger = Ledger("lane", size=5, limit=0, keyed=True)
    with pytest.raises(SnapshotError):
        Ledger.from_state({**ledger.to_state(), **damage}, ledger)
