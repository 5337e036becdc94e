"""The papers' tables and figures, computed again and compared with the printed values.

    python -m benchmarks.papers
    python -m benchmarks.papers PAPER --data DIR [--quick] [--check] [--seeds 20] [--output md|html]

Without a paper it prints what to cite, and how to run each. It runs in the root of a clone. DIR has the data
sets of the papers; `docs/papers.md` describes the results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from streampair_connectors.cli.options import AsJson, errors

from streampair.errors import ConfigError

__all__ = ["app", "reproduce"]

_COMMAND = "python -m benchmarks.papers"
_QUICK_SEEDS, _SEEDS = 2, 20

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog=f"Example: {_COMMAND} xue2021 --data data/ --quick")
def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER", help="huai2020, xue2021, yang2021, kang2021, li2020, or all; none: what to cite."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="STREAMPAIR_DATA",
            help="Folder with NAME.csv.gz or NAME.csv: header, numbers, label last.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds, and nothing that takes long.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Fail if a cell has neither values nor a reason.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each kind; else 20, or 2.")] = None,
    output: Annotated[str | None, typer.Option(metavar="md|html", help="What to print.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="File of what was measured; else one in ~/.cache/streampair.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Rows of yang2021, by comma.")] = "Ours,SGDpair,OLP,OAM,SPAUC",
    sets: Annotated[
        str, typer.Option(help="Data sets of yang2021, by comma.")
    ] = "diabetes,german,ijcnn1,letter,usps",
    repeats: Annotated[int, typer.Option(min=1, help="Splits of yang2021 into 5 folds.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Recompute the tables and figures of a paper, and compare each cell with the printed value.

    Without a paper, print what to cite in BibTeX, and how to run each paper.

    For every cell: the value with the paper's constants and what they spend, with the same algorithm
    calibrated tightly, and with what the library takes by default; and a verdict in words. What was measured
    is kept in a file, so a run that was stopped goes on. HTML has plots where matplotlib is installed.

    Without --quick, --check, --seeds or --output, yang2021 is its Table 1 alone, with --methods, --sets and
    --repeats; exit code 1 if a cell is further from the published mean than one published standard deviation.
    """
    with errors(as_json):
        if paper is None:
            if quick or check or seeds or output or cache or as_json:
                raise ConfigError("no paper", fix="name a paper, or all")
            _citations()
            return
        if data is None:
            raise ConfigError("no data", fix="give --data DIR or set STREAMPAIR_DATA")
        if paper == "yang2021" and not (quick or check or seeds or output):
            _table(data, methods, sets, repeats=repeats, jobs=jobs, as_json=as_json)
        else:
            _manifest(data, paper, quick, check, seeds, output or "md", cache, jobs, as_json)


def _citations() -> None:
    """Print the entries of the software, of the papers with their commands, and of other sources."""
    from . import manifest

    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    software = readme.partition("```bibtex\n")[2].partition("```")[0]
    typer.echo(f"% The software. Please cite the paper of the algorithm too.\n{software}")
    for name in manifest.PAPERS:
        typer.echo(f"% {_COMMAND} {name} --data DIR\n{manifest.load(name).bibtex}\n")
    typer.echo((Path(__file__).parent / "sources.bib").read_text("utf-8"))
    typer.echo("% docs/papers.md names the paper of each learner, and what DIR holds.")


def _table(data: Path, methods: str, sets: str, *, repeats: int, jobs: int, as_json: bool) -> None:
    from .runs import as_dicts, reproduce_yang2021, table_lines

    cells = reproduce_yang2021(
        data, methods.split(","), sets.split(","), repeats=repeats, jobs=jobs, console=Console(stderr=True)
    )
    if as_json:
        typer.echo(json.dumps(list(as_dicts(cells))))
    else:
        for line in table_lines(cells):
            typer.echo(line)
    if not all(cell.within for cell in cells):
        raise typer.Exit(1)


def _manifest(
    data: Path,
    paper: str,
    quick: bool,
    check: bool,
    seeds: int | None,
    output: str,
    cache: Path | None,
    jobs: int,
    as_json: bool,
) -> None:
    from . import manifest, results
    from .pages import page
    from .runs import default_cache, reproduced, result_dict

    if output not in ("md", "html"):
        raise ConfigError(f"output is {output!r}", fix="give md or html")
    papers = [manifest.load(name) for name in (manifest.PAPERS if paper == "all" else [paper])]
    found = reproduced(
        data,
        papers,
        seeds=seeds or (_QUICK_SEEDS if quick else _SEEDS),
        quick=quick,
        jobs=jobs,
        cache=cache or default_cache(),
        console=Console(stderr=True),
    )
    command = _command()
    if as_json:
        typer.echo(json.dumps([result_dict(each) for _, rows in found for each in rows]))
    elif output == "html":
        typer.echo(page(found, command))
    else:
        typer.echo(f"Made by `{command}`.")
        for paper_manifest, rows in found:
            typer.echo("")
            for line in results.markdown(paper_manifest, rows):
                typer.echo(line)
    problems = list(results.lacking(each for _, rows in found for each in rows)) if check else []
    for problem in problems:
        typer.echo(f"lacking: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _command() -> str:
    """Return the command line, without the user's paths."""
    words, skip = [_COMMAND], False
    called = Path(sys.argv[0]).resolve() == Path(__file__).resolve()  # a test calls `app` in its own process
    for argument in sys.argv[1:] if called else []:
        if skip or argument.split("=")[0] in ("--data", "--cache"):
            skip = not skip and "=" not in argument
            continue
        words.append(argument)
    return " ".join(words)


if __name__ == "__main__":
    app(prog_name=_COMMAND)
