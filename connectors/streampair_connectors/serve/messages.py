"""Bodies of requests and answers; `serve.openapi` makes the schemas of the document from them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = [
    "InferAnswer",
    "InferRequest",
    "Live",
    "ModelInfo",
    "ModelMetadata",
    "Problem",
    "Ready",
    "ReadyModel",
    "Reasons",
    "RefusalAnswer",
    "RequestedOutput",
    "ScoreAnswer",
    "ScoresAnswer",
    "Server",
    "Tensor",
    "TensorMetadata",
]

_Probabilities = Annotated[dict[str, float], msgspec.Meta(description="Of each class of several.")]

_Threshold = Annotated[float, msgspec.Meta(description="Scores of at least this stop their events.")]
_Share = Annotated[float, msgspec.Meta(description="Of these events, which are to be let pass.")]


class ModelInfo(msgspec.Struct, gc=False):
    """The model that has answered."""

    name: str
    slots: Annotated[int, msgspec.Meta(description="Records that it has learned.")]
    time: Annotated[int | None, msgspec.Meta(description="Of the newest of them, in ms since the epoch.")]


class Reasons(msgspec.Struct):
    """Reasons of a score: the baseline and the contributions of the features add up to it."""

    baseline: float
    features: dict[str, float]


class ScoreAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to one event."""

    score: Annotated[float, msgspec.Meta(description="Higher ranks higher.")]
    model: ModelInfo
    id: Annotated[str | None, msgspec.Meta(description="Of the event, if it has one.")] = None
    probabilities: _Probabilities | None = None
    explanation: Reasons | None = None
    threshold: _Threshold | None = None
    share: _Share | None = None
    explore: Annotated[bool | None, msgspec.Meta(description="Whether this event is one of them.")] = None


class ScoresAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to a list of events, in their order."""

    scores: list[float]
    model: ModelInfo
    ids: list[str | None] | None = None
    probabilities: list[_Probabilities] | None = None
    explanations: list[Reasons] | None = None
    threshold: _Threshold | None = None
    share: _Share | None = None
    explore: Annotated[list[bool] | None, msgspec.Meta(description="Whether each is one of them.")] = None


class RefusalAnswer(msgspec.Struct):
    """The answer to a request that is refused."""

    error: str
    fix: Annotated[str, msgspec.Meta(description="What to do.")]


class Problem(msgspec.Struct):
    """Why the server is not ready, and what to do."""

    problem: str
    fix: str


class ReadyModel(ModelInfo):
    """The newest model, and how old it is."""

    age_seconds: float | None


class Ready(msgspec.Struct):
    """Whether the server is ready; it is if there are no problems."""

    ready: bool
    problems: list[Problem]
    model: ReadyModel | None


class Live(msgspec.Struct):
    """That the server answers."""

    live: bool


class Server(msgspec.Struct):
    """The server, as the Open Inference Protocol asks for it."""

    name: str
    version: str
    extensions: list[str]


class Tensor(msgspec.Struct, omit_defaults=True):
    """A tensor of the Open Inference Protocol. Without data it is binary, and follows the JSON."""

    name: str
    shape: list[int]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] | None = None


class RequestedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct):
    """A request of the Open Inference Protocol."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[RequestedOutput] | None = None


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to a request of the Open Inference Protocol."""

    model_name: str
    model_version: Annotated[str, msgspec.Meta(description="Records that the model has learned.")]
    parameters: dict[str, Any]
    outputs: list[Tensor]
    id: Annotated[str | None, msgspec.Meta(description="As in the request.")] = None


class TensorMetadata(msgspec.Struct):
    """An input or output of a model; -1 in the shape is the number of events."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """Inputs and outputs of the model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
