"""Tables in the pages are those of the program: keys, states, alerts, events of the log."""

from __future__ import annotations

import ast
import json
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import pages, support
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from streampair_connectors import config
from streampair_connectors.config import Config, SchemaRegistryConfig, StepConfig
from streampair_connectors.observability.metric_definitions import HEALTH_STATES

CONFIGURATION = pages.text_of("docs/configuration.md")


# What is called with the name of an event.
LOGGING = ("log.info", "log.warning", "log.error", "self._log_end")


def tables() -> dict[str, type[BaseModel]]:
    """Every table of the configuration, by its heading."""
    found: dict[str, type[BaseModel]] = {
        "Top level": Config,
        "[[learner.steps]]": StepConfig,
        "[schema_registry]": SchemaRegistryConfig,
    }
    for name, field in Config.model_fields.items():
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                several = typing.get_origin(field.annotation) is Sequence
                found[f"[[{name}]]" if several else f"[{name}]"] = kind
    return found


def as_toml(value: object) -> str:
    """A default as one would write it; nothing for none, and for an empty list or table."""
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ([], {}, ()):
        return ""
    if isinstance(value, Path | config.Address | config.Duration):
        value = str(value)
    return f"`{json.dumps(value)}`"


def choices(annotation: Any) -> set[str]:
    """The texts that a key takes, if it takes only some."""
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return set().union(*(choices(part) for part in typing.get_args(annotation)))
    return set()


def documented(heading: str) -> dict[str, list[str]]:
    return {row[0].strip("`"): row for row in pages.rows(pages.section(CONFIGURATION, f"### {heading}"))}


@pytest.mark.parametrize("heading", tables())
def test_every_key_is_documented_and_no_other(heading: str) -> None:
    fields = tables()[heading].model_fields
    named = {field.alias or name: field for name, field in fields.items()}
    if heading == "Top level":
        named = {
            name: field for name, field in named.items() if not {f"[{name}]", f"[[{name}]]"} & tables().keys()
        }
    documented_keys = documented(heading)
    assert list(documented_keys) == list(named), f"the keys of {heading}, in the order of the model"
    for name, field in named.items():
        assert len(documented_keys[name]) == 4, f"{name}: {documented_keys[name]}"
        assert documented_keys[name][2] == as_toml(field.get_default()), f"default of {name}"
        for choice in choices(field.annotation):
            assert f'`"{choice}"`' in documented_keys[name][3], f"{name} takes {choice!r} too"


def test_every_table_has_a_heading() -> None:
    heads = re.findall(r"^### (.*)$", CONFIGURATION, re.M)
    assert sorted(heads) == sorted(tables())
    models = {c for c in vars(config).values() if isinstance(c, type) and issubclass(c, BaseModel)}
    assert {m.__name__ for m in models if not m.__name__.startswith("_")} - {"BaseModel"} == {
        m.__name__ for m in tables().values()
    }


def test_states_of_health_are_those_of_the_program() -> None:
    health = pages.section(pages.text_of("docs/operations/monitor.md"), "## Health")
    cells = [row[0] for row in pages.rows(health)]
    assert tuple(re.findall(r"`(\w+)`", " ".join(cells))) == HEALTH_STATES


def test_alerts_in_the_page_are_those_of_the_rules() -> None:
    rules = yaml.safe_load((support.ROOT / "deploy/prometheus/rules.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    page = pages.text_of("docs/operations/alerts.md")
    assert [row[0].strip("`") for row in pages.rows(page)] == alerts
    # and each has a heading, to which its runbook_url leads
    assert re.findall(r"^## (.*)$", page, re.M) == alerts
    for group in rules["groups"]:
        for rule in group["rules"]:
            url = f"docs/operations/alerts.md#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook_url"] == url


def test_events_of_the_log_are_those_that_are_logged() -> None:
    logged = set()
    for file in (support.ROOT / "connectors" / "streampair_connectors").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in LOGGING
                and isinstance(node.args[0], ast.Constant)
            ):
                logged.add(node.args[0].value)
    documented_events = pages.rows(pages.section(pages.text_of("docs/operations/run.md"), "## Logs"))
    assert set(re.findall(r"`(\w+)`", " ".join(row[0] for row in documented_events))) == logged


def test_files_of_the_evidence_exist() -> None:
    text = pages.text_of("docs/protection.md")
    named = re.findall(r"`((?:privacy|engine)/)?(test_\w+\.py)`", pages.section(text, "## The evidence"))
    assert len(named) > 10
    for _, name in named:
        assert list((support.ROOT / "tests").rglob(name)), name


def test_what_the_reference_shows_is_public_and_all_of_it() -> None:
    import streampair

    pages_shown = {path.stem for path in (pages.DOCS / "api").glob("*.md")} - {"index", "cli"}
    assert pages_shown == {*streampair.__all__, "errors", "engine", "spark"}
    for name in pages_shown:
        package = "streampair_connectors" if name == "spark" else "streampair"
        assert f"::: {package}.{name}" in pages.text_of(f"docs/api/{name}.md")
        assert f"({name}.md)" in pages.text_of("docs/api/index.md")


def test_every_learner_has_a_row() -> None:
    from streampair import auc, metric, ranking

    families = {"auc": auc, "ranking": ranking, "metric": metric}
    rows: dict[str, list[str]] = {}
    table = pages.section(pages.text_of("docs/learners.md"), "## All of them").partition("\n- ")[0]
    for names, where, private in pages.rows(table):
        for name in re.findall(r"`(\w+)`", names):
            rows[name] = list(families) if where == "all three" else re.findall(r"`(\w+)`", where)
            for family in rows[name]:
                is_private = "epsilon" in vars(getattr(families[family], name))["__dataclass_fields__"]
                assert private == ("yes" if is_private else "no"), name
    for family, module in families.items():
        assert set(module.__all__) == {name for name, where in rows.items() if family in where}
