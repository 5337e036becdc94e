"""`python -m benchmarks.papers` on made-up sets of the right shape: the protocol, not the figures."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from harness.support import ROOT
from typer.testing import CliRunner

from benchmarks.papers import manifest, measuring, protocol, runs, yang2021
from benchmarks.papers.__main__ import app
from benchmarks.papers.data_sets import read_set
from streampair.errors import ConfigError, SourceError

LABELS = {"diabetes": ["-1", "1"], "german": ["2", "1"], "letter": [*"NA"], "usps": ["7", "2"]}


def write(folder: Path, name: str, n: int, *, packed: bool = True) -> None:
    """A set with the first column a little higher where the label is one that counts as positive."""
    rng = np.random.default_rng(1)
    lines = ["a,b,c,label"]
    for _ in range(n):
        high = rng.random() < 0.4
        a, b, c = rng.normal(size=3) + 1.5 * high * np.array([1.0, 0.0, 0.0])
        lines.append(f"{a:.3f},{b:.3f},{c:.3f},{LABELS[name][high]}")
    if name in ("letter", "usps"):  # more than two classes
        others = {"letter": ["C", "Z"], "usps": ["0", "9"]}[name]
        lines += [f"0.1,0.2,0.3,{label}" for label in others]
    text = "\n".join(lines) + "\n"
    if packed:
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (folder / f"{name}.csv").write_text(text)


def test_the_module_is_run_by_its_name(tmp_path: Path) -> None:
    """What made a page is told in it, without the user's paths."""
    options = ["--data", str(tmp_path), f"--cache={tmp_path / 'cells.jsonl'}", "--quick", "--seeds", "1"]
    command = [sys.executable, "-m", "benchmarks.papers", "kang2021", *options]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "Made by `python -m benchmarks.papers kang2021 --quick --seeds 1`." in result.stdout
    assert str(tmp_path) not in result.stdout


def test_the_help_reads_well() -> None:
    """An example that can be called, a word on everything, and nothing cut off at 80 columns."""
    command: Any = typer.main.get_command(app)
    result = CliRunner().invoke(
        app, ["--help"], env={"COLUMNS": "80"}, prog_name="python -m benchmarks.papers"
    )
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "..." not in result.stdout
    assert result.stdout.startswith("Usage: python -m benchmarks.papers [OPTIONS] [PAPER]")
    for parameter in command.params:
        assert parameter.help, f"{parameter.name} says nothing"
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
        assert all(name in result.stdout for name in names)
    (example,) = re.findall(r"Example: python -m benchmarks\.papers (.*)", result.stdout)
    command.make_context("benchmarks.papers", example.split())


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


#: First authors of the sources that README's table of learners names besides the papers.
SOURCES = {"Zhao 2011", "Kar 2013", "Lei 2021", "Geurts 2006", "Denisov 2022"}


def test_without_a_paper_it_prints_what_to_cite() -> None:
    """A paper that is left out, or an entry that lacks a field."""
    printed, named = call().stdout, set[str]()
    entries = re.findall(r"^@(\w+)\{(\w+),\n(.*?)^\}$", printed, re.M | re.S)
    assert len(entries) == 1 + len(manifest.PAPERS) + len(SOURCES) == len({key for _, key, _ in entries})
    assert printed.count("{") == printed.count("}")
    for kind, _, fields in entries:
        found = dict(re.findall(r"^  (\w+) += \{(.*)\},?$", fields, re.M))
        venues = {"inproceedings": "booktitle", "article": "journal", "misc": "eprint", "software": "version"}
        assert {"author", "title", "year", venues[kind]} <= found.keys()
        for source in SOURCES:
            name, year = source.split()
            if found["author"].startswith(f"{name}, ") and found["year"] == year:
                named.add(source)
    assert named == SOURCES
    for name in manifest.PAPERS:
        title = manifest.load(name).title.partition(": ")[2].rpartition(",")[0].partition(", ")[0]
        assert title in printed, name
        assert f"% python -m benchmarks.papers {name} --data DIR\n" in printed


@pytest.mark.parametrize("name", LABELS)
def test_sets_are_made_binary_as_users_of_the_libsvm_files_do(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, 50, packed=name != "german")
    data = read_set(tmp_path, name)
    assert data.rows.shape == (len(data.positive), 3)
    assert data.rows[data.positive, 0].mean() > data.rows[~data.positive, 0].mean() + 0.5
    if name in ("letter", "usps"):
        assert data.positive[-2:].tolist() == [True, False]


def test_the_files_of_the_libsvm_page_are_shorter_than_the_sets() -> None:
    rows = np.zeros((9298, 2))
    assert len(yang2021.binary("usps", rows, [str(i % 10) for i in range(9298)]).positive) == 7291


@pytest.mark.parametrize("method", yang2021.METHODS)
def test_test_rows_decide_nothing(tmp_path: Path, method: str) -> None:
    """Neither settings nor scaling: other test rows, with other labels, change neither."""
    write(tmp_path, "diabetes", 120)
    data = read_set(tmp_path, "diabetes")
    train, test = yang2021.folds(len(data.positive), 0)[2]
    assert sorted([*train, *test]) == list(range(120))
    rows, positive = data.rows.copy(), data.positive.copy()
    rows[test[1:]] = 1e6
    positive[test] = ~positive[test]
    other = yang2021.DataSet("diabetes", rows, positive)
    one, two = (yang2021.held_out(method, each, 0, 2, (0.1, 10.0)) for each in (data, other))
    assert (one.step, one.radius) == (two.step, two.radius)
    assert one.auc > 0.75


def test_random_pairs_are_two_records_that_follow(tmp_path: Path) -> None:
    """However the stream is cut, an odd record waits for its partner."""
    write(tmp_path, "diabetes", 61)
    data = read_set(tmp_path, "diabetes")
    iterates = [np.zeros(3), np.zeros(3)]
    for i in range(0, 60, 2):
        w, u = iterates[-1], data.rows[i] - data.rows[i + 1]
        c = 2.0 * (float(data.positive[i]) - float(data.positive[i + 1]))
        if c * float(w @ u) < 1.0:
            w = w + 0.4 / 4 * c * u
        iterates.append(w * min(1.0, 0.6 / 2 / max(float(np.linalg.norm(w)), 1e-300)))
    made = yang2021.METHODS["SGDpair"][0](0.4, 0.6, 1)
    for start, stop in ((0, 1), (1, 2), (2, 17), (17, 61)):
        made.learn_many(data.rows[start:stop], data.positive[start:stop])
    assert made.score_many(data.rows) == pytest.approx(data.rows @ np.sum(iterates[:30], axis=0), abs=1e-12)


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "diabetes", 60)
    write(tmp_path, "german", 60)
    monkeypatch.setattr(yang2021, "GRID", (1.0,))
    result = call(
        "yang2021", "--data", tmp_path, "--sets", "diabetes,german", "--methods", "Ours,SPAUC", code=1
    )
    for word in ("0.831 ± 0.030", "0.793", "std error", "Ours", "SPAUC", "one published standard deviation"):
        assert word in result.stdout
    arguments = [
        "yang2021",
        "--data",
        tmp_path,
        "--sets",
        "german",
        "--methods",
        "OLP,OAM",
        "--repeats",
        2,
        "--json",
    ]
    olp, oam = json.loads(call(*arguments, code=1).stdout)
    assert (olp["method"], olp["published"], olp["published_std"], olp["folds"]) == ("OLP", 0.787, 0.028, 10)
    assert oam["stderr"] == pytest.approx(oam["std"] / 10**0.5)
    assert oam["settings"] == [[1.0, 1.0]] * 10


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "give --data" in call("yang2021", code=2).stderr
    assert "name a paper" in call("--data", tmp_path, "--check", code=2).stderr
    assert "use huai2020" in call("yang2020", "--data", tmp_path, code=2).stderr
    assert "not in the table" in call("yang2021", "--data", tmp_path, "--sets", "iris", code=2).stderr
    assert "no diabetes.csv" in call("yang2021", "--data", tmp_path, "--sets", "diabetes", code=1).stderr
    (tmp_path / "diabetes.csv").write_text("a,label\n1,1\n,-1\n")
    with pytest.raises(SourceError, match=r"diabetes\.csv"):
        read_set(tmp_path, "diabetes")
    with pytest.raises(ConfigError, match="original labels"):
        yang2021.binary("german", np.zeros((2, 1)), ["good", "bad"])
    with pytest.raises(ConfigError, match="no data set"):
        yang2021.binary("iris", np.zeros((2, 1)), ["1", "2"])


def test_a_cell_says_whether_it_is_within() -> None:
    runs = [yang2021.Fold(auc, 1.0, 1.0) for auc in (0.95, 0.92)]
    cell = yang2021.cell("Ours", "ijcnn1", runs)
    assert cell.mean == pytest.approx(0.935)
    assert cell.within
    assert cell.stderr == pytest.approx(0.015)
    assert not yang2021.cell("Ours", "ijcnn1", [yang2021.Fold(0.9, 1.0, 1.0)]).within


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Xue et al. with three cells, one of them without its data, and the measurements that are made."""
    whole = manifest.load("xue2021")
    cells = [c for c in whole.cells if c.place == "Table 4" and c.epsilon == 1.0 and c.algorithm == "DPGDSC"]
    cells = [dataclasses.replace(c, n=60) for c in cells][:3]
    paper = dataclasses.replace(whole, cells=tuple(cells))
    monkeypatch.setattr(manifest, "load", lambda name: paper)
    made: list[Any] = []
    measure = measuring.measure

    def counted(job: Any, data: Any, seed: int) -> protocol.Outcome:
        made.append((job["variant"], job["data"], seed))
        return measure(job, data, seed)

    monkeypatch.setattr(measuring, "measure", counted)
    runs._sample.cache_clear()
    runs._digest.cache_clear()
    return made


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, few: list[Any]) -> None:
    """What is in the file is not measured again; a torn line is; a set that is missing is a reason."""
    write(tmp_path, "diabetes", 120)
    cache = tmp_path / "deep" / "cells.jsonl"
    arguments = ["xue2021", "--data", tmp_path, "--cache", cache, "--check"]
    output = call(*arguments, "--seeds", 2).stdout
    assert "| diabetes | DPGDSC | 60 | 1 | 1/n | 0.6446 |" in output
    assert "Not compared: " in output
    assert "has no diabetic_retinopathy.csv.gz" in output
    assert "Made by `python -m benchmarks.papers`." in output
    lines = cache.read_text().splitlines()
    assert len(lines) == len(few) == 12  # two cells of one set, three variants, two seeds
    few.clear()
    assert call(*arguments, "--seeds", 2).stdout == output
    assert few == []
    cache.write_text("\n".join(lines)[:-40])
    assert call(*arguments, "--seeds", 3).stdout != output
    assert len(few) == 7  # the torn one, and six of the third seed
    few.clear()
    call(*arguments, "--seeds", 3)
    assert few == []


def test_other_data_are_measured_anew(tmp_path: Path, few: list[Any]) -> None:
    write(tmp_path, "diabetes", 120)
    arguments = ["xue2021", "--data", tmp_path, "--cache", tmp_path / "c", "--seeds", 2]
    call(*arguments)
    write(tmp_path, "diabetes", 130)
    runs._sample.cache_clear()
    runs._digest.cache_clear()
    few.clear()
    call(*arguments)
    assert len(few) == 12


def test_the_check_fails_on_a_cell_without_its_error(tmp_path: Path, few: list[Any]) -> None:
    write(tmp_path, "diabetes", 120)
    arguments = ["xue2021", "--data", tmp_path, "--cache", tmp_path / "c", "--seeds", 1]
    call(*arguments)
    failed = call(*arguments, "--check", code=1)
    assert "lacking: xue2021, Table 4, diabetes, DPGDSC" in failed.stderr
    assert "no standard error" in failed.stderr


def test_the_other_outputs(tmp_path: Path, few: list[Any]) -> None:
    write(tmp_path, "diabetes", 120)
    arguments = ["xue2021", "--data", tmp_path, "--cache", tmp_path / "c", "--quick"]
    page = call(*arguments, "--output", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "<td>0.6446</td>" in page
    found = json.loads(call(*arguments, "--json").stdout)
    assert {each["found"]["tight"]["seeds"] for each in found} == {0, 2}
    assert found[0]["verdict"]
    assert "give md or html" in call(*arguments, "--output", "pdf", code=2).stderr


def test_a_cache_that_cannot_be_used_is_reported(tmp_path: Path, few: list[Any]) -> None:
    (tmp_path / "file").write_text("")
    failed = call("xue2021", "--data", tmp_path, "--quick", "--cache", tmp_path / "file" / "c", code=1)
    assert "--cache" in failed.stderr
    assert "is no folder" in call("xue2021", "--data", tmp_path / "none", "--quick", code=2).stderr
