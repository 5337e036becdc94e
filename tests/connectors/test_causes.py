"""Causes of dead letters: the same names everywhere, and no value of an event in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streampair_connectors.cli.app import app
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig
from streampair_connectors.observability.metric_history import CAUSES, LetterCause, MetricHistory
from streampair_connectors.worker.causes import add_letter, cause_name, cause_text
from typer.testing import CliRunner

from streampair.engine import DeadLetter, Record
from streampair.engine.records import stage_and_text
from streampair.errors import RecordError

SECRET = "Smith-4711"
VALUES: list[Any] = [
    SECRET,
    f"it's {SECRET}",
    f'"{SECRET}',
    f"a' \"{SECRET}",
    f"x in field {SECRET}",
    f"feature '{SECRET}'",
    f". Fix: {SECRET}",
    f": {SECRET}",
    f"{SECRET} " * 9,
    [SECRET, {SECRET: [4711]}],
    {SECRET: 4711},
    4711,
    -47.11e300,
]


def refusal(event: dict[str, Any]) -> tuple[str, str]:
    decode = json_decoder(InputConfig(label="y", features=["amount"]))
    with pytest.raises(RecordError) as caught:
        decode(Record(0, json.dumps(event).encode()))
    return stage_and_text(caught.value, "decode")


@pytest.mark.parametrize("value", VALUES)
def test_an_unknown_label_is_not_in_its_cause(value: Any) -> None:
    stage, error = refusal({"amount": 1.0, "y": value})
    assert cause_text(error) == "unknown label ... in field 'y'"
    assert cause_name(stage, error) == cause_name("label", "unknown label 2 in field 'y'. Fix: none.")


def test_the_feature_is_in_the_cause() -> None:
    assert cause_text(refusal({"amount": SECRET, "y": True})[1]) == "feature 'amount' is text"
    assert cause_text(refusal({"y": True})[1]) == "feature 'amount' is missing"


@pytest.mark.parametrize("value", VALUES)
def test_what_other_code_quotes_is_not_in_the_cause(value: Any) -> None:
    for error in (KeyError(value), ValueError(f"no number: {value}"), TypeError(repr(value))):
        assert cause_text(stage_and_text(error, "learn")[1]) == type(error).__name__
    quoted = cause_text(f"the event's row has {value!r} in column 3, of feature 'age'")
    assert "Smith" not in quoted  # numbers go in any case
    assert "47" not in quoted


def test_numbers_do_not_matter_and_names_with_digits_do() -> None:
    assert cause_text("the line has 7 cells, the header -1.5e3") == "the line has N cells, the header N"
    assert cause_name("decode", "a 7") == cause_name("decode", "a 8") != cause_name("learn", "a 7")
    assert cause_text("feature 'v2' is null") == "feature 'v2' is null"


def test_letters_of_a_cause_are_counted_and_causes_are_bounded() -> None:
    history, lane = MetricHistory(lambda: 0.0), ("fraud", "events", "PairOGD")
    for round_ in range(2):
        causes: dict[str, LetterCause] = {}
        for n in range(CAUSES + 3):
            letter = DeadLetter(100 * round_ + n, None, b"", 0, "features", f"feature 'f{n}' is null")
            add_letter(causes, letter)
            add_letter(causes, letter)
        assert len(causes) == CAUSES + 3
        history.dead_letters(lane, causes)
    found = history.causes[lane]
    assert len(found) == CAUSES + 1
    assert found[""] == LetterCause("", "", 12, 100 + CAUSES + 2)
    assert found[cause_name("features", "feature 'f0' is null")] == LetterCause(
        "features", "feature 'f0' is null", 4, 100
    )
    assert history.letters[lane] == {"features": 100 + CAUSES + 2}


@pytest.mark.parametrize("command", ["show", "replay"])
def test_the_example_of_a_command_names_a_cause_that_exists(command: str) -> None:
    said = CliRunner().invoke(app, ["dlq", command, "--help"]).output
    name = cause_name("features", "feature 'amount' is text")
    assert f"--cause {name}" in " ".join(said.split())
