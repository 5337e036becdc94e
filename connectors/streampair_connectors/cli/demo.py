"""`streampair demo`: three applications on one topic of an embedded broker.

Each application is a :class:`~streampair_connectors.worker.worker.Worker`, the code path of `run`. The
numbers of the final table come from the scores read back from the output topics, joined by
offset with the labels of the events read back from the input topic.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from river.datasets import Phishing
from scipy.stats import rankdata

from streampair.errors import SourceError
from streampair_connectors.codecs.records import score_from_bytes
from streampair_connectors.config import Address, Config, Duration, KafkaConfig, MetricsConfig, parse_config
from streampair_connectors.config.secrets import draw_key
from streampair_connectors.kafka import (
    Message,
    Partition,
    PartitionReader,
    Producer,
    ReadPositions,
    ended,
)
from streampair_connectors.kafka.embedded import EmbeddedBroker
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.worker import Worker

__all__ = [
    "DELTA",
    "EPSILON",
    "Demo",
    "ReadBack",
    "run_demo",
]


TOPIC, LABEL = "phishing", "is_phishing"
EPSILON, DELTA = 1.0, 1e-4
# Generous: the demo takes about four seconds at the default rate. A slow machine may take longer.
_PATIENCE_SECONDS = 120.0


@dataclass
class ReadBack:
    """Scores read back for one application."""

    config: Config
    worker: Worker
    scores: dict[int, float] = field(default_factory=dict)
    seen: int = 0
    first: float = 0.0
    last: float = 0.0


def run_demo(*, rate: float, seed: int, serve: bool, port: int, console: Console) -> dict[str, Any]:
    """Run the demo and print its table.

    Parameters
    ----------
    rate
        Events a second.
    seed
        Seed of the order of the events.
    serve, port
        Whether to serve dashboard and metrics until Ctrl-C, and their port.
    console
        Console of the progress bar and the table.

    Returns
    -------
    dict
        The numbers of the table, by application.
    """
    with tempfile.TemporaryDirectory(prefix="streampair-demo-") as directory, EmbeddedBroker() as broker:
        demo = Demo(broker, Path(directory), rate=rate, seed=seed, serve=serve, port=port, console=console)
        return asyncio.run(demo.run())


class Demo:
    """Sends events, runs three workers, and reads their scores back."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        directory: Path,
        *,
        rate: float,
        seed: int,
        serve: bool,
        port: int,
        console: Console,
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._rate = rate
        self._serve = serve
        self._port = port
        self._console = console
        self._events = list(Phishing())
        random.Random(seed).shuffle(self._events)  # noqa: S311  # an order, not a secret
        self._telemetry = Telemetry()
        self._kafka = KafkaConfig(
            bootstrap_servers=broker.bootstrap_servers, session_timeout=Duration.of("30s")
        )
        self._labels: dict[int, bool] = {}
        self._stopping = asyncio.Event()

    def _configs(self) -> Iterator[Config]:
        names = sorted(self._events[0][0])
        key = self._directory / "store.key"
        draw_key(key)
        options = {"epsilon": EPSILON, "delta": DELTA, "horizon": len(self._events)}
        learners = {
            "demo-pairogd": {"class": "streampair.auc.PairOGD"},
            "demo-pairftrl": {"class": "streampair.auc.PairFTRL", "options": options},
            "demo-logistic": {"class": "river.linear_model.LogisticRegression", "allow_pickle": True},
        }
        for app, learner in learners.items():
            yield parse_config(
                {
                    "app": app,
                    "kafka": {
                        "bootstrap_servers": self._broker.bootstrap_servers,
                        "session_timeout": "30s",
                    },
                    # The features lie in [0, 1] by construction: the bounds are public.
                    "input": {
                        "label": LABEL,
                        "topic": TOPIC,
                        "features": {n: [0.0, 1.0] for n in names},
                    },
                    "learner": learner,
                    "store": {"directory": str(self._directory / app), "key_file": str(key)},
                    "worker": {"commit_every": "500ms"},
                }
            )

    async def run(self) -> dict[str, Any]:
        configs = list(self._configs())
        self._broker.create_topic(TOPIC)
        for config in configs:
            self._broker.create_topic(config.output_topic)
            self._broker.create_topic(config.dead_letter_topic)
        apps = [ReadBack(c, Worker(c, telemetry=self._telemetry)) for c in configs]
        server = MetricsServer(self._telemetry, MetricsConfig(address=Address("127.0.0.1", self._port)))
        await server.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._stopping.set)
        workers = [asyncio.create_task(a.worker.run()) for a in apps]
        try:
            self._console.print(
                f"Phishing: {len(self._events)} events at {self._rate:g}/s into topic {TOPIC!r} of an "
                f"embedded broker; metrics: {server.url}/metrics",
                highlight=False,
                soft_wrap=True,
            )
            if self._serve:
                self._console.print(f"dashboard: {server.url}/", highlight=False, soft_wrap=True)
            await self._stream(apps, workers)
            for scored in apps:
                scored.worker.stop()
            await asyncio.gather(*workers)
            result = self._result(apps)
            self._print(result)
            if self._serve:
                self._console.print(
                    f"metrics stay up at {server.url}/metrics until Ctrl-C, the dashboard at {server.url}/",
                    highlight=False,
                    soft_wrap=True,
                )
                await self._stopping.wait()
            return result
        finally:
            await ended(*workers)
            await server.stop()

    async def _stream(self, apps: list[ReadBack], workers: list[asyncio.Task[None]]) -> None:
        """Produce all events, and read labels and scores back until all have arrived."""
        produce = asyncio.create_task(self._produce(apps))
        collect = asyncio.create_task(self._collect(apps))
        stopped = asyncio.create_task(self._stopping.wait())
        tasks: list[asyncio.Task[Any]] = [produce, collect, stopped]
        try:
            pending: set[asyncio.Task[Any]] = {produce, collect, stopped, *workers}
            limit = time.monotonic() + len(self._events) / self._rate + _PATIENCE_SECONDS
            while not collect.done():
                done, pending = await asyncio.wait(
                    pending, timeout=limit - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if stopped in done:
                    raise KeyboardInterrupt
                if not done:
                    raise SourceError(
                        "the demo did not finish in time",
                        fix="try again with a lower --rate, or on a machine that is less busy",
                    )
        finally:
            await ended(*tasks)

    async def _produce(self, apps: list[ReadBack]) -> None:
        """Send the events at a steady rate, once all three applications have opened their lane."""
        while not all(a.worker.lane for a in apps):  # noqa: ASYNC110  # an event could not be unset
            await asyncio.sleep(0.02)
        producer = Producer(self._kafka, max_message_bytes=1_000_000)
        await producer.start()
        start = time.monotonic()
        never = asyncio.Event()
        try:
            sent = 0
            while sent < len(self._events):
                due = min(int((time.monotonic() - start) * self._rate) + 1, len(self._events))
                values = [msgspec.json.encode({**x, LABEL: bool(y)}) for x, y in self._events[sent:due]]
                await producer.send(Partition(TOPIC, 0), [Message(None, value) for value in values])
                sent = due
                await producer.flush(never, lambda _: None)
                await asyncio.sleep(0.02)
        finally:
            await producer.stop()

    async def _collect(self, apps: list[ReadBack]) -> None:
        """Read labels and scores back from the topics, and show progress."""
        source = Partition(TOPIC, 0)
        outputs = {Partition(a.config.output_topic, 0): a for a in apps}
        reader = PartitionReader(
            self._kafka, [source, *outputs], on_lost=lambda *place: positions.lost(*place)
        )
        positions = ReadPositions(reader.seek)
        positions.begin(await reader.start())
        count = len(self._events)
        progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:>4.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[rate]:>6.0f}/s"),
            TextColumn("AUC {task.fields[auc]}"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        tasks = {
            a.config.app: progress.add_task(
                a.config.learner.label(), total=count, rate=0.0, auc="-", epsilon="-"
            )
            for a in apps
        }
        try:
            with progress:
                while any(a.seen < count for a in apps) or len(self._labels) < count:
                    for partition, span in positions.take(await reader.poll(0.1)).items():
                        if partition == source:
                            for record in span.records:
                                event = msgspec.json.decode(record.value or b"null")
                                self._labels[record.offset] = event[LABEL]
                            continue
                        app = outputs[partition]
                        for record in span.records:
                            row = score_from_bytes(record.value or b"null")
                            app.seen += 1
                            if row["score"] is not None:
                                app.scores[row["offset"]] = row["score"]
                        app.last = time.monotonic()
                        app.first = app.first or app.last
                    for app in apps:
                        progress.update(
                            tasks[app.config.app],
                            completed=app.seen,
                            rate=_rate(app),
                            auc=_number(self._auc(app)),
                            epsilon=_number(self._epsilon(app)),
                        )
        finally:
            await reader.stop()

    def _auc(self, app: ReadBack, first: int = 0) -> float | None:
        offsets = [o for o in sorted(app.scores) if o >= first and o in self._labels]
        return auc([app.scores[o] for o in offsets], [self._labels[o] for o in offsets])

    def _gauges(self, app: ReadBack) -> Any:
        return next(iter(self._telemetry.gauges(app.config.app).values()), None)

    def _epsilon(self, app: ReadBack) -> float | None:
        gauges = self._gauges(app)
        return None if gauges is None or gauges.privacy is None else gauges.privacy.epsilon_spent

    def _result(self, apps: list[ReadBack]) -> dict[str, Any]:
        count = len(self._events)
        rows = []
        for app in apps:
            gauges = self._gauges(app)
            regret = None if gauges is None else gauges.regret
            privacy = None if gauges is None else gauges.privacy
            rows.append(
                {
                    "app": app.config.app,
                    "learner": app.config.learner.label(),
                    "scores": len(app.scores),
                    "auc": self._auc(app),
                    "auc_last_fifth": self._auc(app, first=count - count // 5),
                    "events_per_second": _rate(app),
                    "epsilon_spent": None if privacy is None else privacy.epsilon_spent,
                    "epsilon_budget": None if privacy is None else privacy.epsilon_budget,
                    "delta": None if privacy is None else privacy.delta,
                    "guarantee": None if privacy is None else privacy.guarantee,
                    "regret_total": None if regret is None else regret.total,
                    "regret_average": None if regret is None else regret.average,
                    "regret_stderr": None if regret is None else regret.stderr,
                }
            )
        return {"dataset": "Phishing", "events": count, "rate": self._rate, "learners": rows}

    def _print(self, result: dict[str, Any]) -> None:
        table = Table(
            title="From the scores read back from the output topics",
            caption=f"epsilon at delta {DELTA:g}; none: no privacy. Regret: against the best fixed weights, "
            "of norm 1 at most (PairFTRL: 3).",
        )
        table.add_column("learner", no_wrap=True)
        for name in ("AUC", "last fifth", "events/s", "epsilon", "regret"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in result["learners"]:
            epsilon, regret = row["epsilon_spent"], row["regret_total"]
            table.add_row(
                row["learner"],
                _number(row["auc"]),
                _number(row["auc_last_fifth"]),
                f"{row['events_per_second']:.0f}",
                "none" if epsilon is None else _number(epsilon),
                "-" if regret is None else f"{regret:.1f} ± {row['regret_stderr']:.1f}",
            )
        self._console.print(table)


def auc(scores: list[float], labels: list[bool]) -> float | None:
    """Return the area under the ROC curve, ties counted half; None with one label only.

    Examples
    --------
    >>> auc([0.1, 0.4, 0.4, 0.8], [False, False, True, True])
    0.875
    """
    positive = np.asarray(labels, dtype=bool)
    count = int(positive.sum())
    if count in (0, len(positive)):
        return None
    ranks = rankdata(scores)
    won = float(ranks[positive].sum()) - count * (count + 1) / 2
    return won / (count * (len(positive) - count))


def _rate(app: ReadBack) -> float:
    return app.seen / (app.last - app.first) if app.last > app.first else 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
