"""Power that fails at each operation of the directory store, and again while it recovers (docs/privacy 8).

A disk that tells the truth about what it has flushed costs nothing: each start goes on, with the same scores,
the same weights and no fork, however the power fails. What would not is refused, by the register.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import lanes
from harness.disks import LOSSES, Disk
from harness.driver import Died, Driver
from harness.lying import KEY, Chained
from streampair_connectors.stores import DirectoryLane, DirectoryStore, directory

from streampair import auc, privacy
from streampair.engine import LogAppend, Monitoring
from streampair.errors import StreampairError

WORK: list[tuple[str, int]] = [
    ("feed", 3),
    ("commit", 0),
    ("feed", 2),
    ("commit", 1),
    ("feed", 2),
    ("commit", 2),
]
WORK += [("feed", 4), ("commit", 1), ("feed", 1)]
EVENTS: list[Any] = lanes.stream(40)

FTRL = auc.PairFTRL(
    epsilon=1.0,
    delta=1e-4,
    horizon=40,
    features=list("abc"),
    noise_key=KEY,
    window=6,
    mechanism=privacy.PairGradients(),
    warmup=0,
)
MODELS: dict[str, Callable[[], Any]] = {
    "chain": lambda: Chained(KEY, 6, 0),
    "PairFTRL": lambda: copy.deepcopy(FTRL),
    "PairOGD": lambda: auc.PairOGD(seed=3),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where the system has that: a rename is slow on a disk that others use too."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


Death = tuple[int, str, int]
"""Operations before it, what is lost, and bytes of the write under way that are kept."""


class Lane(Driver):
    """A lane over the directory store, on a disk that forgets; it is started by hand."""

    def __init__(self, disk: Disk, make: Callable[[], Any]) -> None:
        self.disk = disk
        self._made = False
        monitoring = Monitoring(auc_window=2)
        super().__init__(
            make, store=DirectoryLane(disk.root, "a"), snapshot_every=1000, monitoring=monitoring
        )

    def start(self, *, die_after: int | None = None) -> None:
        if self._made:
            super().start(die_after=die_after)
        self._made = True

    def _register(self, append: LogAppend) -> None:
        self.disk.step("register")
        super()._register(append)

    def again(self, loss: str) -> None:
        """The process has died; what the disk has kept is there."""
        self.store.close()
        self.disk.lose(loss)
        self.store = DirectoryLane(self.disk.root, "a")

    def result(self) -> Any:
        """Scores by offset, what was learned, and what is charged."""
        learner = self.lane.learner
        account = self.lane._reservations
        return (
            sorted({(scored.offset, scored.score) for scored in self.scores}),
            learner.chain if isinstance(learner, Chained) else repr(learner.weights),
            0 if account is None else account.ledger.charged,
        )


class RegisterFirst(Lane):
    """The mutant: it tells the register what the log does not hold yet."""

    def append(self, append: LogAppend) -> None:
        self._register(append)
        self.store.append(append)


def live(
    root: Path, model: str, deaths: list[Death], *, kind: type[Lane] = Lane
) -> tuple[Any, list[tuple[str, int]], list[int]]:
    """A whole life with these deaths: its result, all operations, and how many there were at each death."""
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(root, patch)
        disk.lose("unflushed")
        lane = kind(disk, MODELS[model])
        died: list[int] = []
        coming = list(deaths)

        def arm() -> None:
            if coming:
                disk.left, disk.torn = coming[0][0], coming[0][2]

        def survive(step: Callable[[], None]) -> None:
            """Do it, in as many lives as it takes."""
            while True:
                try:
                    step()
                    return
                except Died:
                    died.append(len(disk.operations))
                    lane.again(coming.pop(0)[1])
                    arm()
                    step = catch_up

        def catch_up() -> None:
            lane.start()
            lane.catch_up()

        arm()
        try:
            survive(lane.start)
            for what, count in WORK:
                if what == "feed":
                    survive(lambda count=count: lane.feed(EVENTS[len(lane.topic) :][:count]))  # type: ignore[misc]
                else:
                    survive(lambda count=count: lane.commit(snapshot=count > 0, clean=count == 2))  # type: ignore[misc]
                    if count == 2:
                        survive(lane.start)
            return lane.result(), disk.operations, died
        finally:
            lane.store.close()


def first_deaths(operations: list[tuple[str, int]]) -> list[Death]:
    """At each operation, in each way; a write torn at every 97th byte."""
    deaths: list[Death] = []
    for operation, (_, size) in enumerate(operations):
        deaths += [(operation, loss, 0) for loss in LOSSES]
        deaths += [(operation, "ordered", kept) for kept in range(97, size, 97)]
    return deaths


@pytest.mark.parametrize("model", MODELS)
def test_power_that_fails_once_costs_nothing(folder: Path, model: str) -> None:
    """A life for each operation of the store and each way to lose it."""
    expected, operations, _ = live(folder / "a", model, [])
    assert {what for what, _ in operations} >= {"create", "write", "flush", "flush the directory", "rename"}
    assert len(operations) > 60
    assert expected[2] == 0
    # A chain is fast, and all of a store's deaths are tried with it.
    for death in first_deaths(operations)[:: {"chain": 1, "PairFTRL": 11, "PairOGD": 3}[model]]:
        assert live(folder / "a", model, [death])[0] == expected, (death, operations[death[0]])


def test_power_that_fails_again_in_the_recovery_costs_nothing(folder: Path) -> None:
    """The second death at each operation of the start, and at some of what follows.

    The first one is at every operation; each is followed by a third of the second ones, in turn.
    """
    root = folder / "a"
    expected, operations, _ = live(root, "chain", [])
    for operation, (_, size) in enumerate(operations):
        for loss in ("killed", "ordered"):
            for after in range(operation % 3, 10, 3):
                second = "unflushed" if loss == "killed" else LOSSES[(operation + after) % len(LOSSES)]
                deaths = [(operation, loss, size // 2), (after, second, 0)]
                assert live(root, "chain", deaths)[0] == expected, (deaths, operations[operation])


# ---- mutants ----------------------------------------------------------------------------------------


def is_caught(root: Path, second: list[Death] | None = None, kind: type[Lane] = Lane) -> bool:
    """Whether any death, and perhaps a second one, makes a start refuse, or gives another result."""
    expected, operations, _ = live(root, "chain", [], kind=kind)
    for death in first_deaths(operations):
        try:
            if live(root, "chain", [death, *(second or [])], kind=kind)[0] != expected:
                return True
        except StreampairError:
            return True
    return False


def test_a_store_that_renames_before_it_flushes_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_bytes(b"")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, data)
        os.replace(temporary, path)
        directory._flush_directory(path.parent)
        os.fsync(descriptor)
        os.close(descriptor)

    monkeypatch.setattr(directory, "_replace_file", careless)
    assert is_caught(folder / "a")


def test_a_store_that_does_not_flush_its_directory_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_flush_directory", lambda _: None)
    assert is_caught(folder / "a")


def test_a_store_that_does_not_flush_its_log_is_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: Path, data: bytes, flags: int = os.O_CREAT | os.O_TRUNC) -> None:
        descriptor = os.open(path, os.O_WRONLY | flags, 0o600)
        os.write(descriptor, data)
        os.close(descriptor)

    monkeypatch.setattr(directory, "_write_durably", careless)
    assert is_caught(folder / "a")


def test_a_register_that_is_written_before_the_log_is_caught(folder: Path) -> None:
    assert is_caught(folder / "a", kind=RegisterFirst)


def test_a_store_that_trusts_the_names_that_it_finds_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was killed between a name and its flush has left a name that the power can take."""
    append = DirectoryLane.append

    def trusting(self: DirectoryLane, added: LogAppend) -> None:
        self._directory_flushed = self._log.exists()
        append(self, added)

    monkeypatch.setattr(DirectoryLane, "append", trusting)
    # Dead again with everything announced, and before anything else is flushed.
    assert any(is_caught(folder / "a", [(after, "unflushed", 0)]) for after in (4, 5, 6))


def test_a_directory_is_flushed_into_those_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(directory, "_flush_directory", flushed.append)
    DirectoryStore(tmp_path / "deep" / "state")
    assert flushed == [tmp_path, tmp_path / "deep"]
    DirectoryStore(tmp_path / "deep" / "state")
    assert len(flushed) == 2
