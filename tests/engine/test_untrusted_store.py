"""Every lie that storage can tell, alone and in pairs, with aborted starts in between (docs/privacy 8).

After each, a start is refused and has written nothing; or it goes on, and whatever leaves that has not left
before is charged, and no guarantee outlives its reason. The world of `harness.lying` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import lying
from harness.driver import CommittedOffset, Died, MemoryStore
from harness.lying import KEY, OTHER, World

from streampair.engine import ExternalState, Record
from streampair.errors import StoreError, StreampairError

pytestmark = pytest.mark.filterwarnings("ignore:the privacy guarantee")


def worked(**options: Any) -> World:
    """A lane with a clean stop, commits with and without a snapshot, a second view, and uncommitted records.

    A record was taken under what voids the guarantee, and the log has begun anew since.
    """
    world = World(snapshot_every=100, **options)
    feed(world, 0, 1, 2)
    world.commit(clean=True)
    world.start()
    world.keep()  # a clean one
    world._options["on_bad"] = "fail"
    world.start()
    feed(world, 1, 1)
    world.commit(snapshot=True)
    world._options["on_bad"] = "dlq"
    world.start()
    world.keep()
    feed(world, 2, 0)
    world.commit()
    feed(world, 1, 0)
    swapped = [Record(i, record.value) for i, record in enumerate([*world.topic[:7], *world.topic[:6:-1]])]
    world.topic = swapped[:9]
    world.start()
    world.catch_up()
    assert world.voided
    world.keep()
    feed(world, 0)
    world.commit()
    feed(world, 2, 1)
    aborted(world)
    return world


def feed(world: World, *contents: int) -> None:
    world.topic += [Record(len(world.topic) + i, bytes([c])) for i, c in enumerate(contents)]
    world.catch_up()


def aborted(world: World) -> None:
    """Starts that die before and after the log has their attempt: it gets longer, the register does not."""
    for steps in (0, 1, 0, 1, 1):
        try:
            world.try_to_start(die_after=steps)
        except Died:
            continue
    world.die_after = None


def old_directory(world: World) -> None:
    world.store = MemoryStore(world.kept[-1].log, dict(world.kept[-1].snapshots))


def old_clean_directory(world: World) -> None:
    world.store = MemoryStore(world.kept[1].log, dict(world.kept[1].snapshots))


def old_log(world: World) -> None:
    world.store.log = world.kept[-1].log


def old_snapshot(world: World) -> None:
    world.store.snapshots = dict.fromkeys(world.store.snapshots, world.old_snapshots[0])


def no_snapshot(world: World) -> None:
    world.store.snapshots = {}


def no_log(world: World) -> None:
    world.store = MemoryStore()


def flipped_bit(world: World) -> None:
    log = world.store.log
    position = len(log) // 2
    world.store.log = log[:position] + bytes([log[position] ^ 1]) + log[position + 1 :]


def flipped_length(world: World) -> None:
    """Of the last entry: it reads as if it were torn."""
    log = world.store.log
    position = len(log) - len(lying.frames(log)[-1]) + 9 if log else 0
    world.store.log = log[:position] + bytes([log[position] ^ 1]) + log[position + 1 :] if log else log


def cut_at_an_entry(world: World) -> None:
    world.store.log = b"".join(lying.frames(world.store.log)[:-6])


def cut_at_the_first_entry(world: World) -> None:
    world.store.log = b"".join(lying.frames(world.store.log)[:1])


def lost_key(world: World) -> None:
    world.key = None


def other_key(world: World) -> None:
    world.key = OTHER


def lost_register(world: World) -> None:
    world.group = CommittedOffset()


def reset_register(world: World) -> None:
    world.group = CommittedOffset("", 0)


def overwritten_register(world: World) -> None:
    world.group = CommittedOffset("a tool was here", world.group.offset)


def recreated_topic(world: World) -> None:
    world.topic = [Record(i, bytes([(i + 1) % 3])) for i in range(len(world.topic))]


def shorter_topic(world: World) -> None:
    world.topic = world.topic[:4]


def changed_payload(world: World) -> None:
    """Between the snapshot and the tip."""
    world.topic[6] = Record(6, b"\x03")


def changed_uncommitted(world: World) -> None:
    world.topic[-1] = Record(len(world.topic) - 1, b"\x00")


def retention(world: World) -> None:
    """Records between the snapshot and the tip are gone."""
    world._facts["start"] = 7


def aborted_starts(world: World) -> None:
    aborted(world)


LIES: list[Callable[[World], None]] = [
    *(old_directory, old_clean_directory, old_log, old_snapshot, no_snapshot, no_log, flipped_bit),
    *(flipped_length, cut_at_an_entry, cut_at_the_first_entry, lost_key, other_key, lost_register),
    *(reset_register, overwritten_register, recreated_topic, shorter_topic, changed_payload),
    *(changed_uncommitted, retention, aborted_starts),
]
#: What no storage that still stands can tell of: these go on, and what they release anew is charged.
SEEN_LATER = {changed_uncommitted, aborted_starts, retention}


def tell(world: World, *lies: Callable[[World], None]) -> None:
    """Lies one after the other, with starts after each; then work, where a start goes on."""
    world.truth = world.now()
    for lie in lies:
        if world.truth is None:
            world.truth = world.now()
        try:
            lie(world)
        except IndexError:
            return  # there is nothing left to lie about
        for _ in range(2):
            world.try_to_start()
    if not world.refused:
        go_on(world)


def go_on(world: World) -> None:
    """Work on, the end of the account included: every check is the world's."""
    try:
        for content in (1, 0, 2, 1, 0):
            feed(world, content)
            world.commit()
        world.start()
    except StreampairError as error:
        # The topic here is a list: what retention has taken is read once more, and missed at the next start.
        if not world.exhausted(error) and "are gone from the topic" not in str(error):
            raise


@pytest.mark.parametrize("limit", [1, 1000])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_each_lie_is_refused_or_charged(lie: Callable[[World], None], limit: int) -> None:
    world = worked(limit=limit)
    tell(world, lie)
    assert bool(world.refused) == (lie not in SEEN_LATER) or lie is retention


@pytest.mark.parametrize("first", LIES, ids=lambda lie: lie.__name__)
def test_each_pair_of_lies_is_refused_or_charged(first: Callable[[World], None]) -> None:
    """In this order, with two starts after each; a lie meets one half of the others under each limit."""
    for number, second in enumerate(LIES, start=LIES.index(first)):
        tell(worked(limit=(1, 1000)[number % 2]), first, second)


@pytest.mark.parametrize("first", LIES, ids=lambda lie: lie.__name__)
def test_whoever_accepts_a_lie_pays_for_it(first: Callable[[World], None]) -> None:
    """An operator goes on over what he may, twice; the newest store turns up again, and is a lie by then."""
    for second in LIES:
        world = worked()
        tell(world, first)
        if world.refused:
            world.key = KEY
            world.go_on()
        if world.refused:
            continue
        newest = world.kept[-1]
        go_on(world)
        tell(world, second)
        if world.refused:
            world.key = KEY
            world.go_on()
        if world.refused:
            continue
        go_on(world)
        world.truth = world.now()
        world.store = MemoryStore(newest.log, dict(newest.snapshots))
        world.try_to_start()
        if not world.refused:
            go_on(world)


def test_a_lane_cannot_start_without_the_snapshot_that_its_log_names() -> None:
    world = worked()
    lane = world.new_lane()
    wanted = lane.read(world.store.read())
    assert wanted.content is not None
    with pytest.raises(StreampairError, match="not the one that the log names"):
        lane.start(world.found(wanted))
    no_snapshot(world)
    with pytest.raises(StoreError, match="put the store back as a whole"):
        world.start()


def test_an_old_store_that_aborted_starts_made_longer_is_refused() -> None:
    """It is as long as the register says, and went another way before."""
    world = World(snapshot_every=100)
    world.store, short = world.now().store, world.store
    aborted(world)  # the log is longer, the register is not
    longer = world.now().store
    world.store = short
    world.start()
    feed(world, 1)
    world.truth = world.now()
    world.store = longer
    assert len(lying.frames(longer.log)) > len(lying.frames(short.log))
    world.try_to_start()
    assert "not the one that the register knows" in world.refused


def test_what_a_record_was_taken_under_outlives_the_entry_that_said_so() -> None:
    """Its attempt goes when the log begins anew; what it voids does not, with a line or without."""
    for before in ("commit", "nothing"):
        world = World(snapshot_every=100)
        world._options["on_bad"] = "fail"
        world.start()
        if before == "commit":
            world.commit(snapshot=True)  # nothing was taken yet
        feed(world, 1, 2)
        world.commit(snapshot=True)
        world._options["on_bad"] = "dlq"
        world.start()
        assert world.lane.privacy.kind == "void"
    # Who repeats what was released before has no digest to write, and takes records all the same.
    world = World(snapshot_every=100)
    feed(world, 1, 2)
    world._options["on_bad"] = "fail"
    world.start()
    world.catch_up()
    world._options["on_bad"] = "dlq"
    world.start()
    assert world.lane.privacy.kind == "void"
    assert world.charged == 1  # until it repeats it again
    world.catch_up()
    assert world.charged == 0


def test_an_attempt_that_took_nothing_voids_nothing() -> None:
    for first in (0, 1):
        world = World(snapshot_every=1)
        feed(world, *[1] * first)
        world.commit()
        world._options["on_bad"] = "fail"
        world.start()
        world.commit()
        world._options["on_bad"] = "dlq"
        world.start()
        assert world.lane.privacy.kind == "holds"


def test_an_offset_without_a_register_is_no_new_lane() -> None:
    """A log cut to its first entry, and a group that a tool has moved: records were read."""
    world = worked()
    cut_at_the_first_entry(world)
    entries = world.entries()[1]
    assert len(entries) == 1
    genesis = lying.Chain(lying.LogKey(KEY)).add(entries[0].genesis)
    world.store = MemoryStore(genesis)
    lane = world.new_lane()
    lane.read(genesis)
    with pytest.raises(StreampairError, match="has no register"):
        lane.start(ExternalState(register="", offset=5, end=20))
