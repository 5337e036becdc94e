"""Workers that die, or stand still, at a numbered step: ``python -m harness.dying_worker``.

Only for tests: the product knows nothing of it. This process imports what a worker needs, once, and forks for
each order that it reads (one JSON object a line), so that a worker is there in a moment. In the child the
method at the wanted step is wrapped, and ``streampair run CONFIG`` runs as a user's does, until the wrapper
sends the signal. It says so on standard error first, which is a named pipe: whoever reads it knows that the
worker died there and not elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import importlib
import inspect
import json
import math
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["AT_START", "DIRECTORY", "EARLY", "LABELS", "MODELS", "SCORER", "TOPIC", "Step", "found"]

_HERE = "streampair_connectors"


class Step(NamedTuple):
    """A place in the worker's order of things.

    Attributes
    ----------
    owner, name
        The module, or ``module:class``, and what it calls.
    when
        Before it, after it, or when a file is half written.
    at_work
        Counted only once the worker has processed a record; where labels come later, one that was due.
    only
        Type of the first argument, or the end of a file's name; empty for all.
    """

    owner: str
    name: str
    when: str
    at_work: bool = False
    only: str = ""


_CLIENT = "aiokafka:AIOKafkaProducer"
_WRITER = f"{_HERE}.kafka.transactions:TransactionalProducer"
_TOPIC = f"{_HERE}.stores.topic:TopicLane"
_DISK = f"{_HERE}.stores.directory:DiskLane"
_FILES = f"{_HERE}.stores.directory"
_LANE = "streampair.engine:LoggedLane"
_OPENER = f"{_HERE}.worker.lane_manager:Opener"

# The order of a start and of a commit, as docs/design.md numbers them.
AT_START: dict[str, Step] = {
    "start 4: checked, nothing written": Step(_LANE, "start", "after"),
    "start 5: replayed in part": Step(_LANE, "replay", "after"),
    "start 5: replayed": Step(_OPENER, "_replay", "after"),
    "start 6: attempt durable": Step(_OPENER, "open", "after"),
    "start 7: sought": Step(f"{_HERE}.kafka:Consumer", "seek", "after"),
    "work: processed, nothing left": Step(_LANE, "process", "after"),
}

TOPIC: dict[str, Step] = {
    "start 1: fencing": Step(_WRITER, "start", "before"),
    "start 1: fenced": Step(_WRITER, "start", "after"),
    "start 2: register read": Step(f"{_HERE}.stores:TopicStore", "committed", "after"),
    "start 3: log read": Step(_TOPIC, "read", "after"),
    "start 6: attempt open": Step(_CLIENT, "commit_transaction", "before"),
    **AT_START,
    "commit 1: line not sent": Step(_TOPIC, "append", "before", True),
    "commit 1: line durable": Step(_TOPIC, "append", "after", True),
    "commit 2: begun": Step(_CLIENT, "begin_transaction", "after", True),
    "commit 2: outputs sent": Step(_CLIENT, "send_batch", "after", True),
    "commit 3: sends answered": Step(_CLIENT, "send_offsets_to_transaction", "before", True),
    "commit 4: offsets in": Step(_CLIENT, "send_offsets_to_transaction", "after", True),
    "commit 5: asked for": Step("aiokafka.conn:AIOKafkaConnection", "send", "after", True, "EndTxnRequest"),
    "commit 5: answered": Step(_CLIENT, "commit_transaction", "after", True),
    "commit 6: not published": Step(f"{_HERE}.worker.checkpoint:Checkpoint", "run", "after", True),
    "after: trimmed": Step(f"{_HERE}.kafka:LogTopic", "trim", "after", True),
}

DIRECTORY: dict[str, Step] = {
    "start 1: locked": Step(f"{_FILES}:DirectoryStore", "open", "after"),
    "start 2: register read": Step(f"{_HERE}.stores:DiskStore", "committed", "after"),
    "start 3: log read": Step(_DISK, "read", "after"),
    "start 6: attempt torn": Step(_FILES, "_write_durably", "half", only=".log"),
    "start 6: attempt without register": Step(f"{_FILES}:DirectoryLane", "append", "after"),
    **AT_START,
    "commit 1: line torn": Step(_FILES, "_write_durably", "half", True, ".log"),
    "commit 1: line without register": Step(f"{_FILES}:DirectoryLane", "append", "after", True),
    "commit 1: line durable": Step(_DISK, "append", "after", True),
    "commit 2: outputs sent": Step(_DISK, "release", "after", True),
    "commit 3: not flushed": Step(f"{_HERE}.stores:DiskStore", "flush", "before", True),
    "commit 3: flushed": Step(f"{_HERE}.stores:DiskStore", "flush", "after", True),
    "commit 4: snapshot torn": Step(_FILES, "_write_durably", "half", True, ".state.new"),
    "commit 4: snapshot saved": Step(f"{_FILES}:DirectoryLane", "save", "after", True),
    "commit 5: register not asked": Step(_DISK, "_register", "before", True),
    "commit 5: register durable": Step(_DISK, "_register", "after", True),
    "commit 6: log half anew": Step(_FILES, "_write_durably", "half", True, ".log.new"),
    "commit 6: begun anew": Step(f"{_FILES}:DirectoryLane", "compact", "after", True),
    "commit 6: not published": Step(f"{_HERE}.worker.checkpoint:Checkpoint", "run", "after", True),
}

# What a learner does for scorers, and a scorer, in a process of its own.
MODELS: dict[str, Step] = {
    "model: not exported": Step(f"{_HERE}.worker.model_topic:ModelPublisher", "publish", "before", True),
    "model: handed over": Step(f"{_HERE}.worker.model_topic:ModelPublisher", "publish", "after", True),
}
_LABELS = f"{_HERE}.worker.late_labels:LateLabelSource"
LABELS: dict[str, Step] = {
    "labels: sought": Step(f"{_HERE}.worker.late_labels:LabelReader", "load", "after"),
    "labels: read again": Step(_LABELS, "_load", "after"),
    "labels: joined": Step(_LABELS, "_join", "after", True),
    "labels: learned": Step(_LANE, "process", "after", True),
    "labels: read for those sent on": Step(_LABELS, "_read_again", "after", True),
    "labels: sent on": Step(_LABELS, "send_on", "after", True),
}
# Of lanes that learn events when their labels come.
_EARLY = f"{_HERE}.worker.early_labels:EarlyLabels"
EARLY: dict[str, Step] = {
    "early: index begun": Step(_EARLY, "load", "after"),
    "early: events found": Step(_EARLY, "_find", "after", True),
    "early: events read": Step(_EARLY, "_read_events", "after", True),
    "early: taken": Step(_EARLY, "take", "after", True),
}
# A label has found its event, which is read next: held there, not killed.
FOUND = {"early: an event found": Step(_EARLY, "_read_near", "before")}
_SCORER = f"{_HERE}.worker.scorer:ScoringWorker"
SCORER: dict[str, Step] = {
    "scorer 1: there is a model": Step(_SCORER, "_first_model", "after"),
    "scorer 2: producer started": Step(_WRITER, "start", "after"),
    "scorer 3: offsets read": Step(_SCORER, "_committed", "after"),
    "scorer 3: sought": Step(_SCORER, "_name", "before"),
    "scorer 3: named": Step(_SCORER, "_name", "after"),
    "scorer 4: polled": Step(_SCORER, "_score", "before"),
    "scorer 4: scored": Step(_SCORER, "_outputs", "after"),
    "scorer 5: begun": Step(_CLIENT, "begin_transaction", "after"),
    "scorer 5: outputs sent": Step(_CLIENT, "send_batch", "after"),
    "scorer 5: sends answered": Step(_CLIENT, "send_offsets_to_transaction", "before"),
    "scorer 5: offsets in": Step(_CLIENT, "send_offsets_to_transaction", "after"),
    "scorer 5: asked for": Step("aiokafka.conn:AIOKafkaConnection", "send", "after", only="EndTxnRequest"),
    "scorer 5: answered": Step(_CLIENT, "commit_transaction", "after"),
    "scorer 6: committed": Step(_SCORER, "_report", "before"),
}


class Trap:
    """Does something when a step has come to for the n-th time.

    Parameters
    ----------
    name, step
        The step.
    count
        At which of its times.
    action
        "kill", "stop" (the process, until a SIGCONT), "hold" (the coroutine alone, until a SIGUSR1: the
        process still tells the group that it lives), or "full": from now on files may not grow.
    """

    working = False

    def __init__(self, name: str, step: Step, count: int, action: str) -> None:
        self._name = name
        self._step = step
        self._left = count
        self._action = action
        self._holds = False
        self._alone = threading.Lock()

    def _spring(self) -> None:
        if self._step.at_work and not Trap.working:
            return
        self._left -= 1
        if self._left != 0:
            return
        os.write(2, json.dumps({"event": "trap", "step": self._name}).encode() + b"\n")
        if self._action == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        elif self._action == "hold":
            self._holds = True
        else:
            os.kill(os.getpid(), signal.SIGKILL if self._action == "kill" else signal.SIGSTOP)

    async def _hold(self) -> None:
        if self._holds:
            self._holds, go = False, asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go.set)
            await go.wait()

    def _meant(self, args: tuple[Any, ...]) -> bool:
        only = self._step.only
        if not only:
            return True
        return any(type(a).__name__ == only or (isinstance(a, Path) and a.name.endswith(only)) for a in args)

    def set(self) -> None:
        """Put it where it belongs."""
        owner, name, when = found(self._step.owner), self._step.name, self._step.when
        inner = getattr(owner, name)

        def before(args: tuple[Any, ...]) -> None:
            if when == "before" and self._meant(args):
                self._spring()
            if when == "half" and self._meant(args):
                path, data, *rest = args
                # Lanes are opened in threads: no other may write its half too, and then go on to the whole.
                with self._alone:
                    if (Trap.working or not self._step.at_work) and self._left == 1:
                        inner(path, data[: len(data) // 2], *rest)
                    self._spring()

        def after(args: tuple[Any, ...]) -> None:
            if when == "after" and self._meant(args):
                self._spring()

        if inspect.iscoroutinefunction(inner):

            @functools.wraps(inner)
            async def waits(*args: Any, **options: Any) -> Any:
                before(args)
                await self._hold()
                result = await inner(*args, **options)
                after(args)
                await self._hold()
                return result

            setattr(owner, name, waits)
            return

        @functools.wraps(inner)
        def calls(*args: Any, **options: Any) -> Any:
            before(args)
            result = inner(*args, **options)
            after(args)
            return result

        setattr(owner, name, calls)


def found(path: str) -> Any:
    """The module, or ``module:class``, of this name."""
    module, _, kind = path.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, kind) if kind else imported


def _note_work(pause: float) -> None:
    """Know when records are processed; and a learner that takes `pause` seconds for each, if asked."""
    owner = found(_LANE)
    inner = owner.process

    def process(self: Any, records: Any) -> Any:
        # Where labels come later, scores come first: the work begins with the first event that is due.
        Trap.working |= any(getattr(record, "label", -1) != -2 for record in records)
        if pause:
            time.sleep(pause * len(records))
        return inner(self, records)

    owner.process = process


# What a worker must not be like: each is caught by a check.


def _outputs_after_offsets() -> None:
    """Offsets, log and register first, outputs in a transaction of their own."""
    owner = found(_WRITER)
    inner = owner._transaction

    async def transaction(self: Any, sends: Any, offsets: Any, *rest: Any) -> Any:
        outputs = [s for s in sends if not s[0].topic.endswith("-log")]
        state = [s for s in sends if s[0].topic.endswith("-log")]
        stored = await inner(self, state, offsets, *rest)
        if outputs:
            await inner(self, outputs, {}, *rest)
        return stored

    owner._transaction = transaction


def _outputs_outside() -> None:
    """Outputs at once, by a producer that is not transactional."""
    from aiokafka import AIOKafkaProducer

    owner = found(_TOPIC)
    made: list[Any] = []

    async def send(self: Any, target: Any, messages: Any) -> None:
        if not made:
            made.append(AIOKafkaProducer(bootstrap_servers=self._config.kafka.bootstrap_servers))
            await made[0].start()
        for m in messages:
            await made[0].send_and_wait(
                target.topic, m.value, key=m.key, partition=target.partition, headers=m.headers
            )

    owner.send = send


def _no_replay() -> None:
    """The state of the last snapshot is taken for that of the last commit."""

    async def replay(self: Any, lane: Any, *rest: Any) -> None:
        if lane.replay_until is not None:
            lane._batch.next_offset = lane.replay_until
            lane._working = True

    found(_OPENER)._replay = replay


def _no_lines() -> None:
    """What a private learner releases leaves before its digest is durable."""
    owner = found(f"{_HERE}.worker.outputs:Outputs")
    lines: list[Any] = []
    lane = found(_LANE)
    process = lane.process

    def without(self: Any, records: Any) -> Any:
        output = process(self, records)
        if output.line is not None:
            lines.append(output.line)
            output.line = None
        return output

    inner = owner.send

    async def send(self: Any, open_lane: Any, records: Any, output: Any) -> None:
        await inner(self, open_lane, records, output)
        await open_lane.store._store.producer.flush(asyncio.Event(), lambda _: None)
        for line in lines:
            await open_lane.store.append(line)
        lines.clear()

    lane.process, owner.send = without, send


def _no_flush() -> None:
    """The state is committed while the outputs wait in this process: they leave one commit late."""
    producer, store = found(f"{_HERE}.kafka:Producer"), found(f"{_HERE}.stores:DiskStore")
    inner = producer.send
    kept: list[Any] = []
    late: list[Any] = []

    async def send(self: Any, target: Any, messages: Any) -> None:
        kept.append((target, messages))

    async def flush(self: Any, give_up: Any, on_trouble: Any) -> bool:
        for target, messages in late:
            await inner(self.producer, target, messages)
        late[:], kept[:] = kept, []
        return True

    producer.send, store.flush = send, flush


# And what only the group keeps it from.


def _keeps_what_was_revoked() -> None:
    """Stays in the group and works on with lanes that the group has given to another worker."""
    owner = found(f"{_HERE}.worker.session:Session")

    async def revoked(self: Any, partitions: Any) -> None:
        self._assigned.difference_update(partitions)

    async def assigned(self: Any, partitions: Any) -> None:
        self._assigned.update(partitions)

    owner._on_revoked, owner._on_assigned = revoked, assigned


def _claims_the_topic() -> None:
    """Joins the group as one that has the partitions."""
    owner = found(f"{_HERE}.kafka.membership:WholeTopicAssignor")
    inner = owner.__init__

    def claims(self: Any) -> None:
        inner(self)
        self.set_assigned(True)

    owner.__init__ = claims


# And of lanes whose labels come later.


def _joins_too_soon() -> None:
    """Events are due although the labels topic, which is slow, was not read yet."""
    reader = found(f"{_HERE}.worker.late_labels:LabelReader")
    source = found(f"{_HERE}.worker.late_labels:LateLabelSource")
    poll, join = reader.poll, source._join

    async def slow(self: Any) -> None:
        if getattr(self, "has_joined", False):
            await poll(self)

    def early(self: Any, taken: Any) -> Any:
        self._label_reader.has_joined = True
        return join(self, taken)

    reader.poll, source._join = slow, early
    reader.settled = lambda self: round(time.time() * 1000)


def _forgets_what_was_used() -> None:
    """Labels that were used can be used again after a start."""
    found(_LABELS)._label_state = lambda self: b""


def _reads_due_events_twice() -> None:
    """Due events are read on from where the last snapshot was, and not the last commit."""
    owner = found("streampair.engine.source:Positions")
    inner = owner.load

    def load(self: Any, state: Any) -> None:
        inner(self, state)
        self._due = {p: each.__class__(p, max(each.next_offset - 3, 0), 0) for p, each in self._due.items()}

    owner.load = load


def _sends_on_without_noting() -> None:
    """Labels that were sent on are sent on again after a start."""
    owner = found("streampair.engine.source:Positions")
    inner = owner.load

    def load(self: Any, state: Any) -> None:
        inner(self, state)
        self.expired, self.labels = 0, {}

    owner.load = load


BROKEN: dict[str, Callable[[], None]] = {
    "joins too soon": _joins_too_soon,
    "forgets what was used": _forgets_what_was_used,
    "reads due events twice": _reads_due_events_twice,
    "sends on without noting": _sends_on_without_noting,
    "offsets before outputs": _outputs_after_offsets,
    "outputs outside of the transaction": _outputs_outside,
    "no replay": _no_replay,
    "no line before a release": _no_lines,
    "no flush": _no_flush,
    "keeps what was revoked": _keeps_what_was_revoked,
    "claims the topic": _claims_the_topic,
}


def _set_clock(ahead: float) -> None:
    """Let the clock of this host be so many seconds ahead of the brokers'."""
    true, true_ns = time.time, time.time_ns
    time.time = lambda: true() + ahead
    time.time_ns = lambda: true_ns() + round(ahead * 1e9)
    host = found(f"{_HERE}.host").THIS_HOST  # has kept the true clock since it was imported
    object.__setattr__(host, "time_ns", time.time_ns)


def _set_release(version: str, log_format: int | None = None) -> None:
    """Be another release, which writes its version, and logs of its own format, and else does the same."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("streampair", _HERE) and hasattr(module, "__version__"):
            module.__version__ = version  # type: ignore[attr-defined]
    if log_format is not None:
        found("streampair.engine.lane_log").LOG_FORMAT = log_format


def _work(order: dict[str, Any]) -> None:
    """Be a worker, in the child."""
    # Nobody else knows of this process if the one that started it is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(order["log"], os.O_WRONLY)
    for descriptor, to in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(descriptor, to)
    os.environ.update(order.get("env", {}))
    os.chdir(Path(order["config"]).parent)
    if order.get("snapshot_seconds") is not None:
        found(f"{_HERE}.worker.lane_manager")._SNAPSHOT_SECONDS = order["snapshot_seconds"]
        if math.isinf(order["snapshot_seconds"]):  # none, however slow the machine makes a replay look
            found(f"{_HERE}.worker.lane_manager")._REPLAY_SECONDS = math.inf
    if order.get("watch_seconds") is not None:
        watched = functools.partial(found(f"{_HERE}.kafka").Consumer, watch_seconds=order["watch_seconds"])
        vars(found(f"{_HERE}.kafka").KAFKA)["consumer"] = watched
    if order.get("clock"):
        _set_clock(order["clock"])
    if order.get("release"):
        _set_release(*order["release"])
    if order.get("broken"):
        BROKEN[order["broken"]]()
    # It was, before the fork: only real work counts.
    found(f"{_HERE}.worker.worker").warm_up = lambda config: None
    _note_work(order.get("pause", 0.0))
    if order.get("step"):
        every = {**TOPIC, **DIRECTORY} if order["store"] == "directory" else {**DIRECTORY, **TOPIC}
        every |= {**LABELS, **EARLY, **FOUND, **MODELS, **SCORER}
        Trap(order["step"], every[order["step"]], order.get("count", 1), order.get("action", "kill")).set()
    from streampair_connectors.cli.app import main

    sys.argv = ["streampair", "run", order["config"], "--log-level", "info"]
    main()


def _warm_up(path: str, env: dict[str, str]) -> None:
    """Load all kernels of a lane before the fork: they take longer than all else in a worker's start."""
    from streampair_connectors.config import load_config
    from streampair_connectors.worker.factory import warm_up

    os.environ.update(env)
    warm_up(load_config(Path(path)))


def _serve() -> None:
    warm: set[str] = set()
    codes: dict[int, int] = {}  # two threads may ask for one process, and a process can be waited for once
    for module in ("cli.app", "observability.server", "worker.worker", "stores", "worker.lane_manager"):
        importlib.import_module(f"{_HERE}.{module}")
    for module in ("streampair.auc", "streampair.metric", "streampair.buffers"):
        importlib.import_module(module)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "pid" in order:
            pid = order["pid"]
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            answer = {"code": codes.get(pid)}
        else:
            learner = Path(order["config"]).read_text().partition("[learner]")[2].partition("[store]")[0]
            if learner not in warm:
                warm.add(learner)
                _warm_up(order["config"], order["env"])
            pid = os.fork()
            if pid == 0:
                code = 70
                try:
                    _work(order)
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else int(end.code is not None)
                except BaseException as error:
                    os.write(2, "".join(traceback.format_exception(error)).encode())
                finally:
                    with contextlib.suppress(OSError):
                        sys.stderr.flush()
                    os._exit(code)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
