"""What an operator accepts is charged for every slot that is seen again (docs/privacy 8, Lemma 28)."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from harness import lanes
from harness.driver import CommittedOffset, Died, Driver
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, privacy
from streampair.engine import LogDamagedError, UnusableLogError, recovery
from streampair.engine.wal import Chain, Digests, split_digests
from streampair.errors import PrivacyError, SnapshotError, StreampairError

KEY = bytes(range(32))
WINDOW = 6
LIMIT = 1000
EVENTS: list[Any] = lanes.stream(400, seed=5)


class Model:
    """Makes one learner, and gives copies of it: to fit its noise takes longer than a script."""

    def __init__(self, **options: Any) -> None:
        self._first = auc.PairFTRL(
            epsilon=1.0,
            delta=1e-4,
            horizon=200,
            features=list("abc"),
            noise_key=KEY,
            window=WINDOW,
            forks=LIMIT,
            mechanism=privacy.PairGradients(),
            warmup=0,
            **options,
        )

    def __call__(self) -> Any:
        return copy.deepcopy(self._first)


MODEL = Model()


class World(Driver):
    """A driver that knows every view of a slot that has left: the digests of its lines."""

    def __init__(self, **options: Any) -> None:
        self.views: dict[int, set[bytes]] = {}
        super().__init__(MODEL, **options)

    def append(self, append: Any) -> None:
        super().append(append)
        for entry in Chain.peek(b"".join(append.frames)):
            if isinstance(entry, Digests):
                for slot, digest in enumerate(split_digests(entry.digests), entry.first):
                    self.views.setdefault(slot, set()).add(digest)

    @property
    def forks(self) -> int:
        """The fewest windows of slots that cover every second view, each as often as it was made."""
        again = {slot: len(views) - 1 for slot, views in self.views.items()}
        count = 0
        for first in sorted(again):
            more = max(again[first], 0)
            count += more
            for slot in range(first, first + WINDOW):
                again[slot] = max(again.get(slot, 0) - more, 0)
        return count

    @property
    def charged(self) -> int:
        account = self.lane._reservations
        assert account is not None
        return account.ledger.charged

    def go_on(self) -> bool:
        """Start, accepting what it takes; False: there is no way on."""
        for _ in range(6):
            try:
                self.start()
                return True
            except StreampairError as error:
                problem = f"{error}"
            kind: Any = next(
                (
                    kind
                    for kind in ("register", "rollback", "span")
                    if f"-{kind} " in problem or f"-{kind}`" in problem
                ),
                "rollback",
            )
            try:
                self.override(kind, "2026-11-22")
                continue
            except (PrivacyError, SnapshotError, LogDamagedError) as error:
                problem = f"{error}"
            if "application name" in problem:
                return False
        raise AssertionError(f"it is refused again and again: {problem}")


def play(data: st.DataObject) -> int:
    """A script of work, crashes and lies; how many second views it has come to."""
    world = World(snapshot_every=data.draw(st.sampled_from([1, 2, 50])))
    kept = [copy.deepcopy(world.store)]
    sent = 0

    def other_records() -> None:
        """What is not committed comes in another order: every release of it is another view."""
        nonlocal sent
        del world.topic[world.lane.next_offset or 0 :]
        sent += 3

    for _ in range(data.draw(st.integers(3, 14))):
        what = data.draw(
            st.sampled_from(
                ["feed", "feed", "commit", "crash", "die", "stop", "old", "flip", "forgotten", "span"]
            )
        )
        if what == "feed":
            count = data.draw(st.integers(1, 9))
            world.feed(EVENTS[sent % 300 :][:count])
            sent += count
        elif what == "commit":
            world.commit()
        elif what == "stop":
            world.commit(clean=True)
            world.start()
        else:
            if what == "die":
                world.die_after = data.draw(st.integers(0, 4))
                with contextlib.suppress(Died):
                    world.feed(EVENTS[sent % 300 :][:5])
                    world.commit()
                sent += 5
                world.die_after = None
            elif what == "old":
                world.store = copy.deepcopy(kept[data.draw(st.integers(0, len(kept) - 1))])
            elif what == "flip":
                log = world.store.log
                index = data.draw(st.integers(0, len(log) - 1))
                world.store.log = log[:index] + bytes([log[index] ^ 16]) + log[index + 1 :]
            elif what == "forgotten":
                world.group = CommittedOffset()
            elif what == "span":
                span = None if (known := world.lane._log.known) is None else known.span
                if span is not None and span[1] - (span[0] or 0) > 1:  # the last is looked at
                    index = span[0] or 0
                    record = world.topic[index]
                    world.topic[index] = type(record)(index, world.topic[index - 1].value)
            if not world.go_on():
                return world.forks
            if data.draw(st.booleans()):
                other_records()
                world.feed(EVENTS[sent % 300 :][: data.draw(st.integers(1, 9))])
            else:
                world.catch_up()
        kept.append(copy.deepcopy(world.store))
        assert world.forks <= world.charged, "a second view is free"
    return world.forks


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_second_view_is_free(data: st.DataObject) -> None:
    """A second view that an override lets out without a charge."""
    play(data)


def aged(lie: str) -> World:
    """Five windows behind what is still known, and then other records in the place of theirs."""
    world = World(snapshot_every=50)
    world.feed(EVENTS[:WINDOW])
    world.commit(snapshot=True)
    old = copy.deepcopy(world.store)
    for version in range(1, 6):
        world.feed(EVENTS[version * WINDOW : (version + 1) * WINDOW])
        world.commit(snapshot=False)
    if lie == "rollback":
        world.store = old
    else:
        world._facts["start"] = 2 * WINDOW
    assert world.go_on()
    del world.topic[world.lane.next_offset or 0 :]
    world.feed(EVENTS[100 : 100 + 5 * WINDOW])
    return world


@pytest.mark.parametrize("lie", ["rollback", "span"])
def test_one_fork_whatever_the_age_is_too_few(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant."""
    world = aged(lie)
    assert 5 <= world.forks <= world.charged
    honest = recovery.forks_to_charge

    def one(*args: Any, **options: Any) -> tuple[int, int]:
        return honest(*args, **options)[0], 1

    monkeypatch.setattr(recovery, "forks_to_charge", one)
    world = aged(lie)
    assert world.forks > world.charged


# ---- one by one ------------------------------------------------------------------------------------------


def worked() -> World:
    """Two commits, the second without a snapshot, and two records behind it."""
    world = World(snapshot_every=50)
    world.feed(EVENTS[:4])
    world.commit(snapshot=True)
    world.feed(EVENTS[4:12])
    world.commit(snapshot=False)
    world.feed(EVENTS[12:14])
    return world


def test_a_log_that_parted_from_the_newest_is_refused() -> None:
    """An older store was accepted and went on, and then the newer one turned up: long enough, and wrong."""
    world = worked()
    old = copy.deepcopy(world.store)
    world.feed(EVENTS[14:30])
    world.commit()
    newer = copy.deepcopy(world.store)
    world.store = old
    assert world.go_on()
    world.store = newer
    with pytest.raises(PrivacyError, match=r"its entry \d+ is not the one that the register knows"):
        world.start()
    assert world.go_on()
    del world.topic[world.lane.next_offset or 0 :]
    world.feed(EVENTS[60:70])
    assert world.forks <= world.charged


def test_what_the_lost_entries_charged_and_voided_is_not_lost() -> None:
    world = worked()
    old = copy.deepcopy(world.store)
    for _ in range(3):  # each another view of the same slots
        del world.topic[world.lane.next_offset or 0 :]
        world.start()
        sent = len(world.topic)
        world.feed(EVENTS[50 + sent * 2 :][:2])
        EVENTS.append(EVENTS[0])
        world.topic[-1] = type(world.topic[-1])(world.topic[-1].offset, b"junk")
        world.start()
        world.catch_up()
    before = world.charged
    assert before >= 1
    world.store = copy.deepcopy(old)
    world.override("rollback", "2026-11-22")
    world.start()
    assert world.charged > before
    # And void: a record is taken under what voids it, and then that entry is lost.
    world = worked()
    old = copy.deepcopy(world.store)
    world._options["on_bad"] = "fail"
    with pytest.warns(UserWarning, match="guarantee"):
        world.start()
    world.catch_up()
    world.commit()
    world._options["on_bad"] = "dlq"
    world.store = old
    world.override("rollback", "2026-11-22")
    world.start()
    assert world.lane.privacy.kind == "void"
    assert "entries of the log that are lost" in world.lane.privacy.guarantee


def test_damage_is_cut_off_and_charged_up_to_the_register() -> None:
    world = worked()
    log = world.store.log
    end = len(b"".join(Chain.frames(log)[:-2]))
    world.store.log = log[: end + 100] + bytes([log[end + 100] ^ 1]) + log[end + 101 :]
    with pytest.raises(LogDamagedError, match="state recover"):
        world.start()
    with pytest.raises(LogDamagedError):
        world.override("register", "2026-11-22")
    register, world.group.register = world.group.register, None
    with pytest.raises(PrivacyError, match="has no register, so that nothing shows"):
        world.override("rollback", "2026-11-22")
    assert world.store.log[:end] == log[:end]
    world.group.register = register
    assert world.override("rollback", "2026-11-22") > 1
    assert world.store.log.startswith(log[:end])
    world.start()
    assert "vouched by the operator" in str(world.lane.privacy)


def test_only_what_is_refused_is_accepted() -> None:
    world = worked()
    store = copy.deepcopy(world.store)
    for kind, problem in (("register", "the group's register is there"), ("rollback", "is not older")):
        with pytest.raises(recovery.NothingToOverrideError, match=problem):
            world.override(kind, "2026-11-22")  # type: ignore[arg-type]
    world.group.register = ""
    with pytest.raises(PrivacyError, match="has no register"):
        world.override("span", "2026-11-22")  # one thing at a time
    world.group.offset = 14
    with pytest.raises(PrivacyError, match=r"beyond the log.*--to-offset 12"):
        world.override("register", "2026-11-22")
    assert world.store == store
    public = Driver(lambda: auc.PairOGD(seed=1))
    public.feed(EVENTS[:5])
    public.group = CommittedOffset()
    with pytest.raises(recovery.NothingToOverrideError, match="keeps no privacy account"):
        public.override("register", "2026-11-22")


def test_a_lane_without_an_account_gives_up_its_span_for_nothing() -> None:
    public = Driver(lambda: auc.PairOGD(seed=1), snapshot_every=100)
    public.feed(EVENTS[:5])
    public.commit(snapshot=True)
    public.feed(EVENTS[5:20])
    public.commit()
    public._facts["start"] = 12
    with pytest.raises(SnapshotError, match="--skip-span"):
        public.start()
    assert public.override("span", "2026-11-22") == 0
    public.start()
    assert public.lane.next_offset == 20
    assert public.lane.gauges().events["learned"] == 5


def begin_anew(driver: Driver) -> None:
    """What `streampair state recover --begin-anew` does."""
    lane = driver.new_lane()
    append = lane.begin_anew(driver.found(lane.read(b"")), "2026-11-22")
    driver.store.cut(0)
    driver.append(append)


@pytest.mark.parametrize("loss", ["gone", "cut", "damaged", "another format"])
def test_a_new_model_begins_at_the_offset_of_the_group(loss: str) -> None:
    """No event is scored twice, and none is skipped, wherever the worker dies afterwards."""
    public = Driver(lambda: auc.PairOGD(seed=1), snapshot_every=100)
    for start in (0, 10, 20):
        old = public.store.log
        public.feed(EVENTS[start : start + 10])
        public.commit()
    log = public.store.log
    if loss == "another format":
        public.group.register = '{"format": 2, "mac": ""}'
    else:
        public.store.log = {"gone": b"", "cut": old, "damaged": log[:90] + b"x" + log[91:]}[loss]
    with pytest.raises(UnusableLogError, match="--begin-anew"):
        public.start()
    public.topic += [
        type(public.topic[0])(30 + i, public.topic[i].value) for i in range(15)
    ]  # they come while nobody works
    begin_anew(public)
    assert public.group.offset == 30
    public.start()
    assert "(began anew at the group's offset)" in public.lane.log.known.accepted[0]  # type: ignore[union-attr]
    public.die_after = 0
    public.catch_up()
    with pytest.raises(Died):
        public.commit()
    del public.scores[30:]  # of a transaction that was not committed
    public.start()
    assert public.lane.next_offset == 30
    public.catch_up()
    public.commit()
    public.start()
    assert [scored.offset for scored in public.scores] == list(range(45))
    assert public.lane.gauges().events["learned"] == 15
    fresh = Driver(lambda: auc.PairOGD(seed=1))
    fresh.topic = public.topic
    fresh.lane._batch.next_offset = 30
    assert [s.score for s in fresh.catch_up().scores] == [s.score for s in public.scores[30:]]


def test_a_new_model_begins_only_where_its_offset_is_known_and_nothing_is_accounted() -> None:
    public = Driver(lambda: auc.PairOGD(seed=1))
    public.feed(EVENTS[:5])
    public.group = CommittedOffset()
    with pytest.raises(SnapshotError, match=r"nothing says where a new model would begin.*--reset-offsets"):
        begin_anew(public)
    world = worked()
    store, group = copy.deepcopy(world.store), copy.copy(world.group)
    world.store.log = b""
    with pytest.raises(PrivacyError, match=r"its log is the account.*under another application name"):
        begin_anew(world)
    assert (world.store.log, world.group) == (b"", group)
    world.store = store
    world.start()


def test_an_older_log_without_an_account_goes_on_and_scores_again() -> None:
    public = Driver(lambda: auc.PairOGD(seed=1))
    public.feed(EVENTS[:10])
    public.commit()
    old = copy.deepcopy(public.store)
    public.feed(EVENTS[10:20])
    public.commit()
    again, public.store = public.scores[10:], old
    assert public.override("rollback", "2026-11-22") == 0
    public.start()
    assert public.catch_up().scores == again


def test_what_it_says_is_spent_is_what_the_report_says_afterwards() -> None:
    for kind in ("register", "span"):
        world = worked()
        world.commit(snapshot=False)
        if kind == "register":
            world.group = CommittedOffset()
        lane = world.new_lane()
        wanted = lane.read(world.store.read())
        assert wanted.content is not None
        snapshot = world.store.snapshot(wanted.content)
        accepted = lane.override(kind, world.found(wanted), "2026-11-22", snapshot)  # type: ignore[arg-type]
        assert accepted.mu is not None
        assert accepted.mu[0] == pytest.approx(world.lane.privacy.mu_spent)
        world.append(accepted.append)
        world.start()
        assert world.lane.privacy.mu_spent == pytest.approx(accepted.mu[1])
