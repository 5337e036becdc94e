"""`streampair doctor`: what is to be mended before `run`, in order."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from streampair.errors import SourceError, StoreError, StreampairError
from streampair.kernels import on_compile
from streampair_connectors.cli.check import Report, check_config
from streampair_connectors.config import Config, duration_text
from streampair_connectors.kafka import Partition, RecordReader, describe_topics, has_append_time
from streampair_connectors.worker.factory import warm_up

__all__ = ["examine", "report_lines"]

_FULL, _LOW = 100, 1024  # MiB of free space: nothing can be saved soon, and little is left
_AHEAD_MS = 1000  # how far a record may be ahead of this host's clock


async def examine(config: Config) -> Report:
    """Run all checks: those of `check_config`, then disk, kernels and clock."""
    report = await check_config(config)
    if "learn" in config.worker.roles and not config.store.in_kafka:
        _check_disk(config.state_directory, report)
    if not any(not each["ok"] and each["check"] == "learner" for each in report.findings):
        _check_kernels(config, report)
    if not any(not each["ok"] and each["check"] in ("kafka", "rights") for each in report.findings):
        await _check_clock(config, report)
    return report


def report_lines(report: Report) -> list[str]:
    """What failed, numbered and with its fix; then warnings, and a summary."""
    failed = [each for each in report.findings if not each["ok"]]
    doubtful = [each for each in report.findings if each["ok"] and each.get("warning")]
    passed = len(report.findings) - len(failed) - len(doubtful)
    out = []
    for number, each in enumerate(failed, 1):
        out += [f"{number}. {each['check']}: {each['text']}", f"   fix: {each['fix']}"]
    out += [f"warning: {each['check']}: {each['text']}" for each in doubtful]
    out.append(
        f"{passed} checks passed, {len(failed)} failed, {len(doubtful)} warned: "
        + ("ready to run" if report.ok else "mend them in this order, then call it again")
    )
    return out


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
