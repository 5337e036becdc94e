"""Files that commands write: never over one that they read, and under their names only when complete."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from harness import support
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app
from streampair_connectors.output_files import OutputFile, write_file
from typer.testing import CliRunner

from streampair import auc, models
from streampair.errors import SourceError

TOML = """
app = "fraud"
[input]
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.PairOGD"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and a file of events, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "c.toml").write_text(TOML)
    draw = random.Random(1)
    rows = ({"a": draw.random(), "b": draw.random(), "y": bool(n % 2)} for n in range(60))
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def call(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


def link(name: str, kind: Callable[..., None]) -> Callable[[Path], str]:
    def make(target: Path) -> str:
        kind(target, target.parent / name)
        return name

    return make


SPELLINGS: tuple[Callable[[Path], str], ...] = (
    lambda path: path.name,
    str,
    lambda path: f"sub/../{path.name}",
    link("link", os.symlink),
    link("hard", os.link),
)


@pytest.mark.parametrize("option", ["--output", "--page", "--dead-letters"])
@pytest.mark.parametrize("name", ["e.jsonl", "c.toml", "audit.json"])
def test_a_replay_writes_over_nothing_that_it_reads(folder: Path, option: str, name: str) -> None:
    (folder / "audit.json").write_text("{}")
    (folder / "c.toml").write_text(TOML + '[metrics]\naudit_file = "audit.json"\n')
    before = (folder / name).read_bytes()
    for spelling in SPELLINGS:
        path = spelling(folder / name)
        failed = call("replay", "c.toml", "e.jsonl", option, path, code=2)
        assert f"error: {option} {path} is the same file as " in failed.stderr
        assert "which is read" in failed.stderr
        assert (folder / name).read_bytes() == before
    assert not list(folder.glob("*.part"))


def test_a_replay_does_not_write_over_its_input_by_default(folder: Path) -> None:
    (folder / "e.jsonl").rename("fraud-dead-letters.jsonl")
    failed = call("replay", "c.toml", "fraud-dead-letters.jsonl", code=2)
    assert "--dead-letters fraud-dead-letters.jsonl is the same file as the file of events" in failed.stderr
    # Nor does the file that holds the lines until all are there.
    (folder / "fraud-dead-letters.jsonl").rename("s.jsonl.part")
    failed = call("replay", "c.toml", "s.jsonl.part", "--output", "s.jsonl", code=2)
    assert "is the same file as the file of events" in failed.stderr
    assert len((folder / "s.jsonl.part").read_text().splitlines()) == 60


@pytest.mark.parametrize("begin", [None, ""])
def test_two_outputs_in_one_file(folder: Path, begin: str | None) -> None:
    if begin is not None:
        (folder / "s").write_text(begin)
    command = ["replay", "c.toml", "e.jsonl", "--output", "s", "--page", "sub/../s"]
    assert "--page sub/../s is the same file as that of --output" in call(*command, code=2).stderr
    command = ["replay", "c.toml", "e.jsonl", "--output", "s", "--page", "s.part"]
    assert "--page s.part is the same file as that of --output" in call(*command, code=2).stderr
    # A device takes them all.
    call("replay", "c.toml", "e.jsonl", "--output", os.devnull, "--page", os.devnull)


@pytest.mark.parametrize(
    ("source", "sink"), [("e.jsonl", "e.jsonl"), ("-", "e.jsonl"), ("e.jsonl", "c.toml")]
)
def test_standard_input_and_output_are_files_too(folder: Path, source: str, sink: str) -> None:
    """A replay that writes over its own input, each time in a process of its own."""
    before = (folder / sink).read_bytes()
    command = [sys.executable, "-m", "streampair_connectors", "replay", "c.toml", source]
    with open("e.jsonl", "rb") as stdin, open(sink, "ab") as stdout:
        done = subprocess.run(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"standard output is the same file as" in done.stderr
    assert (folder / sink).read_bytes() == before


def test_other_commands_write_over_nothing_that_they_read(folder: Path) -> None:
    for command in ("budget card c.toml", "model export c.toml"):
        failed = call(*command.split(), "--output", "sub/../c.toml", code=2)
        assert "is the same file as the configuration, which is read" in failed.stderr
    assert (folder / "c.toml").read_text() == TOML


def test_an_output_gets_its_name_when_it_is_complete(folder: Path) -> None:
    (folder / "s.jsonl").write_text("of yesterday\n")
    os.chmod("s.jsonl", 0o640)
    os.symlink("s.jsonl", "link")
    with open("e.jsonl", "a") as file:
        file.write('{"a": [], "b": 1, "y": true}\n')
    call(
        "replay",
        "c.toml",
        "e.jsonl",
        "--output",
        "link",
        "--dead-letters",
        "bad.jsonl",
        "--page",
        "run.html",
    )
    assert (folder / "link").is_symlink()
    assert len((folder / "s.jsonl").read_text().splitlines()) == 61
    assert (folder / "s.jsonl").stat().st_mode & 0o777 == 0o640
    assert len((folder / "bad.jsonl").read_text().splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == {
        *("c.toml", "e.jsonl", "sub", "link", "s.jsonl", "bad.jsonl", "run.html")
    }


def test_an_output_of_a_replay_that_fails_does_not_get_its_name(folder: Path) -> None:
    (folder / "s.jsonl").write_text("of yesterday\n")
    rows = "".join(f"{n % 7},{n % 3},{n % 2}\n" for n in range(3000))
    (folder / "e.csv").write_text(f'a,b,y\ninf,1,1\n{rows}1,"2,1\n')
    failed = call("replay", "c.toml", "e.csv", "--output", "s.jsonl", "--page", "run.html", code=1)
    assert "not complete: " in failed.stderr
    assert "line 3003 of e.csv has a quote" in failed.stderr.replace(",", "")
    assert (folder / "s.jsonl").read_text() == "of yesterday\n"
    assert len((folder / "s.jsonl.part").read_text().splitlines()) == 3000
    assert len((folder / "fraud-dead-letters.jsonl.part").read_text().splitlines()) == 1
    assert not list(folder.glob("run.html*"))
    # The next one begins anew.
    call("replay", "c.toml", "e.jsonl", "--output", "s.jsonl")
    assert len((folder / "s.jsonl").read_text().splitlines()) == 60
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_output_of_a_replay_that_is_interrupted(folder: Path, number: int) -> None:
    """Ctrl-C ends it after a batch, with what was done; a kill leaves the old file."""
    (folder / "s.jsonl").write_text("of yesterday\n")
    command = [sys.executable, "-m", "streampair_connectors", "replay", "c.toml", "-", "--output", "s.jsonl"]
    event = (folder / "e.jsonl").read_bytes().splitlines(keepends=True)[0]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(event)
            process.stdin.flush()
            part = folder / "s.jsonl.part"
            wait_for("its first score", lambda: part.exists() and part.stat().st_size)
            process.send_signal(number)
            assert process.wait(60) == (130 if number == signal.SIGINT else -number)
        finally:
            process.kill()
    assert part.exists() == (number == signal.SIGKILL)
    assert (
        (folder / "s.jsonl").read_text().startswith('{"app"' if number == signal.SIGINT else "of yesterday")
    )


def test_a_disk_that_is_full_leaves_the_old_file(folder: Path) -> None:
    path = folder / "s.jsonl"
    path.write_text("of yesterday\n")
    with support.full_disk(1000):
        failed = call("replay", "c.toml", "e.jsonl", "--output", path, code=1)
        with pytest.raises(SourceError, match="cannot be written: File too large"):
            write_file(path, b"x" * 2000)
    assert "s.jsonl cannot be written: File too large" in failed.stderr
    assert "make room on its disk" in failed.stderr
    assert path.read_text() == "of yesterday\n"


def test_a_full_standard_output_is_an_error_with_a_fix(folder: Path) -> None:
    command = [sys.executable, "-m", "streampair_connectors", "replay", "c.toml", "e.jsonl"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "error: No space left on device" in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_two_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    first, second = OutputFile(tmp_path / "s"), OutputFile(tmp_path / "s")
    first.write(b"first")
    second.write(b"second")
    with pytest.raises(SourceError, match="another process has replaced it"):
        first.finish()
    first.close()
    second.finish()
    assert (tmp_path / "s").read_bytes() == b"second"


def test_a_model_is_not_saved_over_what_a_command_reads(folder: Path) -> None:
    models.save(auc.PairOGD(), folder / "start.json")
    text = f'{TOML}start = "start.json"\n'
    (folder / "c.toml").write_text(text)
    failed = call("model", "export", "c.toml", "--output", "start.json", code=2)
    assert "--output start.json is the same file as learner.start, which is read" in failed.stderr


def test_every_file_that_is_written_is_named_by_output(folder: Path) -> None:
    """No second spelling, and "-" is standard output, but for what has to stay secret."""

    def commands(command: Any) -> Iterator[Any]:
        yield command
        for each in getattr(command, "commands", {}).values():
            yield from commands(each)

    spellings = {
        option
        for command in commands(typer.main.get_command(app))
        for parameter in command.params
        if "--output" in parameter.opts
        for option in parameter.opts
    }
    assert spellings == {"--output"}
    (folder / "c.toml").write_text(
        TOML.replace("PairOGD", "PairFTRL").replace('["a", "b"]', "{ a = [0, 1], b = [0, 1] }")
        + 'options = { epsilon = 1.0, delta = 1e-4, horizon = 1000 }\n[store]\ndirectory = "state"\n'
    )
    page = call("budget", "card", "c.toml", "--output", "-").stdout
    assert page.startswith("<!doctype html>")
    assert (
        page
        == call("budget", "card", "c.toml", "--output", "card.html").stdout
        + (folder / "card.html").read_text()
    )
    for command in (["key"], ["state", "export", "c.toml"]):
        assert "a secret is not written to standard output" in call(*command, "--output", "-", code=2).stderr
    assert not (folder / "-").exists()
    call("key", "--output", "noise.key")
    assert len((folder / "noise.key").read_text()) == 65
    assert "noise.key exists" in call("key", "--output", "noise.key", code=2).stderr


def test_scores_on_standard_output_have_two_names(folder: Path) -> None:
    named = call("replay", "c.toml", "e.jsonl", "--output", "-").stdout
    assert named == call("replay", "c.toml", "e.jsonl").stdout
    assert len(named.splitlines()) == 60
