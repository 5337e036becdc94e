"""Content never shows in what is not a release: neighbouring streams, the same metadata.

See docs/privacy 9.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from test_pairftrl import SMALL, events
from test_private_families import CASES

from streampair import auc, buffers, privacy

Learner = Callable[..., Any]

BAD = [
    ({"a": 1.0}, True),
    ({"a": math.nan, "b": 1.0}, True),
    ({"a": math.inf, "b": 1.0}, True),
    ({"a": "1", "b": 1.0}, True),
    ({"a": None, "b": 1.0}, True),
    ({"a": [1], "b": 1.0}, True),
    ({"a": 10**400, "b": 1.0}, True),
    ({}, True),
    (None, True),
    ("text", True),
    ({"a": 1.0, "b": 1.0}, None),
    ({"a": 1.0, "b": 1.0}, math.nan),
    ({"a": 1.0, "b": 1.0}, np.array([1, 2])),
    ({"a": np.array([1.0, 2.0]), "b": 1.0}, True),
]


def public_view(model: auc.PairFTRL) -> list[Any]:
    report = model.privacy
    return [
        model.slots,
        model.horizon_left,
        model.buffer_records,
        model.feature_names,
        report.replace(),
        str(report),
        len(model.weights),
        [np.asarray(v).shape for v in (model.weights_vector,)],
        {k: np.shape(v) for k, v in (model.to_state()["mechanism"] or {}).items() if k != "strategy"},  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("other", "position", "warmup"),
    [
        # Each record at each place, and either of them with and without a warm-up.
        pytest.param(other, position, (0, 20)[(i + j) % 2], id=f"{i}-{position}-{(0, 20)[(i + j) % 2]}")
        for i, other in enumerate([*BAD, ({"a": 9e9, "b": -9e9}, False)])
        for j, position in enumerate([0, 5, 19, 20, 58, 59])
    ],
)
def test_nothing_public_depends_on_content(other: tuple[Any, Any], position: int, warmup: int) -> None:
    streams = [events(62), events(62)]
    streams[1][position] = other
    models = [auc.PairFTRL(**SMALL, warmup=warmup) for _ in range(2)]
    for t in range(62):
        for model, stream in zip(models, streams, strict=True):
            model.learn_one(*stream[t])
        assert public_view(models[0]) == public_view(models[1])


ALL = [
    *CASES,
    pytest.param(partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1), id="auc-strongly"),
    pytest.param(partial(auc.OnPairC, 1.0, 1e-3, 60, l2=4.0, calibration="paper"), id="auc-paper"),
    pytest.param(
        partial(
            auc.PairFTRL, 1.0, 1e-3, mechanism=privacy.PairGradients(buffer=buffers.Reservoir(4)), warmup=20
        ),
        id="auc-sampled",
    ),
    pytest.param(partial(auc.PairFTRL, 1.0, 1e-3, 60, warmup=20), id="auc-leader"),
]
OTHERS: list[Any] = [
    ({"a": -0.5, "b": 0.9}, 1.0),
    ({"a": 0.1, "b": -0.1}, None),
    ({"a": math.nan, "b": 0.0}, 0.0),
    ({"b": 0.0}, 0.5),
    ({"a": "text", "b": 0.0}, -1.0),
    ({}, 7),
    (None, "x"),
]


@pytest.mark.parametrize("make", ALL)
def test_content_never_shows_in_what_is_not_a_release(make: Learner) -> None:
    """docs/privacy 9.7: slots, releases, the report and everything public are the same for neighbours."""

    def public(stream: list[Any]) -> list[Any]:
        model, out = make(features=["a", "b"]), []
        for x, y in stream:
            model.learn_one(x, y)
            out.append((model.slots, model.horizon_left, model.buffer_records, str(model.privacy)))
        return out

    data = [(x, 1.0 if y else -0.5) for x, y in events(40)]
    expected = public(data)
    for number, other in enumerate(OTHERS):
        place = (3 + 7 * number) % 40
        assert public([*data[:place], other, *data[place + 1 :]]) == expected
