"""Damaged input is accepted or refused: some cases of `make fuzz`, and what it has found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import fuzz
from streampair_connectors.codecs import formats
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig

from streampair.engine import Record
from streampair.engine.snapshot import pack, unpack
from streampair.engine.wal import LogKey, Register
from streampair.errors import RecordError, SnapshotError, SourceError


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_damaged_input_is_accepted_or_refused(target: str) -> None:
    assert not fuzz.cases(target, range(1_000_000, 1_000_150))


def test_an_exception_of_another_kind_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "logs", lambda coin: int("x"))
    assert fuzz.cases("logs", [7]) == ["logs 7: ValueError: invalid literal for int() with base 10: 'x'"]


def test_bytes_that_are_no_text_in_a_field_that_is_not_read_are_refused() -> None:
    decode = json_decoder(InputConfig(label="y", features={"amount": [0.0, 9.0], "card": ["visa"]}))
    with pytest.raises(RecordError, match="not JSON"):
        decode(Record(0, b'{"amount": 1, "card": "visa", "y": true, "note": "\x9b"}'))


ANSWERS: list[tuple[int, Any]] = [
    *((200, body) for body in ([], 3, "text", None, {}, {"schema": 5}, {"schema": "{}", "references": 3})),
    *((200, {"schema": '"int"', "references": [each]}) for each in (3, {}, {"subject": "a", "version": []})),
    (200, {"schema": "[" * 100_000}),
    (404, {}),
]
SUBJECTS = {"/subjects": (200, b"[]")}


@pytest.mark.parametrize(("status", "answer"), ANSWERS)
def test_an_answer_of_a_registry_that_is_no_schema_is_refused(status: int, answer: Any) -> None:
    """It is about the events with this id: the registry answers another question."""
    client, answers = fuzz.registry()
    answers.answers = {**SUBJECTS, "/schemas/ids/7": (status, json.dumps(answer).encode())}
    with pytest.raises(
        RecordError, match=r"with id 7: .*: (its answer has no schema|.* status 404)"
    ) as caught:
        client.schema(7)
    assert str(caught.value).count("Fix: ") == 1


@pytest.mark.parametrize(("status", "body"), [(200, b"[" * 100_000), (404, b"[" * 9_000)])
def test_an_answer_that_is_nested_too_deeply_is_refused(status: int, body: bytes) -> None:
    client, answers = fuzz.registry()
    answers.answers = {**SUBJECTS, "/schemas/ids/7": (status, body)}
    with pytest.raises(RecordError, match=r"with id 7: .*: (its answer is not JSON|.* status 404)"):
        client.schema(7)
    answers.answers = dict.fromkeys(answers.answers, (status, body))
    with pytest.raises(SourceError, match=r"not JSON|status 404"):  # it answers nothing else
        client.schema(7)


def test_an_error_of_a_registry_says_nothing_of_an_id() -> None:
    client, answers = fuzz.registry()
    answers.answers = {**SUBJECTS, "/schemas/ids/7": (500, b"{}")}
    with pytest.raises(SourceError, match="status 500"):
        client.schema(7)


def test_a_subject_that_is_no_text_cannot_be_resolved() -> None:
    client, answers = fuzz.registry()
    body = {"schema": '"int"', "references": [{"subject": "\ud800", "version": 1}]}
    answers.answers = {"/schemas/ids/7": (200, json.dumps(body).encode())}
    with pytest.raises(RecordError, match="cannot be resolved"):
        client.schema(7)


def test_references_in_a_circle_end() -> None:
    client, answers = fuzz.registry()
    body = json.dumps({"schema": '"int"', "references": [fuzz.reference(1)]}).encode()
    answers.answers = dict.fromkeys(("/schemas/ids/7", "/subjects/other/versions/1"), (200, body))
    assert client.schema(7) == ("int", ["int"])


@pytest.mark.parametrize("identity", [-1, 2**32, "7", None, 1e300])
def test_an_id_that_no_message_can_have_is_refused(identity: Any) -> None:
    client, answers = fuzz.registry()
    answers.answers = {"/subjects/scores": (200, json.dumps({"id": identity}).encode())}
    with pytest.raises(SourceError, match="its answer has no id"):
        client.register("scores", "{}")


def test_a_field_whose_name_is_no_text_is_refused() -> None:
    schema = {**fuzz.SCHEMA, "fields": [{"name": {"a": 1}, "type": "int"}]}
    with pytest.raises(formats._SchemaError, match="no text"):
        formats._compiled(schema, [])


def test_a_register_with_a_foreign_mac_is_refused() -> None:
    text = Register(3, "00" * 16, "", 1, 2, 30, 0, void=False).text(LogKey())
    with pytest.raises(SnapshotError, match="changed by somebody else"):
        Register.read(LogKey(), json.dumps({**json.loads(text), "mac": "\u00e9"}))


def test_a_count_that_no_float_can_hold_is_refused() -> None:
    body = unpack(fuzz.snapshot(0))
    body["regret"]["steps"][0]["count"] = "9" * 400
    with pytest.raises(SnapshotError, match="cannot be read"):
        fuzz.new_lane(0).restore(pack(body))
