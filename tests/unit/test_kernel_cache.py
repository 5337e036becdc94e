"""What numba keeps of a kernel on disk: found by the next process, and stale when any file changed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
from harness import programs

from streampair.kernels import _jit

pytestmark = pytest.mark.skipif(_jit.DISABLED, reason="with NUMBA_DISABLE_JIT nothing is compiled")

CALLEE = """from scratch._jit import kernel


@kernel
def callee(x: float) -> float:
    return x + {step}
"""
CALLER = """from scratch._jit import kernel
from scratch.callee import callee


@kernel
def caller(x: float) -> float:
    return 10.0 * callee(x)
"""
# Files of one length are written within a second: Python would take the second for the first.
RUN = """import json, sys
sys.dont_write_bytecode = True
from scratch.caller import caller
result = caller(1.0)
counts = caller.stats.cache_misses, caller.stats.cache_hits
print(json.dumps([result, *(sum(c.values()) for c in counts)]))
"""


def tell(code: str, environment: dict[str, str]) -> Any:
    """What a new process prints, as JSON."""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(completed.stdout)


def run(folder: Path) -> list[Any]:
    """The result, and how often the kernel was compiled and found, in a new process."""
    return said(folder)[0]


def said(folder: Path) -> tuple[list[Any], str]:
    """`run`, and what the process wrote on standard error. It is a fork of one that has imported numba."""
    ended = programs.run(RUN, folder)
    assert ended.code == 0, ended.errors
    return json.loads(ended.printed), ended.errors


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A package of two files, one of which calls the other, with the decorator of this one."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    shutil.copy(_jit.__file__, folder / "_jit.py")
    (folder / "__init__.py").write_text("")
    (folder / "callee.py").write_text(CALLEE.format(step="1.0"))
    (folder / "caller.py").write_text(CALLER)
    return folder


CALLS = """from scratch._jit import kernel


@kernel
def low(x: float, k: int) -> float:
    if x > 3.0:
        raise ValueError("too large", x)
    return k * x


@kernel
def middle(x: float) -> float:
    return low(x, 1) + low(x, 2)


@kernel
def top(x: float) -> float:
    return middle(x) + low(x, 3)
"""
RUN_CALLS = """import json, os, sys
from numba.core import event, types

class Compiled(event.Listener):
    def on_start(self, started):
        if started.data["dispatcher"].py_func.__module__ == "scratch.calls":
            names.append(started.data["dispatcher"].py_func.__name__)
    def on_end(self, ended):
        pass

names = []
event.register("numba:compile", Compiled())
from scratch import _jit, calls
if TARGET:
    _jit._dispatcher = __import__("numba").njit(nogil=True)
    exec(open(calls.__file__).read(), vars(calls))
result = calls.top(1.0)
try:
    calls.top(4.0)
except ValueError as error:
    result = [result, *error.args]
assert "get_call_type" not in vars(types.Function), "numba's own functions are typed as before"
print(json.dumps([result, names]))
"""


def calls(scratch: Path, *, numbas_own: bool = False) -> list[Any]:
    """Result and error of a kernel that calls others in a new process, and what that has compiled."""
    (scratch / "calls.py").write_text(CALLS)
    ended = programs.run(f"TARGET = {numbas_own}\n{RUN_CALLS}", scratch.parent)
    assert ended.code == 0, ended.errors
    return json.loads(ended.printed)  # type: ignore[no-any-return]


def test_a_kernel_that_others_call_is_compiled_once(scratch: Path) -> None:
    """With any constant; and what it raises is found by a process that compiles nothing."""
    result = [6.0, "too large", 4.0]
    assert calls(scratch) == [result, ["top", "middle", "low"]]
    assert calls(scratch) == [result, []]
    kept = [path.name for path in (scratch / "__pycache__").glob("*.nbc")]
    assert len(kept) == 1
    assert kept[0].startswith("calls.top-")


USERS = """from numba import njit
from streampair.kernels.numerics import sigmoid
from scratch import calls


@njit(cache=True)
def of_a_user(x):
    return 10.0 * calls.top(x) + sigmoid(x)


@njit
def of_any(function, x):
    return function(x)
"""
RUN_USERS = """import json
from streampair.kernels.numerics import sigmoid
from scratch import calls, users
results = [users.of_a_user(1.0) == 60.0 + sigmoid(1.0), users.of_any(calls.top, 1.0), calls.top(1.0)]
try:
    users.of_a_user(4.0)
except ValueError as error:
    results += error.args
print(json.dumps([results, sum(users.of_a_user.stats.cache_hits.values())]))
"""


def test_a_compiled_function_of_a_user_calls_kernels(scratch: Path) -> None:
    """In the process that compiles it, and in one that finds it on disk."""
    (scratch / "calls.py").write_text(CALLS)
    (scratch / "users.py").write_text(USERS)
    for found in range(2):
        ended = programs.run(RUN_USERS, scratch.parent)
        assert ended.code == 0, ended.errors
        assert json.loads(ended.printed) == [[True, 6.0, 6.0, "too large", 4.0], found]


def test_numba_alone_would_compile_it_for_each_constant(scratch: Path) -> None:
    """The mutant."""
    result, compiled = calls(scratch, numbas_own=True)
    assert result == [6.0, "too large", 4.0]
    assert compiled == ["top", "middle", "low", "low", "low"]


def test_the_numba_of_these_tests_is_the_one_whose_compiler_is_changed() -> None:
    """Before `_jit` names a newer numba, the two tests above and the golden files say whether it may."""
    assert numba.__version__.startswith(_jit._CHANGED)


def test_a_changed_callee_in_another_file_is_seen_by_the_next_process(scratch: Path) -> None:
    assert run(scratch.parent) == [20.0, 1, 0]
    assert run(scratch.parent) == [20.0, 0, 1]
    (scratch / "callee.py").write_text(CALLEE.format(step="2.0"))  # of the same length
    assert run(scratch.parent) == [30.0, 1, 0]
    assert run(scratch.parent) == [30.0, 0, 1]
    (scratch / "another.py").write_text("")
    assert run(scratch.parent) == [30.0, 1, 0]


def test_what_an_image_has_compiled_is_found_from_a_folder_of_ones_own(scratch: Path, tmp_path: Path) -> None:
    """Beside the source, which a user of the image can read and not write."""
    assert run(scratch.parent) == [20.0, 1, 0]
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / "own"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert tell(RUN, {"PYTHONPATH": str(scratch.parent), **settings}) == [20.0, 0, 1]
    (scratch / "callee.py").write_text(CALLEE.format(step="2.0"))  # it is stale there, too
    assert tell(RUN, {"PYTHONPATH": str(scratch.parent), **settings}) == [30.0, 1, 0]
    assert tell(RUN, {"PYTHONPATH": str(scratch.parent), **settings}) == [30.0, 0, 1]


@pytest.fixture
def shipped(scratch: Path) -> Path:
    """The index of a kernel that a wheel brings: compiled for any processor, and beside no source."""
    environment = {"PYTHONPATH": str(scratch.parent), "NUMBA_CPU_NAME": "generic"}
    assert tell(RUN, environment) == [20.0, 1, 0]
    (scratch / "compiled").mkdir()
    for file in [*(scratch / "__pycache__").glob("*.nb[ic]")]:
        file.rename(scratch / "compiled" / file.name)
    (index,) = (scratch / "compiled").glob("*.nbi")
    return index


def test_what_a_wheel_brings_is_found_for_any_processor(scratch: Path, shipped: Path) -> None:
    """Until a file of the package changes."""
    assert run(scratch.parent) == [20.0, 0, 1]
    (scratch / "callee.py").write_text(CALLEE.format(step="2.0"))
    assert run(scratch.parent) == [30.0, 1, 0]


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_wheel_brings_for_another_numba_is_not_run(
    scratch: Path, shipped: Path, damaged: bool
) -> None:
    content = shipped.read_bytes()[:-32]
    other = content.replace(numba.__version__.encode(), b"9" * len(numba.__version__))
    assert other != content
    shipped.write_bytes(other + (b"" if damaged else hashlib.sha256(other).digest()))
    result, errors = said(scratch.parent)
    assert result == [20.0, 1, 0]
    assert (f"{shipped.name} is damaged" in errors) == damaged


def test_where_nothing_can_be_written_each_process_compiles(scratch: Path) -> None:
    """A start that fails on a disk that is read-only."""
    (scratch / "__pycache__").write_text("no folder")
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), str(scratch / "callee.py" / "x"))
    for _ in range(2):
        environment = {"PYTHONPATH": str(scratch.parent), "PYTHONDONTWRITEBYTECODE": "1", **nowhere}
        assert tell(RUN, environment) == [20.0, 1, 0]


def damages(path: Path) -> Iterator[bytes]:
    """A file with one other byte, cut, and empty."""
    data = path.read_bytes()
    middle = len(data) // 2
    yield data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    yield data[:middle]
    yield b""


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache_is_compiled_anew_and_replaced(scratch: Path, suffix: str) -> None:
    assert run(scratch.parent) == [20.0, 1, 0]
    (path,) = (scratch / "__pycache__").glob(f"caller.caller-*.{suffix}")
    for damaged in damages(path):
        path.write_bytes(damaged)
        result, errors = said(scratch.parent)
        assert result == [20.0, 1, 0]
        assert errors.count("the cache of compiled kernels cannot be used") == 1
        assert f"{path.name} is damaged" in errors
        assert run(scratch.parent) == [20.0, 0, 1]


def small_files() -> None:
    """Let the process write files of a few bytes only, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


@pytest.mark.parametrize("caught", [True, False])
def test_a_full_disk_ends_no_start(scratch: Path, caught: bool) -> None:
    """The mutant: without the catch the process ends."""
    if not caught:
        source = (scratch / "_jit.py").read_text()
        begin = source.index("    def save_overload")
        broken = source[:begin] + source[begin:].replace(
            "except Exception as error:", "except KeyError as error:", 1
        )
        assert broken != source
        (scratch / "_jit.py").write_text(broken)
    environment = {"PYTHONPATH": str(scratch.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, env=environment, preexec_fn=small_files
    )
    if not caught:
        assert "File too large" in done.stderr
        assert done.returncode == 1
        return
    assert json.loads(done.stdout) == [20.0, 1, 0]
    assert done.stderr.count("kernels cannot be used (OSError: [Errno 27] File too large") == 1
    assert not list((scratch / "__pycache__").glob("*.tmp.*"))
    assert run(scratch.parent) == [20.0, 1, 0]
    assert run(scratch.parent) == [20.0, 0, 1]


def test_only_a_start_that_compiles_says_so(scratch: Path) -> None:
    """Once, however many kernels it compiles: the caller has its callee compiled."""
    run = (
        "import json\nfrom scratch._jit import on_compile\nfrom scratch.caller import caller\ntold = []\n"
        "with on_compile(lambda: told.append(1)):\n    caller(1.0)\nprint(json.dumps(told))"
    )
    environment = {"PYTHONPATH": str(scratch.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    assert tell(run, environment) == [1]
    assert tell(run, environment) == []


def test_the_cache_of_numba_alone_would_be_stale(scratch: Path) -> None:
    """The mutant: without the stamp the next process goes on with what was compiled of the old callee."""
    source = (scratch / "_jit.py").read_text()
    broken = source.replace("cache._cache_file._source_stamp = _STAMP", "pass")
    assert broken != source
    (scratch / "_jit.py").write_text(broken)
    assert run(scratch.parent) == [20.0, 1, 0]
    (scratch / "callee.py").write_text(CALLEE.format(step="2.0"))
    assert run(scratch.parent) == [20.0, 0, 1]


# Numba's tables, which River walks through when it measures a learner, refer to what is compiled weakly.
KEPT: list[Any] = []


class WithoutStamp:
    """A cache like numba's, and the stamp somewhere else."""

    def __init__(self, function: Any) -> None:
        self._cache_file = object()


@pytest.mark.parametrize("where", ["stamp", "cache"])
def test_an_unknown_numba_is_named_and_caches_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never stale: rather slow, and said so."""

    def twice(x: float) -> float:
        return 2.0 * x

    if where == "stamp":
        monkeypatch.setattr(_jit, "_function_cache", WithoutStamp)
        compiled: Any = _jit.kernel(twice)
        KEPT.append(compiled)
        with pytest.warns(RuntimeWarning, match=f"numba {numba.__version__} keeps its cache"):
            assert compiled(2.0) == 4.0
        assert compiled.stats.cache_path is None
    else:
        monkeypatch.setattr(_jit, "_dispatcher", lambda function: function)  # no `_cache`
        with pytest.warns(RuntimeWarning, match=f"numba {numba.__version__} keeps its cache"):
            assert _jit.kernel(twice)(2.0) == 4.0


EVERY_KERNEL = """import json
from importlib import import_module
from pkgutil import iter_modules
from streampair import kernels
from streampair.kernels import _jit
files = [import_module(f"streampair.kernels.{file.name}") for file in iter_modules(kernels.__path__)]
found = {id(k): k for file in files for k in vars(file).values() if hasattr(k, "py_func")}
indices = {k._cache._writable._cache_file._source_stamp for k in found.values()}
print(json.dumps([list(indices), _jit._STAMP]))
"""


def test_every_kernel_has_the_stamp_of_the_folder() -> None:
    stamps, folder = tell(EVERY_KERNEL, dict(os.environ))
    assert stamps == [folder]
    assert len(folder) == 64


FIRST_RECORDS = """import json, sys
from streampair import auc, buffers, losses, metric, privacy, ranking
fixed = dict(warmup=0, seed=0, features=["a", "b"])
for model, labels in (
    (auc.PairOGD(seed=0), (True, False, True)),
    (auc.PairFTRL(horizon=200, mechanism=privacy.PairGradients(), **fixed), (True, False, True)),
    (auc.OnPairStrC(1.0, 1e-4, 200, l2=0.1, **fixed), (True, False, True)),
    (ranking.PairOGD(losses.MinimumErrorEntropy(0.5), buffers.FullHistory(), seed=0), (0.5, -0.5, 0.0)),
    (metric.PairOGD(seed=0), "aba"),
):
    for y in labels:
        model.learn_one({"a": 0.5, "b": -0.25}, y)
files = [m for name, m in sys.modules.items() if name.startswith("streampair.kernels.")]
kernels = {k for file in files for k in vars(file).values() if hasattr(k, "py_func")}
missed = [k.__name__ for k in kernels if k.stats.cache_misses]
print(json.dumps([missed, sum(bool(k.stats.cache_hits) for k in kernels)]))
"""


def test_a_second_process_of_the_package_compiles_nothing() -> None:
    """A kernel whose cache is not found: then each start takes a minute."""
    tell(FIRST_RECORDS, dict(os.environ))  # compiles, if nothing did before
    missed, found = tell(FIRST_RECORDS, dict(os.environ))
    assert missed == []
    assert found >= 5
