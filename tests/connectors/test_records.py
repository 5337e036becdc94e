"""From bytes to events, and back."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from harness.support import in_one_case
from hypothesis import example, given
from hypothesis import strategies as st
from streampair_connectors.codecs.records import Encoder, csv_decoder, json_decoder, score_from_bytes
from streampair_connectors.config import InputConfig

from streampair.engine.lane import DeadLetter, Event, Record, Scored
from streampair.errors import RecordError

DECLARED = InputConfig(label="y", features=["a", "b c"], id="id")
FREE = InputConfig(label="y", id="id")


def decode(value: bytes | None, config: InputConfig = DECLARED) -> Event:
    return json_decoder(config)(Record(0, value))


def refusal(value: bytes | None, config: InputConfig = DECLARED) -> RecordError:
    with pytest.raises(RecordError) as caught:
        decode(value, config)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("config", [DECLARED, FREE], ids=["declared", "free"])
def test_an_event(config: InputConfig) -> None:
    event = decode(b'{"a": 1, "y": true, "b c": -2.5e3, "id": 7}', config)
    assert event == Event({"a": 1.0, "b c": -2500.0}, True, "7")
    assert type(event.x["a"]) is float


def test_other_fields_are_left_out_when_features_are_declared() -> None:
    assert decode(b'{"a": 1, "b c": 2, "note": {"x": [1]}, "y": null}').x == {"a": 1.0, "b c": 2.0}


@pytest.mark.parametrize("text", ["", ', "y": null'])
def test_no_label(text: str) -> None:
    assert decode(f'{{"a": 1, "b c": 2{text}}}'.encode()).y is None


@pytest.mark.parametrize(
    ("positive", "negative", "label", "expected"),
    [
        (True, None, "true", True),
        (True, None, "1", True),
        (True, None, "0", False),
        (True, None, "1.0", True),
        (False, None, "false", False),
        (1, -1, "-1", -1),
        (1, 0, "true", 1),
        ("bad", "good", '"good"', "good"),
    ],
)
def test_labels_are_normalised(positive: Any, negative: Any, label: str, expected: Any) -> None:
    config = InputConfig(label="y", features=["a"], positive=positive, negative=negative)
    y = decode(f'{{"a": 1, "y": {label}}}'.encode(), config).y
    assert y == expected
    assert type(y) is type(expected)


@pytest.mark.parametrize("label", ["2", "-1", '"fraud"', "0.5", "[1]", "{}", "1e999", "9" * 5000])
def test_an_unknown_label(label: str) -> None:
    error = refusal(f'{{"a": 1, "b c": 2, "y": {label}}}'.encode())
    assert error.stage == "label"
    assert "unknown label" in str(error)


@pytest.mark.parametrize("config", [DECLARED, FREE], ids=["declared", "free"])
@in_one_case(
    ("value", "stage", "problem"),
    [
        (None, "decode", "tombstone"),
        (b"", "decode", "empty"),
        (b"  ", "decode", "empty"),
        (b"{}", "decode", "no feature"),
        (b"\xff\xfe", "decode", "not JSON"),
        (b"plain text", "decode", "not JSON"),
        (b"\x00\x00\x00\x00\x07\x02ab", "decode", "schema registry do (Avro"),
        (b'{"a": 1, "b c": 2, "y": true', "decode", "not JSON"),
        (b"[]", "decode", "not a JSON object"),
        (b"3", "decode", "not a JSON object"),
        (b"null", "decode", "not a JSON object"),
        (b"[" * 5000 + b"]" * 5000, "decode", "nested too deeply"),
        (b'{"a": "1", "b c": 2, "y": true}', "features", "'a' is text"),
        (b'{"a": null, "b c": 2, "y": true}', "features", "'a' is null"),
        (b'{"a": true, "b c": 2, "y": true}', "features", "'a' is a truth value"),
        (b'{"a": [1], "b c": 2, "y": true}', "features", "'a' is a list"),
        (b'{"a": {}, "b c": 2, "y": true}', "features", "'a' is an object"),
        (b'{"a": NaN, "b c": 2, "y": true}', "decode", "NaN and Infinity are no numbers of JSON"),
        (b'{"a": -Infinity, "b c": 2, "y": true}', "decode", "NaN and Infinity are no numbers of JSON"),
        (b'{"a": 1e999, "b c": 2, "y": true}', "features", "'a' is not finite"),
        (b'{"a": ' + b"9" * 400 + b', "b c": 2, "y": true}', "features", "'a' is not finite"),
        (b'{"a": 1, "b c": 2, "y": true, "note": "' + b"x" * 600_000 + b'"}', "decode", "max_event_bytes"),
    ],
)
def test_a_bad_event_is_explained(config: InputConfig, value: bytes | None, stage: str, problem: str) -> None:
    error = refusal(value, config)
    assert error.stage == stage
    assert problem in str(error)


def test_a_missing_feature_is_named() -> None:
    assert "'b c' is missing" in str(refusal(b'{"a": 1, "y": true}'))
    assert "no feature" in str(refusal(b'{"y": true}', FREE))


def test_a_message_stays_short_and_does_not_quote_features() -> None:
    error = refusal(json.dumps({"a": "ann@example.org" * 1000, "b c": 1, "y": True}).encode())
    assert len(str(error)) < 400
    assert "ann" not in str(error)
    assert len(str(refusal(json.dumps({"a": 1, "b c": 1, "y": "x" * 9999}).encode()))) < 400


@given(st.binary(max_size=60))
def test_no_bytes_break_the_decoders(value: bytes) -> None:
    for config in (DECLARED, FREE):
        with contextlib.suppress(RecordError):
            assert all(math.isfinite(v) for v in decode(value, config).x.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"a": json_values, "b c": json_values, "y": json_values, "id": json_values}
    )
)
def test_the_fast_and_the_slow_decoder_agree(data: dict[str, Any]) -> None:
    """With the declared fields only, the fast path must accept exactly what the slow one accepts."""
    value = json.dumps(data).encode()

    def outcome(config: InputConfig) -> Event | None:
        try:
            return decode(value, config)
        except RecordError:
            return None

    if {"a", "b c"} <= data.keys():
        assert outcome(DECLARED) == outcome(FREE)
    else:
        assert outcome(DECLARED) is None


def test_csv() -> None:
    decode_line = csv_decoder(DECLARED, ["id", "a", "y", "note", "b c"])
    event = decode_line(Record(0, b'e1,1.5,1,"x, y",2\r\n'))
    assert event == Event({"a": 1.5, "b c": 2.0}, True, "e1")
    assert decode_line(Record(0, b"e1,1.5,,n,2")).y is None
    for line, stage in (
        (b"e1,,1,n,2", "features"),
        (b"e1,x,1,n,2", "features"),
        (b"e1,nan,1,n,2", "features"),
        (b"e1,1,maybe,n,2", "label"),
        (b"e1,1,1,n", "decode"),
        (b"", "decode"),
        (b"\xff,1,1,n,2", "decode"),
    ):
        with pytest.raises(RecordError) as caught:
            decode_line(Record(0, line))
        assert caught.value.stage == stage, line


@pytest.mark.parametrize("text", ["true", "True", "1", "1.0", " TRUE "])
def test_csv_spells_true_in_many_ways(text: str) -> None:
    config = InputConfig(label="y", features=["a"])
    assert csv_decoder(config, ["a", "y"])(Record(0, f"1,{text}".encode())).y is True


@given(
    names=st.lists(st.text(max_size=8), min_size=3, max_size=3),
    scored=st.lists(
        st.builds(
            Scored,
            st.integers(0, 2**62),
            st.none(),
            st.none() | st.text(max_size=5),
            st.none() | st.floats(),
            st.sampled_from(["learned", "scored", "dead_letter"]),
        ),
        max_size=5,
    ),
)
@example(names=['%d,"offset":0', "a%", '"'], scored=[Scored(1, None, "%b", -0.0, "learned")])
def test_scores_are_encoded_together_as_one_by_one(names: list[str], scored: list[Scored]) -> None:
    app, learner, topic = names
    encoder = Encoder(app=app, learner=learner, topic=topic, partition=3)
    encoded = encoder.scores(scored)
    assert encoder.lines(scored) == b"".join(line + b"\n" for line in encoded)
    start = {"app": app, "learner": learner, "topic": topic, "partition": 3}
    assert encoded == [
        msgspec.json.encode({**start, "offset": s.offset, "id": s.id, "score": s.score, "outcome": s.outcome})
        for s in scored
    ]


def test_scores_and_dead_letters_are_encoded() -> None:
    encoder = Encoder(app="fraud", learner="PairOGD", topic="events", partition=3)
    one = encoder.score(Scored(offset=1, key=None, id="e", score=0.25, outcome="learned"))
    two = encoder.score(Scored(offset=2, key=None, id=None, score=None, outcome="dead_letter"))
    common = {"app": "fraud", "learner": "PairOGD", "topic": "events", "partition": 3}
    assert score_from_bytes(one) == {**common, "offset": 1, "id": "e", "score": 0.25, "outcome": "learned"}
    assert score_from_bytes(two) == {
        **common,
        "offset": 2,
        "id": None,
        "score": None,
        "outcome": "dead_letter",
    }
    letter = DeadLetter(offset=9, key=b"k", value=b"v", timestamp=5, stage="label", error="ü" * 3000)
    headers = encoder.dead_letter(letter, [("own", b"\xff")])
    assert headers[0] == ("own", b"\xff")
    assert dict(headers)["streampair.offset"] == b"9"
    assert dict(headers)["streampair.stage"] == b"label"
    assert len(dict(headers)["streampair.error"]) <= 2000


def test_any_label() -> None:
    """For relevances and classes: what the learner can use is the learner's to say."""
    config = InputConfig(label="y", features=["a"], label_type="any", positive="high")
    for text, wanted in {"0.25": 0.25, "3": 3, '"blue"': "blue", "true": True, '"high"': "high"}.items():
        got = decode(f'{{"a": 1, "y": {text}}}'.encode(), config).y
        assert (got, type(got)) == (wanted, type(wanted))
    assert decode(b'{"a": 1, "y": null}', config).y is None
    refused = refusal(b'{"a": 1, "y": [1]}', config)
    assert (refused.stage, refused.fix) == ("label", "send a finite number, a string, true or false")
    line = csv_decoder(config, ["a", "y"])
    cells = {"0.25": 0.25, " blue ": "blue", "high": "high", "NO": "NO", "nan": None, "": None}
    assert {cell: line(Record(0, f"1,{cell}".encode())).y for cell in cells} == cells
    # Only two otherwise, and the error says what to do.
    assert 'label_type = "any"' in refusal(b'{"a": 1, "b c": 2, "y": 0.25}').fix


# ---- whole batches -------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**70), 2**70))
VALUES = st.fixed_dictionaries(
    {"a": NUMBERS, "b c": NUMBERS, "y": st.sampled_from([True, False, 1, 0, 1.0, 0.0])},
    optional={"id": st.one_of(st.none(), st.text(max_size=5), st.integers()), "note": st.text(max_size=3)},
)
BAD = [
    *(b"", b"[]", b"null", b"{}", b'{"a": 1, "b c": 2', b'{"a": 1, "b c": 2, "y": true} x', b"\xff"),
    *(b'{"a": 1, "b c": NaN, "y": true}', b'{"a": 1, "b c": 1e999, "y": true}', b'{"a": 1, "y": true}'),
    *(b'{"a": "1", "b c": 2, "y": true}', b'{"a": true, "b c": 2, "y": true}', b'{"a": 1, "b c": 2}'),
    *(b'{"a": 1, "b c": 2, "y": 7}', b'{"a": 1, "b c": 2, "y": null}', b'{"a": 1, "b c": 2, "y": []}'),
    b'{"a": 1, "b c": 2, "y": true, "id": 1.5}',
]


@given(st.lists(VALUES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_batch_is_decoded_like_one_event_after_the_other(values: list[dict[str, Any]], coin: Any) -> None:
    one: Any = json_decoder(DECLARED)
    records = []
    for offset, value in enumerate(values):
        items = list(value.items())
        coin.shuffle(items)
        records.append(Record(offset, json.dumps(dict(items)).encode()))
    rows = one.many(records)
    events = [one(record) for record in records]
    assert rows.values.shape == (len(values), 2)
    assert [list(zip(rows.names, row, strict=True)) for row in rows.values.tolist()] == [
        list(event.x.items()) for event in events
    ]
    assert list(map(repr, rows.labels)) == [repr(event.y) for event in events]
    assert rows.ids == [event.id for event in events]


@in_one_case("value", [*BAD, None, b'{"a": 1, "b c": 2, "y": true}' + b" " * 1_100_000])
def test_an_event_that_is_not_learned_keeps_its_place_in_a_batch(value: bytes | None) -> None:
    one: Any = json_decoder(DECLARED)
    good, other = Record(0, b'{"a": 1, "b c": 2, "y": true, "id": 5}'), Record(1, value)
    assert one.many([good]).values.tolist() == [[1.0, 2.0]]
    assert one.many([good]).refused is None
    assert one.many([]) is None
    try:
        y, error = one(other).y, None
    except RecordError as refused:
        y, error = None, refused
    for place in (0, 1, 2):
        batch = [good, good]
        batch.insert(place, other)
        rows = one.many(batch)
        values, ids = rows.values.tolist(), rows.ids
        assert rows.labels.pop(place) is None
        assert y is None
        assert values.pop(place) == ([0.0, 0.0] if error else [1.0, 2.0])
        assert ids.pop(place) is None
        assert (values, rows.labels, ids) == ([[1.0, 2.0]] * 2, [True] * 2, ["5"] * 2)
        refusals = {index: (refused.stage, str(refused)) for index, refused in (rows.refused or {}).items()}
        assert refusals == ({place: (error.stage, str(error))} if error else {})
    assert one.many([other]).values.shape == (1, 2)


def test_names_that_no_struct_can_have() -> None:
    names = ['say "x"', "back\\slash", "line\n", "a"]
    config = InputConfig(label="y", features=names)
    x = dict(zip(names, [1, 2, 3, 4], strict=True))
    event = decode(json.dumps({**x, "y": True, "note": "n"}).encode(), config)
    assert event == Event({name: float(value) for name, value in x.items()}, True)
    assert list(map(type, event.x.values())) == [float] * 4
    without = {name: value for name, value in x.items() if name != "line\n"}
    assert "is missing" in str(refusal(json.dumps({**without, "y": True}).encode(), config))
    found: Any = json_decoder(config)
    assert found.many([Record(0, json.dumps({**x, "y": True}).encode())]).values.tolist() == [[1, 2, 3, 4]]


# ---- declared values of text -------------------------------------------------------------------------------

CODED = InputConfig(label="y", id="id", features={"a": [0, 9], "card": ["debit", "1"], "zone": ["true"]})
ONLY_CODES = InputConfig(label="y", features={"card": ["debit"]})
CARDS = ["debit", "credit", "", None, 1, 1.0, True, ["debit"], {"card": "debit"}, 10**400]


def columns_of(card: Any, zone: Any) -> dict[str, float]:
    """By hand: numbers and truth values are known by how JSON spells them."""
    return {
        "card=debit": float(card == "debit"),
        "card=1": float(card == "1" or (card == 1 and type(card) is int)),
        "zone=true": float(zone == "true" or zone is True),
    }


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {"a": st.integers(0, 9)},
                optional={
                    "card": st.sampled_from(CARDS),
                    "zone": st.sampled_from(["true", True, "no"]),
                    "id": st.just("e"),
                },
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_declared_values_are_columns_one_by_one_and_in_a_batch(events: list[Any]) -> None:
    one: Any = json_decoder(CODED)
    values = [json.dumps({**x, "y": y, "note": ["n"]}).encode() for x, y in events]
    records = [Record(i, value) for i, value in enumerate(values)]
    expected = [
        Event({"a": float(x["a"])} | columns_of(x.get("card"), x.get("zone")), y, x.get("id"))
        for x, y in events
    ]
    assert [one(record) for record in records] == expected
    assert [list(one(record).x) for record in records] == [CODED.feature_names()] * len(events)
    rows = one.many(records)
    assert rows.names == CODED.feature_names()
    assert rows.values.tolist() == [list(event.x.values()) for event in expected]
    assert (rows.labels, rows.ids) == ([event.y for event in expected], [event.id for event in expected])


@in_one_case("value", [*BAD, None, b'{"a": "text", "card": "debit", "y": true}'])
def test_what_is_bad_without_declared_values_is_bad_with_them(value: bytes | None) -> None:
    value = None if value is None else value.replace(b'"b c": 2', b'"card": "debit"')
    both: Any = json_decoder(CODED)
    good = Record(0, b'{"a": 1, "card": "debit", "y": true}')
    rows = both.many([good, Record(1, value), good])
    assert rows.values[[0, 2]].tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2
    assert bool(rows.refused) == (not rows.values[1].any())  # where something is, it is what was sent
    assert list(rows.refused or ()) in ([], [1])
    rest: Any = CODED.without_categories()
    outcomes = []
    for config in (CODED, rest):
        try:
            outcomes.append(repr(decode(value, config).y))
        except RecordError as error:
            outcomes.append(f"{error.stage}: {error.problem}")
    assert outcomes[0] == outcomes[1]


def test_an_event_of_declared_values_alone() -> None:
    assert decode(b'{"card": "debit", "y": true}', ONLY_CODES) == Event({"card=debit": 1.0}, True)
    assert decode(b'{"card": "other", "y": null}', ONLY_CODES) == Event({"card=debit": 0.0}, None)
    for value in (b"{}", b'{"y": true}', b'{"card": null, "y": true}'):
        assert refusal(value, ONLY_CODES).stage == "decode"
    assert not hasattr(json_decoder(ONLY_CODES), "many")
    # A name that no struct can have is read the slow way.
    odd = InputConfig(label="y", features={'say "x"': [0, 1], "card": ["\\"]})
    x = decode(b'{"say \\"x\\"": 1, "card": "\\\\", "y": true, "note": "n"}', odd).x
    assert x == {'say "x"': 1.0, "card=\\": 1.0}


def test_csv_with_text() -> None:
    decode_line = csv_decoder(CODED, ["id", "card", "a", "y", "zone"])
    for card, zone in (("debit", "true"), ("1", ""), ("credit", "no"), ("", "")):
        event = decode_line(Record(0, f'e,"{card}",3,1,{zone}\r\n'.encode()))
        assert event == Event({"a": 3.0} | columns_of(card, zone), True, "e")
    for line in (b"e,debit,x,1,true", b"e,debit,3,maybe,true", b"e,debit", b"\xff,debit,3,1,true"):
        with pytest.raises(RecordError):
            decode_line(Record(0, line))
    with pytest.raises(RecordError, match="none of the features"):
        csv_decoder(ONLY_CODES, ["card", "y"])(Record(0, b",1"))
