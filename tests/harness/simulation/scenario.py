"""A run of the simulation: a schedule drawn from a seed, real workers, and what must hold at the end."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
import struct
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pydantic import SecretStr
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Message
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import TopicLog, context_of, seal_of
from streampair_connectors.worker import session
from streampair_connectors.worker import worker as worker_module
from streampair_connectors.worker.factory import build_logged_lane, exploration_of, taken_cells
from streampair_connectors.worker.worker import Worker

from harness.late_labels import STOPPED, Event, Label, by_arrival, due_records, learned_places
from harness.simulation.broker import Broker, Network, PartitionLog, Transaction
from harness.simulation.clients import Connection, cluster_of
from harness.simulation.loop import HangError, Process, SimulatedLoop
from streampair.engine import ExternalState, OrderedRecord, Scored
from streampair.engine.records import LABEL_STOPPED
from streampair.engine.recovery import RecoveredState
from streampair.engine.snapshot import unpack
from streampair.engine.wal import (
    Chain,
    CommitEntry,
    Position,
    Range,
    RangesEntry,
    SnapshotEntry,
    StartEntry,
)
from streampair.errors import StreampairError

__all__ = ["FaultError", "Plan", "Run", "run_plan", "simulate"]

INPUT, SCORES, DEAD, LOG = "events", "scores", "dead-letters", "log"
LABELS, LATE, ALERTS = "labels", "simulated-late-labels", "simulated-alerts"
EXPLORES = {"alert_above": 0.0, "explore": 0.5, "explore_key_file": SecretStr("5a" * 32)}
AFTER, LATENESS = 500, 200  # milliseconds
_HEALED = 4.0  # seconds, from which on nothing fails any more
_PATIENCE = 90.0  # seconds from then until all is scored
_LEARNERS = {
    "PairOGD": {"class": "streampair.auc.PairOGD", "options": {"seed": 1}},
    "PairFTRL": {
        "class": "streampair.auc.PairFTRL",
        "options": {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000, "warmup": 0},
        "noise_key_file": SecretStr("4f" * 32),
    },
}


class FaultError(Exception):
    """What must hold does not."""


@dataclass
class Plan:
    """What a seed does: its settings, and a schedule of (second, action, arguments)."""

    seed: int
    learner: str = "PairOGD"
    partitions: int = 1
    append_time: bool = True
    compacted: bool = False
    late: bool = False  # labels come later, on a topic of their own
    arrival: bool = False  # and events are learned when their labels come
    session: float = 2.0
    disorder: float = 0.0
    loss: float = 0.0
    latency: float = 0.003
    skews: list[float] = field(default_factory=list)
    schedule: list[tuple[float, str, tuple[Any, ...]]] = field(default_factory=list)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """The plan of a seed."""
        coin = random.Random(f"plan {seed}")
        plan = cls(
            seed,
            learner=coin.choice(("PairOGD", "PairOGD", "PairFTRL")),
            partitions=coin.choice((1, 2, 3)),
            append_time=coin.random() < 0.7,
            compacted=coin.random() < 0.1,
            late=coin.random() < 0.25,
            session=coin.choice((1.0, 2.0, 3.0)),
            disorder=coin.choice((0.0, 0.1, 0.5)),
            loss=coin.choice((0.0, 0.0, 0.01, 0.05)),
            latency=coin.choice((0.003, 0.003, 0.1)),
            skews=[coin.choice((0.0, 0.0, 0.0, -0.2, 0.2, 3.0)) for _ in range(3)],
        )
        # Of a private lane each crash is charged then, and there is no budget for it. An event whose label
        # comes later is read twice.
        plan.compacted &= plan.learner != "PairFTRL" and not plan.late
        # Where producers set the timestamps, an event may come after the label that is for it.
        plan.arrival = plan.late and plan.append_time and plan.learner != "PairFTRL" and seed % 4 != 0
        plan._draw_schedule(coin)
        return plan

    def _draw_schedule(self, coin: random.Random) -> None:
        add = self.schedule.append
        add((0.0, "start", (0,)))
        if coin.random() < 0.8:
            add((coin.uniform(0.0, 2.5), "start", (1,)))
        if coin.random() < 0.5:  # while the first one opens its lane
            add((coin.uniform(0.1, 1.5), "rebalance", ()))
        for _ in range(coin.randint(3, 9)):
            kind = coin.choice(("plain", "plain", "plain", "committed", "aborted"))
            number, count = coin.randrange(self.partitions), coin.randint(1, 8)
            add((coin.uniform(0.0, _HEALED), "produce", (number, count, kind)))
        for _ in range(coin.randint(0, 5)):
            when = coin.uniform(0.2, _HEALED)
            action = coin.choice(
                (
                    *("start", "stop", "kill", "kill", "suspend", "down", "cut", "cut", "lossy"),
                    *("rebalance", "rebalance", "trim"),
                )
            )
            arguments: tuple[Any, ...] = ()
            if action in ("start", "stop", "kill"):
                arguments = (coin.randrange(3),)
            elif action == "suspend":
                arguments = (coin.randrange(3), round(coin.uniform(0.1, 2.5 * self.session), 3))
            elif action in ("down", "lossy"):
                arguments = (round(coin.uniform(0.1, 2.0), 3),)
            elif action == "cut":
                arguments = (coin.choice(("before", "after")), round(coin.choice((0.5, 6.0, 7.0)), 3))
            add((when, action, arguments))
            if coin.random() < 0.5:  # events come while the partitions move
                place = coin.randrange(self.partitions), coin.randint(1, 8), "plain"
                add((max(when + coin.uniform(-0.2, 0.2), 0.0), "produce", place))
        self.schedule = sorted((round(when, 3), action, more) for when, action, more in self.schedule)

    def __str__(self) -> str:
        """The plan, for a reader."""
        settings = {name: value for name, value in vars(self).items() if name != "schedule"}
        lines = [", ".join(f"{name}={value}" for name, value in settings.items())]
        lines += [
            f"  {when:6.3f} {action} {' '.join(map(str, more))}" for when, action, more in self.schedule
        ]
        return "\n".join(lines)


@functools.cache
def config_of(learner: str, session: float, late: bool, arrival: bool) -> Config:
    label: dict[str, Any] = {"input": {"topic": INPUT, "features": ["a", "b"], "id": "id"}}
    if late:
        label["label_input"] = {
            **{"topic": LABELS, "id": "key", "label": "y"},
            **{"absent": False, "stopped": STOPPED, "after": f"{AFTER}ms", "lateness": f"{LATENESS}ms"},
            "order": "arrival" if arrival else "wait",
        }
    else:
        label["input"]["label"] = "y"
    return parse_config(
        {
            "app": "simulated",
            "kafka": {
                "bootstrap_servers": "simulated:9092",
                "session_timeout": f"{round(1000 * session)}ms",
                "connect_timeout": "4s",
            },
            **label,
            "output": {"topic": SCORES, "dead_letter_topic": DEAD, **(EXPLORES if late else {})},
            "learner": _LEARNERS[learner],
            "store": {"log_topic": LOG, "transaction_timeout": "5s"},
            "worker": {
                "auc_window": 10,
                "commit_every_events": 10,
                "batch_size": 8,
            },
            "metrics": {"address": "127.0.0.1:0"},
        }
    )


@functools.cache
def telemetry() -> Telemetry:
    return Telemetry()


class Run:
    """A run of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.config = config_of(plan.learner, plan.session, plan.late, plan.arrival)
        self.loop = SimulatedLoop(random.Random(f"loop {plan.seed}"), plan.disorder)
        self.broker = Broker(self.loop, self.note)
        self.network = Network(self.loop, random.Random(f"network {plan.seed}"), self.note)
        self.network.loss, self.network.latency = plan.loss, plan.latency
        self._coin = random.Random(f"events {plan.seed}")
        self._stops = random.Random(f"stopped {plan.seed}")
        self._members: dict[int, tuple[Process, Worker, asyncio.Task[None]]] = {}
        self._stopping: set[int] = set()
        self._starts = 0
        self._events = 0
        self.compacted_away: set[tuple[int, int]] = set()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time():8.3f} {text}")

    def run(self) -> None:
        """Run it, and check what must hold.

        Raises
        ------
        FaultError
        """
        asyncio.set_event_loop(None)
        try:
            self.loop.run_until_complete(self.loop.create_task(self._main()))
        except HangError as error:
            raise FaultError(str(error)) from None
        finally:
            self.loop.close()
        self._check()

    # What the schedule does

    async def _main(self) -> None:
        plan, broker = self.plan, self.broker
        broker.create(INPUT, plan.partitions, append_time=plan.append_time)
        broker.create(SCORES, 1, append_time=False)
        broker.create(DEAD, 1, append_time=False)
        if plan.late:
            broker.create(LABELS, 2, append_time=plan.append_time)
            broker.create(LATE, 1, append_time=False)
            broker.create(ALERTS, 1, append_time=False)
        for when, action, more in plan.schedule:
            await self._until(when)
            self.note(f"schedule: {action} {' '.join(map(str, more))}")
            getattr(self, f"_{action}")(*more)
        await self._until(_HEALED)
        await self._heal()
        await self._stop_all()

    async def _until(self, when: float) -> None:
        while self.loop.time() < when:
            self._look()
            await asyncio.sleep(min(0.25, when - self.loop.time()))

    def _look(self) -> None:
        """Start a member again that has ended by itself, as a supervisor does."""
        for number, (process, _, task) in list(self._members.items()):
            if process.dead or not task.done():
                continue
            del self._members[number]
            error = task.exception()
            if error is not None and not (
                isinstance(error, StreampairError) and getattr(error, "retriable", False)
            ):
                raise FaultError(f"{process.name} ends with {type(error).__name__}: {error}") from error
            self.note(f"{process.name} has ended" + ("" if error is None else f": {error}"))
            stopping = number in self._stopping
            self._stopping.discard(number)
            if not stopping:
                if error is None:
                    raise FaultError(f"{process.name} has ended without a stop")
                self._start(number)

    def _start(self, number: int) -> None:
        if number in self._members:
            return
        self._starts += 1
        process = Process(self.loop, f"worker-{number}.{self._starts}", skew_seconds=self.plan.skews[number])
        worker = Worker(
            self.config,
            telemetry=telemetry(),
            host=process.host,
            cluster=cluster_of(Connection(process, self.broker, self.network), compacted=self.plan.compacted),
        )
        self._members[number] = process, worker, process.start(worker.run())

    def _stop(self, number: int) -> None:
        if number in self._members:
            self._stopping.add(number)
            self._members[number][1].stop()

    def _kill(self, number: int) -> None:
        if number in self._members:
            self._members.pop(number)[0].kill()
            self._stopping.discard(number)

    def _suspend(self, number: int, seconds: float) -> None:
        if number in self._members:
            self._members[number][0].suspend(seconds)

    def _down(self, seconds: float) -> None:
        self.network.outage(seconds)

    def _cut(self, when: str, seconds: float) -> None:
        self.network.cut(when, seconds)

    def _lossy(self, seconds: float) -> None:
        self.network.loss = 0.3
        self.loop.call_later(seconds, self._calm, context=Context())

    def _calm(self) -> None:
        self.network.loss = 0.0 if self.loop.time() >= _HEALED else self.plan.loss

    def _rebalance(self) -> None:
        self.broker.group(self.config.app).rebalance()

    def _trim(self) -> None:
        """The input loses what is before the last snapshot; a compacted one older records of a key."""
        for number, log in enumerate(self.broker.topics[INPUT]):
            if self.plan.compacted:
                before = {each.offset for each in log.records if each.visible}
                log.compact(self._coin)
                left = {each.offset for each in log.records}
                self.compacted_away |= {(number, offset) for offset in before - left}
                continue
            for place, offset in self._saved():
                if place == number:
                    log.trim(offset)

    def _saved(self) -> list[tuple[int, int]]:
        """The positions of the last snapshot."""
        if LOG not in self.broker.topics:
            return []
        entries = Chain.peek(b"".join(self._frames()))
        saved = [entry.tip.source for entry in entries if isinstance(entry, SnapshotEntry)]
        source = saved[-1] if saved else None
        if source is None:
            return []
        positions = source.due if self.plan.late else source.positions
        return [(each.partition, each.next_offset) for each in positions]

    def _produce(self, number: int, count: int, kind: str) -> None:
        log, broker = self.broker.topics[INPUT][number], self.broker
        messages = [self._event() for _ in range(count)]
        if kind == "plain":
            log.append(messages, broker.now_ms)
            return
        transaction = Transaction()
        log.append(messages, broker.now_ms, transaction)

        def end() -> None:
            transaction.state = kind
            log.finish(transaction, broker.now_ms)

        self.loop.call_later(self._coin.uniform(0.0, 1.0), end, context=Context())

    def _event(self) -> Message:
        self._events += 1
        y = self._coin.random() < 0.4
        x = {name: round(self._coin.gauss(0.5 if y else -0.5, 0.5), 3) for name in ("a", "b")}
        name = f"e{self._events}"
        value = json.dumps({**x, "y": y, "id": name}).encode()
        key = b"k%d" % self._coin.randrange(5) if self.plan.compacted or self._coin.random() < 0.3 else None
        if self.plan.late:
            key = name.encode()
            self._label(key, y)
        ago = 0 if self._coin.random() < 0.7 else self._coin.randrange(-2000, 2000)
        return Message(key, value, timestamp=self.broker.now_ms - ago)

    def _label(self, key: bytes, y: bool) -> None:
        """The label of an event comes later, too late, or never; it may say that the event was stopped."""
        if self._coin.random() < 0.7:
            place, delay = self._coin.randrange(2), self._coin.uniform(0.0, 0.8)
            self._append_label(key, STOPPED if self._stops.random() < 0.3 else y, place, delay)
        if self._stops.random() < 0.2:  # before the other one, after it, or alone
            self._append_label(key, STOPPED, self._stops.randrange(2), self._stops.uniform(0.0, 0.8))

    def _append_label(self, key: bytes, value: bool | str, place: int, delay: float) -> None:
        log, message = self.broker.topics[LABELS][place], Message(key, json.dumps({"y": value}).encode())
        self.loop.call_later(delay, lambda: log.append([message], self.broker.now_ms), context=Context())

    async def _heal(self) -> None:
        """Nothing fails from now on: all events must be scored soon."""
        self.network.heal()
        self.note("schedule: nothing fails from now on")
        self._look()
        alive = [n for n, (process, _, _) in self._members.items() if n not in self._stopping]
        if not alive:
            self._start(next(n for n in range(4) if n not in self._members))
        for number in range(self.plan.partitions):
            self._produce(number, 1, "plain")
        deadline = self.loop.time() + _PATIENCE
        while self._missing() or self._unlearned():
            if self.loop.time() >= deadline:
                raise FaultError(
                    f"not scored within {_PATIENCE:g} s: {sorted(self._missing())[:10]}; "
                    f"{self._unlearned()} not learned"
                )
            self._look()
            await asyncio.sleep(0.25)

    def _unlearned(self) -> int:
        """Where labels come later: how many events the last commit has not learned."""
        if not self.plan.late:
            return 0
        tips = [getattr(entry, "tip", entry) for entry in Chain.peek(b"".join(self._frames()))]
        due = [tip.source.due for tip in tips if isinstance(tip, CommitEntry) and tip.source is not None]
        visible = self._visible()
        return len(visible) - (len(_below(due[-1], list(visible))) if due else 0)

    async def _stop_all(self) -> None:
        await asyncio.sleep(0.5)
        self._look()
        for number in list(self._members):
            self._stop(number)
        deadline = self.loop.time() + 60.0
        while self._members:
            if self.loop.time() >= deadline:
                names = [process.name for process, _, _ in self._members.values()]
                raise FaultError(f"{', '.join(names)} does not stop within 60 s")
            self._look()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)

    # What must hold

    def _visible(self) -> set[tuple[int, int]]:
        return {
            (number, each.offset)
            for number, log in enumerate(self.broker.topics[INPUT])
            for each in log.everything
            if each.visible
        }

    def _scores(self) -> list[tuple[tuple[int, int], float | None]]:
        return [((row["partition"], row["offset"]), row["score"]) for row in self._rows()]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            json.loads(each.value)
            for log in self.broker.topics[SCORES]
            for each in log.everything
            if each.visible and each.offset < log.stable_end and each.value is not None
        ]

    def _missing(self) -> set[tuple[int, int]]:
        return self._visible() - {place for place, _ in self._scores()} - self.compacted_away

    def _check(self) -> None:
        scores = self._scores()
        counts = Counter(place for place, _ in scores)
        if twice := sorted(place for place, count in counts.items() if count > 1):
            raise FaultError(f"scored twice, as partition and offset: {twice[:10]}")
        visible = self._visible()
        if wrong := sorted(set(counts) - visible):
            raise FaultError(f"scored though their transaction was aborted: {wrong[:10]}")
        if missing := sorted(self._missing()):
            raise FaultError(f"never scored: {missing[:10]}")
        order = [place for place, _ in scores]  # their topic has one partition
        self._check_log(order)
        if self.plan.late and self.plan.append_time:
            self._check_learned()
        if self.plan.late:
            self._check_marks()
        if not self.plan.late:  # there the scores depend on what was learned between them
            self._check_scores(order, dict(scores))
        if self.loop.errors:
            raise FaultError(f"errors that nobody handles: {self.loop.errors[:3]}")

    def _check_log(self, order: list[tuple[int, int]]) -> None:
        """The log has no forks, and says of each commit what the model had taken by then."""
        frames = self._frames()
        for before, frame in itertools.pairwise(frames):
            (number,), (last,) = struct.unpack(">Q", frame[:8]), struct.unpack(">Q", before[:8])
            if number != last + 1 or frame[12:44] != before[-32:]:
                raise FaultError(f"the log forks: entry {number} does not follow entry {last}")
        place_in_order = {place: index for index, place in enumerate(order)}
        taken = announced = learned = 0
        for entry in Chain.peek(b"".join(frames)):
            if isinstance(entry, RangesEntry):
                announced = self._check_ranges(entry.ranges, place_in_order, announced)
            elif isinstance(entry, StartEntry):
                announced = taken  # what an attempt before has announced comes first, and is announced again
            elif (tip := getattr(entry, "tip", entry)) and isinstance(tip, CommitEntry):
                assert tip.source is not None
                taken = announced = _check_positions(tip.source.positions, order)
                learned = len(_below(tip.source.due, order)) if self.plan.late else taken
                # An event that was learned when its label came is taken once more, when it is due.
                early = tip.seen - taken - learned if self.plan.arrival else 0
                if tip.seen != taken + (learned if self.plan.late else 0) + early or early < 0:
                    raise FaultError(f"a commit has seen {tip.seen} events: {taken} new, {learned} learned")
        if taken != len(order) or learned != len(order):
            raise FaultError(
                f"the last commit has {taken} events, {learned} learned; {len(order)} were scored"
            )

    def _check_ranges(
        self, ranges: list[Range], place_in_order: dict[tuple[int, int], int], taken: int
    ) -> int:
        """Ranges are taken in the order of the log, behind the events that were announced before.

        Those with labels are learned: events that were scored before.
        """
        for each in ranges:
            records = self.broker.topics[INPUT][each.partition].everything
            for record in records[each.first : each.end]:
                index = place_in_order.get((each.partition, record.offset))
                if index is None:
                    continue
                if each.labels and index >= taken:
                    raise FaultError(f"{each} is learned, and event {index} of the scores is not scored yet")
                if not each.labels and index != taken:
                    raise FaultError(f"{each} has event {index} of the scores where {taken} should be")
                taken += not each.labels
        return taken

    def _check_learned(self) -> None:
        """Events were learned in the order of both topics, each with its label."""
        events = [
            Event(number, each.timestamp, (each.key or b"").decode(), each.value or b"")
            for number, log in enumerate(self.broker.topics[INPUT])
            for each in log.everything
            if each.visible
        ]
        labels = [
            Label(number, each.timestamp, (each.key or b"").decode(), json.loads(each.value or b"")["y"])
            for number, log in enumerate(self.broker.topics[LABELS])
            for each in log.everything
        ]
        in_order = by_arrival if self.plan.arrival else due_records
        records = in_order(events, labels, after=AFTER, lateness=LATENESS)
        offsets = [[each.offset for each in log.everything if each.visible] for log in self._input]
        wanted = [(each.partition, offsets[each.partition][each.position], each.label) for each in records]
        found = self._learned()
        if found != wanted:
            first = next(
                (n for n, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other),
                min(len(found), len(wanted)),
            )
            raise FaultError(
                f"learned in another order, or with other labels, from number {first} on (partition, offset, "
                f"label): {found[first : first + 8]} instead of {wanted[first : first + 8]}"
            )

    def _check_marks(self) -> None:
        """Whichever worker has scored an event, its coin is that of its place, and the lane weighs by it."""
        explore = exploration_of(self.config)
        assert explore is not None
        marks: dict[tuple[int, int], bool] = {}  # of scores that were to stop their events
        for row in self._rows():
            place = row["partition"], row["offset"]
            wanted = None if row["score"] is None else explore.marks(row["score"], *place)
            if row.get("explore") != wanted:
                raise FaultError(f"the event at {place} is explored: {row.get('explore')}, not {wanted}")
            if wanted is not None and row["score"] >= row["threshold"]:
                marks[place] = wanted
        kinds = Counter((marks.get((p, o)), code) for p, o, code in self._learned())
        outcomes = [sum(kinds[mark, code] for code in (0, 1, 2)) for mark in (True, False)]
        stored = self._stored()
        known = RecoveredState.of(Chain.peek(stored.frames))
        assert known is not None
        assert known.saved is not None
        state = unpack(stored.snapshot(known.saved.content.hex()))
        if [*state["explored"].values()] != [*outcomes, kinds[True, LABEL_STOPPED]]:
            raise FaultError(f"explored are {state['explored']}, with marks and codes {kinds}")

    def _learned(self) -> list[tuple[int, int, int]]:
        def offsets(each: Range) -> list[int]:
            inside = self._input[each.partition].everything[each.first : each.end]
            return [record.offset for record in inside if record.visible]

        return learned_places(Chain.peek(b"".join(self._frames())), offsets)

    @property
    def _input(self) -> list[PartitionLog]:
        return self.broker.topics[INPUT]

    def _frames(self) -> list[bytes]:
        """The frames of the log from its beginning, those that were deleted too."""
        return Chain.frames(self._stored().frames)

    def _stored(self) -> TopicLog:
        log = self.broker.topics[LOG][0]

        class Whole:
            name = LOG

            @staticmethod
            async def read() -> list[tuple[int, bytes | None, bytes]]:
                return [(e.offset, e.key, e.value or b"") for e in log.everything if e.visible]

        work = TopicLog.read(Whole, seal_of(self.config), context_of(self.config.lane_id))  # type: ignore[arg-type]
        try:
            work.send(None)
        except StopIteration as done:
            stored: TopicLog = done.value
        if stored.damage is not None:
            raise FaultError(f"the log is damaged: {stored.damage}")
        return stored

    def _check_scores(
        self, order: list[tuple[int, int]], scores: dict[tuple[int, int], float | None]
    ) -> None:
        """One lane without a fault gives the same scores in the order of the log."""
        config = self.config
        decode = event_decoder(config, **taken_cells(config))
        lane = build_logged_lane(config, decode)
        lane.read(b"")
        lane.start(ExternalState(registers=False))
        records = []
        for ordinal, (number, offset) in enumerate(order):
            log: PartitionLog = self.broker.topics[INPUT][number]
            record = log.everything[offset]
            records.append(
                OrderedRecord(
                    ordinal, record.value, record.key, record.timestamp, partition=number, position=offset
                )
            )
        found: list[Scored] = []
        while len(found) < len(records):
            found += lane.process(records[len(found) :][: lane.room]).scores
            lane.commit()
            lane.committed()
        for place, each in zip(order, found, strict=True):
            if scores[place] != each.score:
                raise FaultError(f"the score of {place} is {scores[place]}, and {each.score} without a fault")


def _below(positions: list[Position], places: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """The places before these positions."""
    ends = {each.partition: each.next_offset for each in positions}
    return {place for place in places if place[1] < ends.get(place[0], 0)}


def _check_positions(positions: list[Position], order: list[tuple[int, int]]) -> int:
    """The events before the positions of a commit are the first that were scored; returns their number."""
    below = _below(positions, order)
    if below != set(order[: len(below)]):
        wrong = sorted(below ^ set(order[: len(below)]))
        raise FaultError(f"a commit is at {positions}, which are not the first {len(below)} events: {wrong}")
    return len(below)


def simulate(seed: int, on_run: Callable[[Run], None] = lambda run: None) -> Run:
    """Run the plan of a seed. `on_run` gets the run before it begins.

    Raises
    ------
    FaultError
        Something does not hold. The message has the schedule, and the command that repeats it.
    """
    try:
        return run_plan(Plan.draw(seed), on_run)
    except FaultError as error:
        raise FaultError(f"{error}\nto repeat it: {repeat_command(seed)}") from error.__cause__


def run_plan(plan: Plan, on_run: Callable[[Run], None] = lambda run: None) -> Run:
    """Run a plan, as `simulate` does."""
    run = Run(plan)
    on_run(run)
    # Kernels are those of the tests: they are compiled once, and not by each worker.
    warm = mock.patch.object(worker_module, "warm_up")
    with warm, mock.patch.object(session, "_STOP_SECONDS", 5.0):
        try:
            run.run()
        except FaultError as error:
            raise FaultError(f"{error}\n{plan}") from error.__cause__
    return run


def repeat_command(seed: int) -> str:
    """The command that runs one seed, with all that happens."""
    return f'make simulate ARGS="--seed {seed}"'
