"""What an operator accepts is charged for every slot that is seen again (docs/privacy.md 8, Lemma 28)."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from harness import lanes
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streampair import auc
from streampair.engine import LogDamaged, accepting
from streampair.engine.log import Chain, Digests, split
from streampair.engine.testing import Died, Driver, Group
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
            solver="gradients",
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
                for slot, digest in enumerate(split(entry.digests), entry.first):
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
                told = f"{error}"
            how: Any = next(
                (how for how in ("register", "rollback", "span") if f"-{how} " in told or f"-{how}`" in told),
                "rollback",
            )
            try:
                self.accept(how, "2026-11-22")
                continue
            except (PrivacyError, SnapshotError, LogDamaged) as error:
                told = f"{error}"
            if "application name" in told:
                return False
        raise AssertionError(f"it is refused again and again: {told}")


def play(data: st.DataObject) -> int:
    """A script of work, crashes and lies; how many second views it has come to."""
    world = World(snapshot_every=data.draw(st.sampled_from([1, 2, 50])))
    kept = [copy.deepcopy(world.store)]
    given = 0

    def other_records() -> None:
        """What is not committed comes in another order: every release of it is another view."""
        nonlocal given
        del world.topic[world.lane.next_offset or 0 :]
        given += 3

    for _ in range(data.draw(st.integers(3, 14))):
        what = data.draw(
            st.sampled_from(
                ["feed", "feed", "commit", "crash", "die", "stop", "old", "flip", "forgotten", "span"]
            )
        )
        if what == "feed":
            count = data.draw(st.integers(1, 9))
            world.feed(EVENTS[given % 300 :][:count])
            given += count
        elif what == "commit":
            world.commit()
        elif what == "stop":
            world.commit(clean=True)
            world.start()
        else:
            if what == "die":
                world.die_after = data.draw(st.integers(0, 4))
                with contextlib.suppress(Died):
                    world.feed(EVENTS[given % 300 :][:5])
                    world.commit()
                given += 5
                world.die_after = None
            elif what == "old":
                world.store = copy.deepcopy(kept[data.draw(st.integers(0, len(kept) - 1))])
            elif what == "flip":
                log = world.store.log
                at = data.draw(st.integers(0, len(log) - 1))
                world.store.log = log[:at] + bytes([log[at] ^ 16]) + log[at + 1 :]
            elif what == "forgotten":
                world.group = Group()
            elif what == "span":
                span = None if (known := world.lane._log.known) is None else known.span
                if span is not None and span[1] - (span[0] or 0) > 1:  # the last is looked at
                    at = span[0] or 0
                    record = world.topic[at]
                    world.topic[at] = type(record)(at, world.topic[at - 1].value)
            if not world.go_on():
                return world.forks
            if data.draw(st.booleans()):
                other_records()
                world.feed(EVENTS[given % 300 :][: data.draw(st.integers(1, 9))])
            else:
                world.catch_up()
        kept.append(copy.deepcopy(world.store))
        assert world.forks <= world.charged, "a second view is free"
    return world.forks


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_second_view_is_free(data: st.DataObject) -> None:
    play(data)


def test_one_fork_whatever_the_age_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    honest = accepting.forks_to_accept

    def one(*told: Any, **options: Any) -> tuple[int, int]:
        return honest(*told, **options)[0], 1

    monkeypatch.setattr(accepting, "forks_to_accept", one)

    @settings(
        max_examples=1500,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        play(data)

    with pytest.raises(AssertionError, match="a second view is free"):
        run()
