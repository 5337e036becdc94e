"""Producer: sends whole batches and keeps them until the broker has acknowledged them."""

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
    one_line,
    size_of,
    stop_producer,
    within,
)

__all__ = ["BATCH_BYTES", "PART", "Producer", "Routes", "headers_size", "part_of", "split_messages", "submit"]

Headers = Sequence[tuple[str, bytes | None]]

PART = "streampair.part"
"""Header of a part of a split message: its number and the count of parts."""
# Below the brokers' default limit of a batch (message.max.bytes, 1 048 588).
BATCH_BYTES = 900_000
# Bytes of a batch header, and an upper bound of the bytes around one record.
_OVERHEAD = 61 + 40


def split_messages(messages: list[Message], limit: int, size: int) -> list[Message]:
    """Split messages larger than `limit` bytes, the limit of the topic.

    The parts have the header `streampair.part`: `1/3`, `2/3`, `3/3`. `size` is the size of all keys and
    values.
    """
    if size + _OVERHEAD * len(messages) <= limit and not any(m.headers for m in messages):
        return messages
    out: list[Message] = []
    for message in messages:
        value = message.value or b""
        fixed_bytes = len(message.key or b"") + headers_size(message.headers) + _OVERHEAD
        if len(value) + fixed_bytes <= limit:
            out.append(message)
            continue
        room = max(limit - fixed_bytes - 64, 512)  # 64: the header that counts the parts
        parts = [value[i : i + room] for i in range(0, len(value), room)]
        for number, part in enumerate(parts, 1):
            part_header = (PART, f"{number}/{len(parts)}".encode())
            out.append(Message(message.key, part, [*(message.headers or ()), part_header], message.timestamp))
    return out


def part_of(header: bytes | None) -> tuple[int, int]:
    """Number and count of parts from a header: (1, 1) without one, (0, 0) if it is malformed."""
    if header is None:
        return 1, 1
    number, _, count = header.partition(b"/")
    if not (number.isdigit() and count.isdigit()) or int(number) > int(count):
        return 0, 0
    return int(number), int(count)


async def submit(
    producer: AIOKafkaProducer,
    target: Partition,
    messages: list[Message],
    sent: Callable[[asyncio.Future[Any], int], None],
) -> None:
    """Hand messages for one partition to the client, in whole batches.

    `sent` is called for each batch with the future of its stored offset and its number of messages.
    """

    async def enqueue(batch: Any) -> None:
        batch.close()
        future = await producer.send_batch(batch, target.topic, partition=target.partition)
        # The exception is read later; this avoids a warning if the send is abandoned before.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        sent(future, batch.record_count())

    batch = producer.create_batch()
    append = batch.append
    for m in messages:
        if append(timestamp=m.timestamp, key=m.key, value=m.value, headers=m.headers) is None:
            await enqueue(batch)
            batch = producer.create_batch()
            append = batch.append
            # The first record of a batch is always accepted, whatever its size.
            append(timestamp=m.timestamp, key=m.key, value=m.value, headers=m.headers)
    await enqueue(batch)


class Routes:
    """Chooses the partition of an output topic for a message.

    Parameters
    ----------
    partitions
        Of each output topic.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = dict(partitions)

    def learn(self, topic: str, partitions: int) -> None:
        """Record the number of partitions of a topic."""
        self._partitions[topic] = partitions

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self._partitions[topic]

    def target(self, topic: str, key: bytes | None, source: int) -> Partition:
        """Return the partition for a key, the same that Kafka's own clients choose.

        Without a key, all outputs of an input partition go to one output partition, which keeps their order.
        """
        count = self._partitions[topic]
        if key is None:
            return Partition(topic, source % count)
        return Partition(topic, _hash(key) % count if count > 1 else 0)

    def single(self, topic: str) -> bool:
        """Whether all outputs of a topic go to one partition, whatever their key."""
        return self._partitions[topic] == 1


class Unacknowledged(NamedTuple):
    """Messages for one output partition that are not acknowledged yet."""

    target: Partition
    messages: list[Message]


class Producer:
    """Sends messages in whole batches and keeps them until they are acknowledged.

    Idempotent: retries of one producer never duplicate. A failed producer is replaced, and everything
    unacknowledged is sent again.
    """

    def __init__(self, config: KafkaConfig, *, max_message_bytes: int) -> None:
        self._config = config
        self._max_message_bytes = max_message_bytes
        self._producer: AIOKafkaProducer | None = None
        self._unacknowledged: list[Unacknowledged] = []
        self._futures: list[asyncio.Future[Any]] = []
        self.routes = Routes({})
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
            # The broker's limit of message sizes applies to whole batches.
            max_batch_size=min(BATCH_BYTES, self._max_message_bytes),
            max_request_size=max(self._max_message_bytes, 1024 * 1024),
        )
        try:
            await within(self._config, self._producer.start())
        except BaseException:
            await self._discard()
            raise

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Brokers that create topics do so here."""
        assert self._producer is not None
        found = await within(self._config, self._producer.partitions_for(topic))
        self.routes.learn(topic, len(found))
        return len(found)

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Hand over messages for one partition, in order; `flush` awaits their acknowledgement.

        A message over the size limit is sent in parts (`split_messages`).
        """
        if not messages:
            return
        size = size_of(messages)
        messages = split_messages(messages, self._max_message_bytes, size)
        self._unacknowledged.append(Unacknowledged(target, messages))
        self.unacknowledged_bytes += size
        # After a failure `flush` sends all unacknowledged messages again.
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError, AssertionError):
            await self._submit(target, messages)
            return
        self._futures.append(_failed())

    async def _submit(self, target: Partition, messages: list[Message]) -> None:
        if self._producer is None:
            raise kafka_errors.ProducerClosed
        await submit(self._producer, target, messages, lambda future, _: self._futures.append(future))

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait until everything sent is stored; False if `give_up` was set first.

        Parameters
        ----------
        give_up
            Set when waiting shall end.
        on_trouble
            Called repeatedly with the reason why messages are not stored yet.

        Raises
        ------
        SourceError
            The broker refuses permanently.
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
                            f"Kafka refuses the outputs: {one_line(failed)}", fix=fix, retriable=False
                        )
            if give_up.is_set():
                return False
            on_trouble("outputs wait for the broker" if failed is None else one_line(failed))
            if failed is not None:
                await self._resend(min(0.1 + waited / 4, 2.0))
            waited += 1.0
        self._unacknowledged.clear()
        self._futures.clear()
        self.unacknowledged_bytes = 0
        return True

    async def _resend(self, pause: float) -> None:
        """Replace the producer and send all unacknowledged messages again, in order."""
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
        """Disconnect; messages that are not stored yet are dropped."""
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


def headers_size(headers: Headers | None) -> int:
    """Upper bound of the bytes that headers take. A header may have no value."""
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers or ())


@functools.lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    positive: int = murmur2(key) & 0x7FFFFFFF
    return positive
