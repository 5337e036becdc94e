"""A configuration that is drafted from a sample of events."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from streampair.errors import ConfigError, SourceError
from streampair_connectors.cli.findings import (
    NO_ID,
    Findings,
    FoundField,
    fields_of,
    find,
    label_candidates,
    listed,
)
from streampair_connectors.cli.samples import Sample, file_sample, topic_sample
from streampair_connectors.codecs.fixes import is_number
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.config.overrides import Override, apply_overrides, from_environment
from streampair_connectors.config.toml_lines import toml_key, toml_value
from streampair_connectors.worker.factory import build_lane, is_private, taken_cells

__all__ = ["Draft"]

_LISTED = 5
_WIDTH = 110


class Draft:
    """A configuration that is drafted from a sample: its `tables`, and `notes` by its keys.

    Parameters
    ----------
    path
        The file to write. Its name is that of the application, its folder where relative paths start.
    overrides
        Keys that the command line sets.
    epsilon
        Of differential privacy; None: the learner is that of the overrides, or not private.
    """

    def __init__(self, path: Path, overrides: Sequence[Override], epsilon: float | None) -> None:
        self._base, self._app = path.absolute().parent, path.name.removesuffix(".toml")
        self._overrides, self._epsilon = list(overrides), epsilon
        self._environment = from_environment(os.environ)
        self._declared = apply_overrides({}, [*self._environment, *overrides])
        if "label_input" in self._declared:
            raise ConfigError(
                "init drafts no configuration whose labels come on a topic of their own",
                fix="write [label_input] yourself: docs/late-labels.md has its keys",
            )
        config = self._config()  # refuses keys that are unknown or have a wrong value
        self._kafka, self._private = config.require_kafka(), is_private(config)
        self._input: Mapping[str, Any] = self._declared.get("input", {})
        self.tables: dict[str, Any] = {}
        self.notes: dict[str, list[str]] = {}

    def _learner(self) -> dict[str, Any]:
        if "steps" in self._declared.get("learner", {}):
            return {}
        return {"class": f"streampair.auc.{'PairOGD' if self._epsilon is None else 'PairFTRL'}"}

    def _config(self, **written: Any) -> Config:
        """The configuration without fields; `written`: keys of [input] that say how events are written."""
        start = {"app": self._app, "kafka": {"bootstrap_servers": "localhost:9092"}}
        tables = apply_overrides(
            {**start, "learner": self._learner()}, [*self._environment, *self._overrides]
        )
        if isinstance(tables.get("input", {}), dict):
            tables["input"] = {"label": (written.get("columns") or ["label"])[0], **written}
        if written.get("format") != "avro" or "schema_file" in written:
            tables.pop("schema_registry", None)
        elif "schema_registry" not in tables:
            raise SourceError(
                "the messages are Avro with the id of a schema, which a schema registry has",
                fix="add --registry https://HOST:8081 (docs/formats.md)",
                retriable=False,
            )
        return parse_config(tables, base=self._base, source="the command line")

    def sample(self, file: str | None, most: int) -> Sample:
        """Read at most so many events of a file, or of the topic."""
        topic = self._input.get("topic")
        if file is not None:
            return file_sample(file, most, self._input)
        if topic is None:
            raise ConfigError(
                "neither a topic nor a file is named", fix="add --topic TOPIC, or --file events.jsonl"
            )
        return asyncio.run(topic_sample(self._kafka, topic, most, self._input, self._config))

    def draft(self, sample: Sample, *, ask: bool) -> None:
        """Find label, id, time and features in a sample; `ask` for a label that is not given.

        Raises
        ------
        ConfigError
            As of `find`; the label cannot be found; a key that was set does not fit the others.
        """
        fields = fields_of(sample.rows, cells=sample.is_csv)
        label = self._input.get("label") or _label(fields, ask=ask)
        found = find(fields, label=label, private=self._private, declared=self._input)
        tables: dict[str, Any] = {"app": self._app}
        topic = {}
        if not sample.is_file:
            tables["kafka"] = {"bootstrap_servers": self._kafka.bootstrap_servers}
            topic = {"topic": self._input["topic"]}
        tables["input"] = {**topic, **sample.input, **found.input}
        tables["learner"] = self._learner()
        if self._epsilon is not None:
            # At most one over the number of events.
            delta = min(1e-6, 10.0 ** -len(str(sample.total)))
            tables["learner"]["options"] = {"epsilon": self._epsilon, "delta": delta}
        tables["store"] = {"directory": "state"}
        unused = {"--registry"} if sample.input.get("format") != "avro" else set()
        unused |= {"--id"} if self._input.get("id") == NO_ID else set()
        overrides = [each for each in self._overrides if each.place not in unused]
        self.tables = apply_overrides(tables, overrides)
        chosen = tuple(f"{each.name}." for each in overrides if each.place == "--set")
        notes = self._notes(found, fields[label]).items()
        self.notes = {key: each for key, each in notes if each and not f"{key}.".startswith(chosen)}
        tables = apply_overrides(self.tables, self._environment)
        config = parse_config(tables, base=self._base, source="the configuration")
        build_lane(config, event_decoder(config, **taken_cells(config)))  # as `run` does

    def _notes(self, found: Findings, label: FoundField) -> dict[str, list[str]]:
        counts = [] if self._private else [_counted(label)]
        one = ["confirm: the sample has one of the two labels only"] if len(label.labels) == 1 else []
        reasons: dict[str, list[str]] = {}
        for name, reason in found.left_out.items():
            reasons.setdefault(reason, []).append(name)
        left_out = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        features = [f"left out: {left_out}"] if left_out else []
        if self._private:
            text = "confirm: public? The records gave these fields, bounds and values, and the labels;"
            features.append(f"{text} not in epsilon")
        positive = [found.confirm] if found.confirm else []
        return {"input.label": [*counts, *one], "input.positive": positive, "input.features": features}

    def text(self, sample: Sample) -> str:
        """The configuration as TOML, with comments."""
        lines = [_comment(f"From {sample.events}. Every key: docs/configuration.md")]
        if sample.is_file:
            lines.append(_comment("For a topic: add kafka.bootstrap_servers and input.topic"))
        try:
            for name, table in self.tables.items():
                for key, value in table.items() if isinstance(table, dict) else [(None, table)]:
                    place = toml_key(name) if key is None else f"{toml_key(name)}.{toml_key(key)}"
                    lines += map(_comment, self.notes.get(place, ()))
                    lines.append(f"{place} = {toml_value(value)}")
            text = "\n".join(lines) + "\n"
            tomllib.loads(text)
        except (TypeError, ValueError):
            raise ConfigError(
                "a value of --set cannot be written", fix="give strings, booleans and finite numbers"
            ) from None
        return text


def _comment(text: str) -> str:
    """A line of a comment, without characters that TOML does not allow in it, shortened."""
    line = "# " + "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _label(fields: Mapping[str, FoundField], *, ask: bool) -> str:
    """The field that has the name of a label: a sample does not say what two values mean."""
    candidates = label_candidates(fields)
    counts = [f"{name} ({_counted(fields[name])})" for name in candidates[:_LISTED]]
    if ask:
        typer.echo("\n".join(f"  {line}" for line in counts))
        name: str = typer.prompt("Field of the label", default=candidates[0] if candidates else None)
        return name
    if candidates and fields[candidates[0]].is_named_label:
        return candidates[0]
    problem = f"no field of the sample looks like a label; the fields are {listed(fields)}"
    if candidates:
        problem = f"the sample cannot decide which field is the label: {'; '.join(counts)}"
    fix = "name it with --label FIELD; for labels on a topic of their own write CONFIG yourself "
    fix += "(docs/late-labels.md)"
    if any(map(is_number, fields)):
        fix = f"does the file have a header? If not, write the names of its columns above line 1. Else {fix}"
    raise ConfigError(problem, fix=fix)


def _counted(label: FoundField) -> str:
    """How often each label comes."""
    counts = [f"{toml_value(y)}: {count:,}" for y, count in label.labels.most_common(_LISTED)]
    others = len(label.items) - label.labels.total()
    return ", ".join(counts + [f"others: {others:,}"] * (others > 0))
