"""What `QualityBeforeLabels` says before labels come: what is true, when it is withheld, alarms, and cost.

    python benchmarks/before_labels.py [sets] [changes] [chance] [shifts] [seasons] [cost]

`sets`: rows in random order; the learner gets labels until 20,000 events are left, and none of those. `error`
is the mean of the expected AUC over their windows less the true AUC of all, `worst` the window that is
furthest off, `share` the error of the share of positives: the largest over the seeds. `labelled` is the
largest error of the AUC of the latest 10,000 labelled events, and `oracle` that of the expected AUC by a
curve which is fitted to the labels of the 20,000 events themselves.
`changes`: the same with PairOGD, whose 20,000 last events are changed in what the learner puts most weight
on. `events` is how many until the expected AUC is withheld, as a lane looks, every 250 events.
`chance`: a million independent events of columns that are hard on histograms, and of 1,000 normal ones.
`shifts`: half a standard deviation from a random event on; the most events until the alarm, of 200 streams.
`seasons`: share of windows above .2 of a feature that swings within 50,000 events.
`cost`: processor time of a lane of ijcnn1 from JSON as a worker has it, with a commit every 10,000 events,
over one that measures no drift; the median over tens of commits.
"""

from __future__ import annotations

import gc
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import msgspec
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig
from streampair_connectors.host import Host
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.timing import DecodeClock, LaneTimer

from streampair import auc
from streampair.engine import Lane, LaneId, Monitoring, Record, RegretConfig
from streampair.evaluation import FeatureDrift, QualityBeforeLabels, expected_auc
from streampair.evaluation.expected import LABELLED, _curve_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.hard_columns import hard_columns

SETS = ("ijcnn1", "adult", "bank", "letter")
LEFT = 20_000
LOOK = 250
LEARNERS: dict[str, Callable[[], Any]] = {
    "PairOGD": lambda: auc.PairOGD(seed=1),
    "PairMoments": auc.PairMoments,
    "Forest": lambda: auc.Forest(seed=1),
}
Change = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _rows(name: str, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    data = _sets.load(name, _sets.DATA)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.x))
    if len(order) < 2 * LEFT:  # letter: the events that are left are learned ones, in another order
        order = np.concatenate((order, rng.permutation(len(data.x))))
    return list(data.x.columns), data.x.to_numpy()[order], np.asarray(data.y, dtype=bool)[order]


class _Stream:
    """A learner and what is said of it; labels come with `learn`."""

    def __init__(self, learner: Any, names: list[str]) -> None:
        self.model, self.quality, self._names = learner, QualityBeforeLabels(), names
        self.labelled: list[np.ndarray] = []

    def feed(self, rows: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        frame = pd.DataFrame(rows, columns=self._names)
        scores = np.asarray(self.model.score_many(frame))
        self.quality.features.update_rows(self._names, rows)
        self.quality.update_scores(scores.tolist())
        if labels is not None:
            self.labelled.append(scores)
            self.quality.update_labels(labels.tolist(), scores.tolist())
            self.model.learn_many(frame, pd.Series(labels))
        return scores


def _learned(name: str, learner: str, seed: int) -> tuple[_Stream, np.ndarray, np.ndarray]:
    names, rows, labels = _rows(name, seed)
    stream = _Stream(LEARNERS[learner](), names)
    for begin in range(0, len(rows) - LEFT, 500):
        part = slice(begin, min(begin + 500, len(rows) - LEFT))
        stream.feed(rows[part], labels[part])
    return stream, rows[-LEFT:], labels[-LEFT:]


def sets(options: Namespace) -> Iterator[_timing.Row]:
    for name in SETS:
        for learner in LEARNERS:
            figures = []
            for seed in range(options.seeds):
                stream, rows, labels = _learned(name, learner, seed)
                scores, expected, shares = [], [], []
                for begin in range(0, LEFT, LOOK):
                    scores.append(stream.feed(rows[begin : begin + LOOK], None))
                    found = stream.quality.get()
                    if found is not None and found.auc is not None:
                        expected.append(found.auc)
                        shares.append(found.positive_share or 0.0)
                latest = np.concatenate(scores)
                true = float(roc_auc_score(labels, latest))
                off = np.array(expected) - true
                share = abs(float(np.mean(shares)) - labels.mean())
                known, flags = np.concatenate(stream.labelled)[-LABELLED:], _rows(name, seed)[2][:-LEFT]
                labelled = abs(float(roc_auc_score(flags[-LABELLED:], known)) - true)
                curve = _curve_of(latest, labels)
                assert curve is not None
                oracle = abs((expected_auc(latest, curve(latest)) or 0.0) - true)
                figures.append((true, abs(off.mean()), np.abs(off).max(), share, labelled, oracle, len(off)))
            mean, most = np.mean(figures, axis=0), np.max(figures, axis=0)
            row: _timing.Row = {"set": name, "learner": learner, "true": mean[0], "error": most[1]}
            row |= {"worst": most[2], "share": most[3], "labelled": most[4], "oracle": most[5]}
            row |= {"windows": int(np.min(figures, axis=0)[6])}
            yield _timing.judged(row, "error", most=0.03)


def _missing(rows: np.ndarray, labels: np.ndarray, j: int, rng: np.random.Generator) -> Any:
    rows[:, j] = np.nan
    return rows, labels


def _unit(factor: float) -> Change:
    def change(rows: np.ndarray, labels: np.ndarray, j: int, rng: np.random.Generator) -> Any:
        rows[:, j] *= factor
        return rows, labels

    return change


def _within(rows: np.ndarray, labels: np.ndarray, j: int, rng: np.random.Generator) -> Any:
    """Rows drawn again, those with high values more often: it moves by a deviation within its range."""
    z = (rows[:, j] - rows[:, j].mean()) / rows[:, j].std()
    weight = np.exp(np.clip(z, -4.0, 4.0))
    drawn = rng.choice(len(rows), len(rows), p=weight / weight.sum())
    return rows[drawn], labels[drawn]


def _concept(rows: np.ndarray, labels: np.ndarray, j: int, rng: np.random.Generator) -> Any:
    return rows, rng.permutation(labels)


CHANGES: dict[str, tuple[Change, bool | None]] = {
    "none": (lambda rows, labels, j, rng: (rows, labels), False),
    "a feature is missing": (_missing, True),
    "a unit times 100": (_unit(100.0), True),
    "a unit over 100": (_unit(0.01), None),
    "moved within its range": (_within, False),
    "concept drift": (_concept, False),
}


def changes(options: Namespace) -> Iterator[_timing.Row]:
    for name in SETS:
        for words, (change, withheld) in CHANGES.items():
            stream, rows, labels = _learned(name, "PairOGD", 0)
            weight = np.abs(stream.model.weights_vector[: rows.shape[1]]) * rows.std(axis=0)
            distinct = np.array([len(np.unique(column)) for column in rows.T]) > 10
            feature = int(np.argmax(np.where(distinct, weight, -1.0)))
            rows, labels = change(rows.copy(), labels, feature, np.random.default_rng(1))
            scores, expected, events = [], [], None
            for begin in range(0, LEFT, LOOK):
                scores.append(stream.feed(rows[begin : begin + LOOK], None))
                found = stream.quality.get()
                if found is not None and found.auc is not None:
                    expected.append(found.auc)
                elif events is None:
                    events = begin + LOOK
            row: _timing.Row = {
                "set": name,
                "change": words,
                "true": float(roc_auc_score(labels, np.concatenate(scores))),
                "expected": float(np.mean(expected)) if events is None else float("nan"),
                "psi": found.psi[0][1] if found else 0.0,
                "events": events or 0,
            }
            if withheld:
                row = _timing.judged({**row, "withheld": events or LEFT}, "withheld", most=2000)
            yield row


def chance(options: Namespace) -> Iterator[_timing.Row]:
    rng = np.random.default_rng(1)
    words = np.array([f"w{i}" for i in range(5000)])
    drift, text, wide = FeatureDrift(), FeatureDrift(), FeatureDrift()
    worst: dict[str, float] = {}
    moved = 0
    for _ in range(0, options.events, LOOK):
        columns = hard_columns(LOOK, rng)
        drift.update_rows(list(columns), np.stack(list(columns.values()), axis=1))
        drawn = words[np.minimum(rng.zipf(1.3, LOOK) - 1, 4999)].tolist()
        text.update_records([{"texts of Zipf's law": word} for word in drawn])
        found = {**drift.psi, **text.psi}
        moved += len(drift.moved) + len(text.moved)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in found.items()}
    for _ in range(0, min(options.events, 100_000), LOOK):
        wide.update_rows(range(1000), rng.normal(size=(LOOK, 1000)))
        most = max(wide.psi.values(), default=0.0)
        moved += len(wide.moved)
        worst["1,000 normal ones"] = max(most, worst.get("1,000 normal ones", 0.0))
    for name, value in worst.items():
        yield _timing.judged({"column": name, "most": value}, "most", most=0.2)
    yield _timing.judged({"column": "left their reference", "most": float(moved)}, "most", most=0)


def shifts(options: Namespace) -> Iterator[_timing.Row]:
    for draw in ("normal", "laplace", "logistic", "uniform", "exponential", "gumbel"):
        waits = []
        for seed in range(200):
            rng = np.random.default_rng(seed)
            drift, begun = FeatureDrift(), 12_000 + int(rng.integers(LOOK))
            values = getattr(rng, draw)(size=begun + 4000)
            values[begun:] += 0.5 * values.std()
            for begin in range(0, len(values), LOOK):
                drift.update_rows([draw], values[begin : begin + LOOK, None])
                if begin + LOOK > begun and drift.drift_detected:
                    waits.append(begin + LOOK - begun)
                    break
            else:
                waits.append(4000)
        late = float(np.mean(np.array(waits) > 2000))
        row: _timing.Row = {"draw": draw, "median": float(np.median(waits)), "most": max(waits), "late": late}
        yield _timing.judged(row, "late", most=0)


def seasons(options: Namespace) -> Iterator[_timing.Row]:
    day = 50_000
    for swing in (0.25, 0.35, 0.5):
        row: _timing.Row = {"swing": swing}
        for span in (10_000, day):
            rng, drift, found = np.random.default_rng(4), FeatureDrift(reference=span), []
            for begin in range(0, 4 * day, LOOK):
                season = swing * np.sin(2.0 * np.pi * np.arange(begin, begin + LOOK) / day)
                drift.update_rows(["x"], (rng.normal(size=LOOK) + season)[:, None])
                if begin >= day + LOOK:
                    found.append(drift.drift_detected)
            row[str(span)] = float(np.mean(found))
        yield row


class _TimedLane:
    """A lane as a worker has it, whose clock is the processor time that it took itself."""

    def __init__(self, features: list[str], reference: int | None) -> None:
        self.seconds, self._begun = 0.0, time.process_time()
        host = Host(monotonic=self._now)
        clock = DecodeClock(
            json_decoder(InputConfig(topic="events", label="y", features=features)), host=host
        )
        monitoring = Monitoring(regret=RegretConfig(), drift_reference=reference)
        lane = Lane(auc.PairOGD(seed=1), clock.decode, LaneId("bench", "events", 0), monitoring=monitoring)
        self._timer = LaneTimer(lane, clock, Telemetry(), ("bench", "events", "0"), host=host)

    def _now(self) -> float:
        return self.seconds + time.process_time() - self._begun

    def take(self, records: list[Record], *, commits: bool) -> None:
        self._begun = time.process_time()
        self._timer.process(records)
        if commits:
            self._timer.gauges()
        self.seconds = self._now()


def cost(options: Namespace) -> Iterator[_timing.Row]:
    names, rows, labels = _rows("ijcnn1", 0)  # in the order of its file features move, and there is no curve
    values = [
        msgspec.json.encode({**dict(zip(names, row.tolist(), strict=True)), "y": bool(y)})
        for row, y in zip(rows, labels, strict=True)
    ]
    lanes = {"without": _TimedLane(names, None), "with": _TimedLane(names, 10_000)}
    # A figure is of ten commits, since a worker does not look again at each of them.
    seconds: dict[str, list[float]] = {name: [] for name in lanes}
    gc.disable()
    for commit in range(options.commits):
        batches = [
            [Record(i, values[i % len(values)]) for i in range(begin, begin + 500)]
            for begin in range(10_000 * commit, 10_000 * (commit + 1), 500)
        ]
        for number, records in enumerate(batches):
            # In turn over the commits too: the same lane takes 1.6 % more where it is the second at each.
            for name in sorted(lanes, reverse=bool((commit + number) % 2)):
                lanes[name].take(records, commits=number == len(batches) - 1)
        for name, lane in lanes.items():
            if commit % 10 == 9:
                seconds[name].append(lane.seconds)
        gc.collect()
    took = {name: np.diff(total).tolist() for name, total in seconds.items()}
    more = _timing.ratio(took["with"], took["without"]) - 1.0
    row: _timing.Row = {"us": 10.0 * min(took["without"]), "more": more}
    yield _timing.judged(row, "more", most=0.03)


TABLES: dict[str, tuple[Callable[[Namespace], Iterator[_timing.Row]], list[_timing.Column]]] = {
    "sets": (
        sets,
        [
            *(
                ("", "learner", "<12"),
                ("", "set", "<8"),
                ("true", "true", ">7.3f"),
                ("error", "error", ">8.3f"),
            ),
            *(("worst", "worst", ">8.3f"), ("share", "share", ">8.3f"), ("labelled", "labelled", ">10.3f")),
            *(("oracle", "oracle", ">8.3f"), ("windows", "windows", ">9")),
        ],
    ),
    "changes": (
        changes,
        [
            *(("", "set", "<8"), ("", "change", "<24"), ("true", "true", ">7.3f")),
            *(("expected", "expected", ">10.3f"), ("PSI", "psi", ">8.2f"), ("events", "events", ">8")),
        ],
    ),
    "chance": (chance, [("largest PSI by chance", "column", "<24"), ("", "most", ">8.3f")]),
    "shifts": (
        shifts,
        [
            *(("", "draw", "<12"), ("median", "median", ">8.0f"), ("most", "most", ">8")),
            ("over 2000", "late", ">11.3f"),
        ],
    ),
    "seasons": (
        seasons,
        [("swing", "swing", ">6"), ("of a morning", "10000", ">14.3f"), ("of a day", "50000", ">10.3f")],
    ),
    "cost": (cost, [("us an event", "us", ">12.2f"), ("more", "more", ">8.1%")]),
}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    for name in options.table or TABLES:
        for row in TABLES[name][0](options):
            yield {"table": name, **row}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    rows = list(rows)
    for name, (_, columns) in TABLES.items():
        found = [row for row in rows if row["table"] == name]
        if found:
            yield from _timing.table(columns, found, goals=True)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "table": {"nargs": "*", "choices": [[], *TABLES], "help": "which tables (default: all)"},
        "--seeds": {"type": int, "default": 5, "help": "random orders of a set (default 5)"},
        "--events": {"type": int, "default": 1_000_000, "help": "independent events (default 1000000)"},
        "--commits": {"type": int, "default": 100, "help": "commits of the lane (default 100)"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
