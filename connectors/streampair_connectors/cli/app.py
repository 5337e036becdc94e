"""The command line of streampair."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import typer
from rich.console import Console

from streampair import __version__
from streampair.errors import ConfigError, StreampairError
from streampair_connectors.cli.backfill import backfill
from streampair_connectors.cli.budget import card
from streampair_connectors.cli.compare import compare
from streampair_connectors.cli.dlq import dlq_app
from streampair_connectors.cli.init import init
from streampair_connectors.cli.model import model_app
from streampair_connectors.cli.options import (
    AsJson,
    Commands,
    ConfigPath,
    HistoryAccount,
    LogFormat,
    LogLevel,
    Set,
    load_optional,
    run_until_signal,
)
from streampair_connectors.cli.options import errors as _errors
from streampair_connectors.cli.serve import serve
from streampair_connectors.cli.state import state_app
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs
from streampair_connectors.output_files import (
    check_no_stream,
    check_outputs,
    files_of,
    is_stream,
    write_file,
)

__all__ = ["app", "main"]

# Click keeps the lines below \\b; other lines are wrapped.
_INTRODUCTION = """Online learning to rank from labelled events, with differential privacy or without.

`demo` needs neither Kafka nor a configuration. For a topic of your own, `init` writes a configuration (one
TOML file), `check` says whether it is ready, and `run` runs it. Every command has --help, and --json for
machines.
"""

_EPILOG = """Exit codes:

\b
  0    success; of `run` and `serve` also a stop by Ctrl-C or SIGTERM
  1    failure; what `check`, `audit` or `erasure` looks for was found;
       a question was answered with no
  2    wrong command line or configuration
  130  ended by Ctrl-C; 143 by SIGTERM. `run` and `serve`: by the second one

Example: streampair demo
"""

_CHECK = """Check everything that `run` needs, and print what it would do: learner, privacy, state, topics.

Changes nothing, except for topics that --create-topics makes. Exit code 1 if `run` would not start, or,
without [kafka], `replay`; each problem is printed with its fix. A minimal configuration
(docs/configuration.md has every key):

\b
  app = "fraud"                              # also the consumer group
  kafka.bootstrap_servers = "localhost:9092"
  input.topic = "payments"                   # of JSON objects
  input.label = "is_fraud"                   # the field with the label
  learner.class = "streampair.auc.PairOGD"   # or auc.PairFTRL: private
"""

app = typer.Typer(
    name="streampair",
    cls=Commands,
    help=_INTRODUCTION,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

budget_app = typer.Typer(
    help="Privacy budget: forecast, spend, and privacy card.",
    epilog="Example: streampair budget plan --n 1e6 --d 20",
    no_args_is_help=True,
)

Runs = Annotated[
    int | None,
    typer.Option(
        min=4, help="Runs on each of the two streams; more give a tighter bound. Default: 200 to 4000, by mu."
    ),
]
Slots = Annotated[
    int | None, typer.Option(min=4, help="Records in a run. Default: by the size of the buffer.")
]
CreateTopics = Annotated[
    bool,
    typer.Option(
        "--create-topics",
        help="Create missing topics: scores and dead letters with as many partitions as the input has, the "
        "input only if topics.input_partitions is set. Topics that exist stay as they are.",
    ),
]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"streampair {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    short_help="Run a demonstration: three learners on one topic.",
    epilog="Example: streampair demo --seed 7 --rate 500",
)
def demo(
    rate: Annotated[float, typer.Option(min=1.0, help="Events a second.")] = 400.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of the events.")] = 0,
    serve: Annotated[
        bool, typer.Option("--serve", help="Print the dashboard's address, and serve it until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of dashboard and metrics; 0 takes a free one.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a demonstration: three learners on one topic, one not private, one private, one of River's own.

    Needs neither Kafka nor a configuration: it starts an in-process broker, and the events are River's
    Phishing data. Takes a few seconds. The table at the end is computed from the scores in the output topics.
    """
    from streampair_connectors.cli.demo import run_demo

    with _errors(as_json):
        logs.configure("error")
        console = Console(stderr=as_json)
        result = run_demo(rate=rate, seed=seed, serve=serve, port=port, console=console)
        if as_json:
            typer.echo(json.dumps(result))


app.command(
    short_help="Write a configuration from a sample of a topic or a file.",
    epilog="Example: streampair init fraud.toml --topic payments --kafka localhost:9092",
)(init)


@app.command(
    help=_CHECK,
    short_help="Say whether a configuration is ready to run.",
    epilog="Example: streampair check fraud.toml",
)
def check(
    config: ConfigPath,
    create_topics: CreateTopics = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also what takes longer: look at the free disk space, compile the kernels, and compare this "
            "host's clock with the newest records.",
        ),
    ] = False,
    account: HistoryAccount = None,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    from streampair_connectors.cli.check import Report, check_config
    from streampair_connectors.cli.check_deep import check_deep

    with _errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")

        async def work() -> Report:
            report = await check_config(settings, create_topics=create_topics, account=account)
            if deep:
                await check_deep(settings, report)
            return report

        report = asyncio.run(work())
        if as_json:
            typer.echo(json.dumps(report.as_dict()))
        else:
            for line in report.lines():
                typer.echo(line)
        if not report.ok:
            raise typer.Exit(1)


@app.command(
    short_help="Score and learn from a Kafka topic, until stopped.",
    epilog="Example: streampair run fraud.toml --create-topics",
)
def run(
    config: ConfigPath,
    create_topics: CreateTopics = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Score each event of a Kafka topic, then learn from it, until stopped.

    Scores go to the topic APP-scores, events that cannot be used to APP-dead-letters, the state to
    APP-TOPIC-log, metrics to http://127.0.0.1:9464/metrics, and http://127.0.0.1:9464 is the dashboard; all
    of them can be configured. On Ctrl-C or SIGTERM it finishes the batch, commits and leaves the group; the
    next start continues there.

    Logs are written to standard error: as text on a terminal, else one JSON object a line. With --json the
    final state is written to standard output.
    """
    from streampair_connectors.observability.server import MetricsServer
    from streampair_connectors.worker.worker import Worker

    with _errors(as_json):
        settings = load_config(config, overrides)
        logs.configure(log_level, form=log_format)
        log = logs.get_logger(__name__)
        workers: list[Worker] = []
        stop_requested = asyncio.Event()

        async def work() -> None:
            worker = Worker(settings, create_topics=create_topics)
            workers.append(worker)
            server = MetricsServer(
                worker.telemetry, settings.metrics, settings.metrics.audit_file, settings.card
            )
            await server.start()
            where = {"metrics": f"{server.url}/metrics", "page": f"{server.url}/"}
            log.info("started", app=settings.app, version=__version__, overrides=[*settings.places], **where)
            try:
                await worker.run()
            except StreampairError as error:
                log.error("failed", app=settings.app, error=error.problem, fix=error.fix)
                await server.linger(stop_requested)
                raise
            finally:
                await server.stop()
            if as_json:
                lanes = worker.telemetry.gauges(settings.app)
                typer.echo(json.dumps([_lane_json(lanes[k]) for k in sorted(lanes)]))

        def stop() -> None:
            stop_requested.set()
            for worker in workers:
                worker.stop()

        run_until_signal(work, stop)
        if any(worker.compiling for worker in workers):
            # Its thread can neither be interrupted nor outlive the interpreter.
            sys.stdout.flush()
            os._exit(0)


app.command(
    short_help="Answer over HTTP with the newest model.",
    epilog="Example: streampair serve fraud.toml --port 8080",
)(serve)


@app.command(
    short_help="Draw a key, and write it to a new file.",
    epilog="Example: streampair key --output noise.key",
)
def key(
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The file, which does not exist yet.")
    ],
    as_json: AsJson = False,
) -> None:
    """Draw a key, and write it to a new file that only its owner may read.

    learner.noise_key_file, store.key_file and output.explore_key_file need a key each. The noise key never
    changes. To change that of the store, draw another one, put it into the first line of its file, and keep
    the old ones below it until nothing is left that was written with them. To change that of output.explore,
    name the file of another one.
    """
    from streampair_connectors.config.secrets import draw_key

    with _errors(as_json):
        check_no_stream(output)
        draw_key(output)
        if as_json:
            typer.echo(json.dumps({"file": str(output)}))
        else:
            typer.echo(
                f"{output} has a new key. Keep a copy in a safe place: state that is written with it cannot "
                "be read without it"
            )


app.command(
    short_help="Compare two applications on the same events.",
    epilog="Example: streampair compare fraud.toml forest.toml",
)(compare)


@app.command(
    short_help="Score and learn from a file, without Kafka.",
    epilog="Example: streampair replay fraud.toml history.csv.gz --output scores.jsonl",
)
def replay(
    config: ConfigPath,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Events: CSV with a header, or JSON lines; also .gz; - is standard input."
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", metavar="FILE", help="Labels that come later than events ([label_input]), as FILE."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="The scores. Default: standard output.")
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            help="Write bad events here. Default: APP-dead-letters.jsonl, created if there are any."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", help="Write the dashboard of the run here, as one HTML file, which needs no server."
        ),
    ] = None,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Score each event of a file, then learn from it, as `run` does with a topic.

    The model starts fresh and is not kept. The spend of a private learner is in the summary and in no
    account: it adds to what `run` spends on the same records. Scores are JSON lines. The summary (AUC,
    regret, epsilon) is written to standard error; with --json it is the last line of standard output. Ctrl-C
    ends after the current batch, with the summary so far. Exit code 1 if nothing was learned. Files are
    written as PATH.part until then; one that is read is never written.

    With --labels each event is scored, and learned when it is due, with the label that has come by then. Both
    files are sorted by time. In both, input.time names the column of the time and input.id that of the
    event's id. Exit code 1 if no label finds its event.
    """
    from streampair_connectors.cli.replay import replay_file

    with _errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("warning")

        def report(summary: dict[str, Any]) -> None:
            if as_json:
                typer.echo(json.dumps({"summary": summary}))
            else:
                for name, value in summary.items():
                    typer.echo(f"{name:>20}: {value}", err=True)

        files = {"output": None if is_stream(output) else output, "dead_letters": dead_letters, "page": page}
        replay_file(settings, file, labels=labels, **files, report=report)


app.command(
    short_help="Learn a model from a table in files, to begin a lane with.",
    epilog="Example: streampair backfill fraud.toml payments/ --output start.json",
)(backfill)


@app.command(
    short_help="Find the records of one person that are still there.",
    epilog="Example: streampair erasure fraud.toml customer-17",
)
def erasure(
    config: ConfigPath,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the person's records.")],
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Also records with KEY in their value or in a header.")
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Find the records of one person that are still in the topics of an application.

    Reads input, labels, scores, alerts, dead letters and late labels to their ends, which takes as long as
    reading them does; changes nothing. Prints where records are, never what they say. docs/erasure.md says
    how each is removed, and what the state of a learner keeps. Exit code 1 if anything is found.
    """
    from streampair_connectors.cli.erasure import erasure_lines
    from streampair_connectors.worker.erasure import find_records

    with _errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        found = asyncio.run(find_records(settings, key.encode(), anywhere=anywhere))
        if as_json:
            typer.echo(json.dumps({"app": settings.app, "records": [msgspec.to_builtins(r) for r in found]}))
        else:
            for line in erasure_lines(settings, found):
                typer.echo(line)
        if found:
            raise typer.Exit(1)


@app.command(
    short_help="Attack the configured private learner with a canary, to test its claim.",
    epilog="Example: streampair audit fraud.toml --output fraud-audit.json",
)
def audit(
    config: ConfigPath,
    runs: Runs = None,
    slots: Slots = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the report to this file, as JSON, for metrics.audit_file and `budget card`.",
        ),
    ] = None,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Attack the configured private learner with a canary, to test its claim.

    Copies of the learner are run many times on two synthetic streams that differ in one record, the canary.
    How well an attack distinguishes the two by the releases gives a lower bound of mu, which is printed
    beside the claimed mu, with a verdict. Reads no data, spends no budget, changes nothing. Exit code 1 if
    the claim is violated.
    """
    from streampair_connectors.cli.audit import audit_config, audit_dict, audit_lines

    with _errors(as_json):
        settings = load_config(config, overrides)
        inputs = {k: v for k, v in files_of(settings).items() if k != "metrics.audit_file"}
        check_outputs({"--output": output}, inputs)
        report = audit_config(settings, slots=slots, runs=runs, console=Console(stderr=True))
        document = json.dumps(audit_dict(report))
        if output is not None:
            write_file(output, f"{document}\n".encode())
        if as_json:
            typer.echo(document)
        elif not is_stream(output):
            for line in audit_lines(report):
                typer.echo(line)
        if not report.holds:
            raise typer.Exit(1)


@budget_app.command(
    "show",
    short_help="Show the privacy budget that an application has spent.",
    epilog="Example: streampair budget show fraud.toml churn.toml",
)
def budget_show(
    configs: Annotated[
        list[Path],
        typer.Argument(
            metavar="CONFIG",
            help="Configuration files, TOML. Applications that learn from the same records add up.",
        ),
    ],
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="Declare that no record, and no entity that is protected, is in two of the input topics: "
            "the largest spend counts, not the sum. Nothing checks it.",
        ),
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show the spent and the remaining budget of each private lane of one or several applications.

    Reads the store, as of the last commits, also while a worker runs. Changes nothing. Topics may hold copies
    of the same records, so their spends add up unless --disjoint is given.
    """
    from streampair_connectors.cli.budget import show_budget
    from streampair_connectors.stores.spending import read_stored

    with _errors(as_json):
        logs.configure("error")
        unique = dict.fromkeys(path.resolve() for path in configs)
        loaded = [load_config(path, overrides) for path in unique]
        budget = asyncio.run(read_stored(*loaded, disjoint=disjoint))
        if as_json:
            typer.echo(json.dumps(budget.as_dict()))
        else:
            show_budget(budget, Console())


@budget_app.command(
    "plan",
    short_help="Forecast noise and accuracy of each private learner, without data.",
    epilog="Example: streampair budget plan --n 1e6 --d 20 --positive-rate 0.01",
)
def budget_plan(
    n: Annotated[float, typer.Option("--n", help="Records in the stream, such as 1e6.")],
    d: Annotated[int | None, typer.Option("--d", help="Features of a record.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Plan for the features, epsilon, delta, entity and family of this configuration.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy budget of a record; smaller is more private. Default: of --config, or 1."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The delta at which epsilon holds. Default: of --config, 1/n, or 1 over the rows of --table."
        ),
    ] = None,
    table: Annotated[
        float | None,
        typer.Option(
            metavar="ROWS",
            help="Rows of a table that is learned before the stream; prints what both spend together.",
        ),
    ] = None,
    positive_rate: Annotated[float, typer.Option(help="Guessed share of positives.")] = 0.5,
    auc: Annotated[
        float, typer.Option(help="Guessed AUC (or pairs, or distances in order) of the best model.")
    ] = 0.85,
    family: Annotated[
        Literal["auc", "ranking", "metric"] | None,
        typer.Option(help="Learners to compare. Default: of --config, or auc."),
    ] = None,
    level: Annotated[
        float | None, typer.Option(help="Level to reach; prints the number of records that it takes.")
    ] = None,
    entity: Annotated[
        int | None, typer.Option(help="Protect entities with at most this many learned records each.")
    ] = None,
    separation: Annotated[int, typer.Option(help="Slots between two records of one entity.")] = 1,
    gain: Annotated[
        float, typer.Option(help="Guessed gain of RandomFourier over a linear model, without privacy.")
    ] = 0.05,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Forecast noise, expected AUC and settings of each private learner, and recommend one.

    Reads no data: a wrong guess makes the forecast wrong, and never the guarantee.
    """
    from streampair.privacy import EntityLimit, plan
    from streampair_connectors.cli.budget import (
        plan_dict,
        planned_options,
        show_plan,
        show_table,
        table_spend,
    )

    with _errors(as_json):
        settings = load_optional(config, overrides)
        features, one_hot = _features_of(d, settings)
        of_config = {} if settings is None else planned_options(settings)
        epsilon = of_config.get("epsilon", 1.0) if epsilon is None else epsilon
        delta = of_config.get("delta") if delta is None else delta
        limit = of_config.get("entity") if entity is None else EntityLimit(entity, separation)
        if delta is None and table is not None and 1 <= table < math.inf:
            delta = 1.0 / max(n, table)
        found = plan(
            n,
            features,
            epsilon=epsilon,
            delta=delta,
            positive_rate=positive_rate,
            auc=auc,
            family=family or of_config.get("family", "auc"),
            level=level,
            entity=limit,
            gain=gain,
            one_hot=one_hot,
        )
        spend = None if table is None else table_spend(found, table, entity=limit is not None)
        labels = None if settings is None else settings.label_input
        if as_json:
            more: dict[str, Any] = {} if labels is None else {"learning_lag_seconds": labels.wait / 1000}
            more |= {} if spend is None else {"table": asdict(spend)}
            typer.echo(json.dumps({**plan_dict(found), **more}))
        else:
            wait = None if labels is None else labels.wait
            show_plan(found, Console(), wait, as_toml=settings is not None)
            if spend is not None:
                show_table(spend, found, Console())


def _features_of(d: int | None, config: Config | None) -> tuple[int, list[int]]:
    """Return the number of features, `d` or as declared, and of each text field its number of columns."""
    if (d is None) == (config is None):
        raise ConfigError(
            "the number of features is given twice" if config else "the number of features is not given",
            fix="give --d 20, or --config fraud.toml",
        )
    if config is None:
        return d or 0, []
    names, categories = config.input.feature_names(), config.input.categories()
    if names is None:
        raise ConfigError(
            f"{config.file} declares no features, so their number is not known",
            fix="add input.features, or give --d",
        )
    return len(names), [] if categories is None else [len(columns) for columns in categories.places.values()]


budget_app.command(
    "card",
    short_help="Show the privacy card: guarantee, unit of protection, mechanism.",
    epilog="Example: streampair budget card fraud.toml --output card.html",
)(card)
app.add_typer(budget_app, name="budget")
app.add_typer(dlq_app, name="dlq")
app.add_typer(model_app, name="model")
app.add_typer(state_app, name="state")


def _lane_json(gauges: Any) -> dict[str, Any]:
    report = gauges.privacy
    return {
        "next_offset": gauges.next_offset,
        "events": gauges.events,
        "auc": None if gauges.auc != gauges.auc else gauges.auc,
        "epsilon_spent": None if report is None else report.epsilon_spent,
    }


def main() -> NoReturn:
    """Run the command line and exit."""
    # Garbage collection during imports and at exit takes a third of the time of a short command. `errors`
    # switches it on.
    gc.disable()
    # Files are closed, and a container's first process ends too, which ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if "_STREAMPAIR_COMPLETE" in os.environ:
        os.environ["COLUMNS"] = "10000"  # fish takes each line of a wrapped description for a candidate
    try:
        app(prog_name="streampair")
    finally:
        gc.freeze()
    sys.exit(0)
