"""A pass over a table: its parts are read by several processes, and what they give is added up in order."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np

from streampair.base.forest import ForestLearner
from streampair.engine.outside import Outside
from streampair.engine.snapshot import pack, unpack
from streampair.errors import RecordError, SnapshotError, SourceError, StoreError
from streampair.history import Job, Sums
from streampair_connectors.history.tables import (
    Part,
    Reader,
    TableColumns,
    TableFiles,
    ascending_ends,
    id_ends,
    one_thread,
    rows_with_value,
)
from streampair_connectors.output_files import write_file

__all__ = [
    "InOrder",
    "JobPass",
    "JobTotal",
    "MomentsPass",
    "Partial",
    "Pass",
    "check_ids",
    "discard_sums",
    "lock",
    "readers",
    "run_pass",
]

_SAVE_EVERY = 5.0  # seconds between two writings of what has been summed up


class Pass(Protocol):
    """What is done with each part of a table; plain data, to be sent to tasks."""

    name: str
    in_order: bool
    reader: Reader

    def part(self, part: Part) -> Any:
        """What a task returns."""

    def add(self, total: Any, part: Any) -> Any:
        """The total with one more part; None: there is none yet."""

    def state(self, total: Any) -> dict[str, Any]:
        """The total as plain values."""

    def total(self, state: Mapping[str, Any]) -> Any:
        """The total of a state."""


class JobTotal(NamedTuple):
    """What a stage has read.

    Attributes
    ----------
    sums
        Its sums.
    ends
        The first and the last id of each part; None: not known, or ids do not ascend within each part.
    """

    sums: Sums
    ends: list[tuple[int, int]] | None

    @property
    def ids_differ(self) -> bool:
        """Whether all ids are different, since they ascend within each part, and parts have other ranges."""
        ranges = None if self.ends is None else sorted(self.ends)
        return ranges is not None and all(last < first for (_, last), (first, _) in pairwise(ranges))


class JobPass:
    """A stage of a job: sums, whose bits do not depend on the parts.

    Parameters
    ----------
    job, reader
        Of the stage, and of the table.
    """

    in_order = False

    def __init__(self, job: Job, reader: Reader, attempt: int) -> None:
        self.job, self.reader = job, reader
        self.name = f"{job.digest} attempt {attempt} {reader.digest}"

    def part(self, part: Part) -> JobTotal:
        """Sums of a part; where no row is of this stage, the columns of the ids alone are read."""
        sums, ends = zip(*self._sums(part), strict=True)
        known = [each for each in ends if each is not None]
        ascend = len(known) == len(ends) and all(last < first for (_, last), (first, _) in pairwise(known))
        return JobTotal(sum(sums), [(known[0][0], known[-1][1])] if ascend else None)

    def _sums(self, part: Part) -> Iterator[tuple[Sums, tuple[int, int] | None]]:
        job, compared = self.job, self.job.stage == 1 and len(self.job.id_columns) == 1
        ids = self.reader.of_columns(job.id_columns)
        for fragment in part:
            ends = id_ends(fragment, job.id_columns[0])
            needed = ends is None or job.needs(*ends)
            reader, sums = (self.reader, job.sums) if needed else (ids, job.sums_of_ids)
            for place, batch in reader.placed([fragment]):
                with place.named():
                    found = sums(batch)
                yield found, ascending_ends(batch, job.id_columns[0]) if compared else None

    def add(self, total: JobTotal | None, part: JobTotal) -> JobTotal:
        """The sum of both."""
        if total is None:
            return part
        ends = None if total.ends is None or part.ends is None else total.ends + part.ends
        return JobTotal(total.sums + part.sums, ends)

    def state(self, total: JobTotal) -> dict[str, Any]:
        """The sums as plain values."""
        ends = None if total.ends is None else [list(each) for each in total.ends]
        return {"sums": {**vars(total.sums)}, "ends": ends}

    def total(self, state: Mapping[str, Any]) -> JobTotal:
        """The sums of a state."""
        ends = state["ends"]
        return JobTotal(Sums(**state["sums"]), None if ends is None else [(low, high) for low, high in ends])


class Learned(NamedTuple):
    """A learner, and how many values of its records were outside their bounds, by feature."""

    learner: Any
    outside: Counter[str]


class InOrder:
    """A learner that learns the rows in order, in one process.

    Parameters
    ----------
    learner
        A new one, which is not private: values outside the bounds are counted.
    reader, label
        Of the table.
    bounds
        Declared ones of features.
    """

    in_order = True

    def __init__(
        self, learner: Any, reader: Reader, label: str, bounds: Mapping[str, tuple[float, float]]
    ) -> None:
        self.learner, self.reader, self.label, self._bounds = learner, reader, label, bounds
        self.name = f"{type(learner).__module__}.{learner!r} {label!r} {reader.digest} {bounds}"

    def part(self, part: Part) -> Any:
        """The batches of a part."""
        return self.reader.placed(part)

    def add(self, total: Learned | None, part: Any) -> Learned:
        """The learner, which has learned the batches, too."""
        learner, outside = total or Learned(self.learner.clone(), Counter())
        names, found = list(self._bounds), Outside(self._bounds)
        for place, batch in part:
            if names:
                cells = [batch.column(name).to_numpy() for name in names]
                found.rows(names, np.column_stack(cells).astype(np.float64))
            # Others are not learned, as in a lane; nor by a forest those without a feature.
            features = [name for name in batch.column_names if name != self.label]
            needed = [self.label], features if isinstance(learner, ForestLearner) else []
            used = rows_with_value(batch, *needed)
            labelled = batch.take(used) if len(used) < batch.num_rows else batch
            with place.named(used):
                learner.learn_many(labelled.drop_columns(self.label), labelled.column(self.label))
        return Learned(learner, outside + Counter(found.counts))

    def state(self, total: Learned) -> dict[str, Any]:
        """The state of the learner, and the counts."""
        return {"learner": dict(total.learner.to_state()), "outside": dict(total.outside)}

    def total(self, state: Mapping[str, Any]) -> Learned:
        """The learner of a state."""
        learner = self.learner.clone()
        learner.load_state(dict(state["learner"]))
        return Learned(learner, Counter(state["outside"]))


class MomentsPass(InOrder):
    """Moments of each part, which are added up in order: the same bits for any number of processes."""

    in_order = False

    def part(self, part: Part) -> Learned:
        """A learner of the part."""
        return super().add(None, super().part(part))

    def add(self, total: Learned | None, part: Learned) -> Learned:
        """A learner of both."""
        if total is None:
            return part
        return Learned(total.learner + part.learner, total.outside + part.outside)


class Partial:
    """The file of what has been summed up so far, of mode 0600: sums without noise.

    Parameters
    ----------
    path
        The file.
    fingerprint
        Of the table.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self._fingerprint = path, fingerprint

    def is_whole(self, work: Pass, parts: int, made: Path) -> bool:
        """Whether this pass over this table has ended in it, and `made` was written after it."""
        try:
            saved = unpack(self.path.read_bytes())
            later = made.stat().st_mtime_ns >= self.path.stat().st_mtime_ns
        except (SnapshotError, OSError):
            return False
        found = saved.get("table"), saved.get("pass"), saved.get("done")
        return later and found == (self._fingerprint, work.name, parts)

    def load(self, work: Pass) -> tuple[int, Any]:
        """Number of parts that are summed up, and their total; 0 and None at the beginning of a pass.

        Raises
        ------
        RecordError
            If the file is of another table.
        StoreError
            If it is damaged.
        """
        try:
            saved = unpack(self.path.read_bytes())
            table, name, done, state = (saved[key] for key in ("table", "pass", "done", "total"))
        except FileNotFoundError:
            return 0, None
        except (SnapshotError, KeyError, OSError) as error:
            raise StoreError(
                f"{self.path}, the sums of a run that was interrupted, cannot be read: {error}",
                fix="remove it, to read the table from its beginning",
            ) from None
        if table != self._fingerprint:
            raise RecordError(
                f"the table has changed since {self.path} was begun: a file, its size or its time of change",
                fix="give the same files again; or remove that file, to read the table from its beginning",
            )
        # Sums of another job, stage or attempt are not used.
        return (done, work.total(state)) if name == work.name else (0, None)

    def check(self, table: TableFiles) -> None:
        """Refuse a table that is not the one that was begun with.

        Raises
        ------
        RecordError
            A file is another one.
        """
        if table.fingerprint() != self._fingerprint:
            raise RecordError(
                "the table has changed while it was read",
                fix=f"give a table that nobody writes to, such as a copy, and remove {self.path}",
            )

    def save(self, work: Pass, done: int, total: Any) -> None:
        """Replace the file at once, or not at all."""
        state = work.state(total)
        data = pack({"table": self._fingerprint, "pass": work.name, "done": done, "total": state})
        write_file(self.path, data, secret=True)


def discard_sums(path: Path, jobs: Container[str]) -> None:
    """Remove a file of sums of these jobs, by their digests; what another job has left stays."""
    with contextlib.suppress(SnapshotError, KeyError, OSError):
        if str(unpack(path.read_bytes())["pass"]).partition(" ")[0] in jobs:
            path.unlink()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Let one process at a time work on a file.

    Raises
    ------
    StoreError
        If another one does, or the folder cannot be written.
    """
    descriptor = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor of the file that has this name, locked."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror}",
                fix="give a path in a folder that can be written",
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StoreError(
                f"another process makes the same file: it has locked {path}", fix="wait until it has ended"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # the process that had it has removed it between the two calls


class Pool(NamedTuple):
    """Processes that read."""

    executor: ProcessPoolExecutor
    processes: int


def run_pass(
    work: Pass,
    table: TableFiles,
    partial: Partial,
    pool: Pool | None,
    progress: Callable[[int], None],
) -> Any:
    """The total of a table, from where an interrupted pass was.

    Parameters
    ----------
    work, table
        What is done with it.
    partial
        Keeps what has been summed up.
    pool
        Of `readers`; None: this process reads.
    progress
        Called with the number of rows that are summed up.

    Raises
    ------
    RecordError
        If the table cannot be used, or has changed since it was opened.
    SourceError
        If a process has ended.
    """
    done, total = partial.load(work)
    rows = sum(count for _, count in table.parts[:done])
    progress(rows)
    saved = monotonic()
    parts = table.parts[done:]
    for found, (_, count) in zip(_found(work, [part for part, _ in parts], pool), parts, strict=True):
        total, done, rows = work.add(total, found), done + 1, rows + count
        progress(rows)
        if monotonic() > saved + _SAVE_EVERY:
            partial.save(work, done, total)
            saved = monotonic()
    partial.save(work, done, total)
    partial.check(table)
    return total


def _found(work: Pass, parts: Sequence[Part], pool: Pool | None) -> Iterator[Any]:
    """What the parts give, in order."""
    if pool is None or work.in_order:
        yield from map(work.part, parts)
        return
    waiting: deque[Future[Any]] = deque()
    with _alive():
        for part in parts[:1]:
            yield work.part(part)  # which compiles kernels once, before all processes would
        for part in parts[1:]:
            waiting.append(pool.executor.submit(work.part, part))
            if len(waiting) > 2 * pool.processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def check_ids(job: Job, ids: TableColumns, pool: Pool | None) -> bool:
    """`Job.check_ids`, by these processes.

    Raises
    ------
    RecordError
        As of `Job.check_ids`.
    SourceError
        If a process has ended.
    """
    with _alive():
        return job.check_ids(ids, each=map if pool is None else pool.executor.map)


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    """Say what to do if a process ends in this block."""
    try:
        yield
    except BrokenProcessPool:
        raise SourceError(
            "a process that read the table has ended, perhaps for lack of memory",
            fix="run the same command again, with fewer --processes: it goes on where it was",
            retriable=False,
        ) from None


@contextlib.contextmanager
def readers(processes: int) -> Iterator[Pool | None]:
    """So many processes; None: this process reads alone."""
    if processes <= 1:
        with one_thread():
            yield None
        return
    context = multiprocessing.get_context("spawn")  # kernels and Arrow have threads, which a fork loses
    others = set(multiprocessing.active_children())
    with one_thread(), _one_thread_each(), ProcessPoolExecutor(processes, context, _begin) as executor:
        try:
            for _ in range(processes):
                executor.submit(int)  # each begins one, which imports while this process prepares the work
            yield Pool(executor, processes)
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # nobody waits for what it reads
            # Its thread ends with them. At the interpreter's exit it might close what is then written to.
            executor.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that begin in this block have one thread each for linear algebra, and for Arrow."""
    names = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin() -> None:
    """Begin a process, which ends with the one that began it, by whatever signal that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
