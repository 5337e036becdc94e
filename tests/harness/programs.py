"""Programs of the pages, each in a process of its own.

Most of a short program is the import of libraries, and of this package. One process does it for all, and
forks for each; a program finds itself in an interpreter that has imported them, and has done nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("pandas", "sklearn.model_selection", "scipy.stats", "scipy.optimize"),
        *("river.compose", "river.datasets", "river.evaluate", "river.preprocessing"),
        *("streampair.auc", "streampair.metric", "streampair.ranking", "streampair.models"),
        *("streampair.privacy", "streampair.engine", "streampair_connectors.config"),
    ]
)


class Ended(NamedTuple):
    """What a program printed, and its exit code."""

    code: int
    printed: str
    errors: str


def _run(text: str, folder: Path, where: Path) -> None:
    for number in (1, 2):
        file = os.open(folder / f".output-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    os.chdir(where)
    sys.path.insert(0, "")
    warnings.simplefilter("error")
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})


def run(text: str, folder: Path, *, where: Path | None = None, seconds: float = 120.0) -> Ended:
    """Run a program, for which a warning is an error.

    Parameters
    ----------
    text
        The program.
    folder
        For what it prints; it runs here too, unless `where` says where.
    seconds
        After so long it is given up.
    """
    process = _FORKS.Process(target=_run, args=(text, folder, where or folder))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    printed, errors = ((folder / f".output-{number}").read_text(encoding="utf-8") for number in (1, 2))
    return Ended(process.exitcode, printed, errors)
