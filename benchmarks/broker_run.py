"""A whole run against Apache Kafka, as a transcript: the one that the README shows.

Starts a broker, makes the topics, fills one with Kafka's own console producer, checks and runs the
README's ten-line configuration on it, scrapes the metrics during the run, reads scores with Kafka's own
console consumer and stops the worker. Everything printed is what the commands printed; only the port of
the broker is written as 9092, and the temporary directory as `.`.

    python benchmarks/broker_run.py [--kafka 4.x]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import pages  # noqa: E402
from harness.apache_kafka import KafkaBroker  # noqa: E402
from harness.worker_process import WorkerProcess, fetch, wait_for  # noqa: E402

EVENTS = 20_000
METRICS = (
    "events_total|dead_letters_total|lag|prequential_auc|regret_(total|average|stderr)"
    "|privacy_(epsilon_(spent|budget)|delta|horizon_left|guarantee)"
)


def payments() -> Iterator[str]:
    """Five per cent of frauds, of larger amounts; and one line that is not an event."""
    coin = random.Random(5)
    for number in range(EVENTS):
        fraud = coin.random() < 0.05
        amount = coin.gauss(620, 180) if fraud else coin.gauss(300, 180)
        age = coin.randint(18, 90)
        event = {"amount": round(min(max(amount, 1), 1000), 2), "age": age, "is_fraud": fraud}
        yield "this is not an event" if number == EVENTS // 2 else json.dumps(event)


def settled(metrics: str) -> str | None:
    """The metrics once they cover the whole topic, the estimate of the regret too; else None."""
    values = {
        name: float(value)
        for name, value in re.findall(r"^streampair_(\w+)\{[^}]*\} (\S+)$", metrics, re.M)
        if name in ("lag", "regret_total", "regret_average")
    }
    if values.get("lag") != 0 or not values.get("regret_average"):
        return None
    steps = values["regret_total"] / values["regret_average"]  # of the events but one, which is no event
    return metrics if steps > EVENTS - 3 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kafka", default="4.x", help="3.9 or 4.x")
    broker = KafkaBroker(parser.parse_args().kafka)
    port = broker.bootstrap.rpartition(":")[2]

    def show(command: str, output: str = "") -> None:
        text = f"$ {command}\n{output.rstrip()}".rstrip()
        print(re.sub(rf"(localhost|127\.0\.0\.1):{port}\b", "localhost:9092", text), flush=True)

    broker.start()
    try:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            config = next(b.text for b in pages.blocks("README.md") if b.language == "toml")
            (directory / "fraud.toml").write_text(config.replace("localhost:9092", broker.bootstrap))
            for topic in ("events", "scores", "fraud-dead-letters"):
                broker.create_topic(topic)
            lines = list(payments())
            broker.console_producer("events", lines)
            print(f"# Apache Kafka {broker.version}; three topics of one partition each")
            show("wc -l < events.jsonl && head -2 events.jsonl", "\n".join([str(len(lines)), *lines[:2]]))
            show("kafka-console-producer.sh --bootstrap-server localhost:9092 --topic events < events.jsonl")
            checked = subprocess.run(
                [sys.executable, "-m", "streampair_connectors", "check", "fraud.toml"],
                cwd=directory,
                capture_output=True,
                text=True,
                check=True,
            )
            show("streampair check fraud.toml", checked.stdout.replace(f"{directory}/", ""))
            with WorkerProcess(directory / "fraud.toml") as worker:
                url = worker.metrics_url()
                metrics = wait_for("the last event", lambda: settled(fetch(url)), explain=worker.log)
                scores = broker.console_consumer("scores", EVENTS)
                worker.interrupt()
            show("streampair run fraud.toml 2> worker.log &")
            samples = [x for x in metrics.splitlines() if re.match(rf"streampair_({METRICS})\b", x)]
            show(f"curl -s {url} | grep -E '^streampair_({METRICS})'", "\n".join(samples))
            consumer = "kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic"
            show(f"{consumer} scores --from-beginning | tail -2", "\n".join(scores[-2:]))
            option = "--property" if broker.version.startswith("3.") else "--formatter-property"
            letters = broker.console_consumer("fraud-dead-letters", 1, option, "print.headers=true")
            show(f"{consumer} fraud-dead-letters --from-beginning {option} print.headers=true", letters[0])
            show("kill -INT %1; cat worker.log", "".join(worker.lines))
    finally:
        broker.close()


if __name__ == "__main__":
    main()
