"""From what a lane gives to messages: which topic, which partition, which bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from streampair.engine import LaneOutput
from streampair_connectors.config import Config
from streampair_connectors.kafka import Message, Partition, Producer, RecordLike
from streampair_connectors.lanes import OpenLane
from streampair_connectors.models import encode_model, model_of

__all__ = ["Outputs"]

_MODEL_SECONDS = 1.0  # from one model of a lane to the next


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

    async def send(self, held: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> None:
        """Hand over what a batch gave. Its line is durable."""
        config, producer = self._config, self._producer
        source, topic = held.partition, config.output_topic
        by_target: dict[Partition, list[Message]] = {}
        keys = [scored.key for scored in output.scores]
        messages = list(map(Message, keys, held.encoder.scores(output.scores)))
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

    async def model(self, held: OpenLane, *, due: bool) -> None:
        """Hand over what the lane may publish of its learner, if a topic is named for it.

        Parameters
        ----------
        held
            The lane; what its learner has released is in durable lines.
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
