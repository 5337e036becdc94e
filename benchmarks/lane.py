"""The lane without Kafka against the bare learner: events per second, as ratios in one run.

    python benchmarks/lane.py            # a table
    python benchmarks/lane.py --json     # for machines

Each round times every variant once, one after another, on the same events (River's Phishing, repeated),
with a new learner each time; reported are medians over the rounds, of processor time. Bare means `score_one`
and `learn_one` on dicts in a loop. `regret` is the share of the lane's time (with JSON and commits) that the
regret estimate costs: its sample, a solution whenever `gauges()` finds one due, its part of the snapshots.
The sample fills in the beginning, so the share falls as the stream grows; `2nd half` is that of the second
half of the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
from river import datasets, linear_model

from streampair import auc
from streampair.engine import Event, Lane, Record, RegretConfig

BATCH = 500
#: Batches between two snapshots and gauges: about one second, as in a worker.
COMMIT = 500


class Wire(msgspec.Struct):
    """The JSON of one event."""

    x: dict[str, float]
    y: bool


def learners(names: list[str]) -> dict[str, Callable[[], Any]]:
    """Constructors of the learners to be timed."""
    every: dict[str, Callable[[], Any]] = {
        "PairOGD": lambda: auc.PairOGD(seed=1),
        "PairFTRL": lambda: auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=10_000_000, seed=1),
        "LogisticRegression": linear_model.LogisticRegression,
    }
    return {name: every[name] for name in names}


def bare(model: Any, events: list[Event], score: Callable[[dict[str, float]], Any]) -> None:
    """What a user's own loop does."""
    learn = model.learn_one
    for event in events:
        score(event.x)
        learn(event.x, event.y)


def bare_json(model: Any, records: list[Record], score: Callable[[dict[str, float]], Any]) -> None:
    """The same from bytes."""
    learn, decode = model.learn_one, msgspec.json.Decoder(Wire).decode
    for record in records:
        event = decode(record.value or b"")
        score(event.x)
        learn(event.x, event.y)


def through_lane(lane: Lane, records: list[Record], *, commits: bool) -> None:
    """Batches, with a snapshot and gauges now and then as a worker does."""
    for number, start in enumerate(range(0, len(records), BATCH)):
        lane.process(records[start : start + BATCH])
        if commits and number % COMMIT == COMMIT - 1:
            lane.snapshot()
            lane.gauges()


def measure(make: Callable[[], Any], events: list[Event], rounds: int) -> dict[str, float]:
    """Medians of seconds for each variant, and the ratios."""
    encode = msgspec.json.encode
    lines = [Record(i, encode(Wire(event.x, bool(event.y)))) for i, event in enumerate(events)]
    bare_records = [Record(i, None) for i in range(len(events))]
    wire = msgspec.json.Decoder(Wire).decode

    def lookup(record: Record) -> Event:
        return events[record.offset]

    def decode(record: Record) -> Event:
        parsed = wire(record.value or b"")
        return Event(parsed.x, parsed.y)

    def lane(how: Callable[[Record], Event], *, regret: bool = False) -> Lane:
        return Lane(
            make(),
            how,
            app="bench",
            topic="events",
            partition=0,
            regret=RegretConfig() if regret else None,
            allow_pickle=True,
            signing_key=b"benchmark only 16",
        )

    def scorer(model: Any) -> Callable[[dict[str, float]], Any]:
        score: Callable[[dict[str, float]], Any] = getattr(model, "score_one", model.predict_proba_one)
        return score

    def run_bare() -> None:
        model = make()
        bare(model, events, scorer(model))

    def run_bare_json() -> None:
        model = make()
        bare_json(model, lines, scorer(model))

    def commits(*, regret: bool) -> float:
        """A run with commits; the seconds of its second half."""
        ready = lane(decode, regret=regret)
        half = len(lines) // 2
        through_lane(ready, lines[:half], commits=True)
        start = time.process_time()
        through_lane(ready, lines[half:], commits=True)
        return time.process_time() - start

    variants: dict[str, Callable[[], float | None]] = {
        "bare": run_bare,
        "lane": lambda: through_lane(lane(lookup), bare_records, commits=False),
        "bare_json": run_bare_json,
        "lane_json": lambda: through_lane(lane(decode), lines, commits=False),
        "lane_commits": lambda: commits(regret=False),
        "lane_commits_regret": lambda: commits(regret=True),
    }
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, run in variants.items():
            gc.collect()
            start = time.process_time()
            later = run()
            if number:  # the first round compiles and warms up
                seconds.setdefault(name, []).append(time.process_time() - start)
                if later is not None:
                    seconds.setdefault(f"{name}_later", []).append(later)
    n = len(events)
    out = {f"{name}_events_per_second": n / statistics.median(s) for name, s in seconds.items()}

    def ratio(a: str, b: str) -> float:
        """Of rates, paired within a round."""
        return statistics.median(y / x for x, y in zip(seconds[a], seconds[b], strict=True))

    out["lane_over_bare"] = ratio("lane", "bare")
    out["lane_over_bare_with_json"] = ratio("lane_json", "bare_json")
    out["commits_share"] = 1.0 - ratio("lane_commits", "lane_json")
    out["regret_share"] = 1.0 - ratio("lane_commits_regret", "lane_commits")
    out["regret_share_second_half"] = 1.0 - ratio("lane_commits_regret_later", "lane_commits_later")
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000, help="events a run (default 1000000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learners", nargs="+", default=["PairOGD", "PairFTRL", "LogisticRegression"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    phishing = [Event(x, y) for x, y in datasets.Phishing()]
    events = (phishing * (arguments.events // len(phishing) + 1))[: arguments.events]
    results = {
        name: measure(make, events, arguments.rounds) for name, make in learners(arguments.learners).items()
    }
    if arguments.json:
        print(json.dumps({"events": len(events), "rounds": arguments.rounds, "results": results}))
        return
    print(f"{len(events)} events of Phishing (9 features), medians of {arguments.rounds} rounds")
    columns = {
        "lane/bare": "lane_over_bare",
        "with JSON": "lane_over_bare_with_json",
        "commits": "commits_share",
        "regret": "regret_share",
        "2nd half": "regret_share_second_half",
    }
    print(f"{'':20} {'bare ev/s':>11}" + "".join(f"{title:>11}" for title in columns))
    for name, r in results.items():
        cells = (f"{r[key]:11.2f}" if "over" in key else f"{r[key]:11.1%}" for key in columns.values())
        print(f"{name:20} {r['bare_events_per_second']:11,.0f}" + "".join(cells))


if __name__ == "__main__":
    main()
