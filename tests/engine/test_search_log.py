"""A random search for a view that leaves uncharged: lives and lies drawn at random (docs/privacy 8).

`make test` tries 3,000 scripts; `make search-log` tries 100,000, and prints the shortest script of each find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import lying, search_log

from streampair.engine import recovery
from streampair.engine.lane_log import LaneLog
from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain, Digests, LogDamagedError
from streampair.privacy import Ledger, ledger

SCRIPTS = 3000

pytestmark = pytest.mark.filterwarnings("ignore:the privacy guarantee")


def test_no_script_finds_a_view_that_is_not_charged() -> None:
    """The first of the 30,000 that `make search-log` plays before a change is accepted."""
    assert search_log.find(range(1000)) is None


def test_a_topic_that_is_empty_again_is_not_the_one_that_was_seen() -> None:
    """Found by the search: it was taken for the same, and refused once it had been learned from."""
    assert search_log.find([8562]) is None


def test_scripts_reach_what_they_are_for() -> None:
    """Charges, refusals, acceptances, replays and the ends of accounts happen, and not in a handful."""
    worlds = [world for seed in range(300) if (world := lying.play(lying.Script.draw(seed))) is not None]
    assert len(worlds) < 300
    assert sum(lying.second_views(world.views, world.size) > 0 for world in worlds) > 20
    assert sum(world.vouched for world in worlds) > 20
    assert sum(world.voided for world in worlds) > 20
    assert sum(bool(world.refused) for world in worlds) > 20


@pytest.mark.parametrize(
    ("views", "forks"),
    [
        ("", 0),
        ("1sa 2ab 3bc", 0),
        ("1sa 2ab 1sx", 1),  # two ways on from one release
        ("1sa 2ab 3bc 1sx 2xy 3yz", 1),  # a whole window
        ("1sa 2ab 3bc 4cd 1sx 2xy 3yz 4zw", 2),  # and one slot more
        ("1sa 1sb 1sc", 2),
        ("1sa 2ab 3bc 2ax 3xy 3xz", 2),
    ],
)
def test_second_views_are_counted(views: str, forks: int) -> None:
    found = [lying.View(int(view[0]), view[1].encode(), view[2].encode()) for view in views.split()]
    assert lying.second_views(found, 3) == forks


# ---- mutants ----------------------------------------------------------------------------------------

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {}


def mutant(change: Callable[[pytest.MonkeyPatch], Any]) -> Callable[[pytest.MonkeyPatch], Any]:
    MUTANTS[change.__name__] = change
    return change


@mutant
def the_register_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_check_register", lambda *_: None)


@mutant
def only_the_length_is_held_against_the_register(patch: pytest.MonkeyPatch) -> None:
    """A log that went another way in aborted starts is longer, and knows nothing of what left."""
    patch.setattr(Chain, "holds", lambda self, sequence, tag: sequence <= self.sequence)


@mutant
def digests_of_an_overtaken_attempt_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    reserve = Ledger.reserve

    def forget(self: Ledger, start: int, *, begun: bool = True) -> None:
        reserve(self, start, begun=begun)
        self._open([])
        self.pending = False

    patch.setattr(Ledger, "reserve", forget)


@mutant
def lines_of_an_overtaken_attempt_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    fold = RecoveredState.fold

    def forget(self: RecoveredState, entry: Any) -> None:
        fold(self, entry)
        if not isinstance(entry, Digests):
            self.ledger = None if self.ledger is None else {**self.ledger, "behind": [], "pending": False}

    patch.setattr(RecoveredState, "fold", forget)


@mutant
def a_commit_forgets_what_a_replay_must_repeat(patch: pytest.MonkeyPatch) -> None:
    """What one attempt has released and a later one repeated: then an honest start is refused."""
    fold = RecoveredState.fold

    def forget(self: RecoveredState, entry: Any) -> None:
        fold(self, entry)
        if isinstance(entry, lying.SnapshotEntry):
            self.path = {}

    patch.setattr(RecoveredState, "fold", forget)


@mutant
def any_digest_is_taken_for_that_of_a_slot_that_releases_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "repeats", lambda known, digest: True)


@mutant
def any_snapshot_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneLog, "check_content", lambda *_: None)


@mutant
def damage_is_taken_for_a_torn_end(patch: pytest.MonkeyPatch) -> None:
    """With the register lost too, the operator is told that the store may be the newest."""
    read = Chain.read.__func__  # type: ignore[attr-defined]

    def forgive(cls: type[Chain], key: Any, data: bytes, **_: Any) -> Any:
        entries, chain, used = read(cls, key, data, damaged=True)
        chain.damage = None
        return entries, chain, used

    patch.setattr(Chain, "read", classmethod(forgive))


@mutant
def a_torn_end_is_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    read = Chain.read.__func__  # type: ignore[attr-defined]

    def strict(cls: type[Chain], key: Any, data: bytes, **options: Any) -> Any:
        found = read(cls, key, data, **options)
        if found[2] < len(data):
            raise LogDamagedError("the log is damaged", fix="")
        return found

    patch.setattr(Chain, "read", classmethod(strict))


@mutant
def what_voids_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveredState, "takes_records", lambda _: None)


@mutant
def what_voids_is_known_by_attempts_alone(patch: pytest.MonkeyPatch) -> None:
    """A log that begins anew with a snapshot has no attempt any more."""
    fold = RecoveredState.fold

    def forget(self: RecoveredState, entry: Any) -> None:
        fold(self, entry)
        if isinstance(entry, lying.SnapshotEntry):
            self.voiding = []

    patch.setattr(RecoveredState, "fold", forget)


@mutant
def an_acceptance_costs_one_fork(patch: pytest.MonkeyPatch) -> None:
    charge = Ledger.charge_forks
    patch.setattr(Ledger, "charge_forks", lambda self, forks, *a, **k: charge(self, min(forks, 1), *a, **k))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_log_that_forgets_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search must find what each faulty log lets out."""
    MUTANTS[name](monkeypatch)
    assert search_log.find(range(SCRIPTS), shrink=False) is not None
