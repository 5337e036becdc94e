"""Sends events and labels to their topics: requests that come together share a batch."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from streampair.errors import StreampairError
from streampair_connectors.config import Config
from streampair_connectors.kafka import Message, Partition, Producer, ended, size_of
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.serve.errors import Refusal, unavailable

__all__ = ["Sender"]

log = get_logger(__name__)

_MOST = 10_000  # messages that wait
_OVERHEAD = 1024  # bytes around a message, with the headers of an id


class _Waiting(NamedTuple):
    topic: str
    message: Message
    stored: asyncio.Future[None]


class Sender:
    """Sends messages in the order in which they come, and says when they are stored.

    It connects with the first message, so that a server that only scores needs no right to write.

    Parameters
    ----------
    config
        Of the application.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST)
        self._unstored: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._give_up = asyncio.Event()
        self._turn = 0

    async def send(self, topic: str, message: Message) -> None:
        """Send a message, and wait until it is stored. If the wait is cancelled it is sent nevertheless.

        Raises
        ------
        Refusal
            413: it is larger than the topic takes. 503: the broker refuses, or too many messages wait.
        """
        limit = self._config.output.max_message_bytes
        if size_of([message]) + _OVERHEAD > limit:
            raise Refusal(
                413,
                f"the message is larger than output.max_message_bytes = {limit}",
                fix="send a smaller one, or raise it, and the limit of the topic",
            )
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Waiting(topic, message, stored))
        except asyncio.QueueFull:
            raise unavailable("too many messages wait for the broker", fix="send it again later") from None
        self._unstored.add(stored)
        stored.add_done_callback(self._unstored.discard)
        await asyncio.shield(stored)

    async def _run(self) -> None:
        producer: Producer | None = None
        try:
            while True:
                batch = [await self._queue.get()]
                while not self._queue.empty():
                    batch.append(self._queue.get_nowait())
                # A topic that refuses is no reason to repeat what another has stored.
                for topic in dict.fromkeys(each.topic for each in batch):
                    part = [each for each in batch if each.topic == topic]
                    try:
                        if producer is None:
                            producer = Producer(
                                self._config.require_kafka(),
                                max_message_bytes=self._config.output.max_message_bytes,
                            )
                            await producer.start()
                        await self._store(producer, topic, part)
                    except StreampairError as error:
                        self._refuse(part, error)
                        if producer is not None:
                            await producer.stop()
                        producer = None
        finally:
            if producer is not None:
                await producer.stop()

    def _refuse(self, part: list[_Waiting], error: StreampairError) -> None:
        log.warning("not_sent", detail=error.problem, next_step=error.fix)
        # The message of the client library names servers and accounts: it is for the log alone.
        fix = "send it again later; the log of the server has the cause"
        for each in part:
            if not each.stored.done():
                each.stored.set_exception(unavailable("the broker has not taken it", fix=fix))
                each.stored.exception()  # perhaps nobody waits any more

    async def _store(self, producer: Producer, topic: str, part: list[_Waiting]) -> None:
        await producer.partitions(topic)
        by_target: dict[Partition, list[Message]] = {}
        for each in part:
            self._turn += 1  # events without a key are spread
            target = producer.routes.target(topic, each.message.key, self._turn)
            by_target.setdefault(target, []).append(each.message)
        for target, messages in by_target.items():
            await producer.send(target, messages)
        stored = await producer.flush(
            self._give_up, lambda reason: log.warning("sending_waits", detail=reason, next_step="none")
        )
        for each in part if stored else ():
            if not each.stored.done():
                each.stored.set_result(None)

    async def stop(self, seconds: float) -> None:
        """Wait for what is to be sent, for some seconds at most."""
        if self._task is None:
            return
        if self._unstored:
            await asyncio.wait(set(self._unstored), timeout=seconds)
        self._give_up.set()
        await ended(self._task)
