"""Scoring of events with a published model, which learns nothing; and who scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streampair.engine import DeadLetter, Event, EventRows, Scored
from streampair.engine.pipeline import largest_parts
from streampair.engine.records import stage_and_text
from streampair.errors import ConfigError, NoScoreError, RecordError, SourceError, TombstoneError
from streampair.models import Model
from streampair_connectors.config import Config
from streampair_connectors.kafka import KAFKA, Cluster, Partition, RecordLike

__all__ = ["check_scoring", "score_records"]


def score_records(
    model: Model,
    decode: Callable[[Any], Event],
    records: Sequence[RecordLike],
    *,
    classes: bool = False,
    explain: int = 0,
) -> tuple[list[Scored], list[DeadLetter]]:
    """Score the records of one partition.

    Parameters
    ----------
    model
        The model.
    decode
        As of a lane.
    records
        In the order of the partition.
    classes
        Whether a model of several classes gives the probability of each.
    explain
        How many of the largest contributions each score has, of a model that explains its scores.

    Returns
    -------
    tuple
        One outcome for each record: `"scored"`, `"dead_letter"` or `"tombstone"`. And the dead letters, those
        of unknown labels too.

    Examples
    --------
    >>> from streampair import auc, models
    >>> from streampair.engine import Record
    >>> def decode(record):
    ...     return Event({"a": float(record.value)}, None)
    >>> scored, letters = score_records(
    ...     models.export(auc.PairOGD()), decode, [Record(0, b"1.5"), Record(1, b"x")])
    >>> [(each.outcome, each.score) for each in scored], letters[0].stage
    ([('scored', 0.0), ('dead_letter', None)], 'decode')
    """
    many = getattr(decode, "many", None)
    in_rows = not explain or model.explain_rows is not None
    # Rows are numbers alone: steps get records as they are.
    if many is not None and not model.steps and in_rows and not (classes and model.multiclass):
        table = many(records)
        if table is not None:
            try:
                return _score_table(model, records, table, explain)
            except RecordError:
                pass  # a value that the model refuses: the records are taken one by one
    return _divided(_score_one(model, decode, record, classes=classes, explain=explain) for record in records)


_Outcome = tuple[Scored, DeadLetter | None]


def _divided(outcomes: Iterable[_Outcome]) -> tuple[list[Scored], list[DeadLetter]]:
    scored, letters = [], []
    for one, letter in outcomes:
        scored.append(one)
        if letter is not None:
            letters.append(letter)
    return scored, letters


def _score_table(
    model: Model, records: Sequence[RecordLike], table: EventRows, explain: int
) -> tuple[list[Scored], list[DeadLetter]]:
    refused = table.refused or {}
    reasons: Iterable[Any] = itertools.repeat(None)
    if explain and model.explain_rows is not None:
        scores, reasons = model.explain_rows(table.names, table.values, explain)
    else:
        scores = model.score_rows(table.names, table.values).tolist()
    ids = itertools.repeat(None) if table.ids is None else table.ids
    if not refused:
        return [
            Scored(record.offset, record.key, name, score, "scored", None, why)
            for record, name, score, why in zip(records, ids, scores, reasons, strict=False)
        ], []

    def outcome(index: int, record: RecordLike, name: str | None, score: float, why: Any) -> _Outcome:
        if index in refused:
            return _refused(record, refused[index], "decode")
        return Scored(record.offset, record.key, name, score, "scored", None, why), None

    return _divided(map(outcome, itertools.count(), records, ids, scores, reasons))


def _score_one(
    model: Model, decode: Callable[[Any], Event], record: RecordLike, *, classes: bool, explain: int
) -> _Outcome:
    stage, name = "decode", None
    try:
        event = decode(record)
        name, stage = event.id, "features"
        score = model.score_one(event.x)
        shares = model.predict_proba_one(event.x) if classes and model.multiclass else None
        reasons = largest_parts(model.explain_one(event.x).features, explain) if explain else None
    except NoScoreError:
        return Scored(record.offset, record.key, name, None, "scored"), None
    except RecordError as error:
        return _refused(record, error, stage, name)
    except Exception as error:
        if stage != "decode" or isinstance(error, SourceError):
            raise
        return _refused(record, error, stage, name)
    return Scored(record.offset, record.key, name, score, "scored", shares, reasons), None


def _refused(record: RecordLike, error: Exception, stage: str, name: str | None = None) -> _Outcome:
    """Outcome of a record that has no score, and its dead letter; a tombstone has none."""
    if record.value is None or isinstance(error, TombstoneError):
        return Scored(record.offset, record.key, None, None, "tombstone"), None
    stage, text = stage_and_text(error, stage)
    letter = DeadLetter(record.offset, record.key, record.value, record.timestamp, stage, text)
    return Scored(record.offset, record.key, name, None, "dead_letter"), letter


async def check_scoring(config: Config, partitions: int, *, cluster: Cluster = KAFKA) -> None:
    """Refuse to give scores where scorers have given them: the scores between both would be lost.

    Parameters
    ----------
    config
        Of the application.
    partitions
        Of the input.
    cluster
        Is asked for the offsets.

    Raises
    ------
    ConfigError
        The group of the scorers has offsets, and the lane is to score.
    SourceError
        The broker does not answer.
    """
    if config.learner.parallel:
        return
    numbers = [Partition(config.input.topic, number) for number in range(partitions)]
    found = await cluster.read_register(config.require_kafka(), config.scorers_group, numbers)
    if any(found.values()):
        raise ConfigError(
            f"the scores of {config.app!r} are given by the group {config.scorers_group!r}: a lane that "
            "scores inline would give some twice, or never",
            fix='set learner.scoring = "parallel", or start under another application name',
        )
