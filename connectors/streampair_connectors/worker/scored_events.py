"""Events that two applications have scored, joined by place, with their labels: for `streampair compare`."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.engine.exploration import weight_of
from streampair.engine.labels import LabelTable, digest_ids
from streampair.errors import RecordError, SourceError
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.codecs.scores import PublishedScore, score_reader
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST
from streampair_connectors.kafka import RecordLike, RecordReader, describe_topics
from streampair_connectors.worker.factory import taken_cells

__all__ = ["ScoredEvents", "read_scored_events"]

_Place = tuple[int, int]  # partition and offset
# Records of a topic that are read at most: some 3 GB of memory.
_MOST = 10_000_000


@dataclass(frozen=True)
class ScoredEvents:
    """Events of one input that two applications have scored.

    Attributes
    ----------
    since
        Timestamp of the first event that counts, in milliseconds; None: there is none.
    both
        Number of events that both have scored.
    only
        Number of events that only the first, and only the second has scored.
    gone
        Number of events with a score that the input topic no longer has: they count nowhere else.
    positive
        (n,), whether each event is positive: of those with a label and two scores, by time.
    scores
        (n,) each: the scores of the first and of the second application.
    weights
        (n,), of the outcomes: for how many events each stands (`engine.exploration`).
    unmarked
        Number of events with a label that a score was to stop, and which were not to be let pass: they are
        not among the n events.
    acts
        Whether a score of an event with a label says that scores stop events, whatever its value.
    """

    since: int | None
    both: int
    only: tuple[int, int]
    gone: int
    positive: NDArray[np.bool_]
    scores: tuple[NDArray[np.float64], NDArray[np.float64]]
    weights: NDArray[np.float64]
    unmarked: int
    acts: bool


class _ActingScore(NamedTuple):
    """A score that an event was given, and the weight of its outcome."""

    score: float | None  # None: the event could not be scored
    weight: float | None  # None: the score was not to stop an event, whatever its value


@dataclass
class _Input:
    """The records of the input topic, in the order of their timestamps."""

    places: list[_Place]
    times: list[int]
    labels: list[Any]


async def read_scored_events(
    first: Config, second: Config, *, since: int | None, warmups: tuple[int, int], labels: bool
) -> ScoredEvents:
    """Read the scores of two applications, the events and their labels, as far as the topics go now.

    The first message of an event is the one that counts. All scores and the ids of all events are kept in
    memory, so topics of more than ten million records are refused.

    Parameters
    ----------
    first, second
        The applications, with one input and one source of labels.
    since
        Timestamp in milliseconds from which on events count; None: from the first score of the application
        that began later, after the warm-up of its learner.
    warmups
        Number of events of the warm-up of each learner.
    labels
        Whether to read labels; if not, no event has one. An event whose label comes later has one once it is
        due.

    Raises
    ------
    SourceError
        The broker does not answer, a topic does not exist or has too many records, an application has no
        score, or scores of both were to stop events.
    """
    scored = await _scores(first), await _scores(second)
    known = await _input(first, labels=labels)
    places = [i for i, place in enumerate(known.places) if place in scored[0] or place in scored[1]]
    gone = len(scored[0].keys() | scored[1].keys()) - len(places)
    begin = _begin(known, scored, warmups) if since is None else int(np.searchsorted(known.times, since))
    both, only = 0, [0, 0]
    flags: list[bool] = []
    rows: list[tuple[float, float, float]] = []
    unmarked, acts = 0, False
    for i in places[bisect.bisect_left(places, begin) :]:
        place, label = known.places[i], known.labels[i]
        if not all(place in each for each in scored):
            only[place in scored[1]] += 1
            continue
        both += 1
        a, b = (each[place] for each in scored)
        if label is None or a.score is None or b.score is None:
            continue
        acts = acts or a.weight is not None or b.weight is not None
        if weight := _acting_weight(first, second, a, b):
            flags.append(label == first.input.positive)
            rows.append((a.score, b.score, weight))
        else:
            unmarked += 1
    columns = np.array(rows, np.float64).reshape(-1, 3)
    return ScoredEvents(
        since=known.times[begin] if begin < len(known.times) else None,
        both=both,
        only=(only[0], only[1]),
        gone=gone,
        positive=np.array(flags, np.bool_),
        scores=(columns[:, 0], columns[:, 1]),
        weights=columns[:, 2],
        unmarked=unmarked,
        acts=acts,
    )


def _acting_weight(first: Config, second: Config, a: _ActingScore, b: _ActingScore) -> float:
    """The weight of the outcome of an event with two scores: that of the score that acted."""
    if a.weight is not None and b.weight is not None:
        raise SourceError(
            f"scores of both applications, {first.app!r} and {second.app!r}, say that they stop events "
            "(output.explore): which of them one was stopped by is not known",
            fix="remove output.explore from the one whose scores stop nothing, and compare --from a later "
            "time",
            retriable=False,
        )
    acted = b.weight if a.weight is None else a.weight
    return 1.0 if acted is None else acted


def _begin(known: _Input, scored: tuple[dict[_Place, _ActingScore], ...], warmups: tuple[int, int]) -> int:
    """Index of the first event that counts: after the later first score, and that learner's warm-up."""
    firsts = [next((i for i, place in enumerate(known.places) if place in each), 0) for each in scored]
    later = 0 if firsts[0] > firsts[1] else 1
    warmup = max(warmups) if firsts[0] == firsts[1] else warmups[later]
    return firsts[later] + warmup


async def _scores(config: Config) -> dict[_Place, _ActingScore]:
    """The scores of an application by place."""
    decode, found = score_reader(config, PublishedScore), dict[_Place, _ActingScore]()
    async for _, record in _records(config, config.output_topic):
        # Of a time when scores had another format.
        with contextlib.suppress(msgspec.MsgspecError, RecordError, TypeError):
            row = decode(record.value or b"")
            if (row.app, row.topic) == (config.app, config.input.topic):
                weight = None
                if row.score is not None and row.threshold is not None:
                    weight = weight_of(row.score, row.threshold, row.share, explored=row.explore)
                found.setdefault((row.partition, row.offset), _ActingScore(row.score, weight))
    if not found:
        raise SourceError(
            f"the topic {config.output_topic!r} has no score of the application {config.app!r}",
            fix="run it first; or correct app, input.topic and output.topic",
            retriable=False,
        )
    return found


async def _input(config: Config, *, labels: bool) -> _Input:
    """The records of the input; `labels`: with their labels."""
    rows: list[tuple[int, _Place, Any]] = []
    ids = event_ids(config) if labels and config.label_input is not None else None
    decode = event_decoder(config, **taken_cells(config)) if labels and ids is None else None
    async for number, record in _records(config, config.input.topic):
        label: Any = None
        if ids is not None:
            (label,) = ids([record])
        elif decode is not None:
            with contextlib.suppress(RecordError):  # then it has no score
                label = decode(record).y
        rows.append((record.timestamp, (number, record.offset), label))
    rows.sort(key=lambda row: row[:2])
    times, places, found = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    return _Input(places, times, await _joined(config, found, times) if ids is not None else found)


async def _joined(config: Config, ids: Sequence[bytes | None], times: Sequence[int]) -> list[Any]:
    """The labels of events, by the rules of a worker; None for those without, and those not due yet."""
    labels, codes = config.label_input, config.label_codes
    assert labels is not None
    assert codes is not None
    table = LabelTable(after=int(labels.after), lateness=int(labels.lateness))
    await _add_labels(config, table)
    digests = digest_ids([each or b"" for each in ids])
    with_id = np.array([each is not None for each in ids], np.bool_)
    moments = np.array(times, np.int64)
    joined = np.zeros(len(ids), np.uint8)
    joined[with_id] = table.join(digests[with_id], moments[with_id]).codes
    due = with_id & (moments + labels.wait <= THIS_HOST.now_ms)
    table.close()
    return [codes[code] if is_due else None for code, is_due in zip(joined.tolist(), due, strict=True)]


async def _add_labels(config: Config, table: LabelTable) -> None:
    """Add the messages of the labels topic to a table."""
    assert config.label_input is not None
    decode = LabelDecoder(config)
    columns: dict[int, list[tuple[bytes, int, int, int]]] = {}
    async for number, record in _records(config, config.label_input.topic):
        with contextlib.suppress(RecordError):  # a worker sends it on: no event can use it
            label = decode(record)
            columns.setdefault(number, []).append((label.id, label.code, record.timestamp, record.offset))
    for number, rows in columns.items():
        ids, codes, times, offsets = zip(*rows, strict=True)
        table.add(digest_ids(ids), codes, times, number, offsets)


async def _records(config: Config, topic: str) -> AsyncIterator[tuple[int, RecordLike]]:
    """All records of a topic, as far as it goes now, each with its partition."""
    kafka = config.require_kafka()
    partitions = (await describe_topics(kafka)).get(topic)
    if partitions is None:
        raise SourceError(
            f"the topic {topic!r} of the application {config.app!r} does not exist",
            fix="run the application first, or correct the name of the topic",
            retriable=False,
        )
    reader = RecordReader(kafka)
    count = 0
    try:
        async with contextlib.aclosing(reader.topic(topic, partitions)) as records:
            async for each in records:
                count += 1
                if count > _MOST:
                    raise SourceError(
                        f"the topic {topic!r} has more than {_MOST:,} records, which would not fit in memory",
                        fix="compare while its retention.ms or retention.bytes keeps fewer",
                        retriable=False,
                    )
                yield each
    finally:
        await reader.stop()
