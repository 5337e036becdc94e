"""Seeded faults: each must be caught by the tests named beside it.

    python tests/mutation/run.py [--jobs 3] [--only WORD] [--json]

Every fault of mutants.toml is put into a copy of the tree, the tests that must fail are run there, and
the copy is made whole again. The tree itself is never touched. Not caught is a fault that these tests pass;
an error is one whose text is not in the source exactly once (the list has to follow the code), or whose tests
do not pass without it. Kernels with a fault run as Python: compiling them would take longer. Most of a short
test is the import of libraries, in which there is no fault: one process does it for all, and forks for each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import queue
import random
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
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("streampair", "connectors", "benchmarks", "tests", "pyproject.toml", "README.md", "docs")
SECONDS = 240.0  # for the tests of one fault
FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = [
    "numba",
    "scipy.stats",
    "scipy.optimize",
    "river.compose",
    "river.linear_model",
    "cryptography",
    "pydantic",
]


def tested(tree: Path, arguments: list[str], jit: bool, output: Path, connection: Connection) -> None:
    """Run pytest in this process, which has imported the libraries and nothing of ours.

    Tells its exit code and the seconds of the processor.
    """
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import numba.core.config
    import pytest

    os.chdir(tree)
    paths = [str(tree / part) for part in (".", "connectors", "tests/mutation")]
    os.environ.update(PYTHONPATH=os.pathsep.join(paths), NUMBA_DISABLE_JIT="0" if jit else "1")
    os.environ.pop("STREAMPAIR_REQUIRE_ALL", None)  # where a skip is a failure nothing would be caught
    if not jit:
        os.environ.pop("NUMBA_CACHE_DIR", None)
    numba.core.config.reload_config()
    sys.path[:0] = paths
    for name in ("streampair", "streampair_connectors", "benchmarks.papers"):
        found = importlib.util.find_spec(name)
        if found is None or not str(found.origin).startswith(str(tree)):
            raise ImportError(f"the copy is not what is imported: {found}")
    code = int(pytest.main(arguments))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    sys.stdout.flush()  # who is told ends this process
    connection.send((code, sum(u.ru_utime + u.ru_stime for u in used)))


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
        """Whether kernels are compiled: not where one has the fault, which is not one of how they are."""
        return not self.where.startswith("streampair/kernels") or "/_" in self.where


class Tree:
    """A copy of the sources, with what numba has cached of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds = 0.0  # of the processor
        for name in PARTS:
            source = ROOT / name
            if source.is_dir():  # with the times of the files, by which numba knows them
                shutil.copytree(source, path / name)
            elif source.exists():
                shutil.copy2(source, path / name)

    def run(self, tests: list[str], *, jit: bool, seconds: float = SECONDS) -> tuple[int, str]:
        """Exit code and output of these tests, up to the first that fails or so many seconds."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "seeded", "--hypothesis-profile=seeded"]
        output = self.path / "output"
        here, there = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=tested, args=(self.path, [*options, *tests], jit, output, there))
        process.start()
        there.close()
        try:
            if not here.poll(seconds):
                return -1, f"no end after {seconds:g} s"
            code, used = here.recv()
        except EOFError:
            return -1, f"it ended without an answer\n{output.read_text(errors='replace')}"
        finally:
            process.kill()
            process.join()
            here.close()
        self.seconds += used
        return code, output.read_text(errors="replace")


def baseline(mutants: list[Mutant]) -> list[tuple[bool, list[str]]]:
    """All tests of these mutants, in runs of a few dozen, which the copies share."""
    runs = []
    for jit in (True, False):
        tests = sorted({test for m in mutants if m.jit == jit for test in m.tests})
        runs += [(jit, tests[begin : begin + 30]) for begin in range(0, len(tests), 30)]
    return runs


def place(mutant: Mutant, root: Path) -> Path:
    """The one file that has the text, once."""
    file = root / mutant.where
    files = sorted(file.rglob("*.py")) if file.is_dir() else [file] if file.exists() else []
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


def sample(mutants: list[Mutant], count: int) -> list[Mutant]:
    """So many of the faults, in their order: others for each commit, the same without a repository."""
    command = [shutil.which("git") or "true", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    drawn = random.Random(commit).sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[place] for place in sorted(drawn)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", default="", help="faults whose name or file has this word")
    parser.add_argument("--sample", type=int, help="so many faults, others for each commit")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    listed = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    chosen = [
        m for m in (Mutant(**fault) for fault in listed) if options.only in m.what or options.only in m.where
    ]
    if options.sample is not None:
        chosen = sample(chosen, options.sample)
    FORKS.set_forkserver_preload(LIBRARIES)
    start = time.monotonic()
    for mutant in chosen:
        place(mutant, ROOT)
    with tempfile.TemporaryDirectory(prefix="streampair-mutation-") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        copies = [Tree(Path(folder) / str(number)) for number in range(options.jobs)]
        for copy in copies:
            trees.put(copy)
        lock = threading.Lock()

        def without_fault(run: tuple[bool, list[str]]) -> tuple[str, str]:
            """Exit code and output of these tests on the sources as they are: every one must pass."""
            jit, tests = run
            tree = trees.get()
            try:
                code, output = tree.run(tests, jit=jit, seconds=len(tests) * SECONDS)
            finally:
                trees.put(tree)
            return ("passed" if code == 0 else "ERROR"), output[-3000:]

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
            for verdict, output in pool.map(without_fault, baseline(chosen)):
                if verdict != "passed":
                    print(f"without a fault the tests do not pass\n{output}")
                    return 1
            verdicts = list(pool.map(one, chosen))
    caught = sum(verdict == "caught" for verdict, _, _ in verdicts)
    if options.json:
        print(
            json.dumps([dict(zip(("verdict", "what", "by"), row, strict=True)) for row in verdicts], indent=1)
        )
    else:
        used = sum(copy.seconds for copy in copies)
        times = f"{time.monotonic() - start:.0f} s, {used:.0f} s of the processor"
        print(f"{caught} of {len(verdicts)} faults caught; {times}")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
