"""Seeded faults: each must be caught by the tests named beside it.

    python tests/mutation/run.py [--jobs 3] [--only WORD] [--json]

Every fault of mutants.toml is put into a copy of the tree, the tests that must fail are run there, and
the copy is made whole again. The tree itself is never touched. Not caught is a fault that these tests pass;
an error is one whose text is not in the source exactly once (the list has to follow the code), or whose tests
do not pass without it. Kernels with a fault run as Python: compiling them would take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("streampair", "connectors", "tests", "pyproject.toml", "README.md", "docs")
SECONDS = 240.0


@dataclass(frozen=True)
class Mutant:
    """One fault: a text and what it becomes, and the tests of which one must fail."""

    what: str
    where: str
    old: str
    new: str
    tests: list[str]

    @property
    def jit(self) -> bool:
        """Whether kernels are compiled: not where one has the fault."""
        return not self.where.startswith("streampair/kernels")


class Tree:
    """A copy of the sources, with what numba has cached of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in PARTS:
            source = ROOT / name
            if source.is_dir():  # with the times of the files, by which numba knows them
                shutil.copytree(source, path / name)
            elif source.exists():
                shutil.copy2(source, path / name)

    def run(self, tests: list[str], *, jit: bool) -> tuple[int, str]:
        """Exit code and output of these tests, up to the first that fails."""
        paths = os.pathsep.join(str(self.path / part) for part in (".", "connectors", "tests/mutation"))
        environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_DISABLE_JIT": "0" if jit else "1"}
        environment.pop("STREAMPAIR_REQUIRE_ALL", None)  # where a skip is a failure nothing would be caught
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "seeded", "--hypothesis-profile=seeded"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        if not jit:
            environment.pop("NUMBA_CACHE_DIR", None)
        try:
            told = subprocess.run(
                command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {SECONDS:g} s"
        return told.returncode, told.stdout + told.stderr

    def imports(self) -> str:
        """Where streampair comes from in this tree."""
        code = "import streampair, streampair_connectors as c; print(streampair.__file__, c.__file__)"
        environment = {**os.environ, "PYTHONPATH": f"{self.path}{os.pathsep}{self.path / 'connectors'}"}
        told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        return told.stdout


def place(mutant: Mutant, root: Path) -> Path:
    """The one file that has the text, once."""
    at = root / mutant.where
    files = sorted(at.rglob("*.py")) if at.is_dir() else [at] if at.exists() else []
    found = [(path, path.read_text().count(mutant.old)) for path in files]
    found = [(path, count) for path, count in found if count]
    if len(found) != 1 or found[0][1] != 1:
        places = ", ".join(f"{path.relative_to(root)} ({count} times)" for path, count in found) or "nowhere"
        raise LookupError(f"the text has to be in {mutant.where} once, and is in: {places}")
    return found[0][0]


def judge(mutant: Mutant, tree: Tree) -> tuple[str, str]:
    """Verdict on one fault, and which test caught it."""
    path = place(mutant, tree.path)
    text, times = path.read_text(), path.stat()
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        code, output = tree.run(mutant.tests, jit=mutant.jit)
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    failed = re.search(r"^FAILED (\S+)", output, re.M)
    if code == 1 and failed:
        return "caught", failed[1]
    return ("MISSED", " ".join(mutant.tests)) if code == 0 else ("ERROR", output[-1500:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", default="", help="faults whose name or file has this word")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    listed = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    chosen = [
        m for m in (Mutant(**fault) for fault in listed) if options.only in m.what or options.only in m.where
    ]
    start, told = time.monotonic(), []
    for mutant in chosen:
        place(mutant, ROOT)
    with tempfile.TemporaryDirectory(prefix="streampair-mutation-") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(Path(folder) / str(number)))
        lock = threading.Lock()

        def alone(jit: bool) -> tuple[str, str, str]:
            """Without any fault, every test must pass."""
            tests = sorted({test for m in chosen if m.jit == jit for test in m.tests})
            tree = trees.get()
            try:
                if folder not in tree.imports():
                    return "ERROR", "the copy is not what is imported", tree.imports()
                code, output = tree.run(tests, jit=jit) if tests else (0, "")
            finally:
                trees.put(tree)
            return (
                ("passed" if code == 0 else "ERROR"),
                f"no fault, jit={jit}",
                output[-3000:] if code else "",
            )

        def one(mutant: Mutant) -> tuple[str, str, str]:
            tree, begin = trees.get(), time.monotonic()
            try:
                verdict, detail = judge(mutant, tree)
            finally:
                trees.put(tree)
            with lock:
                if not options.json:
                    print(
                        f"{verdict:<7} {time.monotonic() - begin:5.1f} s  {mutant.what:<62} {detail}",
                        flush=True,
                    )
            return verdict, mutant.what, detail

        with ThreadPoolExecutor(options.jobs) as pool:
            told += list(pool.map(alone, (True, False)))
            for verdict, what, output in told:
                if verdict != "passed":
                    print(f"{what}: the tests do not pass\n{output}")
                    return 1
            told = list(pool.map(one, chosen))
    caught = sum(verdict == "caught" for verdict, _, _ in told)
    if options.json:
        print(json.dumps([dict(zip(("verdict", "what", "by"), row, strict=True)) for row in told], indent=1))
    else:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        times = f"{time.monotonic() - start:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of the processor"
        print(f"{caught} of {len(told)} faults caught; {times}")
    return 0 if caught == len(told) else 1


if __name__ == "__main__":
    sys.exit(main())
