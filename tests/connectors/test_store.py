"""The directory store: durable, one writer, and never half a snapshot."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from streampair_connectors.store import DirectoryStore, open_within

from streampair.errors import StoreError


def test_a_snapshot_is_there_after_opening_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "deep" / "state")
    lane = store.open("app-topic-0")
    assert lane.load() is None
    lane.save(b"one")
    lane.save(b"two")
    lane.close()
    lane.close()
    again = store.open("app-topic-0")
    assert again.load() == b"two"
    other = store.open("app-topic-1")
    assert other.load() is None
    again.close()
    other.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    lane = DirectoryStore(directory).open("a-b-0")
    lane.save(b"raw records are in here")
    lane.close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for file in directory.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    lane = DirectoryStore(directory).open("../../evil/name")
    lane.save(b"x")
    lane.close()
    assert {file.parent for file in tmp_path.rglob("*") if file.is_file()} == {directory}


def test_there_is_one_writer(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    lane = store.open("a")
    with pytest.raises(StoreError, match="another process holds") as caught:
        store.open("a")
    assert caught.value.retriable
    with pytest.raises(StoreError, match="another process holds"):
        open_within(store, "a", 0.1)
    lane.close()
    open_within(store, "a", 0.0).close()
    with pytest.raises(StoreError, match="is closed"):
        lane.save(b"too late")


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, sys
        from pathlib import Path
        from streampair_connectors.store import DirectoryStore
        lane = DirectoryStore(Path({str(tmp_path)!r})).open("a")
        lane.save(b"mine")
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
    lane = open_within(store, "a", 10.0)
    assert lane.load() == b"mine"
    lane.close()


def test_a_failed_write_keeps_the_old_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    lane.save(b"old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="No space left"):
            lane.save(b"new")
    assert lane.load() == b"old"
    lane.save(b"newer")
    assert lane.load() == b"newer"
    lane.close()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.lock", "a.snapshot"]


def test_a_write_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), replace(a, b))[1])
    lane.save(b"x")
    lane.close()
    assert order == ["fsync", "rename", "fsync"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        DirectoryStore(file / "state")


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).probe()
    assert list(tmp_path.iterdir()) == []


def test_the_journal_lies_apart_from_the_snapshot(tmp_path: Path) -> None:
    lane = DirectoryStore(tmp_path).open("a")
    journal = lane.journal()
    assert journal.read() is None
    journal.restart(b"head")
    journal.append(b"+1")
    journal.append(b"+2")
    lane.save(b"snapshot")
    assert journal.read() == b"head+1+2"
    journal.restart(b"next")
    assert journal.read() == b"next"
    lane.close()
    for change in (journal.append, journal.restart):
        with pytest.raises(StoreError, match="is closed"):
            change(b"too late")
    assert DirectoryStore(tmp_path).open("a").journal().read() == b"next"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.journal", "a.lock", "a.snapshot"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


def test_a_line_of_the_journal_is_on_the_disk_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = DirectoryStore(tmp_path).open("a").journal()
    journal.restart(b"head")
    order: list[str] = []
    fsync, write = os.fsync, os.write
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f))[1])
    monkeypatch.setattr(os, "write", lambda f, data: (order.append("write"), write(f, data))[1])
    journal.append(b"line")
    assert order == ["write", "fsync"]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        journal.append(b"more")
