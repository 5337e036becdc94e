"""Follow a tutorial: its files written, its programs and its commands run, in order, as a reader would.

`follow` gives the page to a process of its own, which is this file run as a program. There all Python blocks
share one namespace, a block with a title is written to that file, and bash runs each block of commands in
the same folder.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 300


def follow(
    steps: Sequence[Any],
    directory: Path,
    *,
    replace: Mapping[str, str] | None = None,
    leave_out: str = "(?!)",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    ignore: str | None = None,
) -> list[str]:
    """Do the blocks of a page in a folder.

    Parameters
    ----------
    steps
        Its `pages.Block`, in order; those that are neither program, command nor file do nothing.
    directory
        The folder to do them in: an empty one, or one that an earlier page was followed in.
    replace
        Texts that are others here: ports that may be taken.
    leave_out
        Commands that match are left out: what installs.
    environment
        Variables that are set besides those of this process.
    seconds
        After so long it is given up.
    ignore
        Beginning of a warning, of another package, that is no error.

    Returns
    -------
    list
        What each step printed.
    """
    printed = []
    for step in steps:
        text = step.text
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        if step.language == "console":
            lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            text = "\n".join(line for line in lines if not re.match(leave_out, line))
        printed.append({"id": step.id, "language": step.language, "title": step.title, "text": text})
    programs = directory / ".bin"
    programs.mkdir(exist_ok=True)
    for name, words in {"python": "", "streampair": "-m streampair_connectors "}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (programs / name).chmod(0o755)
    (directory / ".steps.json").write_text(json.dumps(printed))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    warnings = ["-W", "error", *([] if ignore is None else ["-W", f"ignore:{ignore}"])]
    process = subprocess.Popen(
        [sys.executable, *warnings, __file__, ".steps.json"],
        cwd=directory,
        env={**os.environ, "PATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(seconds)
    finally:  # whatever the page started in the background has this group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log = directory / ".outputs.json"
    outputs: list[str] = json.loads(log.read_text()) if log.exists() else []
    assert code == 0, (directory / ".error").read_text()
    return outputs


def agree(expected: str, output: str, *, varies: bool = False) -> bool:
    """Whether an output is what the page shows: `...` stands for anything.

    An output that `varies` has noise or time in it: there decimal fractions agree within 15 %.
    """
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if doctest.OutputChecker().check_output(expected, output, flags):
        return True
    if not varies:
        return False
    fraction, fractions = r"-?\d+\.\d+", []
    pattern = ""
    for part in re.split(rf"({fraction}|\.\.\.)", " ".join(expected.split())):
        if re.fullmatch(fraction, part):
            fractions.append(float(part))
            pattern += f"({fraction})"
        else:
            pattern += ".*" if part == "..." else re.escape(part)
    found = re.fullmatch(pattern, " ".join(output.split()))
    return found is not None and all(
        abs(a - float(b)) <= 0.15 * abs(a) for a, b in zip(fractions, found.groups(), strict=True)
    )


def _do(step: Mapping[str, str], namespace: dict[str, Any]) -> str:
    if step["title"]:
        Path(step["title"]).write_text(step["text"])
        return ""
    if step["language"] == "python":
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(step["text"], step["id"], "exec"), namespace)
        return output.getvalue()
    if step["language"] == "console" and step["text"]:
        with open(".out", "w+") as out, open(".err", "w+") as err:
            shell = ["bash", "-eu", "-c", step["text"]]
            code = subprocess.run(shell, stdin=subprocess.DEVNULL, stdout=out, stderr=err).returncode
            out.seek(0)
            err.seek(0)
            if code:
                raise RuntimeError(f"{step['text']}\nended with {code}:\n{out.read()}\n{err.read()}")
            return out.read()
    return ""


def _main(steps: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    outputs: list[str] = []
    for step in json.loads(steps.read_text()):
        try:
            outputs.append(_do(step, namespace))
        except BaseException as error:
            Path(".error").write_text(f"{step['id']}: {type(error).__name__}: {error}")
            raise
    Path(".outputs.json").write_text(json.dumps(outputs))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
