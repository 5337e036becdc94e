"""`streampair promote`: make a challenger the champion of a stopped application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from streampair_connectors.cli.options import AsJson, ConfigPath, check_can_ask, errors
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs

if TYPE_CHECKING:
    from streampair_connectors.stores.state import Promotion

__all__ = ["promote"]


def promote(
    config: ConfigPath,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The challenger; or the learner of [learner], to go back.")
    ],
    by_raw_data: Annotated[
        bool,
        typer.Option(
            "--by-raw-data",
            help="Of a private lane: the choice was made by something else than private AUCs, and the report "
            "may say that the guarantee is void.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a challenger the champion: from the next record on its scores are published.

    The champion before goes on as a challenger. Both are compared first, on the same events. No worker may
    run, and the last one must have stopped cleanly: stop it, call this, and start it again. The entry in the
    log of the lane is written once; whatever dies meanwhile, each start has either the one champion or the
    other. With learner.scope = "partition" each lane has an entry of its own: repeat the command if it was
    interrupted.

    Of a private lane the challenger must be private, and have the highest private AUC of the learners
    (auc_share); any other choice depends on raw data, and voids the guarantee (--by-raw-data).
    """
    with errors(as_json):
        check_can_ask(yes=yes, as_json=as_json)
        settings = load_config(config)
        logs.configure("error")
        made = asyncio.run(_promote(settings, name, by_raw_data=by_raw_data, ask=not yes, show=not as_json))
        if as_json:
            typer.echo(json.dumps({"promoted": [each.as_dict() for each in made]}))
        elif not made:
            typer.echo("nothing was changed")
            raise typer.Exit(1)
        else:
            typer.echo(f"done: {name} is the champion; start `streampair run`")


async def _promote(
    settings: Config, name: str, *, by_raw_data: bool, ask: bool, show: bool
) -> list[Promotion]:
    """Carry out the promotions, and return them: none of them if the answer is no."""
    from streampair.engine.source import lane_title
    from streampair_connectors.stores.state import open_states

    async with open_states(settings) as states:
        made = await states.promotions(name, by_raw_data=by_raw_data)
        for each in made if show else ():
            typer.echo(f"{settings.app}: {lane_title(settings.input.topic, each.partition)}")
            for label, value in _rows(each):
                typer.echo(f"  {label:<10} {value}")
        if ask and not await asyncio.to_thread(typer.confirm, "Go on?"):
            return []
        for each in made:
            await states.carry_out(each)
        return made


def _rows(promotion: Promotion) -> Iterator[tuple[str, str]]:
    found = promotion.comparison
    yield "champion", promotion.champion + ("" if found is None else f", AUC {found.first:.4f}")
    yield "promoted", promotion.promoted + ("" if found is None else f", AUC {found.second:.4f}")
    if found is not None:
        yield (
            "difference",
            f"{found.difference:+.4f}, standard error {found.difference_stderr:.4f}, p {found.p_value:.3g} "
            f"(DeLong), over the same {found.events} events",
        )
    yield "chosen by", promotion.chosen_by
    if promotion.void:
        yield "report", f"will say: void ({promotion.void})"
