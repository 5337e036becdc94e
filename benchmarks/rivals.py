"""Our learners compared with those of other libraries, each in an environment of its own.

    python benchmarks/rivals.py [--seeds 1] [--only WORD ...] [--streams NAME ...] [--minutes M] [--again]
    python benchmarks/rivals.py --page

`make rivals` runs everything that has no result yet, short runs first, and writes the page. Each run is a
process of `_rival_PROGRAM.py` in `.cache/rivals/PROGRAM`, an environment with pinned versions that is made
when it is first needed. Its result goes to results/rivals.jsonl at once, so a stop loses nothing: the next
call goes on. A run that fails or takes more than ten minutes is written down too. `--again` repeats what is
selected: `--only streampair --again` for our own learners after a change.

Online learners score each record before they learn it, in the order of the stream, and see the first 20,000
records; AUC, average precision and log loss are those of the second half. Private learners get epsilon 1 and
a delta of one over the number of records, learn four fifths of a set and score the rest, with the splits of
private_forest.py: seed s is split 2999 + s. Bounds of numbers and values of texts are public for all of them.
Probabilities are clipped to [1e-6, 1 - 1e-6] in the log loss. Time is user and system time of the learning
part of the process, all threads together, over all records; a private learner's is for all of the split.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import _sets
import _streams
import _unseen
import numpy as np
import pandas as pd
from river import datasets
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "rivals.jsonl"
PAGE = ROOT / "docs" / "benchmarks" / "rivals.md"
BEGIN, END = "<!-- begin: rivals -->", "<!-- end -->"
MOST_RECORDS, MOST_SECONDS, FIRST_SPLIT = 20_000, 600, 3000

# What pip installs for each program; ours runs in the environment of this script.
ENVIRONMENTS = {
    "river": ("river==0.26.1",),
    "capymoa": ("capymoa==0.15.1",),
    "vw": ("vowpalwabbit==9.11.9", "numpy==2.4.6"),
    "lightgbm": ("lightgbm==4.7.0", "numpy==2.4.6", "scipy==1.17.1", "scikit-learn==1.9.1"),
    "interpret": ("interpret-core==0.7.8", "pandas==3.1.1"),
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn==1.5.2"),
    "jax_privacy": ("jax-privacy==2.0.0",),
    "dpmm": ("dpmm==0.1.9", "lightgbm==4.7.0"),
}


class Rival(NamedTuple):
    """A learner of a program; ``us`` is about what a record costs, to run what is short first."""

    program: str
    learner: str
    us: float
    settings: str
    private: bool = False

    @property
    def name(self) -> str:
        """The learner, with the program that it is of."""
        return f"{self.program}: {self.learner}"


_WEAKER = "add or remove one record, which is weaker than replacement"
RIVALS = (
    Rival("streampair", "PairOGD", 30, "defaults; numbers standardised, a column for each value of a text"),
    Rival("streampair", "PairMoments", 30, "defaults, records as they are"),
    Rival("streampair", "Forest", 30, "defaults, texts as they are"),
    Rival(
        "river", "LogisticRegression", 30, "defaults; numbers standardised, a column for a value of a text"
    ),
    Rival("river", "HAT", 200, "defaults, texts as they are"),
    Rival("river", "AMF", 900, "defaults: 10 trees; a column for each value of a text"),
    Rival("river", "ARF", 4000, "defaults: 10 trees, where the paper has 100; texts as they are"),
    Rival("river", "SRP", 9000, "defaults: 10 trees, where the paper has 100; texts as they are"),
    Rival("vw", "VW", 20, "logistic loss, defaults: adaptive, normalised, invariant updates"),
    Rival("vw", "VW, pairs", 60, "the same with products of two features (--interactions ff)"),
    Rival(
        "lightgbm", "LightGBM, refitted", 300, "defaults, native categories; every 1,000 records, or 20 times"
    ),
    Rival("capymoa", "ARF", 2000, "defaults: 100 trees; nominal attributes"),
    Rival("capymoa", "LeveragingBagging", 3000, "defaults: 100 trees; nominal attributes"),
    Rival("capymoa", "SGBT", 4000, "defaults: 100 iterations; nominal attributes"),
    Rival("capymoa", "SRP", 8000, "defaults: 100 trees; nominal attributes"),
    Rival("streampair", "PairFTRL", 30, "replacement; one pass", private=True),
    Rival("streampair", "PrivateForest", 400, "replacement; one pass", private=True),
    Rival(
        "diffprivlib", "LogisticRegression", 40, "replacement, delta 0; up to 1,000 iterations", private=True
    ),
    Rival("diffprivlib", "GaussianNB", 20, f"{_WEAKER}, delta 0; one pass", private=True),
    Rival("diffprivlib", "RandomForest", 60, f"{_WEAKER}, delta 0; 10 trees, one pass", private=True),
    Rival("interpret", "DP-EBM", 100, f"{_WEAKER}; 300 rounds, each over all records", private=True),
    Rival(
        "jax_privacy", "DP-SGD, linear", 500, f"{_WEAKER}; 20 epochs, clipped to 1, Adam .01", private=True
    ),
    Rival("jax_privacy", "DP-SGD, network", 900, "the same with 64 hidden units", private=True),
    Rival("dpmm", "MST + LightGBM", 2000, f"{_WEAKER}; .1 of epsilon for the bins", private=True),
    Rival("dpmm", "AIM + LightGBM", 9000, "the same with another selection of marginals", private=True),
)
OURS = {"streampair: Forest": "Forest", "streampair: PrivateForest": "PrivateForest"}

SETS: dict[str, _streams.Take] = {
    **{name: take for name, (take, _) in _streams.STREAMS.items()},
    **_streams.RARE,
    "one-in-100": lambda n: _unseen.MADE["one-in-100"](),
    "two-in-100": lambda n: _unseen.MADE["two-in-100"](),
    "Shuttle": lambda n: _streams.taken(datasets.Shuttle(), 10**6),
}
PRIVATE = (
    *("Phishing", "german", "diabetes", "letter", "letter-A", "usps", "bank", "adult", "ijcnn1"),
    *("ijcnn1-rarer", "Shuttle"),
)


class Run(NamedTuple):
    """A rival on a stream, with a seed."""

    rival: Rival
    stream: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What its result is found by."""
        return self.rival.name, self.stream, self.seed


@cache
def _arrays(stream: str, private: bool) -> dict[str, Any]:
    """Records as arrays of numbers, texts and labels; an online learner's are the first 20,000."""
    records = SETS[stream](10_000)
    if not private:
        records = records[:MOST_RECORDS]
    frame = pd.DataFrame([x for x, _ in records])
    numbers = frame.select_dtypes("number")
    texts = frame.drop(columns=numbers.columns).fillna("").astype(str)
    return {
        "numbers": numbers.to_numpy(float),
        "texts": texts.to_numpy(dtype=str).reshape(len(frame), texts.shape[1]),
        "labels": np.array([y for _, y in records], np.int8),
        "number_names": np.array([str(c) for c in numbers.columns], dtype=str),
        "text_names": np.array([str(c) for c in texts.columns], dtype=str),
    }


def _python(program: str) -> str:
    """The Python of a program's environment, made if it is not there; the reason of pip where it cannot."""
    if program == "streampair":
        return sys.executable
    folder = ROOT / ".cache" / "rivals" / program
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join(ENVIRONMENTS[program])
    if not done.exists() or done.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*words, *ENVIRONMENTS[program]], check=True, capture_output=True, text=True)
        done.write_text(wanted)
    return str(python)


def _quality(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    probabilities = np.clip(scores, 1e-6, 1 - 1e-6)
    return {
        "auc": round(float(roc_auc_score(labels, scores)), 4),
        "ap": round(float(average_precision_score(labels, scores)), 4),
        "log_loss": round(float(log_loss(labels, probabilities)), 4),
    }


def result(run: Run) -> dict[str, Any]:
    """The row of a run, with what went wrong in the place of its figures."""
    rival, private = run.rival, run.rival.private
    row: dict[str, Any] = {"rival": rival.name, "stream": run.stream, "seed": run.seed}
    arrays = _arrays(run.stream, private)
    n = len(arrays["labels"])
    train, test = np.arange(n), np.arange(n // 2, n)
    if private:
        train, test = next(_sets.splits(n, 1, FIRST_SPLIT + run.seed - 1))
    row |= {"n": n, "positive": round(float(arrays["labels"].mean()), 4)}
    program = Path(__file__).with_name(f"_rival_{rival.program}.py")
    with tempfile.TemporaryDirectory() as folder:
        records, scores = Path(folder) / "records.npz", Path(folder) / "scores.npy"
        np.savez(records, train=train, test=test, **arrays)
        try:
            words = [_python(rival.program), program, rival.learner, records, scores, run.seed]
            ran = subprocess.run(
                [str(word) for word in words],
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return row | {"failed": f"more than {MOST_SECONDS} s"}
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or "").strip().splitlines() or ["no message"]
            return row | {"failed": lines[-1][:200]}
        found = np.load(scores)
    row |= json.loads(ran.stdout.strip().splitlines()[-1])
    if not np.isfinite(found).all():
        return row | {"failed": "scores that are not numbers"}
    labels = arrays["labels"][test]
    row["seconds"] = round(row["seconds"], 3)
    row["us"] = round(row["seconds"] / len(train) * 1e6, 2)
    return row | _quality(labels, found if private else found[test])


def kept() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Rows by rival, stream and seed."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    rows = map(json.loads, lines)
    return {(row["rival"], row["stream"], row["seed"]): row for row in rows}


def _keep(row: dict[str, Any]) -> None:
    rows = kept()
    rows[row["rival"], row["stream"], row["seed"]] = row
    text = "".join(json.dumps(rows[key]) + "\n" for key in sorted(rows))
    RESULTS.with_suffix(".new").write_text(text, encoding="utf-8")
    RESULTS.with_suffix(".new").replace(RESULTS)


def runs(options: argparse.Namespace) -> list[Run]:
    """What is selected and has no result, short runs first."""
    found = [
        Run(rival, stream, seed)
        for seed in range(1, options.seeds + 1)
        for rival in RIVALS
        if not options.only or any(word in rival.name for word in options.only)
        for stream in (PRIVATE if rival.private else SETS)
        if not options.streams or stream in options.streams
    ]
    there = {} if options.again else kept()
    sizes = {(run.stream, run.rival.private): 0 for run in found}
    sizes = {key: len(_arrays(*key)["labels"]) for key in sizes}
    found.sort(key=lambda run: (run.seed, run.rival.us * sizes[run.stream, run.rival.private]))
    return [run for run in found if run.key not in there]


def _mean(rows: Iterable[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def _markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(heads)
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _tables(rivals: list[Rival], ours: str) -> Iterator[str]:
    """Means of each rival, then the AUC of each on each stream."""
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    failed: dict[tuple[str, str], str] = {}
    for (name, stream, _), row in kept().items():
        if "failed" in row:
            failed[name, stream] = row["failed"]
        else:
            rows.setdefault(name, {}).setdefault(stream, []).append(row)
    present = [rival for rival in rivals if rival.name in rows]
    if not present:
        yield "No result yet."
        return
    reference = rows.get(ours, {})

    def summary(rival: Rival) -> Iterator[str]:
        mine = rows[rival.name]
        flat = [row for found in mine.values() for row in found]
        common = [s for s in mine if s in reference]
        gains = [_mean(reference[s], "auc") - _mean(mine[s], "auc") for s in common]
        yield rival.name
        yield f"{_mean(flat, 'us'):,.1f}"
        yield str(len(mine))
        for key in ("auc", "ap", "log_loss"):
            yield f"{np.mean([_mean(found, key) for found in mine.values()]):.3f}"
        if rival.name == ours or not common:
            yield from ("", "")
        else:
            yield f"{np.mean(gains):+.3f}"
            yield f"{sum(g > 0 for g in gains)} of {len(gains)}"

    yield from _markdown(
        [
            *("learner", "us a record", "streams", "AUC", "average precision", "log loss"),
            *(f"AUC, {OURS[ours]} less it", f"{OURS[ours]} ahead on"),
        ],
        map(summary, present),
    )
    yield ""
    yield "Means are over the streams that the learner has finished; the last two columns, over those that"
    yield f"`{OURS[ours]}` has finished as well. AUC on each stream, the best one in bold:"
    yield ""
    streams = [s for s in SETS if any(s in rows[rival.name] for rival in present)]

    def cells(stream: str) -> Iterator[str]:
        found = {r.name: _mean(rows[r.name][stream], "auc") for r in present if stream in rows[r.name]}
        best = max(found.values())
        yield stream
        for rival in present:
            value = found.get(rival.name)
            if value is None:
                yield "failed" if (rival.name, stream) in failed else ""
            else:
                yield f"**{value:.3f}**" if value == best else f"{value:.3f}"

    yield from _markdown(["stream", *(rival.name for rival in present)], map(cells, streams))
    behind = []
    for stream in streams:
        others = [(_mean(rows[r.name][stream], "auc"), r.name) for r in present if stream in rows[r.name]]
        if stream in reference and max(others)[0] > _mean(reference[stream], "auc"):
            behind.append((max(others)[0] - _mean(reference[stream], "auc"), stream, max(others)[1]))
    if reference:
        yield ""
        yield f"`{OURS[ours]}` is behind the best learner on {len(behind)} of {len(reference)} streams" + (
            ": "
            + "; ".join(f"{s} by {gap:.3f} ({who})" for gap, s, who in sorted(behind, reverse=True))
            + "."
            if behind
            else "."
        )
    tried = rows.keys() | {name for name, _ in failed}
    if missing := [rival.name for rival in rivals if rival.name not in tried]:
        yield ""
        yield f"Not run yet: {'; '.join(missing)}."
    reasons: dict[tuple[str, str], list[str]] = {}
    for (name, stream), why in sorted(failed.items()):
        if name in {rival.name for rival in rivals}:
            reasons.setdefault((name, why), []).append(stream)
    if reasons:
        yield ""
        yield "Failed:"
        yield ""
        for (name, why), found in reasons.items():
            yield f"- {name} on {', '.join(found)}: `{why}`"


def page() -> Iterator[str]:
    """What goes between the markers of the page."""
    for title, private, ours in (
        ("Online", False, "streampair: Forest"),
        ("Private", True, "streampair: PrivateForest"),
    ):
        rivals = [rival for rival in RIVALS if rival.private == private]
        yield f"## {title}"
        yield ""
        yield from _tables(rivals, ours)
        yield ""
        heads = ("learner", "neighbours, passes and settings" if private else "settings")
        yield from _markdown(heads, ((rival.name, rival.settings) for rival in rivals))
        yield ""
    versions = {name: v for row in kept().values() for name, v in row.get("versions", {}).items()}
    yield "Versions: " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions)) + "."


def main() -> int:
    """Run what is selected, one process at a time, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", metavar="WORD", help="rivals with a word in their names")
    parser.add_argument("--streams", nargs="*", metavar="NAME")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after them")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    options = parser.parse_args()
    stop = time.monotonic() + options.minutes * 60
    broken: dict[str, str] = {}
    for run in [] if options.page else runs(options):
        if time.monotonic() > stop:
            break
        try:
            if run.rival.program not in broken:
                _python(run.rival.program)
        except subprocess.CalledProcessError as error:
            broken[run.rival.program] = (error.stderr.strip().splitlines() or ["pip failed"])[-1][:200]
        if run.rival.program in broken:
            row = {"rival": run.rival.name, "stream": run.stream, "seed": run.seed}
            row["failed"] = f"cannot be installed: {broken[run.rival.program]}"
        else:
            row = result(run)
        _keep(row)
        said = row.get("failed") or f"AUC {row['auc']:.3f}, {row['us']:.1f} us"
        print(f"{run.rival.name:<34}{run.stream:<18}{run.seed:<4}{said}", flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(page()) + f"\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
