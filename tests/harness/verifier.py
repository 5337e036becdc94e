"""Exactly once, whatever dies: workers that are killed at a step, what the broker then says, the reference.

The evidence comes from the broker alone, read by clients that are no part of the product: committed outputs,
the group's offsets, the entries of the log topic. What the outputs and the state must be comes from a lane
that no fault has met.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, NodeNotReadyError
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import Partition
from streampair_connectors.kafka.offset_metadata import read_register
from streampair_connectors.kafka.ordering import BUCKET_MS
from streampair_connectors.stores import DirectoryStore, TopicStore
from streampair_connectors.worker.factory import build_logged_lane

from harness import support
from harness.admin import add_partitions, delete_records
from harness.applications import PAIR_FTRL, App, differences, events
from harness.applications import _learning as learning
from harness.kafka import Cluster
from harness.worker_process import Watched, wait_for
from streampair.engine import ExternalState, LoggedLane, OrderedRecord
from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain, LogKey, Register
from streampair.errors import RecordError
from streampair.privacy import NoiseKey

__all__ = ["NOISE_KEY", "Evidence", "Nursery", "ParallelTrial", "Trial", "Worker", "Wrong", "stream"]

NOISE_KEY = "4f" * 32


class Wrong(AssertionError):
    """Something was learned, sent or charged twice, or not at all."""


# ---- workers -------------------------------------------------------------------------------------


class Nursery:
    """The process that workers are forked from; see `dying_worker`.

    Parameters
    ----------
    directory
        For named pipes.
    env
        Of the process: the only way to another processor's kernels.
    """

    def __init__(self, directory: Path, env: dict[str, str] | None = None) -> None:
        self._directory = directory
        paths = [str(support.ROOT / "tests"), str(support.ROOT), str(support.ROOT / "connectors")]
        if os.environ.get("PYTHONPATH"):
            paths.append(os.environ["PYTHONPATH"])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.dying_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
        )
        self._lock = threading.Lock()
        self._count = 0
        atexit.register(self.close)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
            return answer

    def start(self, app: App, **order: Any) -> Worker:
        """Start a worker; `order` is that of `dying_worker._work`."""
        self._count += 1
        pipe = self._directory / f"{self._count}.log"
        os.mkfifo(pipe, 0o600)
        env = order.pop("env", {})
        order = {"config": str(app.path), "store": app.store, "log": str(pipe), "env": env, **order}
        return Worker(self, pipe, order)

    def close(self) -> None:
        """End it, and every worker with it."""
        atexit.unregister(self.close)
        self._process.kill()
        self._process.communicate()


class Worker(Watched):
    """A process of ``streampair run``: watched through its log, ended by its id."""

    failure = Wrong

    def __init__(self, nursery: Nursery, pipe: Path, order: dict[str, Any]) -> None:
        super().__init__(pipe.open)
        self._nursery = nursery
        self._code: int | None = None
        self.pid: int = nursery.ask(order)["pid"]

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives; the signal, negative."""
        if self._code is None:
            self._code = self._nursery.ask({"pid": self.pid})["code"]
        return self._code

    def end(self, seconds: float = 90.0) -> int:
        """Wait until it has ended by itself; its exit code."""
        wait_for("the end of the worker", lambda: self.code is not None, seconds=seconds, explain=self.log)
        self._reader.join(10)
        assert self._code is not None
        return self._code

    def wait(self, seconds: float) -> None:
        """Let it work for a while, for a fault at no particular moment."""
        self._reader.join(seconds)

    def signal(self, number: int) -> None:
        """Send a signal, while it lives."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``."""
        self.signal(signal.SIGKILL)
        self.end()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


# ---- streams and references ----------------------------------------------------------------------


# What an event begins with that no reader may take, or of which two readers may differ.
_BEGINNINGS = (
    b"not JSON {",
    b'{"note": "\xff", ',
    b'{"note": "\\ud800", ',
    b'{"note": %s, ' % (b"9" * 5000),
    b'{"note": %s%s, ' % (b"[" * 200, b"]" * 200),
    b"\xef\xbb\xbf{",
    b"{" + b"\0",
)


def stream(count: int, seed: int) -> list[bytes]:
    """Events of which every 17th is bad, or odd: dead letters are outputs, too."""
    values = events(count, seed)
    for place, index in enumerate(range(16, count, 17), seed):
        values[index] = _BEGINNINGS[place % len(_BEGINNINGS)] + values[index][1:]
    return values


@dataclasses.dataclass
class Evidence:
    """What the broker says.

    Attributes
    ----------
    scores
        Of the committed outputs by (partition, offset): each value, as often as it is there.
    order
        Places of the committed outputs, in their order; each once.
    dead
        Of the committed dead letters by (partition, offset): how often.
    seen
        The last offset of each partition of which any output is there, committed or not.
    offsets
        Of the group, with the text beside them.
    entries
        Committed records in each partition of the log topic, by position; empty with a directory.
    """

    scores: dict[tuple[int, int], list[Any]]
    order: list[tuple[int, int]]
    dead: Counter[tuple[int, int]]
    seen: dict[int, int]
    offsets: dict[int, tuple[int, str]]
    entries: dict[int, int]

    @property
    def duplicates(self) -> int:
        """Outputs that are committed more than once."""
        twice = sum(len(found) - 1 for found in self.scores.values())
        return twice + sum(count - 1 for count in self.dead.values())


async def _records(bootstrap: str, partitions: dict[str, int], isolation: str) -> dict[str, list[Any]]:
    """All records of topics, by topic; those that are not there have none."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    try:
        there = await consumer.topics()
        assigned = [
            TopicPartition(t, p) for t, count in partitions.items() if t in there for p in range(count)
        ]
        consumer.assign(assigned)
        ends = await consumer.end_offsets(assigned)
        found: dict[str, list[Any]] = {topic: [] for topic in partitions}
        async with asyncio.timeout(60):
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[tp.topic].extend(records)
        return found
    finally:
        await consumer.stop()


def _where(record: Any) -> tuple[int, int]:
    headers = dict(record.headers)
    return int(headers["streampair.partition"]), int(headers["streampair.offset"])


class Trial:
    """An application under test, its streams, and the checks."""

    def __init__(
        self,
        kafka: Cluster,
        directory: Path,
        name: str,
        *,
        store: str,
        learner: str = PAIR_FTRL,
        partitions: int = 1,
        instance: str | None = "worker",
        kafka_settings: str = "",
        settings: str = "",
        lasting: str = "",
    ) -> None:
        self.private = "noise_key" in learner or learner == PAIR_FTRL
        if learner == PAIR_FTRL and store == "directory":
            learner += '\nnoise_key_file = "noise.key"'
        self.app = app = App(
            kafka,
            directory,
            name,
            learner=learner,
            store=store,
            partitions=partitions,
            settings=settings,
        )
        text = app.path.read_text()
        if instance is not None:
            # A static member is back at once; without a name the group waits for its session to end.
            kafka_settings += f'\ngroup_instance_id = "{instance}"'
        text = text.replace("[kafka]\n", f"[kafka]\n{kafka_settings.strip()}\n", 1)
        text = text.replace("[store]\n", f"[store]\n{lasting.strip()}\n", 1)
        app.path.write_text(text)
        self._create_topics()
        self.values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self._streams = {p: random.Random(p) for p in range(partitions)}
        self.lost: set[tuple[int, int]] = set()
        self.kills = 0

    def _create_topics(self) -> None:
        # By such timestamps the order over partitions is a function of the topic.
        self.app.create_topics(message_timestamp_type="LogAppendTime")

    def add_partitions(self, count: int) -> None:
        """Add partitions to the input."""
        whole = self.app.partitions + count
        asyncio.run(add_partitions(self.app.kafka, self.app.input, whole))
        for p in range(self.app.partitions, whole):
            self.values[p], self._streams[p] = [], random.Random(p)
        self.app.partitions = whole

    def lose(self, before: int, partition: int) -> None:
        """Let retention remove the records of a partition before an offset. No worker runs."""
        read = self.offsets()[partition][0]
        delete_records(self.app, before, partition=partition)
        self.lost |= {(partition, offset) for offset in range(read, before)}

    def feed(self, count: int, partition: int | None = None) -> None:
        """Append events to the input."""
        for p in self.values if partition is None else [partition]:
            new = stream(count, self._streams[p].randrange(1 << 30))
            self.app.produce(new, p)
            self.values[p] += new

    # Evidence

    def evidence(self, *, settled: bool = False) -> Evidence:
        """Ask the broker, now.

        A broker that has ended a transaction may still be about to write its offsets down, and gives those
        before. Where no transaction is open (`settled`) it is asked to wait for them.
        """
        return asyncio.run(self._evidence(settled))

    async def _evidence(self, settled: bool) -> Evidence:
        app, bootstrap = self.app, self.app.kafka.bootstrap
        log = load_config(app.path).log_topic
        topics = {app.output: 1, app.dead: 1, log: 1}
        found = await _records(bootstrap, topics, "read_committed")
        scores: dict[tuple[int, int], list[Any]] = {}
        for row in [json.loads(record.value) for record in found[app.output]]:
            scores.setdefault((row["partition"], row["offset"]), []).append(row["score"])
        seen: dict[int, int] = {}
        everything = await _records(bootstrap, {app.output: 1}, "read_uncommitted")
        for row in [json.loads(record.value) for record in everything[app.output]]:
            seen[row["partition"]] = max(seen.get(row["partition"], -1), row["offset"])
        entries: dict[int, int] = {}
        for record in found[log]:
            entries[record.partition] = max(entries.get(record.partition, 0), record.offset + 1)
        dead = Counter(map(_where, found[app.dead]))
        if settled:
            await self._written_down()
        return Evidence(scores, list(scores), dead, seen, await self._offsets(), entries)

    async def _written_down(self) -> None:
        config = load_config(self.app.path)
        places = [Partition(config.input.topic, p) for p in self.values]
        for group in self.groups:
            await read_register(config.kafka, group, places)

    @property
    def groups(self) -> list[str]:
        """The groups that read the input, the learner's first."""
        return [self.app.name]

    async def _offsets(self, group: str | None = None) -> dict[int, tuple[int, str]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.app.kafka.bootstrap)
        await admin.start()
        try:
            async with asyncio.timeout(30):
                while True:
                    # No group was on it before; or it asks a broker that is away.
                    with contextlib.suppress(GroupCoordinatorNotAvailableError, NodeNotReadyError):
                        offsets = await admin.list_consumer_group_offsets(group or self.app.name)
                        break
                    await asyncio.sleep(0.05)
        finally:
            await admin.close()
        return {
            tp.partition: (committed.offset, committed.metadata)
            for tp, committed in offsets.items()
            if committed.offset >= 0
        }

    def offsets(self) -> dict[int, tuple[int, str]]:
        """The group's offsets, each with the text beside it."""
        return asyncio.run(self._offsets())

    def look(self, before: Evidence | None = None, *, settled: bool = False) -> Evidence:
        """The broker's word between two lives of a worker; what may never be so.

        Raises
        ------
        Wrong
            An output is committed twice; an offset or a log has gone back; a slot was released whose line
            was not durable.
        """
        now = self.evidence(settled=settled)
        if (self.app.store == "kafka" or len(self.groups) > 1) and now.duplicates:
            raise Wrong(f"{now.duplicates} outputs are committed twice")
        for where, found in now.scores.items():
            if len(set(found)) > 1:
                raise Wrong(f"two scores for {where}: {set(found)}")
        for p, (offset, text) in now.offsets.items():
            if before is not None and p in before.offsets and offset < before.offsets[p][0]:
                raise Wrong(f"the group's offset of partition {p} went back to {offset}")
            if self.private and text and json.loads(text)["slots"] < self._released(now, p):
                raise Wrong(
                    f"partition {p}: outputs up to slot {self._released(now, p)} are there, the register "
                    f"knows {json.loads(text)['slots']}"
                )
        if before is not None and any(now.entries.get(p, 0) < n for p, n in before.entries.items()):
            raise Wrong(f"the log went back: {before.entries}, {now.entries}")
        return now

    def _released(self, now: Evidence, partition: int) -> int:
        """Slots of which any output is there, committed or not, in the lane that reads a partition."""
        lost = sum(offset <= now.seen.get(p, -1) for p, offset in self.lost)
        return sum(last + 1 for last in now.seen.values()) - lost

    def done(self) -> bool:
        """Whether the group has read all events; with several groups, each of them."""
        for group in self.groups:
            offsets = asyncio.run(self._offsets(group))
            if any(offsets.get(p, (0, ""))[0] < len(values) for p, values in self.values.items()):
                return False
        return True

    def restart_each(self, nursery: Nursery, workers: list[Worker], count: int, **order: Any) -> None:
        """Stop one worker after the other and start it again, with events before and after each stop."""
        for index in range(len(workers)):
            self.feed(count)
            assert workers[index].stop() == 0, workers[index].log()
            self.feed(count)
            workers[index] = nursery.start(self.app, **order)
            workers[index].await_log("started")

    def await_done(self, *workers: Worker) -> None:
        """Wait until it has; fails when one of the workers ends before."""

        def look() -> bool:
            for worker in workers:
                if worker.code is not None:
                    raise Wrong(f"the worker ended with {worker.code}:\n{worker.log()}")
            return self.done()

        def logs() -> str:
            return "\n".join(worker.log() for worker in workers)

        wait_for("the end of the stream", look, seconds=120, explain=logs)

    # The end

    def verify(self, fault: str, *, extra_forks: int = 0, by_outputs: bool = False) -> Evidence:
        """Hold what is there against lanes that no fault has met. No worker runs.

        Parameters
        ----------
        fault
            What was done, for the summary.
        extra_forks
            Forks that are charged.
        by_outputs
            The order over partitions is that of the committed outputs, and not that of the topic: where
            partitions were added or records were lost, the log decides.

        Raises
        ------
        Wrong
            With what differs.
        """
        found, config = self.look(settled=True), load_config(self.app.path)
        for p, values in self.values.items():
            _equal(f"the group's offset of partition {p}", found.offsets[p][0], len(values))
        lane = build_logged_lane(config, json_decoder(config.input))
        wanted, frames, snapshot = uninterrupted(lane, self._records(found.order if by_outputs else None))
        log, state = self.stored()
        known = RecoveredState.of(Chain.peek(log))
        assert known is not None
        assert known.source is not None
        ends = {each.partition: each.next_offset for each in known.source.positions}
        _equal("positions", ends, {p: len(values) for p, values in self.values.items()})
        _equal("ranges that are still to come", known.source.ahead, [])
        places = list(differences(learning(state), learning(snapshot)))
        _equal("places where the state differs", places, [])
        charged = self._check_log(log, RecoveredState.of(Chain.peek(frames)), found.offsets[0][1])
        fed = {(p, offset) for p, values in self.values.items() for offset in range(len(values))}
        _equal("offsets with a score", sorted(found.scores), sorted(fed - self.lost))
        expected = {place: score for place, score in wanted.items() if score is not _DEAD}
        wrong = [w for w, scores in found.scores.items() if any(s != expected.get(w) for s in scores)]
        _equal("offsets with another score", wrong, [])
        _equal("dead letters", sorted(found.dead), sorted(w for w in wanted if w not in expected))
        _equal("forks charged", charged, extra_forks)
        self._note(fault, found, charged)
        return found

    def _records(self, order: list[tuple[int, int]] | None) -> list[Any]:
        """What the lane takes, in its order."""
        if order is None:
            return asyncio.run(topic_in_order(self.app))
        return [
            OrderedRecord(ordinal, self.values[p][position], partition=p, position=position)
            for ordinal, (p, position) in enumerate(order)
        ]

    def _note(self, fault: str, found: Evidence, charged: int) -> None:
        support.note_fault(
            f"{self.app.kafka.version} {self.app.store}: {fault}",
            {
                "kills": self.kills,
                "outputs": len(found.scores) + len(found.dead),
                "duplicates": found.duplicates,
                "entries": sum(found.entries.values()),
                "forks": charged,
            },
        )

    def _check_log(self, frames: bytes, theirs: RecoveredState | None, text: str) -> int:
        key = LogKey(NoiseKey(bytes.fromhex(NOISE_KEY)) if self.private else None)
        entries, chain, used = Chain.read(key, frames)
        _equal("bytes of the log that verify", used, len(frames))
        register = Register.read(key, text)
        if register is None:
            raise Wrong(f"the group has no register: {text!r}")
        _equal("the end of the log that the register knows", register.sequence, chain.sequence)
        known = RecoveredState.of(entries)
        assert known is not None
        assert theirs is not None
        assert known.tip is not None
        assert theirs.tip is not None
        for name in ("next_offset", "seen", "slots", "last"):
            _equal(f"{name} of the tip", getattr(known.tip, name), getattr(theirs.tip, name))
        if known.ledger is None or theirs.ledger is None:
            _equal("an account", known.ledger, theirs.ledger)
            return 0
        # Attempts and windows count starts; what is spent, and under which noise, must not.
        for name in ("lane", "size", "limit", "keyed", "immutable", "generation", "pending", "behind"):
            _equal(f"{name} of the account", known.ledger[name], theirs.ledger[name])
        _equal("forks of the reference", theirs.ledger["forks"], 0)
        forks: int = known.ledger["forks"]
        return forks

    def stored(self) -> tuple[bytes, bytes]:
        """Log and last snapshot of the lane. No worker runs."""
        if self.app.store == "kafka":
            return asyncio.run(self._stored())
        files = DirectoryStore(self.app.state).open(self.app.log_file.stem)
        try:
            frames = files.read()
            known = RecoveredState.of(Chain.peek(frames))
            assert known is not None
            assert known.saved is not None
            return frames, files.snapshot(known.saved.content.hex())
        finally:
            files.close()

    async def _stored(self) -> tuple[bytes, bytes]:
        store = TopicStore(load_config(self.app.path))
        opened = await store.open({})
        try:
            frames = await opened.read()
            known = RecoveredState.of(Chain.peek(frames))
            assert known is not None
            assert known.saved is not None
            return frames, await opened.snapshot(known.saved.content.hex())
        finally:
            await opened.close()


_DEAD = object()


class ParallelTrial(Trial):
    """A trial of a lane that learns, and scorers; both roles, or one, in a worker."""

    def __init__(self, kafka: Cluster, directory: Path, name: str, **options: Any) -> None:
        super().__init__(kafka, directory, name, **options)
        text = self.app.path.read_text()
        self.app.path.write_text(text.replace("[learner]\n", '[learner]\nscoring = "parallel"\n', 1))
        self.learner, self.scorer = self.app.role("learn"), self.app.role("score")

    @property
    def groups(self) -> list[str]:
        """The learner's and the scorers'."""
        return [self.app.name, load_config(self.app.path).scorers_group]

    def _released(self, now: Evidence, partition: int) -> int:
        """None by the lane: scores tell of models, which are committed before."""
        return 0

    def verify(self, fault: str, *, extra_forks: int = 0) -> Evidence:
        """Each event has one score, by the model that it names; the learner ends as an uninterrupted one.

        Raises
        ------
        Wrong
            With what differs.
        """
        found = self.look(settled=True)
        config = load_config(self.app.path)
        decode = json_decoder(config.input)

        def new_lane() -> LoggedLane:
            return build_logged_lane(config, decode)

        records = asyncio.run(topic_in_order(self.app))
        outputs, frames, snapshot = uninterrupted(new_lane(), records)
        _equal("offsets with a score", sorted(found.scores), sorted(outputs))
        dead = sorted(place for place, score in outputs.items() if score is _DEAD)
        _equal("dead letters", sorted(found.dead.elements()), dead)
        rows = [json.loads(r.value) for r in asyncio.run(self._rows())]
        self.models = sorted({row["model_slots"] for row in rows})
        _equal("scores by another model", list(_other_scores(new_lane(), decode, records, rows)), [])
        for group in self.groups:
            offsets = asyncio.run(self._offsets(group))
            for p, values in self.values.items():
                _equal(f"the offset of {group} in partition {p}", offsets[p][0], len(values))
        log, state = self.stored()
        places = list(differences(learning(state), learning(snapshot)))
        _equal("places where the state differs", places, [])
        charged = self._check_log(log, RecoveredState.of(Chain.peek(frames)), found.offsets[0][1])
        _equal("forks charged", charged, extra_forks)
        self._note(f"parallel: {fault}", found, charged)
        return found

    async def _rows(self) -> list[Any]:
        found = await _records(self.app.kafka.bootstrap, {self.app.output: 1}, "read_committed")
        return found[self.app.output]


def _other_scores(
    lane: LoggedLane, decode: Callable[[Any], Any], records: list[OrderedRecord], rows: list[dict[str, Any]]
) -> Iterator[tuple[int, int]]:
    """Places of scores that are not those of a lane that has taken as many records as the score says."""
    values = {(record.partition, record.position): record for record in records}
    by_model: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(row["model_slots"], []).append(row)
    lane.read(b"")
    lane.start(ExternalState(registers=False))
    start = 0
    for slots in sorted(by_model):
        while start < slots:
            part = records[start : min(slots, start + (20 if lane.room is None else min(lane.room, 20)))]
            lane.process(part)
            start += len(part)
            if lane.room == 0:
                lane.commit()
                lane.committed()
        for row in by_model[slots]:
            place = row["partition"], row["offset"]
            try:
                expected = lane.learner.score_one(decode(values[place]).x)
            except RecordError:
                expected = None
            if row["score"] != expected:
                yield place


async def topic_in_order(app: App) -> list[OrderedRecord]:
    """The records of the input by the definition of their order, read by a client of our own."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=app.kafka.bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    found: list[tuple[int, int, int, Any]] = []
    await consumer.start()
    try:
        assigned = [TopicPartition(app.input, p) for p in range(app.partitions)]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        ends = await consumer.end_offsets(assigned)
        clocks = dict.fromkeys(assigned, 0)
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                for record in records:
                    clocks[tp] = max(clocks[tp], record.timestamp)
                    found.append((clocks[tp] // BUCKET_MS, tp.partition, record.offset, record))
    finally:
        await consumer.stop()
    found.sort(key=lambda item: item[:3])
    return [
        OrderedRecord(ordinal, r.value, r.key, r.timestamp, partition=p, position=position)
        for ordinal, (_, p, position, r) in enumerate(found)
    ]


def uninterrupted(lane: LoggedLane, records: list[Any]) -> tuple[dict[tuple[int, int], Any], bytes, bytes]:
    """Outputs by place, log and last snapshot of a lane over records that it takes without a fault."""
    number = lane.identity.partition
    lane.read(b"")
    appends, _ = lane.start(ExternalState(registers=False))
    frames = b"".join(frame for append in appends for frame in append.frames)
    outputs: dict[tuple[int, int], Any] = {}
    start = 0
    while start < len(records):
        part = records[start : start + (20 if lane.room is None else min(lane.room, 20))]
        output = lane.process(part)
        dead = {letter.offset for letter in output.dead_letters}
        for record, scored in zip(part, output.scores, strict=True):
            ordered = isinstance(record, OrderedRecord)
            place = (record.partition, record.position) if ordered else (number, record.offset)
            outputs[place] = _DEAD if scored.offset in dead else scored.score
        if output.line is not None:
            frames += b"".join(output.line.frames)
        start += len(part)
        if lane.room == 0:
            frames += b"".join(lane.commit().frames)
            lane.committed()
    commit = lane.commit(snapshot=True, clean=True)
    assert commit.snapshot is not None
    return outputs, frames + b"".join(commit.frames), commit.snapshot


def _equal(what: str, found: Any, expected: Any) -> None:
    if found == expected:
        return
    if isinstance(found, list) and isinstance(expected, list):
        missing = [x for x in expected if x not in found][:5]
        more = [x for x in found if x not in expected][:5]
        raise Wrong(f"{what}: {len(found)} instead of {len(expected)}; missing {missing}, too many {more}")
    raise Wrong(f"{what}: {found!r} instead of {expected!r}")
