"""The lane without Kafka against the bare learner, as ratios in one run.

    python benchmarks/lane.py            # a table
    python benchmarks/lane.py --json     # for machines

All variants take the same events (River's Phishing, repeated) side by side, batch by batch, so that a machine
whose speed drifts slows them alike; what is compared is the processor time of each. Bare means `score_one`
and `learn_one` on dicts in a loop; with JSON, both decode the events first. `commits` is the share of the
lane's time that snapshots and gauges take, `regret` the share of the estimate of the regret: its sample, a
solution whenever `gauges()` finds one due, its part of the snapshots. The sample fills in the beginning, so
the share falls as the stream grows; `2nd half` is that of the second half of the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
from river import datasets, linear_model

from streampair import auc
from streampair.engine import Event, Lane, Record, RegretConfig

BATCH = 500
#: Batches between two snapshots and gauges: about one second of a busy worker.
COMMIT = 500
#: Batches that are not counted: kernels compile, caches fill.
WARM = 40

Step = Callable[[list[Event], list[Record]], None]


class Wire(msgspec.Struct):
    """The JSON of one event."""

    x: dict[str, float]
    y: bool


LEARNERS: dict[str, Callable[[], Any]] = {
    "PairOGD": lambda: auc.PairOGD(seed=1),
    "PairFTRL": lambda: auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=10_000_000, seed=1),
    "LogisticRegression": linear_model.LogisticRegression,
}


def bare(model: Any, *, decoding: bool) -> Step:
    """What a user's own loop does."""
    score = getattr(model, "score_one", None) or model.predict_proba_one
    learn, decode = model.learn_one, msgspec.json.Decoder(Wire).decode

    def plain(events: list[Event], records: list[Record]) -> None:
        for event in events:
            score(event.x)
            learn(event.x, event.y)

    def from_json(events: list[Event], records: list[Record]) -> None:
        for record in records:
            event = decode(record.value or b"")
            score(event.x)
            learn(event.x, event.y)

    return from_json if decoding else plain


def through_lane(model: Any, *, decoding: bool, commits: bool = False, regret: bool = False) -> Step:
    """The lane, with a snapshot and gauges now and then as in a worker."""
    wire = msgspec.json.Decoder(Wire).decode
    upcoming: dict[int, Event] = {}

    def decode(record: Record) -> Event:
        parsed = wire(record.value or b"")
        return Event(parsed.x, parsed.y)

    def look_up(record: Record) -> Event:
        return upcoming[record.offset]

    lane = Lane(
        model,
        decode if decoding else look_up,
        app="bench",
        topic="events",
        partition=0,
        regret=RegretConfig() if regret else None,
        allow_pickle=True,
        signing_key=b"benchmark only 16",
    )
    batches = 0

    def step(events: list[Event], records: list[Record]) -> None:
        nonlocal batches
        if not decoding:
            upcoming.clear()
            upcoming.update(zip((record.offset for record in records), events, strict=True))
        lane.process(records)
        batches += 1
        if commits and batches % COMMIT == 0:
            lane.snapshot()
            lane.gauges()

    return step


def measure(make: Callable[[], Any], batches: int) -> dict[str, float]:
    """Seconds of each variant, side by side, and their ratios."""
    steps: dict[str, Step] = {
        "bare": bare(make(), decoding=False),
        "lane": through_lane(make(), decoding=False),
        "bare_json": bare(make(), decoding=True),
        "lane_json": through_lane(make(), decoding=True),
        "commits": through_lane(make(), decoding=True, commits=True),
        "regret": through_lane(make(), decoding=True, commits=True, regret=True),
    }
    phishing = [Event(x, y) for x, y in datasets.Phishing()]
    encoded = [msgspec.json.encode(Wire(event.x, bool(event.y))) for event in phishing]
    names = list(steps)
    first, second = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    offset = 0
    order = random.Random(1)
    gc.collect()
    gc.disable()  # a collection would be charged to whoever comes next
    for number in range(-WARM, batches):
        at = [i % len(phishing) for i in range(offset, offset + BATCH)]
        events = [phishing[i] for i in at]
        records = [Record(offset + j, encoded[i]) for j, i in enumerate(at)]
        offset += BATCH
        half = second if 2 * number >= batches else first
        order.shuffle(names)
        for name in names:
            start = time.process_time_ns()
            steps[name](events, records)
            if number >= 0:
                half[name] += (time.process_time_ns() - start) / 1e9
        if number % 100 == 0:
            gc.collect()
    gc.enable()
    both = {name: first[name] + second[name] for name in names}
    return {
        "bare_events_per_second": batches * BATCH / both["bare"],
        "lane_over_bare": both["bare"] / both["lane"],
        "lane_over_bare_with_json": both["bare_json"] / both["lane_json"],
        "commits_share": 1.0 - both["lane_json"] / both["commits"],
        "regret_share": 1.0 - both["commits"] / both["regret"],
        "regret_share_second_half": 1.0 - second["commits"] / second["regret"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000, help="events (default 1000000)")
    parser.add_argument("--learners", nargs="+", default=list(LEARNERS), choices=list(LEARNERS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    batches = max(arguments.events // BATCH, 2)
    results = {name: measure(LEARNERS[name], batches) for name in arguments.learners}
    if arguments.json:
        print(json.dumps({"events": batches * BATCH, "results": results}))
        return
    print(f"{batches * BATCH} events of Phishing (9 features); goal: regret below 5 % of the lane's time")
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
