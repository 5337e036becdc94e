"""A configuration from a stranger: nothing that it names is imported or called, but parts of a learner."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.support import in_one_case
from streampair_connectors.cli.app import app
from streampair_connectors.config import parse_config
from streampair_connectors.worker.factory import build_learner, is_private
from typer.testing import CliRunner

from streampair.errors import ConfigError

PLACES = ("learner", "learner.options", "deep option", "step", "option of a step", "in a list")


def hostile(place: str, path: str, **arguments: Any) -> dict[str, Any]:
    """A configuration that names a path somewhere, with arguments for what is there."""
    ours: dict[str, Any] = {"class": "streampair.auc.PairOGD"}
    named: dict[str, Any] = {"class": path, **arguments}
    tables: dict[str, dict[str, Any]] = {
        "learner": {"learner": {"class": path, "options": arguments}},
        "learner.options": {"learner": {**ours, "options": {"loss": named}}},
        "deep option": {
            "learner": {**ours, "options": {"buffer": {"class": "streampair.buffers.FIFO", "size": named}}}
        },
        "step": {"learner": {"steps": [{"class": path, "options": arguments}, ours]}},
        "option of a step": {
            "learner": {
                "steps": [{"class": "river.compose.FuncTransformer", "options": {"func": named}}, ours]
            }
        },
        "in a list": {"learner": {**ours, "options": {"loss": [named]}}},
    }
    return {"app": "clicks", "input": {"label": "y", "features": ["a"]}, **tables[place]}


def built(data: dict[str, Any]) -> None:
    """What every command does: the learner is constructed."""
    config = parse_config(data)
    is_private(config)
    build_learner(config)


def as_toml(data: dict[str, Any]) -> str:
    """A configuration as inline tables: JSON with other signs."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {text(item)}" for key, item in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(text(item) for item in value) + "]"
        return json.dumps(value)

    return "\n".join(f"{key} = {text(value)}" for key, value in data.items()) + "\n"


@pytest.mark.parametrize("place", PLACES)
@in_one_case(
    "path",
    [
        "os.system",
        "posix.system",
        "subprocess.Popen",
        "builtins.open",
        "pathlib.Path",
        "river.datasets.Phishing",  # a class of River that is no estimator, and downloads
        "river.stream.iter_csv",
        "river.base.base.inspect.os.system",
        "streampair.privacy.ledger.os.open",
        "streampair.engine.Lane",
        "streampair_connectors.stores.DirectoryStore",
    ],
)
def test_only_estimators_and_their_parts_are_constructed(place: str, path: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a class|neither an estimator|cannot be imported|no class"):
        built(hostile(place, path))


@pytest.mark.parametrize("place", PLACES)
def test_the_check_of_a_hostile_configuration_makes_no_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a call, nor by the import of a module that lies beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as it is for `python -m`
    made = tmp_path / "made"
    (tmp_path / "trap.py").write_text(f"import pathlib\npathlib.Path({str(made)!r}).touch()\nTrap = dict\n")
    for number, (path, arguments) in enumerate(
        {"os.system": {"command": f"touch {made}"}, "trap.Trap": {}}.items()
    ):
        file = tmp_path / f"hostile{number}.toml"
        file.write_text(as_toml(hostile(place, path, **arguments)))
        done = CliRunner().invoke(app, ["check", str(file)])
        assert done.exit_code == 1, done.output
        assert "allow_classes" in done.output
        assert "trap" not in sys.modules
        assert not made.exists()


def test_a_class_that_the_configuration_allows_is_imported_and_constructed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counterpart: the key opens exactly the path that it names."""
    (tmp_path / "own_models.py").write_text(
        "from streampair.auc import PairOGD\nclass Own(PairOGD): pass\ndef make(): return Own()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = hostile("learner", "own_models.Own")
    with pytest.raises(ConfigError, match=r"add 'own_models.Own' to learner\.allow_classes"):
        built(data)
    data["learner"]["allow_classes"] = ["own_models.Own", "own_models.make"]
    assert type(build_learner(parse_config(data))).__name__ == "Own"
    data["learner"]["class"] = "own_models.make"  # a function is none
    with pytest.raises(ConfigError, match="no class 'make'"):
        built(data)
    data["learner"]["class"] = "own_models.PairOGD"
    with pytest.raises(ConfigError, match="allow_classes"):
        built(data)
