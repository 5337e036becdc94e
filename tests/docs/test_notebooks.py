"""The notebook of the documentation runs in a fresh kernel, and shows what the page says that it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import support
from harness.follow import agree

NOTEBOOK = support.ROOT / "docs" / "tutorials" / "notebook.ipynb"


def run(notebook: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Execute it, in a process of its own: the kernel's client warns of what is not ours."""
    folders = {
        name: str(directory / name)
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    path = os.pathsep.join(str(support.ROOT / part) for part in (".", "connectors", "tests"))
    return subprocess.run(
        [sys.executable, "-m", "harness.notebooks", str(notebook), str(directory / "run.ipynb")],
        cwd=directory,
        env={**os.environ, **folders, "PYTHONPATH": path, "MPLCONFIGDIR": str(directory)},
        capture_output=True,
        text=True,
    )


def outputs(path: Path) -> list[tuple[str, str]]:
    """The kind of each output, and its text, without what a plot says of itself.

    Kernels say on stderr that they are compiled, where the cache does not have them yet.
    """
    found = []
    cells: list[Any] = nbformat.read(path, as_version=4).cells
    for cell in cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr" and output["text"].startswith("compiling kernels"):
                continue
            data = output.get("data", {})
            kind = "image" if "image/png" in data else "html" if "text/html" in data else "text"
            found.append((kind, output.get("text", "") or data.get("text/plain", "")))
    return found


def test_a_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    """A cell that fails, or prints something else than is kept in the notebook."""
    result = run(NOTEBOOK, tmp_path)
    assert result.returncode == 0, result.stderr
    printed, again = outputs(NOTEBOOK), outputs(tmp_path / "run.ipynb")
    assert [kind for kind, _ in printed] == ["text", "html", "text", "image", "image", "image", "html"]
    assert [kind for kind, _ in again] == [kind for kind, _ in printed]
    for (kind, old), (_, new) in zip(printed, again, strict=True):
        if kind == "text":
            assert agree(old, new), f"the notebook says\n{old}\nit said\n{new}"


@pytest.mark.parametrize("where", ["/home/", "/tmp/", "/work/", "/root/"])
def test_a_notebook_says_nothing_of_where_it_was_run(where: str) -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    for cell in cells:
        for output in cell.get("outputs", ()):
            text = str({k: v for k, v in output.get("data", {}).items() if k != "image/png"})
            assert where not in text + output.get("text", "")


def test_a_cell_that_fails_is_caught(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(notebook, tmp_path / "bad.ipynb")
    result = run(tmp_path / "bad.ipynb", tmp_path)
    assert result.returncode != 0
    assert "ZeroDivisionError" in result.stderr
