"""`streampair check --deep`: the checks that take longer, of disk, kernels and clock."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from streampair.errors import SourceError, StoreError, StreampairError
from streampair.kernels import on_compile
from streampair_connectors.cli.check import Report
from streampair_connectors.config import Config, duration_text
from streampair_connectors.kafka import Partition, RecordReader, describe_topics, has_append_time
from streampair_connectors.worker.factory import warm_up

__all__ = ["check_deep"]

_FULL, _LOW = 100, 1024  # MiB of free space: nothing can be saved soon, and little is left
_AHEAD_MS = 1000  # how far a record may be ahead of this host's clock


async def check_deep(config: Config, report: Report) -> None:
    """Add the checks of disk, kernels and clock, as far as the findings until now leave them a sense."""
    if "learn" in config.worker.roles and not config.store.in_kafka:
        _check_disk(config.state_directory, report)
    failed = {each["check"] for each in report.findings if not each["ok"]}
    if "learner" not in failed:
        _check_kernels(config, report)
    if config.kafka is not None and not failed & {"kafka", "rights"}:
        await _check_clock(config, report)


def _check_disk(directory: Path, report: Report) -> None:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free // 2**20
    text = f"{free:,} MiB are free where {directory} is"
    if free < _FULL:
        report.bad("disk", StoreError(text, fix=f"free at least {_LOW} MiB, or move store.directory"))
    elif free < _LOW:
        report.doubtful("disk", text)
    else:
        report.good("disk", text)


def _check_kernels(config: Config, report: Report) -> None:
    """Compile the kernels of the learner, or load them from disk."""
    compiled: list[bool] = []
    begin = time.monotonic()
    try:
        with on_compile(lambda: compiled.append(True)):
            warm_up(config)
    except StreampairError as error:
        report.bad("kernels", error)
        return
    seconds = time.monotonic() - begin
    took = (
        f"compiled in {seconds:.0f} s; later starts load them" if compiled else f"loaded in {seconds:.1f} s"
    )
    report.good("kernels", took)


async def _check_clock(config: Config, report: Report) -> None:
    """Compare this host's clock with the newest records: a clock that is behind is seen, one ahead is not."""
    settings, topic = config.require_kafka(), config.input.topic
    lookup = RecordReader(settings)
    newest: list[int] = []
    try:
        count = (await describe_topics(settings)).get(topic, 0)
        places = [Partition(topic, number) for number in range(count)]
        for number, (first, end) in (await lookup.spans(places)).items() if places else ():
            last = await lookup.one(Partition(topic, number), end - 1, exactly=False) if end > first else None
            if last is not None:
                newest.append(last.timestamp)
        by_broker = bool(newest) and await has_append_time(settings, topic)
    except StreampairError as error:
        report.bad("clock", error)
        return
    finally:
        await lookup.stop()
    if not newest:
        report.good("clock", f"{topic!r} has no record to compare it with")
        return
    ahead = max(newest) - round(time.time() * 1000)
    if ahead <= _AHEAD_MS:
        report.good("clock", "no newest record of the input is ahead of it")
    elif by_broker:
        problem = f"this host's clock is {duration_text(ahead)} or more behind that of the brokers"
        report.bad("clock", SourceError(problem, fix="synchronise it, such as with chrony"))
    else:
        report.doubtful(
            "clock",
            f"a record of the input is {duration_text(ahead)} ahead of this host's clock: that of its "
            "producer is ahead, or this one is behind. Synchronise them, such as with chrony",
        )
