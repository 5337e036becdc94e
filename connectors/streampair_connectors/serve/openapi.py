"""The OpenAPI document of the server, written as data."""

from __future__ import annotations

from typing import Any

from streampair import __version__

__all__ = ["document"]

_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
_EVENT = {
    "type": "object",
    "description": "The fields of an event, as the input of the application declares them.",
}
_MODEL = {
    "type": "object",
    "required": ["name", "slots", "time"],
    "properties": {
        "name": {"type": "string"},
        "slots": {"type": "integer", "description": "Records that the model has learned."},
        "time": {"type": ["integer", "null"], "description": "Time of the newest, in ms since the epoch."},
    },
}
_EXPLANATION = {
    "type": "object",
    "description": "Baseline and contributions of the features add up to the score.",
    "required": ["baseline", "features"],
    "properties": {"baseline": {"type": "number"}, "features": _NUMBERS},
}
_ONE = {
    "type": "object",
    "required": ["score", "model"],
    "properties": {
        "score": {"type": ["number", "null"], "description": "Higher ranks higher."},
        "model": {"oneOf": [{"$ref": "#/components/schemas/Model"}, {"type": "null"}]},
        "id": {"type": ["string", "null"], "description": "The id of the event."},
        "probabilities": {**_NUMBERS, "description": "Of each class, of a model of several classes."},
        "explanation": _EXPLANATION,
    },
}
_MANY = {
    "type": "object",
    "required": ["scores", "model"],
    "properties": {
        "scores": {"type": "array", "items": {"type": "number"}},
        "model": {"$ref": "#/components/schemas/Model"},
        "ids": {"type": "array", "items": {"type": ["string", "null"]}},
        "probabilities": {"type": "array", "items": _NUMBERS},
        "explanations": {"type": "array", "items": _EXPLANATION},
    },
}
_ERROR = {
    "type": "object",
    "required": ["error", "fix"],
    "properties": {"error": {"type": "string"}, "fix": {"type": "string"}},
}
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string"},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    },
}
_INFERRED = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_READY = {
    "type": "object",
    "required": ["ready", "problems", "model"],
    "properties": {
        "ready": {"type": "boolean"},
        "problems": {"type": "array", "items": {"type": "object"}},
        "model": {"type": ["object", "null"]},
    },
}

_TEXTS = {
    400: "The request is not JSON, or a header is wrong.",
    401: "The token is missing or wrong.",
    404: "There is no such model, or the server does not offer this.",
    408: "The body did not arrive in time.",
    413: "The body or an event is too large.",
    415: "The body has a Content-Encoding other than gzip and deflate.",
    422: "An event cannot be used; the message names the field.",
    500: "An error of the server.",
    503: "There is no model yet, the broker does not answer, or there are too many requests.",
}
_REFUSED = (400, 401, 408, 413, 415, 422, 500, 503)
_NAME = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "description": "As in `versions` of the metadata; other versions are not there.",
    "schema": {"type": "string"},
}
_KEY = {
    "name": "key",
    "in": "query",
    "description": "Key of the record.",
    "schema": {"type": "string"},
}
_EXPLAIN = {
    "name": "explain",
    "in": "query",
    "description": "Whether the answer has the contribution of each feature.",
    "schema": {"type": "boolean", "default": False},
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A request with a known key is answered again, and not produced again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def _answer(text: str, schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {kind: {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(
    summary: str,
    answer: dict[str, Any],
    refused: tuple[int, ...],
    *,
    body: Any = None,
    parameters: tuple[Any, ...] = (),
    token: bool = True,
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": answer,
            **{str(status): _answer(_TEXTS[status], _ref("Error")) for status in refused},
        },
    }
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if parameters:
        made["parameters"] = list(parameters)
    if not token:
        made["security"] = []
    return made


def _model_paths(path: str, parameters: tuple[Any, ...]) -> dict[str, Any]:
    """The routes of the protocol under the path of a model, or of one of its versions."""
    return {
        f"{path}/infer": {
            "post": _operation(
                "Score tensors (Open Inference Protocol)",
                _answer("The scores.", _INFERRED),
                (*_REFUSED, 404),
                body=_INFER,
                parameters=parameters,
            )
        },
        path: {
            "get": _operation(
                "Inputs and outputs of the model",
                _answer("The metadata.", {"type": "object"}),
                (401, 404, 503),
                parameters=parameters,
            )
        },
        f"{path}/ready": {
            "get": _operation(
                "Whether the model is ready",
                _answer("It is.", _READY),
                (401, 404, 503),
                parameters=parameters,
            )
        },
    }


def document(name: str) -> dict[str, Any]:
    """The OpenAPI document.

    Parameters
    ----------
    name
        Of the model.
    """
    scored = _answer("The score.", {"oneOf": [_ref("Score"), _ref("Scores")]})
    ready = _operation(
        "Whether there is a model that is new enough", _answer("It is ready.", _READY), (503,), token=False
    )
    live = _operation("Whether the server answers", _answer("It does.", {"type": "object"}), (), token=False)
    paths: dict[str, Any] = {
        "/score": {
            "post": _operation(
                "Score an event, or a list of events",
                scored,
                _REFUSED,
                body={"oneOf": [_EVENT, {"type": "array", "items": _EVENT}]},
                parameters=(_EXPLAIN,),
            )
        },
        "/events": {
            "post": _operation(
                "Score an event, and produce it to the input topic, so that it is learned",
                _answer("The event is stored.", _ref("Score")),
                (*_REFUSED, 404),
                body=_EVENT,
                parameters=(_IDEMPOTENCY, _KEY),
            )
        },
        "/label": {
            "post": _operation(
                "Produce a label to the labels topic",
                _answer("The label is stored.", {"type": "object"}),
                (*_REFUSED, 404),
                body={"type": "object"},
                parameters=(_KEY,),
            )
        },
        **_model_paths("/v2/models/{model}", (_NAME,)),
        **_model_paths("/v2/models/{model}/versions/{version}", (_NAME, _VERSION)),
        "/v2": {
            "get": _operation("Name, version and extensions", _answer("They.", {"type": "object"}), (401,))
        },
        "/v2/health/live": {"get": live},
        "/v2/health/ready": {"get": ready},
        "/livez": {"get": live},
        "/readyz": {"get": ready},
        "/metrics": {
            "get": _operation(
                "Series for Prometheus", _answer("The series.", {"type": "string"}, "text/plain"), (401,)
            )
        },
        "/openapi.json": {"get": _operation("This document", _answer("It.", {"type": "object"}), (401,))},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Scores of {name}",
            "version": __version__,
            "description": "Answers with the newest model of an application of streampair.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Model": _MODEL, "Score": _ONE, "Scores": _MANY, "Error": _ERROR},
        },
    }
