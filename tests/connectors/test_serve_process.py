"""The command `streampair serve`, as a user starts it."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import ask
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app as command
from typer.testing import CliRunner

from streampair import auc, models

_NUMBERS = itertools.count()  # of the files of logs


class Process:
    """A running ``streampair serve``."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / f"log-{next(_NUMBERS)}"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streampair_connectors", "serve", *arguments],
                stderr=out,
                stdout=subprocess.DEVNULL,
                cwd=folder,
            )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def address(self) -> str:
        """Where it listens, once it does."""

        def said() -> str:
            assert self.process.poll() is None, self.log.read_text()
            return next((line["url"] for line in self.lines() if line["event"] == "serving"), "")

        return str(wait_for("the server", said)).partition("//")[2]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    learner = auc.PairOGD()
    for i in range(50):
        learner.learn_one({"a": float(i % 2), "b": float(i % 3)}, i % 2 == 0)
    file = tmp_path / "fraud.json"
    models.save(learner, file)
    return file


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    running: list[Process] = []

    def one(*arguments: str) -> Process:
        running.append(Process(tmp_path, *arguments))
        return running[-1]

    yield one
    for each in running:
        each.process.kill()
        each.process.wait()


def finished(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of the command, in this process: another one takes seconds to start."""
    result = CliRunner().invoke(command, ["serve", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_a_model_file(start: Any, model: Path) -> None:
    server = start("--model", str(model), "--port", "0")
    answer = ask(server.address(), "POST", "/score", {"a": 1, "b": 2})
    assert answer.json["score"] == models.load(model).score_one({"a": 1.0, "b": 2.0})
    assert answer.json["model"] == {"name": "fraud", "slots": 50, "time": None}
    assert server.stop(signal.SIGINT) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not share out connections")
def test_processes_share_a_port(start: Any, model: Path) -> None:
    """Each answers some of the connections; when one has stopped, the other answers all."""
    first = start("--model", str(model), "--port", "0", "--reuse-port", "--name", "first")
    address = first.address()
    port = address.rpartition(":")[2]
    second = start("--model", str(model), "--port", port, "--reuse-port", "--name", "second")
    assert second.address() == address

    def answered() -> str:
        return str(ask(address, "POST", "/score", {"a": 1, "b": 2}).json["model"]["name"])

    for name in ("first", "second"):
        wait_for(f"an answer of {name}", lambda name=name: answered() == name)
    assert first.stop() == 0
    assert {answered() for _ in range(20)} == {"second"}
    assert second.stop() == 0


def test_what_is_refused_at_the_start(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    cut, newer = tmp_path / "cut.json", tmp_path / "newer.json"
    cut.write_bytes(data[:-9])
    newer.write_bytes(data.replace(b'"version":1', b'"version":2'))
    assert finished() == (
        2,
        "error: there is nothing to serve\n  fix: give a configuration, or a model file with --model\n",
    )
    for arguments, code, text in (
        (["--model", str(cut)], 1, "damaged or cut short"),
        (["--model", str(newer)], 1, "version"),
        (["--model", str(tmp_path / "none.json")], 2, "cannot be read"),
        (["--model", str(model), "--name", "a/b"], 2, "cannot name a model"),
        (["--model", str(model), "--max-model-age", "soon"], 2, "is not a duration"),
        (["--model", str(model), "--tls-cert", str(cut)], 2, "a certificate and its key"),
    ):
        found, output = finished(*arguments)
        assert (found, text in output) == (code, True), output


def test_a_port_that_is_taken(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output = finished("--model", str(model), "--port", port)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in output
    assert "--reuse-port" in output
