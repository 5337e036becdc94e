"""The OpenAPI document of the server, made from its routes and from the types of bodies and answers."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from streampair import __version__
from streampair_connectors.serve.messages import Ready, RefusalAnswer
from streampair_connectors.serve.routes import ROUTES, Route

__all__ = ["document"]

_TEXTS = {
    400: "The request is not JSON, or a header is wrong.",
    401: "The token is missing or wrong.",
    404: "There is no such model or version.",
    408: "The body did not arrive in time.",
    413: "The body or an event is too large.",
    415: "The body has a Content-Encoding other than gzip and deflate.",
    417: "The header Expect is not 100-continue.",
    422: "An event or a tensor cannot be used; the message names the field.",
    500: "An error of the server.",
    503: "There is no model that is new enough, or there are too many requests.",
}
_PLACES = {
    "model": "Name of the model.",
    "version": "As in `versions` of the metadata; other versions are not there.",
}


def document(name: str) -> dict[str, Any]:
    """The OpenAPI document.

    Parameters
    ----------
    name
        Of the model.
    """
    types = [RefusalAnswer, *(each for route in ROUTES for each in (*route.answers, *route.bodies))]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of_type)
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
            "schemas": components,
        },
    }


def _operation(route: Route, of_type: dict[Any, Any]) -> dict[str, Any]:
    def content(types: tuple[Any, ...]) -> dict[str, Any]:
        schemas = [of_type[each] for each in types]
        return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}

    found = content(route.answers) if route.answers else {"text/plain": {"schema": {"type": "string"}}}
    made: dict[str, Any] = {
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": "The answer.", "content": found},
            **{
                str(status): {"description": _TEXTS[status], "content": content((RefusalAnswer,))}
                for status in _refused(route)
            },
        },
    }
    if Ready in route.answers:  # a server that is not ready says why
        made["responses"]["503"]["content"] = content((*route.answers, RefusalAnswer))
    if route.bodies:
        made["requestBody"] = {"required": True, "content": content(route.bodies)}
    if not route.token:
        made["security"] = []
    return made


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PLACES[name],
            "schema": {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = [
        {
            "name": name,
            "in": "query",
            "description": text,
            "schema": {"type": "boolean", "default": False},
        }
        for name, text in route.flags
    ]
    return in_path + in_query


def _refused(route: Route) -> list[int]:
    """The statuses other than 200 that a route may answer with."""
    statuses = {417, 500}
    if route.token:
        statuses |= {401, 503}
    if route.bodies:
        statuses |= {400, 408, 413, 415, 422}
    if "{model}" in route.path:
        statuses |= {404}
    if Ready in route.answers:
        statuses |= {503}
    return sorted(statuses)
