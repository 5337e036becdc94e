"""How long the first record of a learner takes, in seconds: with kernels to compile, and with compiled ones.

    python -m benchmarks.first_record [NAME ...]

Each learner scores one record and learns two in a process of its own, with a copy of the package that has
nothing compiled beside it; then again in another process. A start from nothing takes one core. `import` is
the time to import the package and to make the learner; `compiled` the time of the records where all is
compiled; `kernels` how many functions that were, and `processor` the processor's time; `found` is that of the
second process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LEARNERS = {
    "PairOGD": "auc.PairOGD()",
    "PairMoments": "auc.PairMoments()",
    "Forest": "auc.Forest()",
    "PairFTRL": "auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000, features=['a', 'b'])",
}
_PROGRAM = """
import json, sys, time
import numba.core.event as event

class Compiled(event.Listener):
    count = 0
    def on_start(self, started):
        Compiled.count += 1
    def on_end(self, ended):
        pass

begin = time.perf_counter()
from streampair import auc
model = eval(sys.argv[1])
made, busy = time.perf_counter(), time.process_time()
event.register("numba:compile", Compiled())
model.score_one({"a": 1.0, "b": 2.0})
model.learn_one({"a": 1.0, "b": 2.0}, True)
model.learn_one({"a": 0.0, "b": 3.0}, False)
print(json.dumps([made - begin, time.perf_counter() - made, time.process_time() - busy, Compiled.count]))
"""


def run(learner: str, folder: str) -> Any:
    """Seconds to import, of the records and of the processor, and compiled functions, of a new process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environment["PYTHONPATH"] = folder
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, learner],
        env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def rows(names: list[str]) -> Iterator[str]:
    yield f"{'learner':<12}{'import':>8}{'compiled':>10}{'processor':>11}{'kernels':>9}{'found':>8}"
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "streampair", Path(folder, "streampair"), ignore=ignored)
            imported, compiled, busy, kernels = run(LEARNERS[name], folder)
            _, found, _, again = run(LEARNERS[name], folder)
        if again:
            raise SystemExit(f"the second process of {name} compiled {again} kernels again")
        yield f"{name:<12}{imported:>8.1f}{compiled:>10.1f}{busy:>11.1f}{kernels:>9}{found:>8.2f}"


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - LEARNERS.keys()
    if unknown:
        raise SystemExit(f"no learner {', '.join(sorted(unknown))}: name some of {', '.join(LEARNERS)}")
    for row in rows(sys.argv[1:] or list(LEARNERS)):
        print(row, flush=True)
