"""Labels that come later: a batch of messages has the ids and codes of its messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.config import parse_config

from streampair.engine import OrderedRecord
from streampair.engine.records import LABEL_STOPPED
from streampair.errors import RecordError

INPUTS: list[dict[str, Any]] = [
    {},
    {"positive": 1, "negative": 0},
    {"positive": "bad", "negative": "good"},
]
LABELS: list[dict[str, Any]] = [
    {"id": "payment", "label": "y"},
    {"id": "key", "label": "y", "stopped": "declined"},
    {"id": "key"},
    {"id": "payment"},
    {"id": {"header": "payment"}, "label": "y"},
]
VALUES = st.sampled_from(
    [
        True,
        False,
        0,
        1,
        1.0,
        2,
        "bad",
        "good",
        "1",
        "true",
        "declined",
        " declined\n",
        None,
        [1],
        float("nan"),
    ]
)
IDS = st.sampled_from(["p1", 7, None, "", [1]])
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda id, y: json.dumps({"payment": id, "y": y}).encode(), IDS, VALUES),
        st.sampled_from([None, b"no JSON", b"{}", b"[]", b'{"payment": "\xff", "y": true}']),
    ),
    max_size=4,
)


@pytest.mark.parametrize("input_table", INPUTS, ids=["booleans", "numbers", "texts"])
@pytest.mark.parametrize("labels", LABELS, ids=["field", "key", "key alone", "field alone", "header"])
@given(values=MESSAGES, keys=st.lists(st.sampled_from([b"k", b"", None]), min_size=4, max_size=4))
def test_a_batch_has_the_labels_of_its_messages(
    input_table: dict[str, Any], labels: dict[str, Any], values: list[bytes | None], keys: list[bytes | None]
) -> None:
    absent = {} if "label" in labels else {"absent": input_table.get("negative", False)}
    config = parse_config(
        {
            "app": "a",
            "input": {"features": ["x"], **input_table},
            "label_input": {"topic": "labels", "after": "1d", **labels, **absent},
            "learner": {"class": "streampair.auc.PairOGD"},
        }
    )
    decode = LabelDecoder(config)
    messages = [
        OrderedRecord(
            *(n, value, key),
            partition=0,
            position=n,
            headers=[("other", b"x")] if key is None else [("other", b"x"), ("payment", b"of " + key)],
        )
        for n, (value, key) in enumerate(zip(values, keys, strict=False))
    ]
    ids = event_ids(config)(messages)
    if labels["id"] == "key":
        assert ids == [message.key for message in messages]
    elif labels["id"] != "payment":
        assert ids == [None if message.key is None else b"of " + message.key for message in messages]
    try:
        wanted = [decode(message) for message in messages]
    except RecordError:
        assert decode.many(messages) is None
        return
    found = decode.many(messages)
    assert found is not None
    assert found[0] == [label.id for label in wanted] == ids
    assert found[1].tolist() == [label.code for label in wanted]
    if "stopped" in labels:
        stopped = [b"declined" in (value or b"") for value, _ in zip(values, keys, strict=False)]
        assert [code == LABEL_STOPPED for code in found[1].tolist()] == stopped
