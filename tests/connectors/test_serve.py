"""`streampair serve`: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
import ssl
import threading
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from harness import serve_requests
from harness.certificates import Authority
from harness.serving import Serving, golden_models
from harness.support import at_row
from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client.parser import text_string_to_metric_families
from streampair_connectors.config import parse_config
from streampair_connectors.serve.model_source import load_model
from streampair_connectors.serve.openapi import document
from streampair_connectors.serve.options import read_tls, read_tokens
from streampair_connectors.serve.routes import ROUTES
from streampair_connectors.serve.scoring import model_decoder
from streampair_connectors.serve.series import STATUSES, ServerMetrics

from streampair import auc, models
from streampair.errors import ConfigError, SnapshotError

NAMES = [f"f{i}" for i in range(5)]


def rows(count: int, seed: int = 1) -> list[dict[str, float]]:
    generator = np.random.default_rng(seed)
    return [dict(zip(NAMES, row, strict=True)) for row in generator.normal(size=(count, 5)).tolist()]


def learned(learner: Any) -> Any:
    for x in rows(300):
        learner.learn_one(x, x["f0"] + x["f1"] > 0.0)
    return learner


@pytest.fixture(scope="module")
def linear() -> models.Model:
    return models.export(learned(auc.PairOGD()), time=1_700_000_000_000)


@pytest.fixture(scope="module")
def private() -> models.Model:
    """A model that takes numbers alone."""
    names = [f"f{i}" for i in range(5)]
    return models.export(auc.PairFTRL(1.0, 1e-4, 100, features=names, noise_key=bytes(range(32))))


@pytest.fixture(scope="module")
def forest() -> auc.Forest:
    made: auc.Forest = learned(auc.Forest(9, 15, seed=1))
    return made


def config(**tables: Any) -> Any:
    return parse_config(
        {
            "app": "fraud",
            "input": {"label": "bad", "features": NAMES, "id": "id"},
            "learner": {"class": "streampair.auc.PairOGD"},
            **tables,
        }
    )


# Scores


def test_one_event_and_a_list(linear: models.Model) -> None:
    events = rows(20, seed=2)
    with Serving.of(linear) as serving:
        one = serving.post("/score", events[0])
        many = serving.post("/score", events)
        none = serving.post("/score", [])
    model = {"name": "fraud", "slots": 300, "time": 1_700_000_000_000}
    assert (one.status, one.json) == (200, {"score": linear.score_one(events[0]), "model": model})
    assert many.json == {"scores": [linear.score_one(x) for x in events], "model": model}
    assert none.json == {"scores": [], "model": model}


def exploring() -> Any:
    labels = {"topic": "l", "id": "id", "label": "bad", "after": "1d", "stopped": "declined"}
    output = {"alert_above": 0.0, "explore": 0.5, "explore_key_file": "nobody-reads.key"}
    return config(input={"features": NAMES, "id": "id"}, label_input=labels, output=output)


def test_each_request_has_a_coin_of_its_own(linear: models.Model) -> None:
    """Also the same event again: the page on serving says that attempts have to be limited."""
    events = [{**x, "id": n} for n, x in enumerate(rows(200, seed=2))]
    with Serving.of(linear, exploring()) as serving:
        found = serving.post("/score", events).json
        again = [serving.post("/score", events[0]).json for _ in range(30)]
        named = {name: [each[name] for each in events] for name in NAMES}
        tensors = [{"name": n, "shape": [200], "datatype": "FP64", "data": v} for n, v in named.items()]
        inferred = serving.post("/v2/models/fraud/infer", {"inputs": tensors}).json
        outputs = serving.get("/v2/models/fraud").json["outputs"]
    assert (found["threshold"], found["share"]) == (0.0, 0.5)
    above = np.array(found["scores"]) >= 0.0
    assert 50 < above.sum() < 150
    of_output = {each["name"]: each["data"] for each in inferred["outputs"]}
    assert inferred["parameters"]["share"] == 0.5
    assert {"name": "explore", "datatype": "BOOL", "shape": [-1]} in outputs
    for marks in (np.array(found["explore"]), np.array(of_output["explore"])):
        assert not (marks & ~above).any()
        assert 0.2 < marks[above].mean() < 0.8
    assert found["explore"] != of_output["explore"]
    assert {each["explore"] for each in again} == ({True, False} if above[0] else {False})
    assert all(each["score"] == found["scores"][0] for each in again)


def test_events_are_decoded_as_the_input_says(linear: models.Model) -> None:
    x = rows(1)[0]
    with Serving.of(linear, config()) as serving:
        whole = serving.post("/score", {**x, "id": 7, "bad": True, "other": "text"})
        listed = serving.post("/score", [{**x, "id": 7}, x])
        wrong = serving.post("/score", {**x, "bad": "perhaps"})
    assert (whole.json["score"], whole.json["id"]) == (linear.score_one(x), "7")
    assert listed.json["ids"] == ["7", None]
    assert wrong.status == 422
    assert "'bad'" in wrong.json["error"]


def test_declared_values_become_columns() -> None:
    learner = auc.PairOGD()
    for i in range(100):
        learner.learn_one({"a": i % 7, "card=debit": float(i % 2), "card=credit": 1.0 - i % 2}, i % 2 == 0)
    model = models.export(learner)
    features = {"a": [0.0, 9.0], "card": ["debit", "credit"]}
    with Serving.of(model, config(input={"label": "bad", "features": features})) as serving:
        found = serving.post("/score", [{"a": 3, "card": "debit"}, {"a": 3, "card": "credit"}]).json["scores"]
        tensors = [
            {"name": "a", "shape": [2], "datatype": "INT64", "data": [3, 3]},
            {"name": "card", "shape": [2, 1], "datatype": "BYTES", "data": [["debit"], ["credit"]]},
        ]
        inferred = serving.post("/v2/models/fraud/infer", {"inputs": tensors}).json["outputs"][0]["data"]
    columns = ({"card=debit": 1.0, "card=credit": 0.0}, {"card=debit": 0.0, "card=credit": 1.0})
    assert found == inferred == [model.score_one({"a": 3.0, **each}) for each in columns]


@pytest.mark.parametrize("file", golden_models(), ids=lambda file: file.stem)
def test_scores_have_the_bits_of_the_model_file(file: Path) -> None:
    """Of each kind of model, alone and in a list; and the model is the same afterwards."""
    model = models.load(file)
    before = models.dumps(model)
    decoder = model_decoder(model)
    generator = np.random.default_rng(5)
    events = [
        {name: round(value, 3) for name, value in zip(decoder.fields or [], row, strict=True)}
        for row in generator.uniform(-1.0, 1.0, size=(40, len(model.features))).tolist()
    ]
    with Serving.of(model) as serving:
        singly = [serving.post("/score", x).json["score"] for x in events[:10]]
        listed = serving.post("/score", events).json["scores"]
    expected = [models.load(file).score_one(x) for x in events]
    assert listed == expected
    assert singly == expected[:10]
    golden = json.loads((file.parent / "expected.json").read_text())[file.stem]["scores"]
    assert any(expected) == any(golden)  # some are in their warm-up
    assert models.dumps(model) == before


def test_probabilities_of_several_classes() -> None:
    learner = auc.MulticlassForest(5, 15, positive="high", seed=1)
    for i in range(90):
        learner.learn_one({"a": float(i % 3)}, ["low", "middle", "high"][i % 3])
    model = models.export(learner)
    with Serving.of(model) as serving:
        one = serving.post("/score", {"a": 1.0}).json
        many = serving.post("/score", [{"a": 1.0}, {"a": 2.0}]).json
        tensor = {"name": "a", "shape": [2], "datatype": "FP64", "data": [1.0, 2.0]}
        score, shares = serving.post("/v2/models/fraud/infer", {"inputs": [tensor]}).json["outputs"]
    expected = [model.predict_proba_one({"a": a}) for a in (1.0, 2.0)]
    assert one["probabilities"] == expected[0]
    assert many["probabilities"] == expected
    assert (score["data"], shares["shape"]) == (many["scores"], [2, 3])
    assert shares["data"] == [p for each in expected for p in each.values()]


def test_reasons_are_those_of_the_learner(
    linear: models.Model, private: models.Model, forest: auc.Forest
) -> None:
    """Served explanations have the bits of the learner, alone and in a list."""
    x = rows(1, seed=3)[0]
    with Serving.of(models.export(forest)) as serving:
        one = serving.post("/score?explain=true", x).json
        many = serving.post("/score?explain=1", [x]).json
        plain = serving.post("/score?explain=false", x).json
        wrong = serving.post("/score?explain=perhaps", x)
    reasons = forest.explain_one(x)
    assert one["explanation"] == {"baseline": reasons.baseline, "features": reasons.features}
    assert many["explanations"] == [one["explanation"]]
    assert sum(reasons.features.values()) + reasons.baseline == pytest.approx(one["score"])
    assert "explanation" not in plain
    assert wrong.status == 422
    with Serving.of(linear) as serving:
        parts = serving.post("/score?explain=true", x).json
    assert sum(parts["explanation"]["features"].values()) == pytest.approx(parts["score"])
    with Serving.of(private) as serving:
        refused = serving.post("/score?explain=true", x)
    assert refused.status == 422
    assert refused.json["error"] == "a model of auc.PairFTRL gives no reasons"


def test_a_missing_feature_is_a_gap_where_the_learner_takes_gaps(forest: auc.Forest) -> None:
    x = {"f0": 1.0, "f3": "text"}
    with Serving.of(models.export(forest)) as serving:
        assert serving.post("/score", x).json["score"] == forest.score_one(x)


def test_texts_and_gaps_of_a_linear_learner() -> None:
    learner = auc.PairOGD()
    for i in range(90):
        x = {"a": float(i % 7), "kind": ["x", "y", None][i % 3], "b=": 1.0}
        learner.learn_one(x if i % 5 else {**x, "a": None}, i % 3 == 0)
    model = models.export(learner)
    events = [{"a": 3.0, "kind": "x"}, {"a": None, "kind": "other"}, {"a": 1e6, "kind": None}]
    events = [{**each, "b=": 1.0} for each in events]
    with Serving.of(model) as serving:
        assert serving.post("/score", events).json["scores"] == [learner.score_one(x) for x in events]
        parts = serving.post("/score?explain=true", events[0]).json["explanation"]
        # A field of the model that an event lacks is a missing value.
        lacking = serving.post("/score", {"kind": "x", "b=": 1.0}).json
        large = serving.post("/score", {"a": 1e60})
    assert (large.status, "'a'" in large.json["error"]) == (422, True)
    assert parts["features"] == learner.explain_one(events[0]).features
    assert lacking["score"] == learner.score_one({"a": None, "kind": "x", "b=": 1.0})


def test_features_that_are_numbers_are_named_as_in_json() -> None:
    learner = auc.PairOGD()
    for i in range(50):
        learner.learn_one({0: float(i % 2), 1: 1.0}, i % 2 == 0)
    model = models.export(learner)
    with Serving.of(model) as serving:
        assert serving.post("/score", {"0": 1.0, "1": 1.0}).json["score"] == model.score_one({0: 1.0, 1: 1.0})


# The Open Inference Protocol


def test_a_client_of_the_protocol(linear: models.Model) -> None:
    x = rows(6, seed=4)
    expected = [linear.score_one(each) for each in x]
    matrix = np.array([list(each.values()) for each in x])
    with Serving.of(linear) as serving:
        client = triton.InferenceServerClient(serving.address)
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("fraud")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        metadata = client.get_model_metadata("fraud")
        assert [each["name"] for each in metadata["inputs"]] == NAMES
        (version,) = metadata["versions"]
        assert client.get_model_metadata("fraud", version)["versions"] == [version]
        assert client.is_model_ready("fraud", version)
        assert not client.is_model_ready("fraud", "100")
        for binary in (True, False):
            whole = triton.InferInput("features", list(matrix.shape), "FP64")
            whole.set_data_from_numpy(matrix, binary_data=binary)
            by_feature = []
            for name, column in zip(NAMES, matrix.T, strict=True):
                by_feature.append(triton.InferInput(name, [len(x), 1], "FP64"))
                by_feature[-1].set_data_from_numpy(np.ascontiguousarray(column[:, None]), binary_data=binary)
            for inputs in ([whole], by_feature):
                requested = [triton.InferRequestedOutput("score", binary_data=binary)]
                for outputs in (requested, None):
                    found = client.infer(
                        "fraud", inputs, version if binary else "", outputs=outputs, request_id="r1"
                    )
                    assert found.as_numpy("score").tolist() == expected
                    assert found.get_response()["model_version"] == "300"
                    assert found.get_response()["id"] == "r1"
        with pytest.raises(triton.InferenceServerException, match="no model of this name"):
            client.infer("other", [whole])
        with pytest.raises(triton.InferenceServerException, match="no version '100' of this model"):
            client.infer("fraud", [whole], "100")
        with pytest.raises(triton.InferenceServerException, match="no output 'margin'"):
            client.infer("fraud", [whole], outputs=[triton.InferRequestedOutput("margin")])
        client.close()


def test_texts_and_gaps_in_tensors(forest: auc.Forest) -> None:
    with Serving.of(models.export(forest)) as serving:
        client = triton.InferenceServerClient(serving.address)
        number = triton.InferInput("f0", [2], "FP32")
        number.set_data_from_numpy(np.array([0.5, math.nan], dtype=np.float32))
        text = triton.InferInput("f1", [2], "BYTES")
        text.set_data_from_numpy(np.array(["red", "grün"], dtype=object))
        found = client.infer("fraud", [number, text]).as_numpy("score").tolist()
        client.close()
    assert found == [forest.score_one({"f0": 0.5, "f1": "red"}), forest.score_one({"f1": "grün"})]


def tensor(**changed: Any) -> dict[str, Any]:
    return {"name": "m", "shape": [1, 5], "datatype": "FP64", "data": [0.0] * 5, **changed}


TENSORS_THAT_DO_NOT_FIT: list[tuple[Any, str]] = [
    ([], "no inputs"),
    ([tensor(shape=[1, 4], data=[0.0] * 4)], "4 columns, and there are 5"),
    ([tensor(data=[0.0] * 4)], "has 4 values, and its shape says 5"),
    ([tensor(shape=[-1, 5])], "negative length"),
    ([tensor(datatype="FP8")], "unknown datatype"),
    ([tensor(shape=[2, 5], data=[[0.0] * 6, [0.0] * 4])], r"nested .* not of its shape \[2, 5\]"),
    ([tensor(shape=[1, 5], data=[[[0.0] * 5]])], r"not of its shape \[1, 5\]"),
    ([tensor(shape=[1, 5], data=[[0.0] * 4, 0.0])], r"not of its shape \[1, 5\]"),
    ([tensor(shape=[1, 5], data=[[0.0] * 4, [0.0]])], r"not of its shape \[1, 5\]"),
    ([tensor(shape=[5], data=[[0.0] * 5])], r"not of its shape \[5\]"),
    ([tensor(datatype="UINT8", data=[0, 1, -1, 0, 0])], "at 2 a value that is no UINT8"),
    ([tensor(datatype="UINT8", data=[256, 1, 0, 0, 0])], "at 0 a value that is no UINT8"),
    ([tensor(datatype="INT8", data=[0, 1.5, 0, 0, 0])], "at 1 a value that is no INT8"),
    ([tensor(datatype="INT64", data=[True, 1, 0, 0, 0])], "at 0 a value that is no INT64"),
    ([tensor(datatype="BOOL", data=[True, 1, 0, 0, 0])], "at 1 a value that is no BOOL"),
    ([tensor(datatype="BYTES", data=["1", 1, 0, 0, 0])], "at 1 a value that is no BYTES"),
    ([tensor(datatype="FP32", data=[0, 1e39, 0, 0, 0])], "at 1 a value that is no FP32"),
    ([tensor(name="f0", shape=[1], data=[0.0])] * 2, "there twice"),
    (
        [tensor(name="f0", shape=[1], data=[0]), tensor(name="f1", shape=[2], data=[0, 0])],
        "different numbers",
    ),
    ([tensor(shape=[5, 1, 1])], "not \\[n\\] or"),
    ([tensor(data=None, parameters={"binary_data_size": 40})], "binary_data_size that is not there"),
    ([{"name": "m"}], "missing required field"),
]


def test_tensors_that_do_not_fit(linear: models.Model) -> None:
    with Serving.of(linear) as serving:
        for inputs, problem in TENSORS_THAT_DO_NOT_FIT:
            with at_row(inputs):
                answer = serving.post("/v2/models/fraud/infer", {"inputs": inputs})
                assert answer.status == 422
                assert re.search(problem, answer.json["error"]), answer.json


def test_a_private_learner_takes_no_texts_or_gaps_in_tensors(private: models.Model) -> None:
    with Serving.of(private) as serving:
        for inputs, problem in (
            ([tensor(data=[0.0, 0.0, "x", 0.0, 0.0])], "in event 0, feature 'f2' is text"),
            ([tensor(name="f0", shape=[1], data=[0.0])], "in event 0, feature 'f1' is missing"),
        ):
            refused = serving.post("/v2/models/fraud/infer", {"inputs": inputs})
            assert refused.status == 422
            assert problem in refused.json["error"]


def test_data_may_be_nested_as_the_shape_says(linear: models.Model) -> None:
    x = rows(3)
    data = [list(row.values()) for row in x]
    with Serving.of(linear) as serving:
        for content in (data, [value for row in data for value in row]):
            answer = serving.post("/v2/models/fraud/infer", {"inputs": [tensor(shape=[3, 5], data=content)]})
            assert answer.json["outputs"][0]["data"] == [linear.score_one(row) for row in x]


# Refusals


def test_a_body_is_decompressed_or_refused_in_the_form_of_the_interface(linear: models.Model) -> None:
    """The HTTP library answered br and zstd in plain text, and never asked the server."""
    event = rows(1)[0]
    body = json.dumps(event).encode()
    with Serving.of(linear, max_body_bytes=10_000) as serving:
        for name, sent in (
            ("gzip", gzip.compress(body)),
            ("deflate", zlib.compress(body)),
            ("identity", body),
        ):
            answer = serving.post("/score", sent, Content_Encoding=name)
            assert answer.json["score"] == linear.score_one(event)
            assert serving.post("/score", body, Accept_Encoding="br, zstd").status == 200
        for name in ("br", "zstd", "gzip, br", "wonders"):
            answer = serving.post("/score", body, Content_Encoding=name)
            assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "gzip, deflate")
            assert answer.headers["Content-Type"] == "application/json"
            assert repr(name) in answer.json["error"]
            assert "gzip or deflate" in answer.json["fix"]
        for wrong in (body, gzip.compress(body)[:-9], gzip.compress(body) + b"more"):
            assert serving.post("/score", wrong, Content_Encoding="gzip").status == 400
        bomb = serving.post("/score", gzip.compress(b" " * 1_000_000), Content_Encoding="gzip")
        assert (bomb.status, "10000 bytes" in bomb.json["error"]) == (413, True)


BODIES_THAT_ARE_REFUSED = [
    (b"", 400, "it has no bytes"),
    (b'{"f0": 1', 400, "not JSON"),
    (b"[1, 2", 400, "not JSON"),
    (b"\xff\xfe", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    (b'{"f0":' * 50_000, 400, "nested too deeply"),
    (b"17", 422, "not a JSON object"),
    (b"{}", 422, "the event has no feature"),
    (b"[17]", 422, "in event 0, the event is not a JSON object"),
    (b'{"f0": 1}', 422, "feature 'f1' is missing"),
    (b'{"f0": "1", "f1": 1, "f2": 1, "f3": 1, "f4": 1}', 422, "feature 'f0' is text"),
    (b'{"f0": NaN, "f1": 1, "f2": 1, "f3": 1, "f4": 1}', 400, "NaN and Infinity are no numbers of JSON"),
    (b'{"f0": null, "f1": 1, "f2": 1, "f3": 1, "f4": 1}', 422, "feature 'f0' is null"),
    (b'{"f0": "' + b"x" * 600_000 + b'"}', 413, "600010 bytes"),
    (b" " * 1_048_577, 413, "more than 1048576 bytes"),
]


def test_a_body_that_is_refused(private: models.Model) -> None:
    with Serving.of(private) as serving:
        for body, status, problem in BODIES_THAT_ARE_REFUSED:
            with at_row(body[:20], problem):
                answer = serving.post("/score", body)
                assert (answer.status, problem in answer.json["error"]) == (status, True), answer
                assert answer.json["fix"]
                assert "input." not in answer.json["fix"]  # there is no configuration


def test_the_place_in_a_list_is_named(private: models.Model) -> None:
    events: list[dict[str, Any]] = [*rows(3), {**rows(1)[0], "f4": True}]
    with Serving.of(private) as serving:
        answer = serving.post("/score", events)
    assert answer.status == 422
    assert answer.json["error"] == "in event 3, feature 'f4' is a truth value"


def test_a_text_that_is_not_unicode(forest: auc.Forest) -> None:
    with Serving.of(models.export(forest)) as serving:
        answer = serving.post("/score", b'{"f0": "\\ud800"}')
        name = serving.post("/score", b'{"\\ud800": {}}')
    assert (answer.status, name.status) == (400, 400)


def test_addresses_and_methods(linear: models.Model) -> None:
    with Serving.of(linear) as serving:
        assert serving.get("/nothing").status == 404
        assert serving.get("/v2/models/other").status == 404
        wrong = serving.get("/score")
        assert serving.post("/score", b"{}", Expect="wonders").status == 417
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")


def test_tokens(linear: models.Model, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("first-token-of-two\nsecond-token-of-two\n")
    file.chmod(0o600)
    x = rows(1)[0]
    with Serving.of(linear, token_file=file) as serving:
        for header in ("Bearer first-token-of-two", "bearer second-token-of-two"):
            assert serving.post("/score", x, Authorization=header).status == 200
        for header in ("", "Bearer", "Bearer first-token-of-tw", "Basic first-token-of-two", "Bearer \xff"):
            answer = serving.post("/score", x, Authorization=header)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        open_to_all = {route.path for route in ROUTES if not route.token}
        for route in ROUTES:
            path = route.path.replace("{model}", "fraud").replace("{version}", "300")
            without_token = serving.ask(route.method, path, b"{}" if route.method == "POST" else None)
            assert (without_token.status == 401) != (route.path in open_to_all), route
    assert open_to_all == {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}


def test_tokens_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="fewer than 16"):
        read_tokens(file)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="every user of this machine may read"):
        read_tokens(file)


def test_tls(linear: models.Model, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    key, cert = authority.issue("server")
    with Serving.of(linear, tls_cert=cert, tls_key=key) as serving:
        context = ssl.create_default_context(cafile=str(authority.file))
        with urllib.request.urlopen(f"{serving.server.url}/readyz", timeout=60, context=context) as answer:
            assert answer.status == 200
    other, _ = authority.issue("other")
    with pytest.raises(ConfigError, match="cannot be used"):
        read_tls(cert, other)
    with pytest.raises(ConfigError, match="certificate and its key"):
        read_tls(cert, None)


def test_without_a_model_yet() -> None:
    x = rows(1)[0]
    with Serving.of(None, config()) as serving:
        for answer in (
            serving.post("/score", x),
            serving.post("/v2/models/fraud/infer", {"inputs": [tensor()]}),
            serving.get("/readyz"),
            serving.get("/v2/health/ready"),
            serving.get("/v2/models/fraud/ready"),
            serving.get("/v2/models/fraud"),
        ):
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "5"
        assert serving.get("/livez").status == 200
        assert serving.get("/readyz").json["problems"][0]["problem"] == "there is no model yet"


def test_readiness_knows_the_age_of_the_model(linear: models.Model) -> None:
    undated = models.loads(models.dumps(linear).replace(b"1700000000000", b"null"))
    century = 36_500 * 86_400_000
    for model, most, ready in (
        (linear, None, True),
        (undated, None, True),
        (linear, 3_600_000, False),
        (linear, century, True),
        (undated, century, False),
    ):
        with Serving.of(model, max_model_age=most) as serving:
            answer = serving.get("/readyz")
            assert answer.status == (200 if ready else 503)
            assert answer.json["ready"] == ready
            assert serving.post("/score", rows(1)[0]).status == 200  # its answer says how old it is
            if not ready:
                assert "age of the model" in answer.json["problems"][0]["problem"]
                assert answer.headers["Retry-After"] == "5"


def test_requests_in_flight_and_time_are_limited(linear: models.Model) -> None:
    import socket

    with Serving.of(linear, max_requests=1, timeout_seconds=2.0) as serving:
        host, port = serving.address.split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            blocked = threading.Event()
            while not blocked.wait(0.01):  # until the server has seen it
                if serving.server._in_flight:
                    blocked.set()
            refused = serving.post("/score", rows(1)[0])
            assert serving.get("/livez").status == 200
            assert slow.makefile("rb").readline().split()[1] == b"408"
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")


def test_a_stop_answers_what_has_come(linear: models.Model) -> None:
    import socket

    with Serving.of(linear) as serving:
        host, port = serving.address.split(":")
        body = json.dumps(rows(1)[0]).encode()
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            blocked = threading.Event()
            while not blocked.wait(0.01):
                if serving.server._in_flight:
                    blocked.set()
            serving._loop.call_soon_threadsafe(serving._stop.set)
            while not serving.server._stopping:
                blocked.wait(0.01)
            for _ in range(100):  # turns of its loop, so that it goes as far as it will
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), serving._loop).result(60)
            slow.sendall(body)
            assert slow.makefile("rb").readline().split()[1] == b"200"


# Model files


def test_a_model_file_that_is_refused(linear: models.Model, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    data = models.dumps(linear)
    for bad in (data[:-20], data.replace(b'"version":1', b'"version":2'), b"{}", b""):
        file.write_bytes(bad)
        with pytest.raises(SnapshotError, match=re.escape(str(file))):
            load_model(file, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "none.json", None)
    models.save(models.export(auc.PairOGD(), metadata={"configuration": "other"}), file)
    with pytest.raises(ConfigError, match="other settings"):
        load_model(file, config())


# What the server says of itself


def test_the_document_is_valid_and_names_every_route(linear: models.Model) -> None:
    with Serving.of(linear) as serving:
        specification = serving.get("/openapi.json").json
    OpenAPIV31SpecValidator(specification).validate()
    described = {(method.upper(), path) for path, each in specification["paths"].items() for method in each}
    assert described == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        operation = specification["paths"][route.path][route.method.lower()]
        assert (operation.get("security") == []) == (not route.token), route
        assert {int(status) for status in operation["responses"]} <= set(STATUSES)
    wrong = document("fraud")
    wrong["paths"]["/score"]["post"].pop("responses")
    wrong["paths"]["/score"]["post"]["parameters"][0].pop("in")
    with pytest.raises(Exception, match=r"responses|required|not valid"):
        OpenAPIV31SpecValidator(wrong).validate()


def test_answers_are_as_the_document_says(linear: models.Model, forest: auc.Forest) -> None:
    import jsonschema

    forest_model = models.export(forest)
    specification = document("fraud")

    def fits(answer: Any, path: str, method: str = "post") -> None:
        schema = specification["paths"][path][method]["responses"][str(answer.status)]["content"][
            "application/json"
        ]
        resolved = {**schema["schema"], "components": specification["components"]}
        jsonschema.Draft202012Validator(resolved).validate(answer.json)

    with Serving.of(linear) as serving:
        fits(serving.post("/score", rows(1)[0]), "/score")
        fits(serving.post("/score", rows(3)), "/score")
        fits(serving.post("/score", {}), "/score")
        for path in ("/readyz", "/livez", "/v2", "/openapi.json"):
            fits(serving.get(path), path, "get")
        model = "/v2/models/{model}"
        fits(serving.get("/v2/models/fraud"), model, "get")
        fits(serving.get("/v2/models/fraud/ready"), f"{model}/ready", "get")
        fits(serving.get("/v2/models/other"), model, "get")
        for outputs in (None, [{"name": "score", "parameters": {"binary_data": False}}]):
            sent = {"id": "r1", "inputs": [tensor()], "outputs": outputs}
            fits(serving.post("/v2/models/fraud/infer", sent), f"{model}/infer")
    with Serving.of(linear, exploring()) as serving:
        fits(serving.post("/score", rows(1)[0]), "/score")
        fits(serving.post("/score", rows(3)), "/score")
        fits(serving.post("/v2/models/fraud/infer", {"inputs": [tensor()]}), f"{model}/infer")
    with Serving.of(forest_model) as serving:
        fits(serving.post("/score?explain=true", rows(1)[0]), "/score")
        fits(serving.post("/score?explain=true", rows(3)), "/score")
    with Serving.of(None, config()) as serving:
        fits(serving.get("/readyz"), "/readyz", "get")
        fits(serving.get("/v2/models/fraud/ready"), f"{model}/ready", "get")
        fits(serving.get("/v2/models/fraud/versions/3/ready"), f"{model}/ready", "get")


def test_series(linear: models.Model) -> None:
    with Serving.of(linear) as serving:
        for _ in range(3):
            serving.post("/score", rows(4))
        serving.post("/score", {})
        text = serving.get("/metrics").body.decode()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["streampair_serve_requests_total", "200", "score"] == 3
    assert found["streampair_serve_requests_total", "422", "score"] == 1
    assert found["streampair_serve_request_seconds_count", "score"] == 4
    assert found["streampair_serve_request_seconds_bucket", "+Inf", "score"] == 4
    assert found["streampair_serve_events_total",] == 12
    assert found["streampair_serve_requests_in_flight",] == 1
    assert found["streampair_serve_ready",] == 1
    assert found["streampair_serve_model_slots",] == 300
    assert found["streampair_serve_model_timestamp_seconds",] == 1_700_000_000


def test_series_as_prometheus_reads_them() -> None:
    metrics = ServerMetrics(["score", "infer"])
    for _ in range(3):
        metrics.request(0, 200, 0.003)
    for _ in range(2):
        metrics.request(1, 503, 20.0)
    metrics.events(20)
    metrics.standing(in_flight=3, ready=False, slots=100, time=1000)
    lines = metrics.render().decode().splitlines()
    for line in (
        'streampair_serve_requests_total{route="score",status="200"} 3',
        'streampair_serve_request_seconds_bucket{route="score",le="0.0025"} 0',
        'streampair_serve_request_seconds_bucket{route="score",le="0.005"} 3',
        'streampair_serve_request_seconds_bucket{route="infer",le="10.0"} 0',
        'streampair_serve_request_seconds_bucket{route="infer",le="+Inf"} 2',
        'streampair_serve_request_seconds_sum{route="infer"} 40',
        "streampair_serve_events_total 20",
        "streampair_serve_requests_in_flight 3",
        "streampair_serve_ready 0",
        "streampair_serve_model_slots 100",
        "streampair_serve_model_timestamp_seconds 1",
    ):
        assert line in lines, line


def test_series_without_a_model() -> None:
    with Serving.of(None, config()) as serving:
        lines = serving.get("/metrics").body.decode().splitlines()
    assert "streampair_serve_ready 0" in lines
    assert "streampair_serve_model_slots NaN" in lines


# Requests at random


def test_requests_at_random(linear: models.Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing but the documented statuses, each with a message; no traceback, and no payload in the log."""
    file = tmp_path / "tokens"
    file.write_text(serve_requests.TOKEN)
    file.chmod(0o600)
    with Serving.of(linear, token_file=file, max_body_bytes=4096) as serving:
        counts = serve_requests.run(serving.address, NAMES, 3000, seed=1)
        alive = serving.post("/score", rows(1)[0], Authorization=f"Bearer {serve_requests.TOKEN}")
    assert alive.status == 200
    assert set(counts) <= set(STATUSES) - {500}
    assert {200, 400, 401, 404, 405, 413, 422} <= set(counts), counts
    logged = "".join(capfd.readouterr())
    assert "Traceback" not in logged
    assert "request_failed" not in logged
    assert serve_requests.PAYLOAD not in logged
