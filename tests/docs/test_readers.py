"""The readers of docs/models.md in other languages score as the learner does."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import apache_kafka, pages, support
from harness.kafka import Unavailable
from harness.learners import KEY, stream, taught

from streampair import auc, models, ranking


def node() -> list[str]:
    found = shutil.which("node")
    if found is None:
        support.unavailable("Node", "install it (Debian: apt-get install nodejs)")
    return [found]


def java() -> list[str]:
    """Runs a program from its source, with Jackson, which Apache Kafka has beside it."""
    hint = "install a JDK of Java 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)"
    try:
        found, _ = apache_kafka.java()
        folder = apache_kafka.jars("4.x")
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    modules = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        support.unavailable("a JDK", hint)
    return [found, "-cp", f"{folder}/*"]


READERS = {"score.mjs": node, "Score.java": java}


@pytest.fixture(scope="module", params=READERS)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a reader, whose program is the one of the page."""
    (block,) = (block for block in pages.blocks("docs/models.md") if block.title == request.param)
    command = READERS[request.param]()
    program = tmp_path_factory.mktemp("reader") / request.param
    program.write_text(block.text)
    return [*command, str(program)]


def said(reader: list[str], model: Path, xs: list[Any]) -> list[list[float]]:
    lines = "".join(f"{json.dumps(x)}\n" for x in xs)
    done = subprocess.run([*reader, str(model)], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[float(number) for number in line.split()] for line in done.stdout.splitlines()]


LEARNERS = {
    "PairOGD": lambda: taught(auc.PairOGD(), 330),
    "nothing learned": lambda: taught(auc.PairOGD(), 2),
    "PairFTRL": lambda: taught(auc.PairFTRL(1.0, 1e-4, 1000, warmup=100, noise_key=KEY), 330),
    "no warm-up": lambda: taught(auc.NoisyOGD(8.0, 1e-3, 1000, warmup=0, noise_key=KEY), 330),
    "relevances": lambda: taught(ranking.PairOGD(), 330),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_reader_scores_as_the_learner(reader: list[str], name: str, tmp_path: Path) -> None:
    learner, coin = LEARNERS[name](), random.Random(0)
    models.save(learner, tmp_path / "model.json")
    whole = [x for x, _ in stream(learner, 40, seed=3)]
    gaps = [{name: value for name, value in x.items() if coin.random() < 0.6} for x in whole]
    far = [{name: 1e3 * value for name, value in x.items()} for x in whole[:5]]
    xs = [x for x in (*whole, *gaps, *far, {"f0": 1, "new": 2.5}) if x]
    expected = [[learner.score_one(x)] for x in xs]
    if hasattr(learner, "predict_proba_one"):
        for row, x in zip(expected, xs, strict=True):
            row.append(learner.predict_proba_one(x)[learner.positive])
    found = said(reader, tmp_path / "model.json", xs)
    assert [len(row) for row in found] == [len(row) for row in expected]
    for row, right in zip(found, expected, strict=True):
        assert row == pytest.approx(right, rel=1e-9, abs=1e-12)
    assert any(row[0] != 0.0 for row in found) or name == "nothing learned"


def test_a_reader_refuses_what_it_cannot_score(reader: list[str], tmp_path: Path) -> None:
    models.save(taught(auc.Forest(seed=1), 20), tmp_path / "model.json")
    command = [*reader, str(tmp_path / "model.json")]
    done = subprocess.run(command, input='{"f0": 1}\n', capture_output=True, text=True)
    assert done.returncode != 0
    assert "of the kind forest: use its ONNX graph" in done.stderr
