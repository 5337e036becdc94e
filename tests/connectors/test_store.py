"""The directory store: durable, one writer, never half a snapshot, and a log that is only added to."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from streampair_connectors.cli.check import check_config
from streampair_connectors.config import Config, parse_config
from streampair_connectors.stores import DirectoryLane, DirectoryStore, DiskStore
from streampair_connectors.stores import directory as disk
from streampair_connectors.stores.offline import OfflineDirectory

from streampair.engine import Commit, LogAppend, UnusableLogError
from streampair.errors import StoreError


def entry(*frames: bytes) -> LogAppend:
    return LogAppend(frames, "register", 1)


def commit(content: bytes, data: bytes | None, frame: bytes = b"") -> Commit:
    """A commit whose snapshot is named as the engine names one: by 64 hexadecimal digits."""
    name = None if data is None else content.hex().ljust(64, "0")
    return Commit((frame or b"saved " + content,), "register", 1, name, data)


def save(lane: DirectoryLane, content: bytes, data: bytes) -> str:
    """As `DiskLane.commit` does it, the register left out."""
    made = commit(content, data)
    lane.save(made)
    lane.append(made)
    lane.compact(made)
    assert made.content is not None
    return made.content


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def state(content: bytes) -> str:
    return f"a-{content.hex():0<32}.state"


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "deep" / "state")
    lane = store.open("app@topic-0")
    assert lane.read() == b""
    save(lane, b"1", b"one")
    two = save(lane, b"2", b"two")
    lane.append(entry(b"+1", b"+2"))
    lane.append(entry(b"+3"))
    lane.close()
    lane.close()
    again = store.open("app@topic-0")
    assert again.read() == b"saved 2+1+2+3"
    assert again.snapshot(two) == b"two"
    other = store.open("app@topic-1")
    assert other.read() == b""
    assert store.lanes("app") == ["app@topic-0"]
    assert store.lanes("ap") == store.lanes("topic") == []
    again.close()
    other.close()


def test_applications_whose_names_begin_alike_share_a_directory(tmp_path: Path) -> None:
    """Each has lanes of its own, and draws a noise key of its own."""

    def config(app: str, topic: str) -> Config:
        found = parse_config(
            {
                "app": app,
                "input": {"topic": topic, "label": "y", "features": ["a"]},
                "learner": {"class": "streampair.auc.PairOGD"},
                "store": {"directory": "state"},
                "metrics": {"address": "127.0.0.1:0"},
                "kafka": {"bootstrap_servers": "127.0.0.1:1", "connect_timeout": "200ms"},
            },
            base=tmp_path,
        )
        return found

    apps = [config("fraud-eu", "payments"), config("fraud", "eu-payments"), config("fraud", "eu")]
    store = DirectoryStore(tmp_path / "state")
    names = [app.lane_name for app in apps]
    assert len(set(names)) == 3
    lanes = [store.open(name) for name in names]
    save(lanes[0], b"1", b"one")
    assert store.lanes("fraud-eu") == [names[0]]
    assert store.lanes("fraud") == []  # so that its noise key may be drawn
    save(lanes[1], b"2", b"two")
    assert store.lanes("fraud") == [names[1]]
    for app, begun in zip(apps, (True, True, False), strict=True):
        (found,) = [f for f in asyncio.run(check_config(app)).findings if f["check"] == "store"]
        assert f"it has {'a' if begun else 'no'} lane of this application and topic" in found["text"]
        assert asyncio.run(OfflineDirectory(app).exists()) is begun


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    lane = DirectoryStore(directory).open("a-b-0")
    lane.append(entry(b"digests are in here"))
    made = commit(b"1", b"raw records are in here")
    lane.save(made)
    lane.append(made)
    for _ in range(2):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {file.suffix for file in directory.iterdir()} == {".log", ".state", ".lock"}
        for file in directory.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        lane.compact(made)
    lane.close()


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    lane = DirectoryStore(directory).open("../../evil/name")
    save(lane, b"1", b"x")
    lane.close()
    assert {file.parent for file in tmp_path.rglob("*") if file.is_file()} == {directory}


def test_there_is_one_writer(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    lane = store.open("a")
    with pytest.raises(StoreError, match="another process holds") as caught:
        store.open("a")
    assert caught.value.retriable
    lane.close()
    store.open("a").close()
    made = commit(b"1", b"too late")
    for change in (lane.append, lane.save, lane.compact):
        with pytest.raises(StoreError, match="is closed"):
            change(made)
    for look in (lane.read, lambda: lane.snapshot("00"), lambda: lane.cut(0)):
        with pytest.raises(StoreError, match="is closed"):
            look()


def test_a_lane_is_opened_once_its_owner_has_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handover waits; who never lets go is told of. Nothing is sent here, so there is no broker."""
    config = parse_config(
        {
            "app": "a",
            "input": {"topic": "t", "label": "y"},
            "learner": {"class": "streampair.auc.PairOGD"},
            "store": {"directory": str(tmp_path / "state")},
        }
    )
    nobody: Any = None
    store = DiskStore(config, nobody, nobody)
    opened = DirectoryStore(tmp_path / "state").open("a@t-all")

    async def hand_over() -> bytes:
        waiting = asyncio.create_task(store.open({0: 0}))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.2)
        opened.close()
        lane = await waiting
        try:
            return await lane.read()
        finally:
            await lane.close()

    assert asyncio.run(hand_over()) == b""
    opened = DirectoryStore(tmp_path / "state").open("a@t-all")
    monkeypatch.setattr(disk, "_HANDOVER_SECONDS", 0.1)
    with pytest.raises(StoreError, match="another process holds"):
        asyncio.run(store.open({0: 0}))
    opened.close()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A killed worker whose lock stayed would keep its successor away."""
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from streampair.engine import LogAppend
        from streampair_connectors.stores import DirectoryStore
        lane = DirectoryStore(Path({str(tmp_path)!r})).open("a")
        lane.append(LogAppend((b"mine",), "", 0))
        print("held", flush=True)
        sys.stdin.read()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    store = DirectoryStore(tmp_path)
    with pytest.raises(StoreError):
        store.open("a")
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    lane = store.open("a")
    assert lane.read() == b"mine"
    lane.close()


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", ["save", "append", "compact"])
def test_a_failed_write_keeps_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    old = save(lane, b"1", b"old")
    new = commit(b"2", b"new")
    steps = ["save", "append", "compact"]
    for before in steps[: steps.index(step)]:
        getattr(lane, before)(new)
    log = lane.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left"):
            getattr(lane, step)(new)
    assert lane.read() == log
    assert lane.snapshot(old) == b"old"
    newer = save(lane, b"3", b"newer")
    assert lane.snapshot(newer) == b"newer"
    assert lane.read() == b"saved 3"
    lane.close()
    assert names(tmp_path) == [state(b"3"), "a.lock", "a.log"]


def test_a_write_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    lane.append(entry(b"begin"))
    made = commit(b"1", b"x")
    order: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), replace(a, b))[1])
    monkeypatch.setattr(Path, "unlink", lambda p, **k: (order.append("unlink"), unlink(p, **k))[1])
    lane.save(made)
    assert order == ["fsync", "rename", "fsync"]
    order.clear()
    lane.compact(made)
    assert order[:3] == ["fsync", "rename", "fsync"]
    assert set(order[3:]) <= {"unlink"}
    order.clear()
    lane.save(commit(b"2", b"y"))
    lane.compact(commit(b"2", b"y"))
    # What was needed before goes last.
    assert order[:6] == ["fsync", "rename", "fsync"] * 2
    assert set(order[6:]) == {"unlink"}
    lane.close()


def test_an_entry_is_on_the_disk_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    order: list[str] = []
    fsync, write = os.fsync, os.write
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f))[1])
    monkeypatch.setattr(os, "write", lambda f, data: (order.append("write"), write(f, data))[1])
    lane.append(entry(b"head"))
    assert order == ["write", "fsync", "fsync"]  # the directory too, where the file is new
    order.clear()
    lane.append(entry(b"line"))
    assert order == ["write", "fsync"]
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        lane.append(entry(b"more"))
    assert lane.read() == b"headline"
    lane.close()


def test_a_torn_end_is_cut_off_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    lane.cut(0)
    assert names(tmp_path) == ["a.lock"]
    lane.append(entry(b"whole", b"to"))
    order: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f))[1])
    lane.cut(9)  # nothing lies behind
    assert (lane.read(), order) == (b"wholeto", [])
    lane.cut(5)
    assert (lane.read(), order) == (b"whole", ["fsync"])
    lane.close()


def test_the_log_and_its_snapshot_go_together(tmp_path: Path) -> None:
    """Nothing that a log names is dropped, before the register knows its successor; and nothing of others."""
    store = DirectoryStore(tmp_path)
    lane = store.open("a")
    one = save(lane, b"1", b"one")
    neighbour = store.open("a-1")
    theirs = save(neighbour, b"1", b"theirs")
    made = commit(b"2", b"two")
    lane.save(made)
    lane.append(made)
    assert lane.read() == b"saved 1saved 2"
    assert lane.snapshot(one) == b"one"  # the process may die here
    lane.compact(made)
    assert lane.read() == b"saved 2"
    with pytest.raises(UnusableLogError, match=r"in the log is missing.*restore the whole store"):
        lane.snapshot(one)
    assert neighbour.snapshot(theirs) == b"theirs"
    # A commit without a snapshot is an entry.
    tip = commit(b"", None, b"+tip")
    lane.save(tip)
    lane.append(tip)
    lane.compact(tip)
    assert lane.read() == b"saved 2+tip"
    lane.close()
    neighbour.close()
    assert names(tmp_path) == [
        *("a-1-" + f"{b'1'.hex():0<32}.state", "a-1.lock", "a-1.log", state(b"2"), "a.lock", "a.log")
    ]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        DirectoryStore(file / "state")


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).probe()
    assert list(tmp_path.iterdir()) == []
