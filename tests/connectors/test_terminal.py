"""Commands on a terminal, in a pipe, and under a shell: logs, colour, completion, questions, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.terminal import OnTerminal
from harness.worker_process import wait_for
from streampair_connectors import cli
from streampair_connectors.cli.app import app
from typer.testing import CliRunner

from streampair import auc, models

STREAMPAIR = [sys.executable, "-m", "streampair_connectors"]
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    learner = auc.PairOGD()
    for i in range(50):
        learner.learn_one({"a": float(i % 2)}, i % 2 == 0)
    file = tmp_path / "fraud.json"
    models.save(learner, file)
    return file


def serve(model: Path, *options: str) -> list[str]:
    return [*STREAMPAIR, "serve", "--model", str(model), "--port", "0", *options]


def test_logs_are_text_on_a_terminal(model: Path, tmp_path: Path) -> None:
    server = OnTerminal(serve(model), tmp_path)
    line = server.read_until("\n")
    server.process.send_signal(signal.SIGTERM)
    server.rest()
    assert re.match(r"\S+Z INFO    serving app=fraud url=http://127\.0\.0\.1:\d+\r\n", line), line
    assert server.process.returncode == 0


def test_logs_on_a_terminal_can_be_json(model: Path, tmp_path: Path) -> None:
    server = OnTerminal(serve(model, "--log-format", "json"), tmp_path)
    line = server.read_until("\n")
    server.process.send_signal(signal.SIGINT)
    server.rest()
    assert json.loads(line)["event"] == "serving"
    assert server.process.returncode == 0


@pytest.mark.parametrize(("options", "is_json"), [([], True), (["--log-format", "text"], False)])
def test_logs_in_a_pipe_are_json(model: Path, tmp_path: Path, options: list[str], is_json: bool) -> None:
    with subprocess.Popen(serve(model, *options), stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        server.send_signal(signal.SIGTERM)
    assert line.startswith("{") == is_json
    assert server.returncode == 0


PLAN = [*STREAMPAIR, "audit", "private.toml", "--runs", "200", "--slots", "8"]
PRIVATE = """
app = "fraud"
metrics.address = "127.0.0.1:0"
[input]
label = "y"
features = { a = [0, 1] }
[learner]
class = "streampair.auc.PairFTRL"
options = { delta = 1e-5, horizon = 2000 }
[store]
directory = "state"
"""


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_no_color_turns_colour_off(tmp_path: Path, variables: dict[str, str]) -> None:
    """The bar of progress is the one thing with a colour."""
    (tmp_path / "private.toml").write_text(PRIVATE)
    written = OnTerminal(PLAN, tmp_path, variables=variables).rest()
    assert "verdict" in written
    assert bool(COLOUR.search(written)) == (not variables)


def test_there_is_no_colour_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "private.toml").write_text(PRIVATE)
    done = subprocess.run(PLAN, capture_output=True, text=True, cwd=tmp_path, check=False)
    plan = CliRunner().invoke(app, ["budget", "plan", "--n", "2000", "--d", "2"])
    assert "verdict" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr + plan.output


# ---- completion ------------------------------------------------------------------------------------------


def completed(shell: str, words: str) -> list[str]:
    """What a shell is told of a line; it completes names of files by itself where that is nothing."""
    variables = {
        "_STREAMPAIR_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = CliRunner().invoke(app, [], prog_name="streampair", env={**variables, "COLUMNS": "10000"})
    assert result.exit_code == 0, result.output
    output = result.output
    if shell == "zsh":
        return re.findall(r'\(?\(?"([^"]+)"(?::"[^"]*")?', output) or [output.strip()]
    return [line.partition("\t")[0] for line in output.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    files = ["_files"] if shell == "zsh" else []
    assert completed(shell, "streampair st") == ["state"]
    assert completed(shell, "streampair state ") == ["show", "recover", "export", "import"]
    assert completed(shell, "streampair run fraud.toml --log-format ") == ["text", "json"]
    assert completed(shell, "streampair budget plan --family r") == ["ranking"]
    assert completed(shell, "streampair state recover fraud.toml --skip") == ["--skip-span"]
    assert completed(shell, "streampair run fr") == files
    assert completed(shell, "streampair replay fraud.toml events.csv --output s") == files


def test_a_description_takes_one_line_in_fish() -> None:
    """A second line would be one more candidate."""
    variables = {
        "_STREAMPAIR_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": "streampair state recover fraud.toml --skip",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    output = subprocess.check_output(STREAMPAIR, env={**os.environ, **variables}, text=True)
    assert output.startswith("--skip-span\tEvents since the last snapshot are gone or changed")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("shell", "says"),
    [("bash", "complete -o default -F"), ("zsh", "#compdef"), ("fish", "complete --command")],
)
def test_the_script_of_completion(shell: str, says: str) -> None:
    result = CliRunner().invoke(
        app, [], prog_name="streampair", env={"_STREAMPAIR_COMPLETE": f"source_{shell}"}
    )
    assert says in result.output
    assert "--show-completion" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash(tmp_path: Path) -> None:
    script = (
        CliRunner()
        .invoke(app, [], prog_name="streampair", env={"_STREAMPAIR_COMPLETE": "source_bash"})
        .output
    )
    program = tmp_path / "streampair"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streampair_connectors "$@"\n')
    program.chmod(0o755)
    line = 'COMP_WORDS=(streampair dlq ""); COMP_CWORD=2; _streampair_completion "$0"; echo ${COMPREPLY[*]}'
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{line}", str(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "list show replay\n"


# ---- questions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["dlq", "replay"], ["state", "recover", "--accept-rollback"]], ids=" ".join
)
def test_a_question_needs_a_terminal_or_yes(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "private.toml").write_text(PRIVATE)
    words = [*command, str(tmp_path / "private.toml")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no terminal to ask for confirmation\n  fix: ")
    assert result.stderr.endswith("or add --yes\n")
    failure = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert failure["error"] == "no terminal to ask for confirmation"
    assert "no terminal" not in CliRunner().invoke(app, [*words, "-y"]).output


def test_every_command_that_asks_has_yes() -> None:
    """Those of the test above, and `init`; no other module asks."""
    asking = {
        file.stem for file in Path(cli.__file__).parent.glob("*.py") if "confirmed(" in file.read_text()
    }
    assert asking == {"dlq", "init", "options", "state"}


# ---- exit codes ------------------------------------------------------------------------------------------

STOPPED = """
import asyncio
from streampair_connectors.cli.options import errors, run_until_signal

stop = asyncio.Event()

async def work():
    print("working", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await asyncio.sleep({seconds})

with errors(False):
    run_until_signal(work, stop.set)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("times", [1, 2])
def test_run_and_serve_end_with_0_and_a_second_signal_ends_at_once(number: int, times: int) -> None:
    program = STOPPED.format(seconds=0 if times == 1 else 60)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        process.send_signal(number)
        said += [process.stdout.readline()]
        process.send_signal(number if times == 2 else 0)
    assert said == ["working\n", "stopping\n"]
    assert process.returncode == (0 if times == 1 else 128 + number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_another_command_that_is_stopped(tmp_path: Path, number: int, code: int) -> None:
    """The file is closed, and says where what was written is."""
    (tmp_path / "private.toml").write_text(PRIVATE)
    command = [*STREAMPAIR, "replay", "private.toml", "-", "--output", "scores.jsonl"]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        wait_for("the file", lambda: (tmp_path / "scores.jsonl.part").exists())
        process.stdin.write('{"a": 0.5, "y": true}\n' * 3)
        process.stdin.flush()
        wait_for("scores", lambda: (tmp_path / "scores.jsonl.part").stat().st_size)
        process.send_signal(number)
        errors = process.stderr.read()
        process.stdin.close()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    finished = number == signal.SIGINT
    assert (tmp_path / "scores.jsonl").exists() == finished
    assert ("not complete: " in errors) != finished


def test_ctrl_c_during_the_imports_is_no_traceback() -> None:
    program = """
import sys
from streampair_connectors.__main__ import main

class Interrupted:
    def find_spec(self, name, *_):
        if name == "streampair_connectors.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_exit_codes_are_in_the_help() -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    assert re.findall(r"^ +(\d+) +\w", text, re.M) == ["0", "1", "2", "130"]
    assert "143 by SIGTERM" in text
