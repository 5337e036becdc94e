"""Scores of the events in a request: decoded as the input of the application says."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from streampair.engine import Event
from streampair.errors import ConfigError, RecordError
from streampair.models import Model
from streampair_connectors.codecs.json_fields import is_json
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Config, InputConfig
from streampair_connectors.serve.errors import Refusal
from streampair_connectors.serve.messages import Reasons
from streampair_connectors.worker.factory import taken_cells

__all__ = [
    "Body",
    "Coins",
    "Decoder",
    "EventScore",
    "Scores",
    "coins_of",
    "config_decoder",
    "explain",
    "model_decoder",
    "score_event",
    "score_events",
    "split",
]


class Body(NamedTuple):
    """An event of a request, as a decoder takes it."""

    value: bytes


class Decoder(NamedTuple):
    """How events are decoded.

    Attributes
    ----------
    decode
        From a `Body` to an event.
    fields
        The fields of an event, in order; None: each event has its own.
    configured
        Whether a configuration declares them, so that errors may name its keys.
    ids
        Whether events have ids.
    """

    decode: Callable[[Any], Event]
    fields: list[str] | None
    configured: bool = True
    ids: bool = False


class EventScore(NamedTuple):
    """Score of an event, its id, and the probabilities of several classes."""

    score: float
    id: str | None
    probabilities: dict[str, float] | None


class Scores(NamedTuple):
    """Scores of events: the ids of those that have one, and probabilities of several classes."""

    scores: list[float]
    ids: list[str | None]
    probabilities: list[dict[str, float]] | None


class Coins(NamedTuple):
    """Which events of requests are to be let pass although their scores would stop them.

    A request has no place in a topic, so its coin is drawn at random, and another request with the same event
    has another one.

    Attributes
    ----------
    threshold, share
        Scores of at least `threshold` stop their events, but for this share of them.
    """

    threshold: float
    share: float

    def marks(self, score: float) -> bool:
        """Whether the event with this score is to be let pass: another answer each time."""
        # From the source of the system, which nobody can foretell.
        return score >= self.threshold and secrets.SystemRandom().random() < self.share


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def config_decoder(config: Config) -> Decoder:
    """The decoder of an application's events."""
    return Decoder(
        json_decoder(config.input, **{**taken_cells(config), "quotes": False}),  # an answer goes anywhere
        config.input.source_names() or None,
        ids=config.input.id is not None,
    )


def coins_of(config: Config) -> Coins | None:
    """The coins of an application; None: it explores no events."""
    output = config.output
    if output.explore is None or output.alert_above is None:
        return None
    return Coins(output.alert_above, output.explore)


def model_decoder(model: Model) -> Decoder:
    """The decoder of events that have the features of a model.

    All are required, unless the learner takes records with missing values.

    Raises
    ------
    ConfigError
        If a feature has an empty name, or two have the same name in JSON.
    """
    names = [name if isinstance(name, str) else json.dumps(name) for name in model.features]
    module, _, name = model.class_name.rpartition(".")
    kind = getattr(importlib.import_module(f"streampair.{module}"), name)
    cells: dict[str, Any] = {
        "gaps": kind.takes_gaps or model.takes_gaps,
        "nulls": kind.takes_nulls and not model.steps,
        "texts": kind.takes_text or model.takes_text,
    }
    try:
        decode = json_decoder(InputConfig(features=names or None), quotes=False, **cells)
    except ValueError:
        raise ConfigError(
            "a feature of the model has an empty name, or two have the same name in JSON",
            fix="rename it, train the learner again and export it",
        ) from None
    if all(isinstance(each, str) for each in model.features):
        return Decoder(decode, names or None, configured=False)
    originals = dict(zip(names, model.features, strict=True))

    def renamed(record: Any) -> Event:
        event = decode(record)
        return Event({originals[name]: value for name, value in event.x.items()}, event.y, event.id)

    return Decoder(renamed, names, configured=False)


def split(body: bytes) -> list[Body] | None:
    """The events of a list; None: the body is no list.

    Raises
    ------
    Refusal
        400: it is not JSON.
    """
    if not body.lstrip(b" \t\r\n").startswith(b"["):
        return None
    try:
        return [Body(bytes(part)) for part in _split(body)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise _not_json() from None


def _not_json() -> Refusal:
    return Refusal(400, "the body is not JSON", fix="send one JSON object, or a list of them, in UTF-8")


def score_events(model: Model, decoder: Decoder, events: Sequence[Body]) -> Scores:
    """Score the events of a list.

    Raises
    ------
    Refusal
        An event is not JSON (400), too large (413), or cannot be used (422).
    """
    if len(events) > 1 and not model.multiclass and not model.steps:
        scores = _score_table(model, decoder, events)
        if scores is not None:
            return scores
    found = [score_event(model, decoder, body, number) for number, body in enumerate(events)]
    shares = [each.probabilities or {} for each in found] if model.multiclass else None
    return Scores([each.score for each in found], [each.id for each in found], shares)


def score_event(model: Model, decoder: Decoder, body: Body, number: int | None = None) -> EventScore:
    """Score an event.

    Parameters
    ----------
    number
        Its place in a list, for errors; None: it is in none.

    Raises
    ------
    Refusal
        As `score_events`.
    """
    try:
        event = decoder.decode(body)
        score = model.score_one(event.x)
        shares = by_label(model.predict_proba_one(event.x)) if model.multiclass else None
    except Exception as error:
        raise refused(error, body.value, number, configured=decoder.configured) from None
    return EventScore(score, event.id, shares)


def _score_table(model: Model, decoder: Decoder, events: Sequence[Body]) -> Scores | None:
    """Scores of events that are an array; None: one of them is not as it should be."""
    many = getattr(decoder.decode, "many", None)
    if many is None:
        return None
    try:
        table = many(events)
        if table is None or table.refused:
            return None
        scores = model.score_rows(table.names, table.values).tolist()
    except RecordError:  # found again one by one, which says where it is
        return None
    return Scores(scores, [None] * len(scores) if table.ids is None else table.ids, None)


def explain(model: Model, decoder: Decoder, body: Body) -> Reasons:
    """The contribution of each feature to the score of an event that has been scored.

    Raises
    ------
    Refusal
        422: the model gives no reasons.
    """
    try:
        found = model.explain_one(decoder.decode(body).x)
    except ConfigError as error:
        raise Refusal(
            422,
            error.problem,
            fix="ask without explain; forests and linear learners without privacy give reasons",
        ) from None
    return Reasons(found.baseline, by_label(found.features))


def by_label(values: Mapping[Any, float]) -> dict[str, float]:
    """Values keyed by text: numbers and booleans as JSON spells them."""
    return {name if isinstance(name, str) else json.dumps(name): value for name, value in values.items()}


def refused(error: Exception, value: bytes, number: int | None = None, *, configured: bool = True) -> Refusal:
    """What to answer when an event cannot be used; anything but a refusal of the event is raised again."""
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate, which has no hash
        error = RecordError("a text is not Unicode", fix="send texts in UTF-8")
    if not isinstance(error, RecordError):
        raise error
    place = "" if number is None else f"in event {number}, "
    status = 422
    if error.stage == "decode" and "input.max_event_bytes" in error.fix:
        status = 413
    elif error.stage in ("decode", "label") and not is_json(value):
        status = 400
    fix = error.fix
    if not configured and ("input." in fix or "[input]" in fix):
        fix = "send the features of the model, which /v2/models/NAME lists, as they were learned"
        if status == 413:
            fix = "send smaller events"
    return Refusal(status, f"{place}{error.problem}", fix=fix)
