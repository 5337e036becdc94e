"""What the end-to-end tests share: events, configurations, topics written and read, and reference lanes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import signal
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import RecordReader
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import TopicStore
from streampair_connectors.worker.factory import build_lane, taken_cells
from streampair_connectors.worker.model_topic import PublishedModel, read_model
from streampair_connectors.worker.session import Session
from streampair_connectors.worker.worker import Worker

from harness.kafka import Cluster
from harness.programs import Command
from harness.worker_process import WorkerProcess
from streampair.engine.lane import Record
from streampair.engine.recovery import RecoveredState
from streampair.engine.snapshot import unpack
from streampair.engine.wal import Chain

T = TypeVar("T")

FEATURES = ["f0", "f1", "f2", "f3"]

# The seed is part of the saved state, so that two runs can be compared to the last bit.
PAIR_OGD = 'class = "streampair.auc.PairOGD"\noptions = { seed = 1 }'
PAIR_FTRL = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 1.0, delta = 1e-4, horizon = 10000, warmup = 0 }"
)
LOGISTIC = 'class = "river.linear_model.LogisticRegression"\nallow_pickle = true'


def events(count: int, seed: int = 1) -> list[bytes]:
    """Labelled events that a linear scorer can rank well."""
    coin = random.Random(seed)
    made = []
    for _ in range(count):
        y = coin.random() < 0.3
        x = {name: round(coin.gauss(0.4 if y else -0.2, 0.5), 6) for name in FEATURES}
        made.append(json.dumps({**x, "y": y}).encode())
    return made


def write_key(file: Path, key: str) -> None:
    """Write a key where only its owner may read it."""
    file.touch(mode=0o600)
    file.write_text(key)


class App:
    """One application under test: its topics, its configuration file, its state."""

    def __init__(
        self,
        kafka: Cluster,
        directory: Path,
        name: str,
        *,
        partitions: int = 1,
        learner: str = PAIR_OGD,
        settings: str = "",
        store: str = "directory",
        bootstrap: str | None = None,
        connect_timeout: float = 15,
    ) -> None:
        self.kafka = kafka
        self.name = name
        self.input = f"{name}-in"
        self.output = f"{name}-scores"
        self.dead = f"{name}-dead-letters"
        self.state = directory / "state"
        self.partitions = partitions
        # The in-process broker holds a new member back for almost a whole session after another one has
        # left, and every broker after one was killed, so sessions are short. A cluster of the caller's is
        # likely to refuse less than six seconds.
        session = {"embedded": 2, "kafka": 3}.get(kafka.kind, 6)
        for key, value in (("store.key", "5e" * 32), ("noise.key", "4f" * 32)):
            write_key(directory / key, value)
        keys = 'key_file = "store.key"' if store == "kafka" or "allow_pickle" in learner else ""
        if store == "kafka" and "PairFTRL" in learner and "noise_key_file" not in learner:
            # On every host the same; a directory keeps one of its own.
            learner += '\nnoise_key_file = "noise.key"'
        self.store = store
        self.path = directory / "app.toml"
        self.path.write_text(
            f"""app = "{name}"
metrics.address = "127.0.0.1:0"
[kafka]
bootstrap_servers = "{bootstrap or kafka.bootstrap}"
session_timeout = "{session}s"
connect_timeout = "{round(1000 * connect_timeout)}ms"
[input]
topic = "{self.input}"
label = "y"
features = {json.dumps(FEATURES)}
[learner]
{learner}
[store]
{'directory = "state"' if store == "directory" else ""}
{keys}
[worker]
commit_every_events = 50
batch_size = 20
{settings}
"""
        )

    def role(self, name: str) -> App:
        """The same application, of a worker with this role alone."""
        other = copy.copy(self)
        other.path = self.path.with_name(f"{name}.toml")
        other.path.write_text(self.path.read_text().replace("[worker]", f'[worker]\nroles = ["{name}"]'))
        return other

    def create_topics(self, **options: str) -> App:
        """Make the three topics; ``options`` are settings of the input, underscores for dots."""
        self.kafka.create_topic(self.input, partitions=self.partitions, **options)
        # Scores have the times of their events, some of which are years old: retention would remove them.
        self.kafka.create_topic(self.output, retention_ms="-1")
        self.kafka.create_topic(self.dead)
        return self

    def produce(self, values: Sequence[bytes | None], partition: int = 0, **message: Any) -> None:
        """Append to the input topic."""
        asyncio.run(produce(self.kafka.bootstrap, self.input, values, partition, **message))

    def await_scores(
        self, offsets: dict[int, int], worker: Running | Inside | None = None, *, committed: bool = False
    ) -> list[dict[str, Any]]:
        """All score records, or those committed, once every offset below ``offsets[partition]`` has one."""

        def complete(rows: list[Any]) -> bool:
            seen = {(row["partition"], row["offset"]) for row in map(_row, rows)}
            return all((p, o) in seen for p, end in offsets.items() for o in range(end))

        work = read_until(self.kafka.bootstrap, self.output, complete, committed=committed)
        records = asyncio.run(worker.unless_it_ends(work) if worker is not None else work)
        return [_row(record) for record in records]

    def await_dead_letters(self, count: int) -> list[Any]:
        """The records of the dead-letter topic, once there are ``count``."""
        return asyncio.run(read_until(self.kafka.bootstrap, self.dead, lambda rows: len(rows) >= count))

    @property
    def log_file(self) -> Path:
        """The log of its lane, where the store is a directory."""
        return self.state / f"{self.name}@{self.input}-all.log"

    def published(self) -> PublishedModel | None:
        """The newest model in the model topic; None: there is none yet."""

        async def body() -> PublishedModel | None:
            config = load_config(self.path)
            lookup = RecordReader(config.require_kafka())
            try:
                return await read_model(config, lookup)
            finally:
                await lookup.stop()

        return asyncio.run(body())

    def snapshot(self) -> dict[str, Any]:
        """What the lane's saved state says of its learning."""
        if self.store == "kafka":
            return _learning(asyncio.run(self._stored())[1])
        return _learning(next(self.state.glob(f"{self.log_file.stem}-*.state")).read_bytes())

    def position(self, partition: int = 0) -> int:
        """Where the last commit of the lane has left a partition; 0 before the first."""
        if self.store == "kafka":
            frames = asyncio.run(self._stored())[0]
        else:
            frames = self.log_file.read_bytes() if self.log_file.exists() else b""
        known = RecoveredState.of(Chain.peek(frames))
        positions = [] if known is None or known.source is None else known.source.positions
        return next((each.next_offset for each in positions if each.partition == partition), 0)

    async def _stored(self) -> tuple[bytes, bytes]:
        """Log and snapshot of the lane in Kafka. Fences its owner: only where none is running."""
        store = TopicStore(load_config(self.path))
        lane = await store.open(dict.fromkeys(range(self.partitions), 0))
        try:
            frames = await lane.read()
            known = RecoveredState.of(Chain.peek(frames))
            saved = None if known is None else known.saved
            return frames, b"" if saved is None else await lane.snapshot(saved.content.hex())
        finally:
            await lane.close()

    def reference(self, values: Sequence[bytes | None]) -> tuple[list[Any], dict[str, Any]]:
        """Scores and state of one uninterrupted lane over the same events."""
        config = load_config(self.path)
        lane = build_lane(config, json_decoder(config.input, **taken_cells(config)))
        output = lane.process([Record(offset, value) for offset, value in enumerate(values)])
        return [scored.score for scored in output.scores], _learning(lane.snapshot(clean=True))


def spread(app: App, values: Sequence[bytes | None], partitions: int) -> None:
    """Produce them in turn over partitions, some at a time so that buckets have neighbours."""
    for number in range(partitions):
        app.produce(values[number::partitions], partition=number)


def ends(count: int, partitions: int) -> dict[int, int]:
    """How many of so many events each partition has after `spread`."""
    return {p: len(range(p, count, partitions)) for p in range(partitions)}


def _learning(snapshot: bytes) -> dict[str, Any]:
    # All but the sample behind the regret: its solver starts from the last solution, so it depends on when
    # somebody last asked for an estimate.
    body = unpack(snapshot)
    return {key: body[key] for key in ("steps", "auc", "events", "stages", "next_offset", "clean")}


def _row(record: Any) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(record.value)
    return row


def scores_by_offset(rows: Sequence[dict[str, Any]], partition: int = 0) -> dict[int, set[float | None]]:
    """Every score that was given to each offset: more than one value is a contradiction."""
    found: dict[int, set[float | None]] = {}
    for row in rows:
        if row["partition"] == partition:
            found.setdefault(row["offset"], set()).add(row["score"])
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two trees of plain values and arrays are equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        # Bytes: a null record is NaN, which is not equal to itself.
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Paths in two trees of plain values and arrays at which they are not equal to the last bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{where}[{index}]")
    elif not same(one, other):
        yield f"{where}: {one!r:.60} is not {other!r:.60}"


async def produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes | None],
    partition: int = 0,
    *,
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
    timestamp_ms: int | None = None,
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=4_000_000) as producer:
        futures = [
            # aiokafka refuses a record without key and value; a tombstone has a key
            await producer.send(
                topic,
                value,
                key=key or (b"gone" if value is None else None),
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
            )
            for value in values
        ]
        await asyncio.gather(*futures)


async def read_until(
    bootstrap: str, topic: str, enough: Any, seconds: float = 90.0, *, committed: bool = False
) -> list[Any]:
    """All records of a topic's first partition, as soon as ``enough`` says so of them."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        group_id=None,
        isolation_level="read_committed" if committed else "read_uncommitted",
    )
    async with consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[Any] = []
        try:
            async with asyncio.timeout(seconds):
                while not enough(found):
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found.extend(records)
        except TimeoutError:
            raise AssertionError(
                f"{topic} has {len(found)} records after {seconds:g} s, which is not enough"
            ) from None
        return found


class Running(WorkerProcess):
    """``streampair run`` of an application, in a process of its own that can be killed and signalled.

    It is forked from one that has imported all that a worker needs.
    """

    before: ClassVar[str] = ""
    """What its process does first, in Python."""

    def __init__(self, app: App, *arguments: str) -> None:
        super().__init__(app.path, "--log-level", "info", *arguments)
        self.app = app

    def _start(self, words: list[str], folder: Path) -> tuple[Command, TextIO]:
        command = Command(words, folder, self.before)
        return command, command.stderr

    def kill(self) -> None:
        """``kill -9``."""
        self._killed = True
        self._process.kill()
        self._process.wait()
        self._reader.join(10)

    def end(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        return self.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop and return its exit code."""
        self.send(number)
        return self.wait()


class Inside:
    """The same worker in a thread of this process: it starts ten times faster."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.worker: Worker | None = None
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._made.wait(60)

    def _run(self) -> None:
        async def body() -> None:
            self._loop = asyncio.get_running_loop()
            self.worker = Worker(load_config(self.app.path))
            self._made.set()
            await self.worker.run()

        try:
            asyncio.run(body())
        except BaseException as error:
            self.error = error
        self._made.set()

    @property
    def telemetry(self) -> Telemetry:
        assert self.worker is not None, self.error
        return self.worker.telemetry

    @property
    def session(self) -> Session:
        assert self.worker is not None
        assert self.worker.session is not None
        return self.worker.session

    def metrics(self) -> str:
        """What ``/metrics`` would say."""
        return self.telemetry.render().decode()

    def health(self) -> str:
        """The state of health."""
        return str(self.telemetry.health_report()[1].get(self.app.name, {}).get("state"))

    def lag(self) -> float:
        """The lag of all its lanes."""
        lines = [line for line in self.metrics().splitlines() if line.startswith("streampair_lag{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def learned(self) -> int:
        """Events learned, as committed."""
        return sum(gauges.events["learned"] for gauges in self.telemetry.gauges(self.app.name).values())

    def has_lane(self) -> bool:
        """Whether it holds the lane."""
        return bool(self.telemetry.gauges(self.app.name))

    async def unless_it_ends(self, work: Coroutine[Any, Any, T]) -> T:
        """Result of ``work``, which waits for what the worker does; fails if it ends before."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=0.1)
            if not task.done() and not self._thread.is_alive():
                task.cancel()
                raise AssertionError("the worker ended") from self.error
        return task.result()

    def end(self) -> BaseException | None:
        """Wait until it has ended by itself; what it raised."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        return self.error

    def stop(self) -> BaseException | None:
        """Ask it to stop; what it raised."""
        if self._loop is not None and self.worker is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self.worker.stop)
        return self.end()

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
