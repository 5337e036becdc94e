"""The routes of the server: what each takes, what it answers, and who may ask."""

from __future__ import annotations

from typing import Any, NamedTuple

from streampair_connectors.serve import messages

__all__ = ["ROUTES", "Route"]

_EVENT = dict[str, Any]


class Route(NamedTuple):
    """A route.

    Attributes
    ----------
    method, path
        Of the requests.
    name
        Of the method of `ScoringServer` that answers, without its underscore, and in the series.
    summary
        What it does.
    answers
        Types of a JSON answer with status 200: one of them. Empty: the answer is text.
    bodies
        Types of the body: one of them. Empty: it takes none.
    flags
        Parameters of the query that are true or false, with their descriptions.
    token
        Whether it needs a token.
    """

    method: str
    path: str
    name: str
    summary: str
    answers: tuple[Any, ...] = ()
    bodies: tuple[Any, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    token: bool = True


def _of_model(path: str) -> tuple[Route, ...]:
    """The routes of the Open Inference Protocol under the path of a model, or of one of its versions."""
    return (
        Route(
            *("POST", f"{path}/infer", "infer", "Score tensors (Open Inference Protocol)"),
            answers=(messages.InferAnswer,),
            bodies=(messages.InferRequest,),
        ),
        Route("GET", path, "model", "Inputs and outputs of the model", (messages.ModelMetadata,)),
        Route("GET", f"{path}/ready", "model_ready", "Whether the model is ready", (messages.Ready,)),
    )


def _probes(live: str, ready: str) -> tuple[Route, ...]:
    return (
        Route("GET", live, "live", "Whether the server answers", (messages.Live,), token=False),
        Route(
            *("GET", ready, "ready", "Whether there is a model that is new enough"),
            answers=(messages.Ready,),
            token=False,
        ),
    )


ROUTES = (
    Route(
        *("POST", "/score", "score", "Score an event, or a list of events"),
        answers=(messages.ScoreAnswer, messages.ScoresAnswer),
        bodies=(_EVENT, list[_EVENT]),
        flags=(("explain", "Whether the answer has the contribution of each feature."),),
    ),
    *_of_model("/v2/models/{model}"),
    *_of_model("/v2/models/{model}/versions/{version}"),
    Route("GET", "/v2", "server", "Name, version and extensions of the server", (messages.Server,)),
    *_probes("/v2/health/live", "/v2/health/ready"),
    *_probes("/livez", "/readyz"),
    Route("GET", "/metrics", "metrics", "Series for Prometheus"),
    Route("GET", "/openapi.json", "openapi", "This document", (dict[str, Any],)),
)
"""All routes; `ScoringServer` answers them, and `serve.openapi` describes them."""
