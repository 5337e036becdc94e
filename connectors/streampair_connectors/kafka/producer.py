"""Writing: whole batches, kept until the broker has stored them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.partitioner import murmur2

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    FATAL,
    Message,
    Partition,
    client_options,
    say,
    size_of,
    stop_producer,
    within,
)

__all__ = ["BATCH_BYTES", "PART", "Producer", "Routes", "in_parts", "submit"]

Headers = Sequence[tuple[str, bytes]]

PART = "streampair.part"
"""The header of a message that was cut: which part it is, of how many."""
# A batch stays below what brokers accept by default (message.max.bytes, 1 048 588).
BATCH_BYTES = 900_000
# Bytes of a batch around its records, and an upper bound of those around one record.
_OVERHEAD = 61 + 40


def in_parts(messages: list[Message], limit: int, size: int) -> list[Message]:
    """Return the messages as a topic takes them that takes `limit` bytes a message.

    A larger one is cut; the header `streampair.part` of its parts says `1/3`, `2/3`, `3/3`. `size` is that
    of all keys and values.
    """
    if size + _OVERHEAD * len(messages) <= limit and not any(m.headers for m in messages):
        return messages
    out: list[Message] = []
    for message in messages:
        value = message.value or b""
        fixed = len(message.key or b"") + _headers_size(message.headers) + _OVERHEAD
        if len(value) + fixed <= limit:
            out.append(message)
            continue
        room = max(limit - fixed - 64, 512)  # 64: the header that counts the parts
        parts = [value[i : i + room] for i in range(0, len(value), room)]
        for number, part in enumerate(parts, 1):
            mark = (PART, f"{number}/{len(parts)}".encode())
            out.append(Message(message.key, part, [*(message.headers or ()), mark], message.timestamp))
    return out


async def submit(
    producer: AIOKafkaProducer,
    target: Partition,
    messages: list[Message],
    sent: Callable[[asyncio.Future[Any], int], None],
) -> None:
    """Hand messages for one partition to the client, in whole batches.

    `sent` is told of each batch: the future of where it is stored, and how many messages it holds.
    """

    async def enqueue(batch: Any) -> None:
        batch.close()
        future = await producer.send_batch(batch, target.topic, partition=target.partition)
        # Its exception is read later; without this, Python warns when everything is given up before.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        sent(future, batch.record_count())

    batch = producer.create_batch()
    append = batch.append
    for m in messages:
        if append(timestamp=m.timestamp, key=m.key, value=m.value, headers=m.headers) is None:
            await enqueue(batch)
            batch = producer.create_batch()
            append = batch.append
            # The first record of a batch is always taken, whatever its size.
            append(timestamp=m.timestamp, key=m.key, value=m.value, headers=m.headers)
    await enqueue(batch)


class Routes:
    """Which partition of an output topic a message goes to.

    Parameters
    ----------
    partitions
        Of each output topic.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = dict(partitions)

    def learn(self, topic: str, partitions: int) -> None:
        """Take in how many partitions a topic has."""
        self._partitions[topic] = partitions

    def target(self, topic: str, key: bytes | None, source: int) -> Partition:
        """Return the partition for a key, the one Kafka's own clients choose.

        Without a key, all outputs of an input partition go to one output partition: order stays.
        """
        count = self._partitions[topic]
        if key is None:
            return Partition(topic, source % count)
        return Partition(topic, _hash(key) % count if count > 1 else 0)

    def single(self, topic: str) -> bool:
        """Whether all outputs of a topic go to one partition, whatever their key."""
        return self._partitions[topic] == 1


class Unacknowledged(NamedTuple):
    """Messages for one output partition that are not yet known to be stored."""

    target: Partition
    messages: list[Message]


class Producer:
    """Sends messages in whole batches and keeps them until they are acknowledged.

    Idempotent, so that the retries of one producer never duplicate. A producer that has failed
    is replaced and everything that was not acknowledged is sent again.
    """

    def __init__(self, config: KafkaConfig, *, max_message_bytes: int) -> None:
        self._config = config
        self._max_message_bytes = max_message_bytes
        self._producer: AIOKafkaProducer | None = None
        self._unacknowledged: list[Unacknowledged] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._routes = Routes({})
        # Asked for each event: without another call in between.
        self.target, self.single = self._routes.target, self._routes.single
        self.unacknowledged_bytes = 0

    @property
    def stuck(self) -> bool:
        """Whether a failed send waits to be sent again."""
        return any(f.done() and not f.cancelled() and f.exception() is not None for f in self._futures)

    async def start(self) -> None:
        """Connect.

        Raises
        ------
        SourceError
            No broker answers in time, or it refuses.
        """
        self._producer = AIOKafkaProducer(
            **client_options(self._config),
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            # A batch is a message to the broker: it obeys the same limit.
            max_batch_size=min(BATCH_BYTES, self._max_message_bytes),
            max_request_size=max(self._max_message_bytes, 1024 * 1024),
        )
        try:
            await within(self._config, self._producer.start())
        except BaseException:
            await self._discard()
            raise

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. Brokers that create topics do so here."""
        assert self._producer is not None
        found = await within(self._config, self._producer.partitions_for(topic))
        self._routes.learn(topic, len(found))
        return len(found)

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Hand over messages for one partition, in order; `flush` awaits their storage.

        A message that is larger than the topic takes is sent in parts (`in_parts`).
        """
        if not messages:
            return
        size = size_of(messages)
        messages = in_parts(messages, self._max_message_bytes, size)
        self._unacknowledged.append(Unacknowledged(target, messages))
        self.unacknowledged_bytes += size
        # A failure shows in `flush`, which sends again everything that is kept.
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError, AssertionError):
            await self._submit(target, messages)
            return
        self._futures.append(_failed())

    async def _submit(self, target: Partition, messages: list[Message]) -> None:
        if self._producer is None:
            raise kafka_errors.ProducerClosed
        await submit(self._producer, target, messages, lambda future, _: self._futures.append(future))

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait until everything that was sent is stored; False when `give_up` came first.

        Parameters
        ----------
        give_up
            Set when there is no point in waiting any longer.
        on_trouble
            Told, each time, what keeps the messages from being stored.

        Raises
        ------
        SourceError
            The broker refuses for good.
        """
        waited = 0.0
        while self._unacknowledged:
            if self._futures:
                stop = asyncio.ensure_future(give_up.wait())
                everything = asyncio.ensure_future(_all_done(self._futures))
                try:
                    await asyncio.wait({stop, everything}, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stop.cancel()
                    if not everything.done():
                        everything.cancel()
            pending = [f for f in self._futures if not f.done()]
            failed = next(
                (f.exception() for f in self._futures if f.done() and f.exception() is not None), None
            )
            if failed is None and not pending:
                break
            if failed is not None:
                for kind, fix in FATAL.items():
                    if isinstance(failed, kind):
                        raise SourceError(
                            f"Kafka refuses the outputs: {say(failed)}", fix=fix, retriable=False
                        )
            if give_up.is_set():
                return False
            on_trouble("outputs wait for the broker" if failed is None else say(failed))
            if failed is not None:
                await self._resend(min(0.1 + waited / 4, 2.0))
            waited += 1.0
        self._unacknowledged.clear()
        self._futures.clear()
        self.unacknowledged_bytes = 0
        return True

    async def _resend(self, pause: float) -> None:
        """Replace the producer and send again everything that is kept, in order."""
        await self._discard()
        self._futures.clear()
        await asyncio.sleep(pause)
        try:
            await self.start()
            for target, messages in self._unacknowledged:
                await self._submit(target, messages)
        except (SourceError, kafka_errors.KafkaError, TimeoutError, AssertionError) as error:
            if isinstance(error, SourceError) and not error.retriable:
                raise
            self._futures.append(_failed())

    async def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer, 1.0)

    async def stop(self, seconds: float = 5.0) -> None:
        """Disconnect; what is not stored by now is dropped."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer, seconds if not self._unacknowledged else 0.5)


async def _all_done(futures: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.wait(futures)


def _failed() -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(kafka_errors.KafkaConnectionError("the broker does not answer"))
    future.exception()
    return future


def _headers_size(headers: Headers | None) -> int:
    return sum(len(name) + len(value) + 10 for name, value in headers) if headers else 0


@functools.lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    positive: int = murmur2(key) & 0x7FFFFFFF
    return positive
