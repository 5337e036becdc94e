"""`streampair report`: a recorded run or a stored state as one HTML file, which needs no server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streampair.errors import SourceError, StoreError
from streampair_connectors.cli.options import AsJson, errors
from streampair_connectors.cli.output_files import check_outputs, files_of, write_file
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs

if TYPE_CHECKING:
    from streampair.engine.lane import LaneGauges
    from streampair.privacy import PrivacyReport
    from streampair_connectors.stores.spending import LaneBudget
    from streampair_connectors.stores.state import LaneState

__all__ = ["add_report", "read_run", "report", "report_html", "stored_run"]

_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.]+)">\n')
_SCRIPT = re.compile(r'<script src="page/([\w.]+)" defer></script>\n')
_REQUIRED_FIELDS = {"boot", "seq", "now", "public", "version", "process", "series", "lanes"}


def report_html(run: dict[str, Any]) -> bytes:
    """Return the page of a recorded run.

    Parameters
    ----------
    run
        The result of `frame`.

    Returns
    -------
    bytes
        One HTML file that needs nothing else, and whose policy allows it nothing else.
    """
    from streampair_connectors.observability.dashboard.page import asset

    html = asset("page.html").decode()
    styles = [asset(name).decode() for name in _STYLE.findall(html)]
    scripts = [asset(name).decode() for name in _SCRIPT.findall(html)]
    # No text of the run can close the script element.
    data = msgspec.json.encode(run).decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += "".join(f"<style>{text}</style>\n" for text in styles)
    tail = f'<script type="application/json" id="data">{data}</script>\n'
    tail += "".join(f"<script>{text}</script>\n" for text in scripts)
    html = _SCRIPT.sub("", _STYLE.sub("", html))
    html = html.replace("<title>", f"{head}<title>", 1)
    return html.replace("</body>", f"{tail}</body>", 1).encode()


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def read_run(path: Path) -> dict[str, Any]:
    """Read what `streampair replay --record` wrote.

    Raises
    ------
    SourceError
        It cannot be read, or is something else.
    """
    try:
        run = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {error.strerror}", fix="name a recorded run", retriable=False
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        run = None
    if not isinstance(run, dict) or not run.keys() >= _REQUIRED_FIELDS:
        raise SourceError(
            f"{path} is no recorded run",
            fix="record one with `streampair replay CONFIG FILE --record run.json`, or name a configuration: "
            "then its state is shown",
            retriable=False,
        )
    return run


async def stored_run(config: Config) -> dict[str, Any]:
    """Read what the store of an application holds, as of the last commits; changes nothing.

    It has privacy accounts, offsets and sizes; a stored state has no history and no AUC.

    Raises
    ------
    SourceError, StoreError, SnapshotError
        As of `streampair state show`.
    """
    from streampair.engine.source import partition_label, partition_number
    from streampair_connectors.observability.dashboard import frame
    from streampair_connectors.observability.metrics import Telemetry
    from streampair_connectors.stores.spending import read_stored, together
    from streampair_connectors.stores.state import open_states
    from streampair_connectors.worker.factory import challenger_notes

    async with open_states(config, broker=False) as states:
        lanes = await states.show()
    if not lanes:
        raise StoreError(
            f"the store has no lane of {config.app}",
            fix="run it first; or see that store.kind and store.directory are those that it ran with",
        )
    try:
        found = (await read_stored(config)).accounts
        of_input = [account for account in found if account.topic == config.input.topic]
        accounts = {
            lane.partition: together([account for account in of_input if account.partition == lane.partition])
            for lane in lanes
            if any(account.partition == lane.partition for account in of_input)
        }
    except StoreError:
        accounts = {}  # none of its lanes is private
    telemetry = Telemetry()
    telemetry.health(config.app, "stopped")
    for lane in lanes:
        if lane.refused is not None:
            telemetry.health(
                config.app, "failed", f"a start would be refused: {lane.refused}", lane.fix or ""
            )
        labels = (config.app, config.input.topic, partition_label(lane.partition), lane.champion)
        notes = (*config.privacy_notes, *challenger_notes(config))
        telemetry.publish(labels, _gauges(lane, accounts.get(lane.partition), notes), None)
    run = frame(telemetry, public=False, audit=config.audit_file)
    for entry in run["lanes"]:
        # No worker held it when the report was made.
        entry["since"] = None
        account = accounts.get(partition_number(str(entry["partition"])))
        if account is None or not account.release_dates:
            entry["releases"] = []
    return run


def _gauges(lane: LaneState, account: LaneBudget | None, notes: tuple[str, ...]) -> LaneGauges:
    from streampair.engine.lane import LaneGauges

    return LaneGauges(
        events={},
        dead_letters={},
        auc=math.nan,
        regret=None,
        weight_norm=None,
        buffer_records=None,
        null_slots=None,
        state_bytes=None if lane.snapshot is None else lane.snapshot["size"],
        next_offset=lane.offset,
        privacy=None if account is None else _report(account).replace(notes=notes),
        forks=lane.forks,
        since=None if account is None else account.since,
        release_dates=() if account is None else account.release_dates,
        fork_dates=() if account is None else account.fork_dates,
        generation=None if account is None else account.generation,
    )


def _report(account: LaneBudget) -> PrivacyReport:
    """The learner's report as far as the log has it: its numbers, and the state of the guarantee."""
    from streampair.privacy import PrivacyReport

    return PrivacyReport(
        epsilon_spent=account.epsilon_spent,
        epsilon_budget=account.epsilon_budget,
        delta=account.delta,
        mu_spent=account.mu_spent,
        mu_budget=account.mu_budget,
        unit=account.unit,
        adjacency="as the plan says",
        releases=account.releases,
        guarantee=account.guarantee,
        kind=account.kind,  # type: ignore[arg-type]
        horizon=account.horizon,
        horizon_left=account.horizon_left,
        noise_std=math.nan,
        mechanism="The mechanism is shown by `streampair check`, and on the page of a running worker.",
    )


def add_report(app: typer.Typer) -> None:
    """Add the command to the others."""
    app.command(
        short_help="Write a run as one HTML file.",
        epilog="Example: streampair report run.json --output run.html",
    )(report)


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="What `replay --record` wrote; or a configuration, whose state is shown."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write. Without it: RUN with .html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML file: the page of `run`, to be opened from a disk, sent or kept.

    RUN is what `streampair replay CONFIG FILE --record RUN` wrote, with the whole past of the run; or a
    configuration (.toml), of whose lanes the store holds privacy accounts, offsets and sizes. The file needs
    no server, loads nothing, and has no value of any record.
    """
    with errors(as_json):
        path = run.with_suffix(".html") if output is None else output
        settings = load_config(run) if run.suffix == ".toml" else None
        read = {"RUN": run} if settings is None else files_of(settings)
        check_outputs({"--output": path}, read)
        if settings is None:
            frame = read_run(run)
        else:
            logs.configure("error")
            frame = asyncio.run(stored_run(settings))
        write_file(path, report_html(frame))
        if as_json:
            typer.echo(json.dumps({"report": str(path), "lanes": len(frame["lanes"])}))
        else:
            typer.echo(str(path))
