"""`streampair state`: show the state of an application, override a refused start, export and import."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streampair.errors import ConfigError
from streampair_connectors.cli.options import AsJson, ConfigPath, Set, Yes, check_can_ask, confirmed, errors
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs
from streampair_connectors.output_files import check_no_stream

if TYPE_CHECKING:
    from streampair.engine.recovery import Cause
    from streampair_connectors.stores.state import AnewPlan, LaneState, OverridePlan

__all__ = ["state_app"]

state_app = typer.Typer(
    help="Show the state, override a refused start, export and import.",
    epilog="Example: streampair state show fraud.toml",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@state_app.command(
    "show",
    short_help="Show what the store and the group hold of the lane.",
    epilog="Example: streampair state show fraud.toml",
)
def show(config: ConfigPath, overrides: Set = None, as_json: AsJson = False) -> None:
    """Show what the store and the group hold of the lane, and whether `run` would start.

    Changes nothing, takes no lock and fences no worker: one may run meanwhile.
    """
    from streampair_connectors.stores.state import open_states

    async def work(settings: Config) -> LaneState | None:
        async with open_states(settings, broker=False) as states:
            return await states.show() if await states.begun() else None

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        lane = asyncio.run(work(settings))
        if as_json:
            typer.echo(json.dumps({"app": settings.app, "lane": None if lane is None else lane.as_dict()}))
        elif lane is None:
            typer.echo(f"neither the store nor the group has a lane of {settings.app}")
        else:
            _block(f"{settings.app}: {settings.input.topic}", _rows(lane))


@state_app.command(
    "recover",
    short_help="Override a refused start; shows first what it charges.",
    epilog="Example: streampair state recover fraud.toml --accept-rollback",
)
def recover(
    config: ConfigPath,
    ignore_register: Annotated[
        bool,
        typer.Option(
            "--ignore-register",
            help="The group's offsets are gone or were reset, and the store is the newest.",
        ),
    ] = False,
    accept_rollback: Annotated[
        bool,
        typer.Option(
            "--accept-rollback",
            help="The newest log is lost or damaged: go on from the one that is there.",
        ),
    ] = False,
    skip_span: Annotated[
        bool,
        typer.Option(
            "--skip-span",
            help="Events since the last snapshot are gone or changed: go on from the snapshot, without them.",
        ),
    ] = False,
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="The log is lost or cannot be read: begin a new model at the group's offset. Not for a "
            "private learner.",
        ),
    ] = False,
    yes: Yes = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Override a refused start. The charge is shown first, and must be confirmed.

    A private lane is charged a fork for every slot that may be seen again, and its report says from then on
    "vouched by the operator". The newest store, put back, costs nothing: look for that first. No worker may
    run.

    With --begin-anew what the lane had learned is lost; no event is scored twice, and none is skipped.
    """
    flags: dict[Cause | Literal["anew"], bool] = {
        "register": ignore_register,
        "rollback": accept_rollback,
        "span": skip_span,
        "anew": begin_anew,
    }
    with errors(as_json):
        chosen = [cause for cause, is_set in flags.items() if is_set]
        if len(chosen) != 1:
            raise ConfigError(
                "no override is chosen" if not chosen else "only one override at a time",
                fix="pass one of --ignore-register, --accept-rollback, --skip-span and --begin-anew: the "
                "error of `run` names it",
            )
        check_can_ask(yes=yes, as_json=as_json)
        settings = load_config(config, overrides)
        logs.configure("error")
        plan = asyncio.run(_planned(settings, chosen[0]))
        if not as_json:
            _block(f"{settings.app}: {settings.input.topic}", _plan_rows(plan))
        if not yes and not confirmed("Go on?"):
            typer.echo("nothing was changed")
            raise typer.Exit(1)
        asyncio.run(_carried_out(settings, plan))
        if as_json:
            typer.echo(json.dumps({"recovered": plan.as_dict()}))
        else:
            typer.echo("done: start `streampair run`")


async def _planned(settings: Config, cause: Cause | Literal["anew"]) -> OverridePlan | AnewPlan:
    from streampair_connectors.stores.state import open_states

    async with open_states(settings) as states:
        return await states.plan(cause)


async def _carried_out(settings: Config, plan: OverridePlan | AnewPlan) -> None:
    from streampair_connectors.stores.state import open_states

    async with open_states(settings) as states:
        await states.carry_out(plan)


@state_app.command(
    "export",
    short_help="Write the state to one file.",
    epilog="Example: streampair state export fraud.toml --output fraud.state",
)
def export(
    config: ConfigPath,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file, which must be new.")],
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Write log and snapshot of the lane to one new file of mode 0600, to move them to another store.

    Encrypted with store.key_file or the noise key, if there is one; the noise key is not exported. No worker
    may run. Once one has run again, the file is no longer the newest state, and `import` rejects it.
    """
    from streampair_connectors.stores.state import export_state

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        check_no_stream(output)
        summary = asyncio.run(export_state(settings, output))
        if as_json:
            typer.echo(json.dumps(summary))
            return
        sealed = "sealed" if summary["sealed"] else "not sealed: as sensitive as the input"
        typer.echo(f"{output}: {summary['bytes']} bytes, {sealed}")
        if summary["keeps_key"]:
            key = settings.state_directory / f"{settings.app}.noise-key"
            typer.echo(f'the noise key is not in it: set learner.noise_key_file = "{key}" where it goes')


@state_app.command(
    "import",
    short_help="Write an exported state into an empty store.",
    epilog="Example: streampair state import fraud.toml fraud.state",
)
def import_(
    config: ConfigPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The exported state.")],
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Write an exported state into the store of the configuration, which must not have one.

    It must be the newest state by the group's register. No worker may run. Afterwards move the old store
    away: it must never be used again.
    """
    from streampair_connectors.stores.state import import_state

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        summary = asyncio.run(import_state(settings, file))
        if as_json:
            typer.echo(json.dumps(summary))
        else:
            typer.echo("the state is imported; move the old store away")


_LABEL = 10


def _block(title: str, rows: Iterator[tuple[str, str]]) -> None:
    typer.echo(title)
    for label, value in rows:
        typer.echo(f"  {label:<{_LABEL}} {value}")
    typer.echo()


def _rows(lane: LaneState) -> Iterator[tuple[str, str]]:
    yield "log", f"{lane.sequence + 1} entries, by release {lane.writer or 'unknown'}"
    yield "offset", f"{lane.offset}, the group's is {lane.group_offset}; its register: {lane.register}"
    if lane.forks is not None:
        beyond = f", released up to {lane.released}" if lane.released > lane.slots else ""
        more = ", and 1 more until a replay has caught up" if lane.pending else ""
        yield "slots", f"{lane.slots}{beyond}"
        yield "forks", f"{lane.forks} of {lane.forks_planned} planned{more}"
    if lane.snapshot is not None:
        yield "snapshot", f"{lane.snapshot['size']} bytes, at offset {lane.snapshot['offset']}"
    yield "key", lane.key or "none"
    yield "topic", f"{lane.partitions} partition(s) when it began, cluster {lane.cluster or 'not named'}"
    yield from _listed("void", lane.void)
    yield from _listed("accepted", lane.accepted)
    if lane.refused is None:
        start = "would start"
        if lane.replay is not None:
            first, end = lane.replay
            start += f", unless the replay of events {first} to {end - 1} comes out otherwise"
        yield "start", start
    else:
        yield "start", f"refused: {lane.refused}"
        yield "fix", lane.fix or "none is needed"


def _listed(label: str, values: Sequence[str]) -> Iterator[tuple[str, str]]:
    for value in values:
        yield label, value


def _plan_rows(plan: OverridePlan | AnewPlan) -> Iterator[tuple[str, str]]:
    fields: dict[str, Any] = plan.as_dict()
    yield "refused", fields["refused"]
    if "begins" in fields:
        where = ", ".join(f"{offset} of partition {number}" for number, offset in fields["begins"].items())
        yield "begins", f"a new model at offset {where}; what the lane had learned is lost"
        return
    before, after = fields["forks"]
    yield "charges", f"{fields['forks_charged']} fork(s): {before} before, {after} after"
    if "mu" in fields:
        (mu, then), (epsilon, later) = fields["mu"], fields["epsilon"]
        yield "mu", f"{mu:.4g} before, {then:.4g} after"
        yield "epsilon", f"{epsilon:.4g} before, {later:.4g} after, at delta {fields['delta']:.3g}"
    if fields["report"] is not None:
        yield "report", f"will say: {fields['report']}"
