"""Outputs as messages: scores and dead letters, with topic, partition and headers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Container, Sequence
from typing import Final

from streampair.engine import DeadLetter, LaneOutput, OrderedRecord, Scored
from streampair_connectors.codecs.records import Encoder, Headers
from streampair_connectors.codecs.scores import score_writer
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import Message, Partition, RecordLike, Routes
from streampair_connectors.kafka.producer import headers_size
from streampair_connectors.worker.causes import add_letter
from streampair_connectors.worker.factory import exploration_of
from streampair_connectors.worker.flow_control import commit_interval
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = ["LEARNING_STAGES", "SCORING_STAGES", "OutputMessages", "Outputs", "kept_headers", "kept_key"]

LEARNING_STAGES: Final = frozenset({"label", "learn"})
SCORING_STAGES: Final = frozenset({"decode", "features"})
"""With `scoring = "parallel"` scorers send the dead letters of these stages, and the lane the others."""

_HEADER_BYTES = 8192  # of an event, forwarded to its score: a trace has a tenth
_RELEASE_SECONDS = 0.05  # between two releases of outputs

ByTarget = dict[Partition, list[Message]]


class OutputMessages:
    """Builds the messages of scores and dead letters, by output partition.

    Parameters
    ----------
    config
        Of the application.
    routes
        Choose the partitions of the output topics.
    host
        Its clock.

    Raises
    ------
    ConfigError, SourceError
        As of `score_writer`.
    """

    def __init__(self, config: Config, routes: Routes, *, host: Host = THIS_HOST) -> None:
        self._config = config
        self._host = host
        self._routes = routes
        self._write = score_writer(config)
        self._exploration = exploration_of(config)

    def scores(
        self,
        out: ByTarget,
        encoder: Encoder,
        records: Sequence[RecordLike],
        scored: Sequence[Scored],
        places: Sequence[tuple[int, int]],
        *,
        model: int | None = None,
    ) -> None:
        """Add one message per score, with the key, the event time and the headers of its event.

        A score of at least `output.alert_above` is also an alert, the same message in the alert topic. With
        `output.explore` each score says whether its event is to be let pass.

        Parameters
        ----------
        out
            Receives them.
        encoder
            Of the scores.
        records, scored, places
            The events, their scores, and their partitions and offsets, in the same order.
        model
            Slots of the model that scored; None: the lane has.
        """
        limit = self._config.output.max_message_bytes
        keys = [kept_key(each.key, limit) for each in scored]
        write, explore = self._write, self._exploration
        values = (
            encoder.scores(scored, places, model, explore)
            if write is None
            else write(encoder.rows(scored, places, model, explore))
        )
        headers = self._forwarded_headers(records)
        # A producer's clock may be ahead, and brokers refuse future timestamps. 0 and -1: no timestamp.
        now = self._host.now_ms
        times = [min(timestamp, now) if (timestamp := record.timestamp) > 0 else None for record in records]
        messages = list(map(Message, keys, values, headers, times))
        self._alerts(out, messages, scored, places)
        topic, routes = self._config.output_topic, self._routes
        if routes.single(topic):
            out.setdefault(Partition(topic, 0), []).extend(messages)
            return
        of_source: dict[int, list[Message]] = {}  # of messages without a key, by input partition
        for message, (partition, _) in zip(messages, places, strict=True):
            if message.key is None and partition in of_source:
                of_source[partition].append(message)
                continue
            of_target = out.setdefault(routes.target(topic, message.key, partition), [])
            of_target.append(message)
            if message.key is None:
                of_source[partition] = of_target

    def _alerts(
        self,
        out: ByTarget,
        messages: Sequence[Message],
        scored: Sequence[Scored],
        places: Sequence[tuple[int, int]],
    ) -> None:
        """Add the messages of high scores a second time, for the alert topic."""
        topic, least = self._config.alert_topic, self._config.output.alert_above
        if topic is None or least is None:
            return
        for message, each, (partition, _) in zip(messages, scored, places, strict=True):
            if each.score is not None and each.score >= least:
                out.setdefault(self._routes.target(topic, message.key, partition), []).append(message)

    def dead_letters(
        self,
        out: ByTarget,
        encoder: Encoder,
        records: Sequence[RecordLike],
        letters: Sequence[DeadLetter],
        places: Sequence[tuple[int, int]],
    ) -> None:
        """Add the messages of dead letters; `records` has their events, among others, at `places`."""
        by_offset = {record.offset: (record, place) for record, place in zip(records, places, strict=True)}
        for letter in letters:
            record, place = by_offset[letter.offset]
            target = self._routes.target(self._config.dead_letter_topic, letter.key, place[0])
            kept = kept_headers(record.headers, self._config.output.max_message_bytes)
            headers = encoder.dead_letter(letter, kept, place)
            key = kept_key(letter.key, self._config.output.max_message_bytes)
            out.setdefault(target, []).append(Message(key, letter.value, headers))

    def _forwarded_headers(
        self, records: Sequence[RecordLike]
    ) -> Sequence[list[tuple[str, bytes | None]] | None]:
        names, room = self._config.output.headers, self._config.output.max_message_bytes // 4
        if not names or not any(record.headers for record in records):
            return [None] * len(records)
        headers: list[Headers | None] = []
        for record in records:
            passed = [(name, value) for name, value in record.headers if name in names]
            # Large headers of an event must not make its score too large to store.
            fits = sum(len(value or b"") for _, value in passed) <= min(room, _HEADER_BYTES)
            headers.append(passed if passed and fits else None)
        return headers


class Outputs:
    """Hands scores and dead letters to the store of their lane, in batches by output partition.

    Parameters
    ----------
    config
        Of the application.
    routes
        Choose the partitions of the output topics.
    host
        Its clock.
    """

    def __init__(self, config: Config, routes: Routes, *, host: Host = THIS_HOST) -> None:
        self._messages = OutputMessages(config, routes, host=host)
        self._host = host
        self._parallel = config.learner.parallel
        self._late = config.label_input is not None
        every = LEARNING_STAGES | SCORING_STAGES
        self._letters: Container[str] = LEARNING_STAGES if self._parallel else every
        self._release_seconds = 0.0

    async def send(self, lane: OpenLane, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Hand over the outputs of a batch, its log line first."""
        if output.line is not None:
            await lane.store.line(output.line)
        if len(records) != len(output.scores):  # some records are replayed duplicates
            by_offset = {record.offset: record for record in records}
            records = [by_offset[scored.offset] for scored in output.scores]
        out: ByTarget = {}
        if not self._parallel:
            events, scores = records, output.scores
            if self._late:  # events that are due were scored when they came
                new = [record.label < 0 for record in records]
                events = list(itertools.compress(records, new))
                scores = list(itertools.compress(output.scores, new))
            if scores:
                self._messages.scores(out, lane.encoder, events, scores, _places(events))
        letters = [letter for letter in output.dead_letters if letter.stage in self._letters]
        if letters:
            self._messages.dead_letters(out, lane.encoder, records, letters, _places(records))
            lane.bad_count += len(letters)
            lane.last_bad = letters[-1]
            for letter in letters:
                add_letter(lane.bad_causes, letter)
        for target, messages in out.items():
            await lane.store.send(target, messages)

    def wait(self, lane: OpenLane) -> float | None:
        """Seconds until `release` is due for the oldest waiting output; None: none waits."""
        since = lane.store.waiting_since
        if since is None:
            return None
        interval = commit_interval(_RELEASE_SECONDS, self._release_seconds, behind=True)
        return max(since + interval - self._host.monotonic(), 0.0)

    async def release(self, lane: OpenLane, give_up: asyncio.Event) -> None:
        """Release outputs that wait for a durable log line, if due.

        Parameters
        ----------
        lane
            The lane.
        give_up
            Set when waiting shall end.

        Raises
        ------
        FencedError, CommitOutcomeUnknownError
            Another worker owns the lane now.
        """
        if self.wait(lane) != 0.0:
            return
        begin = self._host.monotonic()
        await lane.store.release(give_up)
        # Smoothed, as for commits: one slow release says little.
        self._release_seconds += 0.2 * (min(self._host.monotonic() - begin, 1.0) - self._release_seconds)


def kept_key(key: bytes | None, max_message_bytes: int) -> bytes | None:
    """The key of a record that is sent on; None if it takes more than half of a message: no key is split."""
    return None if key is not None and len(key) > max_message_bytes // 2 else key


def kept_headers(
    headers: Sequence[tuple[str, bytes | None]], max_message_bytes: int
) -> Sequence[tuple[str, bytes | None]]:
    """The headers of a record that is sent on, with its value, as a message of at most `max_message_bytes`.

    Headers cannot be split as values are. If they take more than a quarter of a message, those that fit are
    kept, in order, and the header `streampair.headers_dropped` has the number of the others.
    """
    left = max_message_bytes // 4
    if headers_size(headers) <= left:
        return headers
    kept = []
    for header in headers:
        size = headers_size([header])
        if size <= left:
            kept.append(header)
            left -= size
    return [*kept, ("streampair.headers_dropped", str(len(headers) - len(kept)).encode())]


def _places(records: Sequence[OrderedRecord]) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    return [(each.partition, each.position) for each in records]
