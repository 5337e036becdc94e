"""Notebooks of the documentation: executed, and written back with what they show.

python -m harness.notebooks docs/tutorials/notebook.ipynb
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

__all__ = ["executed"]


def executed(path: Path) -> Any:
    """The notebook with the outputs of a fresh kernel; CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, startup_timeout=240, kernel_name="python3", record_timing=False
    ).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[-1])
    nbformat.write(executed(source), target)
