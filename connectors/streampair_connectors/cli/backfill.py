"""Implementation of `streampair backfill`: a model of a table in files, with the configuration of a lane."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from streampair import auc, models, ranking
from streampair.base.forest import ForestLearner
from streampair.base.online import OnlinePairLearner
from streampair.engine.snapshot import pack
from streampair.errors import ConfigError, PrivacyError, RecordError
from streampair.history import Job
from streampair.history.jobs import LEARNERS, second_stage
from streampair.privacy import EntityLimit
from streampair.privacy.pipeline_check import class_name
from streampair_connectors.cli.options import AsJson, ConfigPath, Set, errors
from streampair_connectors.cli.replay import warn_outside
from streampair_connectors.config import Config, load_config
from streampair_connectors.config.toml_lines import toml_key
from streampair_connectors.observability import logs
from streampair_connectors.output_files import check_outputs, files_of, is_stream, write_file
from streampair_connectors.worker.factory import build_learner, taken_cells

__all__ = ["backfill"]

_LOG_EVERY = 10.0  # seconds
_AT_A_BOUND = 0.98  # where bounds are -1 and 1
_LEAST_TOLD = 0.5  # below it noise alone would reach the bound
_ROWS_OF_A_PROCESS = 10_000_000  # which take longer than the start of a process
log = logs.get_logger(__name__)

Columns = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE",
        help="Files of the table, or folders of them: Parquet, Arrow IPC or CSV. In a path below a folder, "
        "year=2026 is a column.",
    ),
]


class Request(NamedTuple):
    """What the command line asks for, besides the configuration."""

    tables: list[Path]
    output: Path
    row_id: str | None
    label: str | None
    entity: str | None
    account: Path | None
    processes: int | None
    new_attempt: bool


def backfill(
    config: ConfigPath,
    tables: Columns,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The model, as JSON; FILE.state: all that was learned, to go on from.",
        ),
    ],
    row_id: Annotated[
        str | None,
        typer.Option(
            "--row-id", metavar="COLUMN", help="Column that names each row. Default: input.id. Private only."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="Column of the label. Default: input.label."),
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(
            "--entity", metavar="COLUMN", help="Column of the entity of a row, if the learner has entity."
        ),
    ] = None,
    account: Annotated[
        Path | None,
        typer.Option(
            "--account",
            metavar="FILE",
            help="Account of the attempts. Default: APP-history.account.json, next to CONFIG. Private only.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", min=1, help="Processes that read. Default: one a core, and for ten million rows."
        ),
    ] = None,
    new_attempt: Annotated[
        bool,
        typer.Option(
            "--new-attempt", help="Release once more, after an attempt that has returned; it is charged."
        ),
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Learn a model from a table in files, with the configuration of a lane.

    The model is a file that scores; learner.start can name a linear one (docs/history.md). `PairFTRL` and
    `PrivateForest` read the table twice, and write each release to the account before it is drawn.
    These and `PairMoments` use all cores, others one. A lane goes on from FILE.state as if it had read the
    table, whose records that file may have.

    After Ctrl-C or kill -9 the same command goes on where it was. Until then FILE.sums has exact sums, as
    secret as the table.
    """
    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("info")
        wanted = Request(tables, output, row_id, label, entity, account, processes, new_attempt)
        try:
            result = backfill_table(settings, wanted, Console(stderr=True))
        except KeyboardInterrupt:
            typer.echo("interrupted: the same command goes on where it was", err=True)
            raise
        if as_json:
            typer.echo(json.dumps(result))
        else:
            spent = ""
            if "epsilon_spent" in result:
                spent = f", epsilon {result['epsilon_spent']:g} at delta {result['delta']:g}"
            typer.echo(f"{output}: {result['learner']} of {result['rows']:,} rows{spent}")


def backfill_table(config: Config, wanted: Request, console: Console) -> dict[str, Any]:
    """Write the model of a table to a file, and return what is in it.

    Raises
    ------
    ConfigError, RecordError, PrivacyError, StoreError, SourceError
        As of `streampair.history.Job`; or if the learner does not learn from a table.
    """
    from streampair_connectors.history.passes import (
        Partial,
        check_ids,
        lock,
        readers,
        run_pass,
    )
    from streampair_connectors.history.tables import open_table

    if is_stream(wanted.output) or wanted.output.is_dir():
        raise ConfigError("the model is written to a file", fix="name it with --output start.json")
    learner = _learner(config)
    private = isinstance(learner, LEARNERS)
    if private and wanted.output.suffix == ".state":
        raise ConfigError(
            f"{wanted.output}: a private learner releases a model, and no state",
            fix="name a file of another ending, such as start.json",
        )
    label, row_id, entity = _columns(config, wanted, learner, private)
    if entity is not None:
        learner = learner.clone({"entity": EntityLimit(learner.entity.records, field=entity)})
    named = [name for name in (row_id, entity) if name is not None]
    others = [label, *named]
    table = open_table(wanted.tables, config.input, others, texts=taken_cells(config).get("texts", False))
    if not table.rows:
        raise RecordError("the table has no rows", fix="name files that have some")
    files = {f"the table {file}": file for file in table.files}
    known = {name: file for name, file in files_of(config).items() if name != "learner.start"}
    account = wanted.account or config.history_account
    place, locked = _derived(wanted.output, "sums"), _derived(wanted.output, "lock")
    outputs = {"--output": wanted.output, "the sums of --output": place, "the lock of --output": locked}
    check_outputs({**outputs, "--account": account if private else None}, {**known, **files})
    shared = private or _merges(learner)  # others read in order
    processes = min(wanted.processes or _processes(table.rows), len(table.parts)) if shared else 1
    with lock(locked), readers(processes) as pool:
        kept = Partial(place, table.fingerprint())

        def check_new(last: Any) -> None:
            """Refuse to replace a file, but that of this run, if it was killed after its `last` pass."""
            whole = last is not None and kept.is_whole(last, len(table.parts), wanted.output)
            if wanted.output.is_file() and not whole:
                raise ConfigError(
                    f"{wanted.output} exists, and a lane may have begun with it",
                    fix="name another --output, or move that file away",
                )

        def read(work: Any, what: str) -> Any:
            with _progress(console, what, table.rows) as progress:
                return run_pass(work, table, kept, pool, progress)

        result: dict[str, Any] = {"output": str(wanted.output), "rows": table.rows}
        if row_id is not None:
            job = Job(learner, label=label, rows=table.rows, row_id=row_id, salt=f"{config.app} history")
            checked = partial(check_ids, job, table.columns(named), pool)
            model = _release(config, job, table, wanted, checked, check_new, read)
            _warn_ends(config, model, job.releases[0].sigma)
            result |= {"account": str(account), "attempts": model.metadata["history"]["attempts"]}
            assert model.privacy is not None
            result |= {name: model.privacy[name] for name in ("epsilon_spent", "delta")}
        else:
            model, outside = _learned(config, learner, table, wanted.output, label, check_new, read)
            warn_outside(config.app, outside, table.rows, "rows")
            result |= {"values_outside_bounds": dict(outside)} if outside else {}
        place.unlink(missing_ok=True)
    return {**result, "learner": model.class_name}


def _learned(
    config: Config,
    learner: Any,
    table: Any,
    output: Path,
    label: str,
    check_new: Callable[[Any], None],
    read: Callable[[Any, str], Any],
) -> tuple[models.Model, Mapping[str, int]]:
    """Write the model or the state of a learner without privacy; and how many values were outside bounds."""
    from streampair_connectors.history.passes import InOrder, MomentsPass

    kind = MomentsPass if _merges(learner) else InOrder
    bounds = config.input.without_categories().bounds() or {}
    work = kind(learner, table.reader, label, bounds)
    check_new(work)
    learner, outside = read(work, "rows")
    model = models.export(learner)
    if not model.slots:
        _derived(output, "sums").unlink()  # a corrected table is read from its beginning
        raise RecordError(
            f"no row has a label in the column {label!r}", fix="correct input.label, or name --label"
        )
    if output.suffix == ".state":
        body = {"learner": class_name(learner), "state": learner.to_state()}
        write_file(output, pack(body), secret=True)
    else:
        write_file(output, models.dumps(model))
    return model, outside


def _processes(rows: int) -> int:
    """Processes that are worth their start of some seconds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 1 + rows // _ROWS_OF_A_PROCESS)


def _derived(output: Path, ending: str) -> Path:
    """A file that a run has next to the one that it makes."""
    return output.with_name(f"{output.name}.{ending}")


def _columns(
    config: Config, wanted: Request, learner: Any, private: bool
) -> tuple[str, str | None, str | None]:
    """The columns of the label, of the id of a row and of its entity; None: there is none.

    Raises
    ------
    ConfigError
        If one is not known, or is a feature; or an option is given that is for private learners alone.
    """
    label = wanted.label or config.input.label
    row_id = (wanted.row_id or config.input.id or None) if private else None
    if label is None:
        raise ConfigError("the label of the table is not known", fix="name its column with --label")
    if private and row_id is None:
        raise ConfigError(
            "what names each row is not known",
            fix="name the column of an id with input.id, or with --row-id",
        )
    limit = getattr(learner, "entity", None)
    entity = wanted.entity if limit is None else wanted.entity or limit.field
    if limit is not None and entity is None:
        raise ConfigError(
            "the learner protects entities, which are the keys of messages in the lane; the table has none",
            fix="name the column of the entity with --entity",
        )
    if private and limit is None and entity is not None:
        raise ConfigError(
            "--entity is given, and learner.options.entity is not", fix="say there how many rows one may have"
        )
    options = {
        "--row-id": wanted.row_id,
        "--entity": wanted.entity,
        "--account": wanted.account,
        "--new-attempt": wanted.new_attempt,
    }
    for option, value in options.items():
        if value and not private:
            raise ConfigError(
                f"{option} is for private learners, and {config.learner.label()} is not private",
                fix=f"leave {option} out",
            )
    features = [] if config.input.features is None else config.input.source_names()
    for what, name in (("the label", label), ("the id of a row", row_id), ("the entity", entity)):
        if name in features:
            raise ConfigError(
                f"the column {name!r} is {what}, and a feature too",
                fix="name another column, or leave it out of input.features",
            )
    return label, row_id, entity


def _merges(learner: Any) -> bool:
    return isinstance(learner, auc.PairMoments | ranking.PairMoments)


def _learner(config: Config) -> Any:
    """The learner of the lane as one of a table: without a start, a key, and what is about a stream."""
    stream = {"horizon"} if (config.learner.class_ or "").endswith(("FTRL", "PrivateForest")) else set()
    options = {name: value for name, value in config.learner.options.items() if name not in stream}
    if config.learner.class_ and config.learner.class_.endswith("PairMoments"):
        options["half_life"] = None
    changes = {"start": None, "public_start": False, "noise_key_file": None, "options": options}
    learner = build_learner(config.model_copy(update={"learner": config.learner.model_copy(update=changes)}))
    if config.learner.steps or not isinstance(learner, (*LEARNERS, OnlinePairLearner, ForestLearner)):
        behind = " behind steps" if config.learner.steps else ""
        raise ConfigError(
            f"no table is learned by {config.learner.label()}{behind}",
            fix="name auc.PairFTRL, auc.PrivateForest, ranking.PairFTRL or metric.PairFTRL, PairMoments or "
            "PairOGD, or a forest without privacy, and no steps",
        )
    names = config.input.source_names() if config.input.features else ["NAME"]
    if isinstance(learner, LEARNERS) and learner.bounds is None:
        raise ConfigError(
            "the features have no bounds: values would be cut off at -1 and 1, and epsilon be spent on that",
            fix="write bounds into input.features, by what is known without the table: features = { "
            f"{toml_key(names[0])} = [LOW, HIGH], ... }}",
        )
    return learner


def _release(
    config: Config,
    job: Job,
    table: Any,
    wanted: Request,
    checked: Callable[[], bool],
    check_new: Callable[[Any], None],
    read: Callable[[Any, str], Any],
) -> models.Model:
    """Both stages of a job; what the account says has been released is not released again."""
    from streampair_connectors.history.passes import JobPass, discard_sums

    key = config.learner.noise_key()
    if key is None:
        raise ConfigError(
            "learner.noise_key_file is not set, and noise is drawn from its key",
            fix="make one with: streampair key --output noise.key, and name it; the worker uses it, too",
        )
    new, account = wanted.new_attempt, wanted.account or config.history_account
    sums_file = _derived(wanted.output, "sums")
    second = second_stage(job, account, new_attempt=new)
    if second is None:
        check_new(None)
        number = job.next_attempt(account, new_attempt=new)
        total = read(JobPass(job, table.reader, number), "rows, stage 1 of 2")
        if not total.ids_differ:
            _compare_ids(checked, table.rows, lambda: discard_sums(sums_file, (job.digest,)))
        second = job.standardised(total.sums, key, account=account, new_attempt=new)
    try:
        number = second.next_attempt(account, new_attempt=new)
    except PrivacyError:  # the model has been released: what a run left that died after it is of no use
        discard_sums(sums_file, (job.digest, second.digest))
        check_new(None)
        raise
    last = JobPass(second, table.reader, number)
    check_new(last)
    total = read(last, "rows, stage 2 of 2")

    def save(model: models.Model) -> None:
        write_file(wanted.output, models.dumps(model))

    return second.release(total.sums, key, account=account, new_attempt=new, save=save)


def _compare_ids(checked: Callable[[], bool], rows: int, discard: Callable[[], None]) -> None:
    """Refuse a table whose ids do not differ, or log that they were not compared."""
    try:
        compared = checked()
    except RecordError:
        discard()  # a corrected table is read from its beginning
        raise
    if not compared:
        log.warning(
            "ids_not_compared",
            rows=rows,
            next_step="check that no two rows have one id, and no entity more rows than its limit",
        )


def _warn_ends(config: Config, model: models.Model, sigma: float) -> None:
    """Log of which features the mean is at a bound, by what was released with noise, and no other content.

    `sigma` is the standard deviation of the noise in the sums of the sample.
    """
    means = json.loads(models.dumps(model))["scaling"]["mean"]
    least = _AT_A_BOUND - 3.0 * sigma / model.metadata["history"]["sample"]
    if least < _LEAST_TOLD:
        return
    ranges = config.input.without_categories().bounds() or {}
    ends = [
        name for name, mean in zip(model.features, means, strict=True) if name in ranges and abs(mean) > least
    ]
    if ends:
        log.warning(
            "means_at_bounds",
            app=config.app,
            features=ends,
            detail="the released means of these features are at one of their bounds: nearly all values are "
            "close to it, or beyond it and cut off",
            next_step="see whether the bounds in input.features are of the same unit as the table, by what "
            "is known without it; with others the table is a new job, which is charged",
        )


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        """As text."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} rows/s")


@contextlib.contextmanager
def _progress(console: Console, what: str, rows: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else lines of the log: rows, their rate, and the time that is left."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}/{task.total:,}")
    begun: list[tuple[float, int]] = []
    logged = monotonic()
    with Progress(
        *columns,
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=rows)

        def progress(done: int) -> None:
            nonlocal logged
            now = monotonic()
            begun[1:] = [(now, done)]
            bar.update(task, completed=done)
            if console.is_terminal or (now < logged + _LOG_EVERY and done < rows):
                return
            logged = now
            seconds = now - begun[0][0]
            rate = (done - begun[0][1]) / seconds if seconds > 0.0 else 0.0
            left = round((rows - done) / rate) if rate > 0.0 else None
            log.info(
                "rows_read", what=what, rows=done, of=rows, rows_per_second=round(rate), seconds_left=left
            )

        yield progress
