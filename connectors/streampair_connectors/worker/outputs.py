"""Outputs of lanes as messages: scores, dead letters and models, with topic, partition and headers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from streampair.engine import LaneOutput, OrderedRecord
from streampair.errors import SourceError
from streampair_connectors.config import Config
from streampair_connectors.kafka import Message, Partition, Producer, RecordLike
from streampair_connectors.worker.checkpoint import for_each
from streampair_connectors.worker.flow_control import commit_interval
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.merged_models import encode_model, model_of

__all__ = ["Outputs"]

_MODEL_SECONDS = 1.0  # between two models of a lane
_HEADER_BYTES = 8192  # of an event, forwarded to its score: a trace has a tenth
_RELEASE_SECONDS = 0.05  # between two releases of outputs


class Outputs:
    """Hands scores and dead letters to the store of their lane, in batches by output partition.

    Parameters
    ----------
    config
        Of the application.
    producer
        Chooses the partitions of the output topics.
    """

    def __init__(self, config: Config, producer: Producer) -> None:
        self._config = config
        self._producer = producer
        self._release_seconds = 0.0

    async def send(self, lane: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> None:
        """Hand over the outputs of a batch, its log line first."""
        config, producer = self._config, self._producer
        if output.line is not None:
            await lane.store.line(output.line)
        if len(records) != len(output.scores):  # some records are replayed duplicates
            by_offset = {record.offset: record for record in records}
            records = [by_offset[scored.offset] for scored in output.scores]
        topic = config.output_topic
        by_target: dict[Partition, list[Message]] = {}
        messages = self._scores(lane, records, output)
        if producer.single(topic):
            by_target[Partition(topic, 0)] = messages
        else:
            for message, record in zip(messages, records, strict=True):
                target = producer.target(topic, message.key, _partition_of(record, lane))
                by_target.setdefault(target, []).append(message)
        if output.dead_letters:
            by_offset = {record.offset: record for record in records}
            for letter in output.dead_letters:
                record = by_offset[letter.offset]
                target = producer.target(config.dead_letter_topic, letter.key, _partition_of(record, lane))
                headers = lane.encoder.dead_letter(letter, record.headers, _place_of(record))
                by_target.setdefault(target, []).append(Message(letter.key, letter.value, headers))
            lane.bad_count += len(output.dead_letters)
            lane.last_bad = output.dead_letters[-1]
        for target, messages in by_target.items():
            await lane.store.send(target, messages)

    def _scores(self, lane: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> list[Message]:
        """One message per score, with the key, the event time and the headers of its event."""
        places = [
            (record.partition, record.position) for record in records if isinstance(record, OrderedRecord)
        ]
        keys, values = (
            [scored.key for scored in output.scores],
            lane.encoder.scores(output.scores, places or None),
        )
        headers = self._forwarded_headers(records)
        if self._config.output.timestamps == "now":
            return list(map(Message, keys, values, headers))
        # A producer's clock may be ahead, and brokers refuse future timestamps. 0 and -1: no timestamp.
        now = round(time.time() * 1000)
        times = [min(timestamp, now) if (timestamp := record.timestamp) > 0 else None for record in records]
        return list(map(Message, keys, values, headers, times))

    def _forwarded_headers(self, records: Sequence[RecordLike]) -> Sequence[list[tuple[str, bytes]] | None]:
        names, room = self._config.output.headers, self._config.output.max_message_bytes // 4
        if not names or not any(record.headers for record in records):
            return [None] * len(records)
        headers: list[list[tuple[str, bytes]] | None] = []
        for record in records:
            passed = [(name, value) for name, value in record.headers if name in names]
            # Large headers of an event must not make its score too large to store.
            fits = sum(len(value) for _, value in passed) <= min(room, _HEADER_BYTES)
            headers.append(passed if passed and fits else None)
        return headers

    def wait(self, lanes: Collection[OpenLane]) -> float | None:
        """Seconds until `release` is due for the oldest waiting output; None: none waits."""
        waiting = [since for lane in lanes if (since := lane.store.waiting_since) is not None]
        if not waiting:
            return None
        interval = commit_interval(_RELEASE_SECONDS, self._release_seconds, behind=True)
        return max(min(waiting) + interval - time.monotonic(), 0.0)

    async def release(
        self, lanes: Collection[OpenLane], give_up: asyncio.Event
    ) -> list[tuple[OpenLane, SourceError]]:
        """Release outputs that wait for a durable log line, if due; all lanes concurrently.

        Parameters
        ----------
        lanes
            All open lanes.
        give_up
            Set when waiting shall end.

        Returns
        -------
        list
            Lanes that another worker owns now, with their errors.
        """
        if self.wait(lanes) != 0.0:
            return []
        begin = time.monotonic()
        _, fenced = await for_each(lanes, lambda lane: lane.store.release(give_up))
        # Smoothed, as for commits: one slow release says little.
        self._release_seconds += 0.2 * (min(time.monotonic() - begin, 1.0) - self._release_seconds)
        return fenced

    async def model(self, lane: OpenLane, *, due: bool) -> None:
        """Hand over the published model of the lane, if a model topic is configured.

        Parameters
        ----------
        held
            The lane; the log lines of its learner's releases were handed over before.
        due
            Whether to publish without regard to the time of the last model.

        Raises
        ------
        ConfigError
            The learner has no weights to publish.
        """
        topic, now = self._config.output.model_topic, time.monotonic()
        if topic is None or (not due and now < lane.published_at + _MODEL_SECONDS):
            return
        logged_lane = lane.logged_lane
        model = model_of(
            logged_lane.learner,
            app=self._config.app,
            name=logged_lane.name,
            topic=lane.topic,
            partition=lane.partition,
            offset=logged_lane.next_offset,
            slots=logged_lane.seen,
        )
        lane.published_at = now
        if model is not None:
            target = self._producer.target(topic, model.key, lane.partition)
            await lane.store.send(target, [Message(model.key, encode_model(model))])


def _place_of(record: RecordLike) -> tuple[int, int] | None:
    """Partition and offset of a record of a whole topic; None: the lane has one partition."""
    return (record.partition, record.position) if isinstance(record, OrderedRecord) else None


def _partition_of(record: RecordLike, lane: OpenLane) -> int:
    return record.partition if isinstance(record, OrderedRecord) else lane.partition
