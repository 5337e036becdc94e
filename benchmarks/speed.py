"""Speed and memory beside what they could be: ratios of one run, on one thread.

    python benchmarks/speed.py [--rounds 9] [--json]

- a step over the full history beside one product of the stored matrix with a vector;
- the largest memory of a history of a million records, beside its raw array;
- batches as arrays beside River's LogisticRegression record by record;
- the updates of Yang et al. (2021) and of Kar et al. (2013) beside the loops over records that one writes in
  NumPy, on the same data, to the same AUC;
- the time to import everything beside river and numba; kernels in a second process.

Two that are compared take turns, so that whatever else the machine does weighs on both.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _timing
import numpy as np
from _timing import timed, versus
from river import linear_model

import streampair
from streampair import auc, buffers, losses
from streampair.base.buffer_storage import RecordBlocks
from streampair.kernels import history as history_kernels

MODULES = ("auc", "buffers", "evaluation", "losses", "metric", "preprocessing", "privacy", "ranking")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


# ---- the full history --------------------------------------------------------------------------------------


def with_history(X: np.ndarray, y: np.ndarray, dtype: str) -> auc.PairOGD:
    """A learner with these records in its history: to learn them all would take 50000 times longer."""
    model = auc.PairOGD(losses.Logistic(), buffers.FullHistory(dtype), average=False)
    model.learn_many(X[:2], y[:2])
    history = filled(X, np.where(y, 1.0, -1.0), dtype == "float32")
    state: dict[str, Any] = model.to_state()
    state["scalars"].update(RECORDS=float(len(X)), FILLED=float(len(X)))
    model.load_state({**state, "blocks": history.to_state(len(X))})
    return model


def filled(X: np.ndarray, labels: np.ndarray, single: bool) -> RecordBlocks:
    """A history that was given these records one by one."""
    history = RecordBlocks(single)
    for t, (x, label) in enumerate(zip(X, labels, strict=True)):
        history.reserve(t, 1, X.shape[1])
        history_kernels.history_store(x, label, history.table, t, single)
    return history


def full_history(rounds: int, n: int = 100_000, d: int = 32) -> Iterator[_timing.Row]:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, d)), rng.random(n) < 0.5
    for dtype in ("float64", "float32"):
        learn = partial(with_history(X, y, dtype).learn_one, dict(enumerate(X[0].tolist())), bool(y[0]))
        product = partial(np.matmul, X.astype(dtype), rng.normal(size=d).astype(dtype))
        step, other, ratio = versus(timed(learn), timed(product), rounds, warm=1)
        name = f"full history, {n} x {d} {dtype}: one step / one H @ w"
        most = 5.0 if dtype == "float64" else None
        yield figure(name, f"{step * 1e3:.2f} ms", f"{other * 1e3:.2f} ms", 1.0 / ratio, most=most)


_PEAK = """
import re, sys
from pathlib import Path
import numpy as np
from streampair.base.buffer_storage import RecordBlocks
from streampair.kernels.history import history_store

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

single, n, d = sys.argv[1] == "float32", int(sys.argv[2]), int(sys.argv[3])
x = np.random.default_rng(0).normal(size=d)
history = RecordBlocks(single)
for warm in (True, False):
    if not warm:
        before = status("VmRSS")
    history = RecordBlocks(single)
    for t in range(1000 if warm else n):
        if t >= history.room:
            history.reserve(t, 1, d)
            table = history.table
        history_store(x, 1.0, table, t, single)
print(status("VmHWM") - before)
"""


def peak(n: int = 1_000_000, d: int = 20) -> Iterator[_timing.Row]:
    if not Path("/proc/self/status").exists():
        return
    raw = n * d * 8
    for dtype, most in (("float64", 1.2), ("float32", 0.6)):
        used = int(python(_PEAK, dtype, str(n), str(d)))
        name = f"full history, {n} x {d} {dtype}: peak / raw array of float64"
        yield figure(name, f"{used / 1e6:.0f} MB", f"{raw / 1e6:.0f} MB", used / raw, most=most)


# ---- batches -----------------------------------------------------------------------------------------------


def one_by_one(model: Any, records: list[tuple[dict[Any, float], bool]]) -> None:
    """What a user's own loop does."""
    for x, label in records:
        model.learn_one(x, label)


def batches(rounds: int) -> Iterator[_timing.Row]:
    rng = np.random.default_rng(0)
    for d in (9, 100):
        n = 20_000
        X, y = rng.normal(size=(n, d)), rng.random(n) < 0.5
        records = [(dict(enumerate(x)), bool(label)) for x, label in zip(X[:2000].tolist(), y, strict=False)]
        ours, theirs = auc.PairOGD(), linear_model.LogisticRegression()
        learn, loop = partial(ours.learn_many, X, y), partial(one_by_one, theirs, records)
        mine, other, ratio = versus(timed(learn), timed(loop), max(rounds, 5), warm=1)
        name = f"learn_many on arrays, d = {d}: LogisticRegression.learn_one / ours, a record"
        times = f"{mine / n * 1e6:.3f} us", f"{other / len(records) * 1e6:.2f} us"
        yield figure(name, *times, ratio * n / len(records), least=20.0)


# ---- the papers' own way -----------------------------------------------------------------------------------


def yang(X: np.ndarray, s: np.ndarray, rate: float, radius: float) -> np.ndarray:
    """Algorithm 2 of Yang et al. (2021), hinge loss, as one writes it in NumPy; the averaged weights."""
    d = X.shape[1]
    w, before, average, total = np.zeros(d), np.zeros(d), np.zeros(d), 0.0
    for t in range(1, len(X)):
        g = np.zeros(d)
        c = s[t] - s[t - 1]
        if c != 0.0:
            u = X[t] - X[t - 1]
            if c * (w @ u) < 1.0:
                g = -c * u
        eta = rate / math.sqrt(t)
        total += eta
        average = average + eta / total * (before - average)
        before = w
        w = w - eta * g
        norm = np.linalg.norm(w)
        if norm > radius:
            w = w * (radius / norm)
    return average


Gradient = Callable[[np.ndarray, np.ndarray, float, np.ndarray, np.ndarray], np.ndarray]


def by_products(w: np.ndarray, x: np.ndarray, y: float, rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Mean gradient over the buffer, with products of matrices."""
    c = y - signs
    u = x - rows
    k = np.where((c != 0.0) & (c * (u @ w) < 1.0), -c, 0.0)
    return k @ u / len(rows)


def by_pairs(w: np.ndarray, x: np.ndarray, y: float, rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The same with a loop over the buffer, as the paper's pseudo-code has it."""
    g = np.zeros(len(w))
    for row, sign in zip(rows, signs, strict=True):
        c = y - sign
        if c != 0.0:
            u = x - row
            if c * (w @ u) < 1.0:
                g -= c * u / len(rows)
    return g


def kar(
    X: np.ndarray, s: np.ndarray, rate: float, radius: float, size: int, gradient: Gradient
) -> np.ndarray:
    """OLP with RS-x of Kar et al. (2013), hinge loss."""
    d, rng = X.shape[1], np.random.default_rng(1)
    w, before, average, total = np.zeros(d), np.zeros(d), np.zeros(d), 0.0
    rows, signs = np.tile(X[0], (size, 1)), np.full(size, s[0])
    for t in range(1, len(X)):
        g = gradient(w, X[t], s[t], rows, signs)
        eta = rate / math.sqrt(t)
        total += eta
        average = average + eta / total * (before - average)
        before = w
        w = w - eta * g
        norm = np.linalg.norm(w)
        if norm > radius:
            w = w * (radius / norm)
        replaced = rng.random(size) * (t + 1) < 1.0
        rows[replaced], signs[replaced] = X[t], s[t]
    return average


def exact_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Share of pairs of a positive and a negative that are in order (no two scores are equal here)."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = int(positive.sum())
    below = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(below / (positives * (len(scores) - positives)))


def papers(rounds: int, n: int = 20_000, d: int = 20) -> Iterator[_timing.Row]:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=d)
    X = rng.normal(size=(2 * n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ truth + 0.5 * rng.normal(size=2 * n) > 1.0
    s = np.where(y, 1.0, -1.0)
    test = slice(n, None)
    rate, radius, size = 1.0, 5.0, 200
    options: dict[str, Any] = {"scale": None, "learning_rate": rate, "radius": radius}
    fifo = buffers.FIFO(1)
    reservoir = buffers.Reservoir(size, replacement=True)
    cases: list[tuple[str, buffers.Buffer, Callable[[int], np.ndarray], int]] = [
        ("Yang et al. 2021, Algorithm 2", fifo, lambda m: yang(X[:m], s[:m], rate, radius), n),
        (
            "Kar et al. 2013, RS-x of 200, matrix products",
            reservoir,
            lambda m: kar(X[:m], s[:m], rate, radius, size, by_products),
            n,
        ),
        (
            "Kar et al. 2013, RS-x of 200, pair by pair",
            reservoir,
            lambda m: kar(X[:m], s[:m], rate, radius, size, by_pairs),
            n // 20,
        ),
    ]
    for name, buffer, theirs, m in cases:
        learn = partial(learned, buffer, X[:m], y[:m], options)
        a, b, ratio = versus(timed(learn), timed(partial(theirs, m)), max(3, rounds // 3), warm=1)
        ours_auc = exact_auc(learn().score_many(X[test]), y[test])
        theirs_auc = exact_auc(X[test] @ theirs(m), y[test])
        if abs(ours_auc - theirs_auc) > 0.01:
            raise SystemExit(f"{name}: AUC {ours_auc:.4f} and {theirs_auc:.4f} should agree")
        name = f"{name}: NumPy / ours (AUC {theirs_auc:.3f}, {ours_auc:.3f})"
        # The papers go from pair to pair; products of matrices are NumPy at its best.
        least = None if "products" in name else 20.0
        yield figure(name, f"{a / m * 1e6:.2f} us", f"{b / m * 1e6:.2f} us", ratio, least=least)


def learned(buffer: buffers.Buffer, X: np.ndarray, y: np.ndarray, options: dict[str, Any]) -> auc.PairOGD:
    """A learner of these records."""
    model = auc.PairOGD(buffer=buffer, seed=0, **options)
    model.learn_many(X, y)
    return model


# ---- processes ---------------------------------------------------------------------------------------------


def python(code: str, *arguments: str, folder: str | None = None) -> str:
    """What a fresh process prints. `folder`: where it runs, and looks for packages first."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
    return done.stdout


def imports(rounds: int) -> Iterator[_timing.Row]:
    ours = partial(python, f"from streampair import {', '.join(MODULES)}")
    theirs = partial(python, "import numba, river; from river import base, utils, metrics")
    clock = time.perf_counter
    mine, other, ratio = versus(timed(ours, clock), timed(theirs, clock), max(rounds, 5))
    times = f"{mine:.2f} s", f"{other:.2f} s"
    yield figure("import of all modules / river and numba", *times, 1.0 / ratio, most=1.5)


_FIRST = """
import time
from streampair import auc
from streampair.kernels import ogd
start = time.perf_counter()
model = auc.PairOGD()
model.learn_one({"a": 1.0}, True)
model.predict_proba_one({"a": 1.0})
print(time.perf_counter() - start, sum(ogd.ogd_learn.stats.cache_misses.values()))
"""


def cache() -> Iterator[_timing.Row]:
    """Kernels that the first process compiled are found by the next one."""
    with tempfile.TemporaryDirectory() as folder:
        # A copy, as the installed package may have compiled kernels beside its source.
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(streampair.__file__).parent, Path(folder, "streampair"), ignore=ignored)
        first, _ = (float(v) for v in python(_FIRST, folder=folder).split())
        second, misses = (float(v) for v in python(_FIRST, folder=folder).split())
    if misses:
        raise SystemExit("the second process compiled a kernel again")
    name = "first record in a later process / in the very first, which compiles"
    yield figure(name, f"{second:.2f} s", f"{first:.2f} s", second / first, most=0.5)


def figure(
    name: str,
    ours: str,
    theirs: str,
    value: float,
    *,
    least: float | None = None,
    most: float | None = None,
) -> _timing.Row:
    """A line of the table."""
    row = {"name": name, "ours": ours, "theirs": theirs, "value": value}
    return _timing.judged(row, "value", least=least, most=most)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    yield from full_history(options.rounds)
    yield from peak()
    yield from batches(options.rounds)
    yield from papers(options.rounds)
    yield from imports(options.rounds)
    yield from cache()


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [("", "name", "<78"), ("ours", "ours", ">10"), ("theirs", "theirs", ">10")]
    return _timing.table([*columns, ("ratio", "value", ">8.2f")], rows, goals=True)


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():
        # Libraries read it when they are loaded, which they are by now.
        again = [sys.executable, __file__, *sys.argv[1:]]
        sys.exit(subprocess.run(again, env={**os.environ, **ONE_THREAD}).returncode)
    sys.exit(_timing.main(__doc__, measure, page, {"--rounds": {"type": int, "default": 9}}, strict=True))
