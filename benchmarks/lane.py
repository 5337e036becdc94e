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

import gc
import itertools
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import _timing
import msgspec
import numpy as np
from river import datasets, linear_model
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig

from streampair import auc
from streampair.engine import Event, EventRows, Lane, LaneId, Monitoring, Record, RegretConfig, Saving

BATCH = 500
#: Batches between two snapshots and gauges: about one second of a busy worker.
COMMIT = 500
#: Batches that are not counted: kernels compile or are loaded, those of a commit too; caches fill.
WARM = 40
#: Share of the lane's time that the estimate of the regret may take.
GOAL = 0.05
#: Shares of bad events.
BAD = (0.001, 0.01)

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
        LaneId("bench", "events", 0),
        monitoring=Monitoring(regret=RegretConfig() if regret else None),
        saving=Saving(allow_pickle=True, signing_keys=[b"benchmark only 16"]),
    )
    batches = 0

    def step(events: list[Event], records: list[Record]) -> None:
        nonlocal batches
        if not decoding:
            upcoming.clear()
            upcoming.update(zip((record.offset for record in records), events, strict=True))
        lane.process(records)
        batches += 1
        if commits and (batches % COMMIT == 0 or batches == WARM // 2):
            lane.snapshot()
            lane.gauges()

    return step


def shares(make: Callable[[], Any], batches: int) -> _timing.Row:
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
    events: list[Event] = []
    records: list[Record] = []

    def next_batch(number: int) -> None:
        offset = (number + WARM) * BATCH
        indices = [i % len(phishing) for i in range(offset, offset + BATCH)]
        events[:] = [phishing[i] for i in indices]
        records[:] = [Record(offset + j, encoded[i]) for j, i in enumerate(indices)]
        if number % 100 == 1:
            gc.collect()

    measures = {name: _timing.timed(partial(step, events, records)) for name, step in steps.items()}
    gc.collect()
    gc.disable()  # a collection would be charged to whoever comes next
    times = _timing.turns(measures, batches, warm=WARM, before=next_batch, shuffled=True)
    gc.enable()
    both = {name: sum(seconds) for name, seconds in times.items()}
    second = {name: sum(seconds[-(-batches // 2) :]) for name, seconds in times.items()}
    return {
        "bare_events_per_second": batches * BATCH / both["bare"],
        "lane_over_bare": both["bare"] / both["lane"],
        "lane_over_bare_with_json": both["bare_json"] / both["lane_json"],
        "commits_share": 1.0 - both["lane_json"] / both["commits"],
        "regret_share": 1.0 - both["commits"] / both["regret"],
        "regret_share_second_half": 1.0 - second["commits"] / second["regret"],
    }


def whole_batches(batches: int) -> dict[str, float]:
    """Events a second of a lane from decoded rows; of msgspec's time for JSON the lane's, as a ratio; and the
    share of the regret of a lane from decoded rows that gives a snapshot and gauges now and then.
    """
    phishing = [(x, bool(y)) for x, y in datasets.Phishing()]
    names = sorted(phishing[0][0])
    encoded = [msgspec.json.encode({**x, "y": y}) for x, y in phishing]
    shape: Any = msgspec.defstruct("Shape", [*((name, float) for name in names), ("y", bool)], gc=False)
    values = np.array([[x[name] for name in names] for x, _ in phishing])
    labels = [y for _, y in phishing]

    def one(record: Record) -> Event:
        x, y = phishing[record.offset % len(phishing)]
        return Event(x, y)

    def many(records: list[Record]) -> EventRows:
        indices = [record.offset % len(phishing) for record in records]
        return EventRows(names, values[indices], [labels[i] for i in indices])

    one.many = many  # type: ignore[attr-defined]
    json = json_decoder(InputConfig(topic="events", label="y", features=names))
    lanes = {
        name: Lane(auc.PairOGD(seed=1), decode, LaneId("bench", "events", 0))
        for name, decode in (("rows", one), ("json", json))
    }
    for name, regret in (("commits", None), ("regret", RegretConfig())):
        lanes[name] = Lane(
            auc.PairOGD(seed=1), one, LaneId("bench", "events", 0), monitoring=Monitoring(regret=regret)
        )
    decode, records = msgspec.json.Decoder(shape).decode, []
    committed = dict.fromkeys(("commits", "regret"), 0)

    def with_commits(name: str) -> None:
        lanes[name].process(records)
        committed[name] += 1
        if committed[name] % COMMIT == 0 or committed[name] == WARM // 2:
            lanes[name].snapshot()
            lanes[name].gauges()

    def next_batch(number: int) -> None:
        first = (number + WARM) * BATCH
        records[:] = [Record(i, encoded[i % len(encoded)]) for i in range(first, first + BATCH)]

    steps: dict[str, Callable[[], object]]
    steps = {name: partial(lanes[name].process, records) for name in ("rows", "json")}
    steps |= {name: partial(with_commits, name) for name in committed}
    steps["msgspec"] = lambda: list(map(decode, [record.value for record in records]))
    measures = {name: _timing.timed(step) for name, step in steps.items()}
    times = _timing.turns(measures, batches, warm=WARM, before=next_batch, shuffled=True)
    seconds = {name: sum(values) for name, values in times.items()}
    second = {name: sum(values[-(-batches // 2) :]) for name, values in times.items()}
    return {
        "rate": batches * BATCH / seconds["rows"],
        "msgspec": seconds["msgspec"] / seconds["json"],
        "regret": 1.0 - seconds["commits"] / seconds["regret"],
        "second": 1.0 - second["commits"] / second["regret"],
    }


def bad_events(batches: int) -> dict[float, float]:
    """Of a PairFTRL lane from JSON, the rate with a share of bad events over the rate without, by the share.

    Half of them are no JSON, half lack a feature.
    """
    phishing = [(x, bool(y)) for x, y in datasets.Phishing()]
    names = sorted(phishing[0][0])
    encoded = [msgspec.json.encode({**x, "y": y}) for x, y in phishing]
    draw = np.random.default_rng(1)
    json = json_decoder(InputConfig(topic="events", label="y", features=names))
    batch: dict[float, list[Record]] = {share: [] for share in (0.0, *BAD)}

    def next_batch(number: int) -> None:
        first, kind = (number + WARM) * BATCH, draw.random(BATCH)
        for share, records in batch.items():
            values = [encoded[i % len(encoded)] for i in range(first, first + BATCH)]
            for i in np.flatnonzero(kind < share).tolist():
                values[i] = values[i][:-1] if i % 2 else values[i].replace(b"ip", b"pi")
            records[:] = [Record(first + i, value) for i, value in enumerate(values)]

    measures = {}
    for share, records in batch.items():
        model = auc.PairFTRL(1.0, 1e-4, 10_000_000, features=names, noise_key=bytes(32))
        lane = Lane(model, json, LaneId("bench", "events", 0))
        measures[str(share)] = _timing.timed(partial(lane.process, records))
    times = _timing.turns(measures, batches, warm=WARM, before=next_batch, shuffled=True)
    seconds = {share: sum(times[str(share)]) for share in batch}
    return {share: seconds[0.0] / seconds[share] for share in BAD}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    whole = whole_batches(max(options.events // BATCH, 2))
    yield _timing.judged(
        {"whole": "events/s from decoded rows", "value": round(whole["rate"])}, "value", least=700_000
    )
    row = {"whole": "msgspec's time / the lane's, from JSON", "value": round(whole["msgspec"], 2)}
    yield _timing.judged(row, "value", least=0.6)
    for part, words in (("regret", "all events"), ("second", "the 2nd half")):
        row = {"whole": f"regret's share from decoded rows, {words}", "value": round(whole[part], 3)}
        yield _timing.judged(row, "value", most=GOAL)
    for share, slower in bad_events(max(options.events // BATCH, 2)).items():
        row = {"bad": f"{share:.1%} bad events / none", "value": round(slower, 2)}
        yield _timing.judged(row, "value", least=0.7)
    for name in options.learners:
        row = {"name": name, **shares(LEARNERS[name], max(options.events // BATCH, 2))}
        yield _timing.judged(row, "regret_share", most=GOAL)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    events = max(options.events // BATCH, 2) * BATCH
    yield f"{events} events of Phishing (9 features); goal: regret below {GOAL:.0%} of the lane's time"
    columns = [
        *(("", "name", "<20"), ("bare ev/s", "bare_events_per_second", ">12,.0f")),
        *(("lane/bare", "lane_over_bare", ">11.2f"), ("with JSON", "lane_over_bare_with_json", ">11.2f")),
        *(("commits", "commits_share", ">11.1%"), ("regret", "regret_share", ">11.1%")),
        ("2nd half", "regret_share_second_half", ">11.1%"),
    ]
    rows = list(rows)
    yield from _timing.table(columns, (row for row in rows if "name" in row))
    yield "a PairOGD lane that is given whole batches"
    columns = [("", "whole", "<48"), ("", "value", ">10,")]
    yield from itertools.islice(
        _timing.table(columns, (row for row in rows if "whole" in row), goals=True), 1, None
    )
    yield "a private PairFTRL lane from JSON, rates"
    columns = [("", "bad", "<42"), ("", "value", ">10")]
    yield from itertools.islice(
        _timing.table(columns, (row for row in rows if "bad" in row), goals=True), 1, None
    )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--events": {"type": int, "default": 1_000_000, "help": "events (default 1000000)"},
        "--learners": {"nargs": "+", "default": list(LEARNERS), "choices": list(LEARNERS)},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
