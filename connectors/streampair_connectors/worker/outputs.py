"""From what a lane gives to messages: which topic, which partition, which bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from streampair.engine import LaneOutput
from streampair.errors import SourceError
from streampair_connectors.config import Config
from streampair_connectors.kafka import Message, Partition, Producer, RecordLike
from streampair_connectors.worker.checkpoint import for_each
from streampair_connectors.worker.flow_control import commit_interval
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.merged_models import encode_model, model_of

__all__ = ["Outputs"]

_MODEL_SECONDS = 1.0  # from one model of a lane to the next
_HEADER_BYTES = 8192  # of an event, that are passed on to its score: a trace has a tenth
_LINE_SECONDS = 0.05  # that outputs wait for those that come next, to be released with them


class Outputs:
    """Hands scores and dead letters to the store of their lane, in batches by output partition.

    Parameters
    ----------
    config
        Of the application.
    producer
        Knows the partitions of the topics.
    """

    def __init__(self, config: Config, producer: Producer) -> None:
        self._config = config
        self._producer = producer
        self._release_seconds = 0.0

    async def send(self, held: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> None:
        """Hand over what a batch gave, its line first."""
        config, producer = self._config, self._producer
        if output.line is not None:
            await held.store.line(output.line)
        source, topic = held.partition, config.output_topic
        by_target: dict[Partition, list[Message]] = {}
        messages = self._scores(held, records, output)
        if producer.single(topic):
            by_target[Partition(topic, 0)] = messages
        else:
            keyless = producer.target(topic, None, source)
            for message in messages:
                target = keyless if message.key is None else producer.target(topic, message.key, source)
                by_target.setdefault(target, []).append(message)
        if output.dead_letters:
            headers = {record.offset: record.headers for record in records}
            topic = config.dead_letter_topic
            for letter in output.dead_letters:
                target = producer.target(topic, letter.key, source)
                own = held.encoder.dead_letter(letter, headers.get(letter.offset, ()))
                by_target.setdefault(target, []).append(Message(letter.key, letter.value, own))
            held.bad_count += len(output.dead_letters)
            held.last_bad = output.dead_letters[-1]
        for target, messages in by_target.items():
            await held.store.send(target, messages)

    def _scores(self, held: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> list[Message]:
        """One message for each score: with the key, the event time and the trace of its event."""
        keys, values = [scored.key for scored in output.scores], held.encoder.scores(output.scores)
        if len(records) != len(output.scores):  # some were seen before
            by_offset = {record.offset: record for record in records}
            records = [by_offset[scored.offset] for scored in output.scores]
        headers = self._passed_on(records)
        if self._config.output.timestamps == "now":
            return list(map(Message, keys, values, headers))
        # A producer's clock may be ahead, and brokers refuse what comes from the future. 0, -1: it has none.
        now = round(time.time() * 1000)
        times = [min(at, now) if (at := record.timestamp) > 0 else None for record in records]
        return list(map(Message, keys, values, headers, times))

    def _passed_on(self, records: Sequence[RecordLike]) -> Sequence[list[tuple[str, bytes]] | None]:
        names, room = self._config.output.headers, self._config.output.max_message_bytes // 4
        if not names or not any(record.headers for record in records):
            return [None] * len(records)
        out: list[list[tuple[str, bytes]] | None] = []
        for record in records:
            passed = [(name, value) for name, value in record.headers if name in names]
            # What its event comes with must not keep a score from being stored.
            fits = sum(len(value) for _, value in passed) <= min(room, _HEADER_BYTES)
            out.append(passed if passed and fits else None)
        return out

    def wait(self, lanes: Collection[OpenLane]) -> float | None:
        """Seconds until `release` is due, for what waits longest; None: nothing does."""
        waiting = [since for held in lanes if (since := held.store.waiting_since) is not None]
        if not waiting:
            return None
        interval = commit_interval(_LINE_SECONDS, self._release_seconds, behind=True)
        return max(min(waiting) + interval - time.monotonic(), 0.0)

    async def release(
        self, lanes: Collection[OpenLane], give_up: asyncio.Event
    ) -> list[tuple[OpenLane, SourceError]]:
        """Let outputs leave that wait for a durable line, where that is due; of all lanes side by side.

        Parameters
        ----------
        lanes
            All that are held.
        give_up
            Set when there is no point in waiting any longer.

        Returns
        -------
        list
            Lanes that belong to somebody else now, with what was said.
        """
        if self.wait(lanes) != 0.0:
            return []
        begin = time.monotonic()
        _, fenced = await for_each(lanes, lambda held: held.store.release(give_up))
        # As of commits: what was slow once says little.
        self._release_seconds += 0.2 * (min(time.monotonic() - begin, 1.0) - self._release_seconds)
        return fenced

    async def model(self, held: OpenLane, *, due: bool) -> None:
        """Hand over what the lane may publish of its learner, if a topic is named for it.

        Parameters
        ----------
        held
            The lane; what its learner has released is in lines that it was given before.
        due
            Whether it is to be published however short ago the last one was.

        Raises
        ------
        ConfigError
            The learner has no weights that could be published.
        """
        topic, now = self._config.output.model_topic, time.monotonic()
        if topic is None or (not due and now < held.published_at + _MODEL_SECONDS):
            return
        lane = held.lane
        model = model_of(
            lane.learner,
            app=self._config.app,
            name=lane.name,
            topic=held.topic,
            partition=held.partition,
            offset=lane.next_offset,
            slots=lane.seen,
        )
        held.published_at = now
        if model is not None:
            target = self._producer.target(topic, model.key, held.partition)
            await held.store.send(target, [Message(model.key, encode_model(model))])
