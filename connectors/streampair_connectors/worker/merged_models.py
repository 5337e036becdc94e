"""Models of lanes as messages, and one merged model of several lanes.

A lane publishes its model under its own key, to a compacted topic: the newest model of each lane stays.
Everything in a message was released or public before (docs/privacy, Lemma 4): published weights, the moments
released by the warm-up, declared bounds, and counts of slots. A message never has a state, which contains
records.

Lanes are weighted by their *slots*. The number of learned events would reveal how many records were refused,
which depends on their content. Each lane standardises with its own moments, so the weights of two lanes have
different scales, and the merged model averages scores. With equal scales this equals averaging the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError
from streampair.models.exporting import scaling_of
from streampair.models.format import Scaling
from streampair.models.scoring import design_of
from streampair.records.design import Design
from streampair.records.features import read_record
from streampair_connectors import kafka
from streampair_connectors.config import KafkaConfig
from streampair_connectors.stores.spending import Total, total_of

__all__ = [
    "LaneModel",
    "MergedModel",
    "Promise",
    "decode_model",
    "encode_model",
    "merge",
    "model_of",
]

FORMAT: Literal[1] = 1

Array = NDArray[np.float64]


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Privacy guarantee and spending of a private lane at its publication, as in `PrivacyReport`."""

    epsilon_spent: float
    epsilon_budget: float
    delta: float
    mu_spent: float
    mu_budget: float
    unit: str
    kind: str
    guarantee: str


class LaneModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The published model of one lane.

    Attributes
    ----------
    format
        Version of the message format.
    app, learner, topic, partition
        Identify the lane.
    offset
        Next offset of the committed state; None before the first event.
    slots
        Processed records, including refused ones.
    features, weights
        Names in order, and their weights.
    scale
        Of a private lane; None: weights multiply the raw values, with 0 for a missing one.
    privacy
        None: not private.
    """

    format: Literal[1]
    app: str
    learner: str
    topic: str
    partition: int
    offset: int | None
    slots: int
    features: tuple[str, ...]
    weights: tuple[float, ...]
    scale: Scaling | None
    privacy: Promise | None

    @property
    def key(self) -> bytes:
        """Key of the message, unique per lane."""
        return f"{self.app}:{self.topic}-{self.partition}".encode()

    # The attributes of an account that `total_of` uses.

    @property
    def mu_spent(self) -> float:
        """Spent by releases; 0 without a guarantee."""
        return 0.0 if self.privacy is None else self.privacy.mu_spent

    @property
    def by_entity(self) -> bool:
        """Whether all records of an entity are protected."""
        return self.privacy is not None and "entity" in self.privacy.unit

    @property
    def partitions(self) -> int | None:
        """Not known from a message."""
        return None


def model_of(
    learner: Any, *, app: str, name: str, topic: str, partition: int, offset: int | None, slots: int
) -> LaneModel | None:
    """Return the model of a lane; None while its learner knows no features.

    Parameters
    ----------
    learner
        A streampair learner with one weight per feature, not in a pipeline.
    name
        Of the learner, in metrics (`learner.name`).
    slots
        Processed records of the lane. A private learner counts them itself.

    Raises
    ------
    ConfigError
        The learner has no such weights.
    """
    vector, names = getattr(learner, "weights_vector", None), getattr(learner, "feature_names", None)
    scorer = hasattr(learner, "score_one") and not hasattr(learner, "transform_one")
    linear = getattr(learner, "linear", True)  # the weights of a forest are a part of its score
    if vector is None or names is None or len(vector) != len(names) or not scorer or not linear:
        raise ConfigError(
            f"a {type(learner).__name__} has no weights that a model topic could hold",
            fix="use a learner of streampair.auc or streampair.ranking without other steps, "
            "or remove output.model_topic",
        )
    if not names:
        return None
    scale, promise, report = None, None, getattr(learner, "privacy", None)
    if report is not None:
        scale = scaling_of(learner)
        promise = Promise(**{field: getattr(report, field) for field in Promise.__struct_fields__})
        slots = learner.slots
    return LaneModel(
        format=FORMAT,
        app=app,
        learner=name,
        topic=topic,
        partition=partition,
        offset=offset,
        slots=slots,
        features=tuple(map(str, names)),
        weights=_numbers(vector),
        scale=scale,
        privacy=promise,
    )


def _numbers(values: Array) -> tuple[float, ...]:
    return tuple(map(float, values))


def encode_model(model: LaneModel) -> bytes:
    """Return the value of its message: JSON, which keeps every number exactly."""
    return msgspec.json.encode(model)


def decode_model(data: bytes) -> LaneModel:
    """Return the model in a message.

    Raises
    ------
    RecordError
        The data are not a model, or have a format unknown to this release.
    """
    try:
        model = msgspec.json.decode(data, type=LaneModel)
        d = len(model.features)
        scale = model.scale
        lengths = [len(model.weights), len(set(model.features))]
        if scale is not None:
            lengths += [len(part) for part in (scale.bounds, scale.mean, scale.factor) if part is not None]
        if any(length != d for length in lengths) or model.slots < 0:
            raise ValueError("its parts do not fit together")
        if scale is not None and (
            (scale.mean is None) != (scale.factor is None)
            or any(not low < high for low, high in scale.bounds)
        ):
            raise ValueError("its scale is not valid")
    except (ValueError, msgspec.MsgspecError) as error:
        raise RecordError(
            f"the message is not a model of a lane: {error}",
            fix="name the topic that output.model_topic names, and use the release that wrote it",
            stage="decode",
        ) from None
    return model


class MergedModel:
    """Model of several lanes: averages their scores, weighted by slots.

    Examples
    --------
    >>> lanes = [
    ...     LaneModel(1, "fraud", "PairOGD", "events", p, 9, slots, ("a",), (w,), None, None)
    ...     for p, slots, w in ((0, 30, 1.0), (1, 10, 5.0))
    ... ]
    >>> model = merge(lanes)
    >>> model.score_one({"a": 2.0}), model.slots, model.weights
    (4.0, 40, {'a': 2.0})
    """

    def __init__(self, lanes: tuple[LaneModel, ...]) -> None:
        self.lanes = lanes
        self._designs = [_design(lane) for lane in lanes]
        self._vectors = [np.array(lane.weights) for lane in lanes]

    @property
    def slots(self) -> int:
        """Of all lanes."""
        return sum(lane.slots for lane in self.lanes)

    @cached_property
    def weights(self) -> dict[str, float] | None:
        """Averaged weights by feature; None where lanes have different scales."""
        first = self.lanes[0]
        if any((lane.scale, lane.features) != (first.scale, first.features) for lane in self.lanes):
            return None
        total = np.average(self._vectors, axis=0, weights=[lane.slots for lane in self.lanes])
        return dict(zip(first.features, total.tolist(), strict=True))

    @property
    def total(self) -> Total | None:
        """Privacy cost of all releases for one record, or one entity; None if a lane is not private."""
        if any(lane.privacy is None for lane in self.lanes):
            return None
        return total_of(self.lanes)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score a record: higher ranks higher.

        Raises
        ------
        RecordError
            The record is empty, or a feature is not a finite number.
        """
        scores = []
        for lane, design, vector in zip(self.lanes, self._designs, self._vectors, strict=True):
            if design is None:
                values = read_record(x)
                ready = np.array([values.get(name, 0.0) for name in lane.features])
            else:
                ready = design.of(x)
            scores.append(lane.slots * float(vector @ ready))
        return math.fsum(scores) / self.slots


def _design(lane: LaneModel) -> Design | None:
    if lane.scale is None:
        return None
    try:
        return design_of(lane.features, lane.scale)
    except ValueError:
        raise RecordError(
            f"the features of {lane.key.decode()} are not in order",
            fix="use the release that wrote the model",
            stage="decode",
        ) from None


def merge(models: Iterable[LaneModel]) -> MergedModel:
    """Merge the models of several lanes. Lanes without slots are ignored.

    Raises
    ------
    ConfigError
        There is no model, a lane occurs twice, or applications or learners differ.
    """
    lanes = tuple(sorted((m for m in models if m.slots), key=lambda m: (m.topic, m.partition)))
    if not lanes:
        raise ConfigError("no lane has published a model", fix="run the application until its first commit")
    if len({lane.key for lane in lanes}) < len(lanes):
        raise ConfigError("a lane occurs twice", fix="keep the newest message of each key")
    if len({(lane.app, lane.learner) for lane in lanes}) > 1:
        raise ConfigError(
            "these models are of several applications or learners",
            fix="give each application an output.model_topic of its own",
        )
    return MergedModel(lanes)


async def read_models(config: KafkaConfig, topic: str) -> list[LaneModel]:
    """Return the newest model of each lane in a model topic.

    Raises
    ------
    SourceError
        The topic does not exist, or cannot be read to its end.
    RecordError
        A message is not a model.
    """
    found = await kafka.read_newest(config, topic)
    return [decode_model(value) for value in found.values()]
