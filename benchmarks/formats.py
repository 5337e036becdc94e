"""The rate of a lane with events in Avro, and of the decoders, as ratios to JSON in one run.

    python benchmarks/formats.py            # a table
    python benchmarks/formats.py --events 200000

Each batch of events (9 features, a label, an id) is taken in both formats in turn, so that a machine
whose speed drifts slows both alike. Processor time is compared. There is no Kafka in it: a worker spends more
on each event, in both formats.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import fastavro
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import parse_config

from streampair import auc
from streampair.engine import Lane, LaneId, Record

BATCH, WARM = 500, 20
GOAL = 0.7
NAMES = [f"feature_{i}" for i in range(9)]
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        *({"name": name, "type": "double"} for name in NAMES),
        {"name": "label", "type": "boolean"},
        {"name": "id", "type": "string"},
    ],
}


def decoder(name: str, directory: Path) -> Any:
    """The decoder of a format."""
    declared: dict[str, Any] = {"features": NAMES, "label": "label", "id": "id", "format": name}
    if name == "avro":
        declared["schema_file"] = "event.avsc"
    table = {"app": "bench", "input": declared, "learner": {"class": "streampair.auc.PairOGD"}}
    return event_decoder(parse_config(table, base=directory))


def batches(count: int) -> list[dict[str, list[Record]]]:
    """The same events in both formats."""
    draw, parsed, made = random.Random(1), fastavro.parse_schema(SCHEMA), []
    for start in range(0, count, BATCH):
        both: dict[str, list[Record]] = {"json": [], "avro": []}
        for offset in range(start, start + BATCH):
            row: dict[str, Any] = {name: round(draw.gauss(0, 1), 6) for name in NAMES}
            row |= {"label": draw.random() < 0.3, "id": f"event-{offset}"}
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, parsed, row)
            both["avro"].append(Record(offset, stream.getvalue()))
            both["json"].append(Record(offset, json.dumps(row).encode()))
        made.append(both)
    return made


def main() -> None:
    """Print microseconds of an event, and the ratio of the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    count = parser.parse_args().events
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "event.avsc").write_text(json.dumps(SCHEMA))
        decoders = {each: decoder(each, Path(name)) for each in ("json", "avro")}
    lanes = {
        each: Lane(auc.PairOGD(seed=1), decode, LaneId("b", "t", 0), positive=True)
        for each, decode in decoders.items()
    }
    seconds = {(what, each): 0.0 for what in ("decode", "lane") for each in decoders}
    made = batches(count)
    for index, both in enumerate(made):
        order = list(both) if index % 2 else list(reversed(both))
        for each in order:
            for what, work in (("decode", decoders[each].many), ("lane", lanes[each].process)):
                start = time.process_time()
                work(both[each])
                if index >= WARM:
                    seconds[what, each] += time.process_time() - start
    assert lanes["json"].seen == lanes["avro"].seen == len(made) * BATCH
    measured = (len(made) - WARM) * BATCH
    for what in ("decode", "lane"):
        json_us, avro_us = (seconds[what, each] / measured * 1e6 for each in ("json", "avro"))
        goal = f" (goal: {GOAL})" if what == "lane" else ""
        print(f"{what:7} json {json_us:6.2f} us  avro {avro_us:6.2f} us  rate {json_us / avro_us:.2f}{goal}")


if __name__ == "__main__":
    main()
