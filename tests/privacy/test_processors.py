"""What a lane does is a function of its state alone, and not of the processor that it moved to.

The libraries of linear algebra and mathematics choose other code on another processor, and round otherwise.
Each is told here to take this one for another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import support
from harness.processors import MUTANT

umath: Any = np._core._multiarray_umath  # type: ignore[attr-defined]
DISPATCHED = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]

#: As which processor a process computes.
PROCESSORS = {
    "OpenBLAS for a Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "OpenBLAS for a Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "NumPy without what it found": {"NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED)},
    "glibc without fused multiply-add": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"},
    "kernels for any processor": {"NUMBA_CPU_NAME": "generic", "OPENBLAS_CORETYPE": "Prescott"},
}


def output(mode: str, file: Path, environment: dict[str, str]) -> Any:
    """What a process of its own says."""
    path = os.pathsep.join([str(support.ROOT / "tests"), *sys.path])
    done = subprocess.run(
        [sys.executable, str(support.ROOT / "tests" / "harness" / "processors.py"), mode, str(file)],
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    file = tmp_path_factory.mktemp("processors") / "saved"
    return file, output("write", file, {})


#: Compiles every kernel anew, which takes minutes where other tests run beside it.
ANEW = {"kernels for any processor": (pytest.mark.verifier(short=False), pytest.mark.timeout(900))}


@pytest.mark.parametrize("processor", [pytest.param(name, marks=ANEW.get(name, ())) for name in PROCESSORS])
def test_a_learner_that_moves_gives_the_same_bits(processor: str, here: tuple[Path, Any]) -> None:
    """Scores, digests and releases: from a state in the middle of a stream, and anew under the plan."""
    file, wanted = here
    there = output("read", file, PROCESSORS[processor])
    assert wanted["gave"].keys() == there["gave"].keys()
    assert len(wanted["gave"]) > 60
    moved = [name for name in wanted["gave"] if there["gave"][name] != wanted["gave"][name]]
    assert set(moved) <= {MUTANT}
    # Where linear algebra does round otherwise, a leader that it finds is another one.
    assert (MUTANT in moved) == (there["eigen"] != wanted["eigen"])
