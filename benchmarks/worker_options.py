"""What Avro, TLS and reasons cost the worker on a real broker: events per second, as ratios in one run.

    python benchmarks/worker_options.py
    python benchmarks/worker_options.py --events 40000 --rounds 5

A broker is started as the tests do, with a TLS listener and an open one. All runs read the same events,
of River's Phishing, as JSON or as Avro with a schema file; the worker and the settings of Python's garbage
collector are those of `streampair run`. Runs alternate; ratios are medians of the ratios of a round.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import fastavro
from aiokafka import AIOKafkaProducer
from river import datasets
from streampair_connectors.cli.options import settle
from worker import create, worker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness.apache_kafka import KafkaBroker
from harness.certificates import Authority

FOREST = {"class": "streampair.auc.Forest"}
# What is compared with what, and the least ratio.
GOALS = [("avro", "json", 0.7), ("tls", "json", 0.6), ("forest, explain = 3", "forest", 0.7)]


def events(names: list[str], count: int) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
    """The Avro schema, and the same events in both formats."""
    fields = [*({"name": name, "type": "double"} for name in names), {"name": "y", "type": "boolean"}]
    schema = {"type": "record", "name": "Event", "fields": fields}
    parsed, values = fastavro.parse_schema(schema), {"json": [], "avro": []}
    for x, y in itertools.islice(itertools.cycle(datasets.Phishing()), count):
        row, body = {**x, "y": bool(y)}, io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        values["avro"].append(body.getvalue())
        values["json"].append(json.dumps(row).encode())
    return schema, values


async def fill(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Write events to a new topic of one partition, and make the topics of outputs."""
    await create(bootstrap, topic, f"{topic}-out", f"{topic}-out-dead")
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=100_000
    ) as producer:
        for value in values:
            await producer.send(topic, value, partition=0)


async def measured(broker: KafkaBroker, directory: Path, count: int, rounds: int) -> dict[str, list[float]]:
    """Events per second of each round."""
    names = sorted(next(iter(datasets.Phishing()))[0])
    schema, values = events(names, count)
    (directory / "event.avsc").write_text(json.dumps(schema))
    for name, of_format in values.items():
        await fill(broker.bootstrap, name, of_format)
    tls = {"security_protocol": "SSL", "ssl_cafile": str(directory / "ca.pem")}
    runs: dict[str, dict[str, Any]] = {
        "json": {},
        "avro": {"more": {"input": {"format": "avro", "schema_file": "event.avsc"}}},
        "tls": {"more": {"kafka": {"bootstrap_servers": broker.addresses["TLS"], **tls}}},
        "forest": {"learner": FOREST},
        "forest, explain = 3": {"learner": FOREST, "more": {"output": {"explain": 3}}},
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-1, rounds):
        for name, options in runs.items():
            topic = "avro" if name == "avro" else "json"
            rate = await worker(
                broker.bootstrap, topic, f"{topic}-out", count, names, base=directory, **options
            )
            if number >= 0:
                rates[name].append(rate)
    return rates


def main() -> None:
    """Print the rates, and their ratios with the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    settle()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = Authority(directory, "ca").key_store("broker")
        settings = {
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(store),
        }
        broker = KafkaBroker("4.x", settings=settings, listeners={"TLS": "SSL"})
        try:
            rates = asyncio.run(measured(broker, directory, options.events, options.rounds))
        finally:
            broker.close()
    print(f"events per second, median of {options.rounds} rounds of {options.events:,} events\n")
    for name, found in rates.items():
        print(f"{name:20} {statistics.median(found):9,.0f}")
    print()
    for name, other, goal in GOALS:
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True))
        print(f"{name + ' / ' + other:30} {ratio:5.2f}  (goal: {goal})")


if __name__ == "__main__":
    main()
