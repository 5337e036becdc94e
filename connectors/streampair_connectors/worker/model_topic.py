"""The model topic: the lane publishes its model with its commits, and scorers follow the newest one.

A message is a model as `streampair.models` writes it. One that is larger than the topic allows has parts, as
all large messages do (`kafka.producer.split_messages`). With a sealing key it is encrypted. Everything in a
model may be published (docs/privacy, Lemma 4).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from streampair import models
from streampair.errors import ConfigError, SourceError, StreampairError
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    LogTopic,
    Message,
    Partition,
    ReadPositions,
    RecordLike,
    RecordReader,
)
from streampair_connectors.kafka.producer import PART, part_of
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.stores.encryption import Seal, is_sealed
from streampair_connectors.worker.lane_manager import OpenLane

__all__ = [
    "Assembler",
    "ModelFollower",
    "ModelPublisher",
    "PublishedModel",
    "check_exportable",
    "check_partitions",
    "read_model",
    "warm",
]

log = get_logger(__name__)

DIGEST: Final = "streampair.sha256"
"""Header of a model: the SHA-256 of the whole message, on each of its parts."""

_SHARE = 0.05  # of the lane's time, at most, for large models
_MOST_SECONDS = 5.0  # between two models, while records come
_GROWTH = 1.1  # a model is due when there are more records by this factor
_THREAD_SECONDS = 0.05  # an export that takes longer runs in a thread
_THREAD_BYTES = 64 * 1024  # a larger model is parsed in a thread
_TRIM_SECONDS = 10.0
_POLL_SECONDS = 0.2
_ABSENT_SECONDS = 1.0  # between two looks whether the topic exists


class PublishedModel:
    """A model of the model topic, and what its lane had learned.

    Attributes
    ----------
    model
        The model.
    application, configuration, settings
        Its application, and the fingerprint and the settings of its configuration.
    positions
        By partition, the offset of the first record that it has not learned.
    scored_until
        By partition, the offset from which scorers give the scores: those before it are the lane's. None: all
        scores are the lane's.
    scored
        By partition, the offset that the group of the scorers had when the model was published.
    """

    def __init__(self, model: models.Model) -> None:
        known = model.metadata
        self.model = model
        self.application = known.get("application")
        self.configuration = known.get("configuration")
        self.settings = known.get("settings")
        self.positions = _numbers(known.get("positions", {}))
        until = known.get("scored_until")
        self.scored_until = None if until is None else _numbers(until)
        self.scored = _numbers(known.get("scored", {}))

    def behind(self, positions: Mapping[int, int]) -> int:
        """Number of events before these positions that the model has not learned."""
        return sum(max(offset - self.positions.get(number, 0), 0) for number, offset in positions.items())


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in offsets.items()}


class Assembler:
    """Puts models together from the messages of a model topic.

    Parameters
    ----------
    config
        Of the application that the topic belongs to.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._seal = Seal(config.store.sealing_keys())
        self._parts: list[bytes] = []

    def add(self, record: RecordLike) -> bytes | None:
        """Take the next message; return the message of a model if it is whole now."""
        headers = dict(record.headers)
        number, count = part_of(headers.get(PART))
        if number == 1:
            self._parts = []
        if number != len(self._parts) + 1:
            self._parts = []  # its first parts were deleted, or its writer has died
            return None
        self._parts.append(record.value or b"")
        if number < count:
            return None
        data, self._parts = b"".join(self._parts), []
        # Otherwise they are parts of two writers. The next model is whole.
        return data if headers.get(DIGEST) == hashlib.sha256(data).digest() else None

    def load(self, data: bytes) -> PublishedModel:
        """Return the model in a message, checked against the configuration.

        Raises
        ------
        StoreError
            It is sealed with another key.
        SnapshotError
            It is no model, or of another version.
        ConfigError
            It is sealed, and this worker has no key, or the other way round; or it is the model of another
            application, or of another configuration.
        """
        config = self._config
        if self._seal.seals != is_sealed(data):
            sealed, key = ("not sealed", "a") if self._seal.seals else ("sealed", "no")
            raise ConfigError(
                f"the models in {config.model_topic!r} are {sealed}, and this worker has {key} sealing key",
                fix="set store.key_file in all workers of the application, or in none. To change "
                "that, delete the topic: the worker that learns makes it again",
            )
        if self._seal.seals:
            data = self._seal.open(data, _context(config))
        found = PublishedModel(models.loads(data))
        if found.application != config.app:
            raise ConfigError(
                f"the topic {config.model_topic!r} has the models of application {found.application!r}",
                fix="give each application an output.model_topic of its own",
            )
        config.check_settings(f"the model in {config.model_topic!r}", found.configuration, found.settings)
        return found


def _context(config: Config) -> bytes:
    return b"model|" + config.app.encode()


async def read_model(config: Config, lookup: RecordReader) -> PublishedModel | None:
    """Return the newest model of the topic; None: it has none.

    Raises
    ------
    SourceError
        The broker does not answer.
    StreampairError
        The model cannot be used, as of `Assembler.load`.
    """
    assert config.model_topic is not None
    place = Partition(config.model_topic, 0)
    while True:
        assembler, newest = Assembler(config), None
        first, end = (await lookup.spans([place]))[0]
        try:
            async with contextlib.aclosing(lookup.span(place, first, end)) as batches:
                async for records in batches:
                    for record in records:
                        newest = assembler.add(record) or newest
        except SourceError:
            if not await lookup.is_trimmed(place, first):
                raise
            continue
        return None if newest is None else assembler.load(newest)


def check_partitions(topic: str, count: int) -> None:
    """Refuse a model topic with several partitions.

    Raises
    ------
    ConfigError
    """
    if count != 1:
        raise ConfigError(
            f"the model topic {topic!r} has {count} partitions, so models have no order",
            fix="set output.model_topic to a new name, or create this one again with one partition",
        )


def check_exportable(learner: Any) -> None:
    """Refuse a learner whose model cannot be published.

    Raises
    ------
    ConfigError
    """
    try:
        models.dumps(learner)
    except ConfigError as error:
        raise ConfigError(
            f"the model cannot be published: {error.problem}",
            fix="use a learner of streampair, alone or behind the steps that docs/learners.md lists under "
            'Pipelines; or remove learner.scoring = "parallel" and output.model_topic',
        ) from None


class ModelPublisher:
    """Publishes the model of the lane with its commits.

    Small models are published with every commit, large ones as often as they take a twentieth of the lane's
    time, at least every five seconds; and whenever there are a tenth more records. Where no record comes, the
    same model is published again once scorers have gone on, for it says up to where scores are.

    Parameters
    ----------
    config
        Of the application; without a model topic nothing is published.
    lookup
        Reads the topic.
    host, cluster
        Clock and threads, and what it asks of the cluster.
    """

    def __init__(
        self,
        config: Config,
        lookup: RecordReader,
        *,
        host: Host = THIS_HOST,
        cluster: Cluster = KAFKA,
    ) -> None:
        self._host = host
        self._cluster = cluster
        self._config = config
        self._lookup = lookup
        self._clock = host.monotonic
        name = config.model_topic
        self._topic = None if name is None else cluster.log_topic(config.require_kafka(), name)
        self._seal = Seal(config.store.sealing_keys())
        self._count = 0  # of models since the lane was opened
        self._published = 0.0
        self._seconds = 0.0
        self._slots = 0
        self._scored_until: dict[int, int] | None = None
        self._scored: dict[int, int] = {}
        self._scored_at = -math.inf
        self._scored_moved = False  # since the last model
        self._reading: asyncio.Task[None] | None = None
        # Where to cut the topic, once there are more models than this.
        self._old: tuple[int, int] | None = None
        self._trimmed_at = self._clock()
        self._trimming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the topic if it does not exist, and check it.

        Raises
        ------
        ConfigError
            It has several partitions.
        SourceError
            The cluster does not answer, or does not create the topic.
        """
        if self._topic is not None:
            factor = self._config.topics.replication_factor
            count = await self._topic.ensure(replication_factor=factor, strict=False)
            check_partitions(self._topic.name, count)

    async def begin(self, lane: OpenLane) -> None:
        """Begin to publish the model of a lane that is open, and has processed nothing yet.

        Raises
        ------
        ConfigError
            The learner's model cannot be published, or the topic is another application's.
        """
        self._count, self._slots, self._old = 0, 0, None
        if self._topic is None:
            return
        check_exportable(lane.logged_lane.model)
        if self._config.learner.parallel:
            known = await read_model(self._config, self._lookup)
            until = None if known is None else known.scored_until
            self._scored_until = lane.positions if until is None else until
            self._scored = {} if known is None else known.scored

    def due(self, lane: OpenLane) -> bool:
        """Whether the next commit is to publish a model."""
        if self._topic is None:
            return False
        if not self._count:
            return True
        seen, waited = lane.logged_lane.slots, self._clock() - self._published
        if seen == self._slots:
            return waited >= _MOST_SECONDS and self._scored_since(lane)
        return waited >= min(self._seconds / _SHARE, _MOST_SECONDS) or (
            seen >= _GROWTH * self._slots and waited >= 2 * self._seconds
        )

    def _scored_since(self, lane: OpenLane) -> bool:
        """Whether scorers have gone on since the last model, as was read last; reads it in the background."""
        if self._reading is not None and self._reading.done():
            self._reading.result()
            self._reading = None
        behind = self._scored_until is not None and any(
            self._scored.get(number, 0) < offset for number, offset in lane.learned_positions.items()
        )
        if behind and self._reading is None and not self._scored_moved:
            self._reading = asyncio.create_task(self._read_scored(lane))
        return self._scored_moved

    async def publish(self, lane: OpenLane) -> None:
        """Hand the model over to the store of the lane: it becomes visible with the next commit."""
        assert self._topic is not None
        if self._scored_until is not None:
            await self._read_scored(lane)
        begin, seen = self._clock(), lane.logged_lane.slots
        if self._seconds > _THREAD_SECONDS:
            data = await self._host.in_thread(functools.partial(self._export, lane))
        else:
            data = self._export(lane)
        message = Message(self._config.app.encode(), data, [(DIGEST, hashlib.sha256(data).digest())])
        await lane.store.send(Partition(self._topic.name, 0), [message])
        self._published = self._clock()
        # The first one may compile.
        self._seconds = self._published - begin if self._count else 0.0
        self._count, self._slots, self._scored_moved = self._count + 1, seen, False

    async def _read_scored(self, lane: OpenLane) -> None:
        """Read the offsets of the scorers, now and then. Kafka forgets them when none has run for long."""
        if self._clock() < self._scored_at + _MOST_SECONDS:
            return
        self._scored_at = self._clock()
        places = [Partition(lane.topic, number) for number in lane.spans]
        settings, group = self._config.require_kafka(), self._config.scorers_group
        with contextlib.suppress(SourceError):  # those of the model before are not wrong
            found = await self._cluster.read_register(settings, group, places, stable=False)
            scored = {place.partition: each.offset for place, each in found.items() if each is not None}
            self._scored_moved = self._scored_moved or not scored.items() <= self._scored.items()
            self._scored |= scored

    def _export(self, lane: OpenLane) -> bytes:
        logged, config = lane.logged_lane, self._config
        metadata: dict[str, Any] = {
            "application": config.app,
            "configuration": config.fingerprint(),
            "settings": config.model_settings(),
            "topic": lane.topic,
            "learner": logged.name,
            "positions": {str(number): offset for number, offset in lane.learned_positions.items()},
        }
        if self._scored_until is not None:
            metadata["scored_until"] = {str(p): offset for p, offset in self._scored_until.items()}
            metadata["scored"] = {str(p): offset for p, offset in self._scored.items()}
        when = None if lane.learned_time is None else round(lane.learned_time * 1000)
        data = models.dumps(logged.model, logged.slots, when, metadata=metadata)
        return self._seal.seal(data, _context(config)) if self._seal.seals else data

    def committed(self) -> None:
        """Delete old models in the background, now and then; the newest stays."""
        trimming = self._trimming is not None and not self._trimming.done()
        if self._topic is None or trimming or self._clock() < self._trimmed_at + _TRIM_SECONDS:
            return
        self._trimmed_at = self._clock()
        self._trimming = asyncio.create_task(self._trim(self._topic, self._count))

    async def _trim(self, topic: LogTopic, count: int) -> None:
        try:
            old = self._old
            if old is None or count > old[0]:
                end = (await self._lookup.spans([Partition(topic.name, 0)]))[0][1]
                # The next model may lie across, so it must not be the newest one.
                self._old = self._count + 1, end
            if old is not None and count > old[0]:
                await topic.trim(old[1])
        except SourceError as error:
            log.warning("models_not_trimmed", topic=topic.name, detail=error.problem, next_step=error.fix)

    async def stop(self) -> None:
        """Wait for what runs in the background."""
        if tasks := {task for task in (self._trimming, self._reading) if task is not None}:
            await asyncio.wait(tasks)


class ModelFollower:
    """Follows a model topic.

    Parameters
    ----------
    config
        Of the application.
    host, cluster
        Clock and threads, and what it asks of the cluster.

    Attributes
    ----------
    newest
        The newest model; None: there was none yet.
    received
        When it came, on the monotonic clock.
    changed
        Set with each new model.
    """

    def __init__(self, config: Config, *, host: Host = THIS_HOST, cluster: Cluster = KAFKA) -> None:
        assert config.model_topic is not None
        self._host = host
        self._cluster = cluster
        self._kafka, self._topic = config.require_kafka(), config.model_topic
        self._reader = cluster.partition_reader(
            config.require_kafka(), [Partition(config.model_topic, 0)], on_lost=self._on_lost
        )
        self._read_to = ReadPositions(self._reader.seek)
        self._assembler = Assembler(config)
        self._started = False
        self.newest: PublishedModel | None = None
        self.received = 0.0
        self.changed = asyncio.Event()

    async def follow(self) -> None:
        """Read models until it is cancelled.

        Raises
        ------
        StreampairError
            The broker does not answer at the start, or a model cannot be used.
        """
        try:
            while True:
                if self._topic in await self._cluster.describe_topics(
                    self._kafka
                ):  # a worker that learns creates it
                    break
                await asyncio.sleep(_ABSENT_SECONDS)
            self._read_to.begin(await self._reader.start())
            self._started = True
            while True:
                data = None
                for span in self._read_to.take(await self._reader.poll(_POLL_SECONDS)).values():
                    for record in span.records:
                        data = self._assembler.add(record) or data
                if data is not None:
                    await self._take(data)
        finally:
            await self._reader.stop()

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if self._read_to.lost(partition, wanted, first):
            log.info(
                "models_trimmed",
                topic=partition.topic,
                wanted_offset=wanted,
                first_offset=first,
                next_step="none: only the newest model counts",
            )

    async def answers(self) -> bool:
        """Whether the topic can be read; True before it was read for the first time."""
        return not self._started or await self._reader.answers()

    async def _take(self, data: bytes) -> None:
        if len(data) > _THREAD_BYTES:
            found = await self._host.in_thread(functools.partial(self._assembler.load, data))
        else:
            found = self._assembler.load(data)
        if self.newest is None:
            await self._host.in_thread(functools.partial(warm, found.model))
        self.newest, self.received = found, self._host.monotonic()
        self.changed.set()


def warm(model: models.Model) -> None:
    """Score once, so that kernels are compiled before events wait for a score."""
    # The first model of a lane may know no features yet.
    names = list(model.features) or ["x"]
    for score in (
        lambda: model.score_one(dict.fromkeys(names, 0.0)),
        lambda: model.score_many([dict.fromkeys(names, 0.0)]),
        lambda: model.score_rows(names, np.zeros((1, len(names)))),
    ):
        with contextlib.suppress(StreampairError):
            score()
