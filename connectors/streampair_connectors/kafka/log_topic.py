"""The topic that keeps the logs of lanes: set up so that it loses nothing, and read to its very end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streampair.errors import ConfigError, SourceError, StoreError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.admin import add_partitions, create_topics, describe_topics
from streampair_connectors.kafka.client import Partition, RecordLike, client_options, stop_quietly, within
from streampair_connectors.kafka.producer import PART
from streampair_connectors.kafka.record_reader import RecordReader

__all__ = ["SETTINGS", "LogTopic"]

SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # What was deleted is freed by whole segments: a log is short, and its segments are to be.
    "segment.bytes": str(16 * 1024 * 1024),
    "unclean.leader.election.enable": "false",
}
"""What a log topic is made with."""

# Without these an entry can be lost, and nobody is told: then a log is no account.
_NEEDED: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "unclean.leader.election.enable")


class LogTopic:
    """A topic with a partition for each lane, which nothing but the lanes' owners writes to.

    Parameters
    ----------
    config
        The cluster.
    name
        Of the topic.
    lookup
        What it is read with; None: a connection for each reading.
    """

    def __init__(self, config: KafkaConfig, name: str, lookup: RecordReader | None = None) -> None:
        self._config = config
        self.name = name
        self._lookup = lookup

    async def ensure(self, partitions: int, *, replication_factor: int | None, strict: bool) -> None:
        """Make the topic, or check the one that is there, and add the partitions that it lacks.

        Parameters
        ----------
        partitions
            Of the input: as many are needed. More are harmless.
        replication_factor
            Of a new topic; None for the cluster's own default.
        strict
            Whether an account depends on it: then settings that can lose entries are refused.

        Raises
        ------
        ConfigError
            It has settings that can lose entries.
        SourceError
            The cluster does not answer, or does not make it, or its partitions.
        """
        found = (await describe_topics(self._config)).get(self.name)
        if found is None:
            made = await create_topics(
                self._config, {self.name: partitions}, replication_factor, settings=SETTINGS
            )
            outcome = made[self.name]
            if isinstance(outcome, SourceError):
                raise outcome
            found = outcome
        if found < partitions:
            await add_partitions(self._config, self.name, partitions)
        if strict:
            await self._check_settings()

    async def _check_settings(self) -> None:
        told = await self._settings()
        for name in _NEEDED:
            value = told.get(name)
            if value == SETTINGS[name]:
                continue
            if value is None:
                raise ConfigError(
                    f"the cluster does not tell whether the log topic {self.name!r} has {name} = "
                    f"{SETTINGS[name]}: without it entries of the privacy account can be lost",
                    fix="allow this user to ask: kafka-acls.sh --add --operation DescribeConfigs --topic "
                    f"{self.name}",
                )
            raise ConfigError(
                f"the log topic {self.name!r} has {name} = {value}: it can lose entries of the "
                "privacy account",
                fix=f"kafka-configs.sh --alter --topic {self.name} --add-config {name}={SETTINGS[name]}",
            )

    async def _settings(self) -> dict[str, str]:
        admin = AIOKafkaAdminClient(**client_options(self._config))
        try:
            await within(self._config, admin.start())
            asked = ConfigResource(ConfigResourceType.TOPIC, self.name, dict.fromkeys(_NEEDED, ""))
            answers = await within(self._config, admin.describe_configs([asked]))
            return {
                entry[0]: str(entry[1])
                for answer in answers
                for found in answer.resources
                for entry in found[4]
            }
        finally:
            await stop_quietly(admin.close(), 2.0)

    async def read(self, partition: int) -> list[tuple[int, bytes | None, bytes]]:
        """Return offset, key and value of all committed records of a partition, in order.

        Read it after `PartitionProducer.start`: nothing is then under way any more. A transaction that is
        open all the same is not waited for. What the producer had to cut (`in_parts`) is put together, and
        has the offset of its first part.

        Raises
        ------
        SourceError
            The broker does not answer.
        StoreError
            A part of a message is missing.
        """
        place = Partition(self.name, partition)
        found: list[RecordLike] = []
        lookup = RecordReader(self._config) if self._lookup is None else self._lookup
        try:
            first, end = await lookup.range(place)
            async with contextlib.aclosing(lookup.span(place, first, end)) as batches:
                async for records in batches:
                    found.extend(records)
        finally:
            if self._lookup is None:
                await lookup.stop()
        return self._whole(found)

    def _whole(self, records: Sequence[RecordLike]) -> list[tuple[int, bytes | None, bytes]]:
        """Offset, key and value of each message as it was given to the producer."""
        out: list[tuple[int, bytes | None, bytes]] = []
        waiting: list[RecordLike] = []
        for record in records:
            mark = dict(record.headers).get(PART)
            number, count = _numbers(mark)
            if number != len(waiting) + 1 or (waiting and dict(waiting[0].headers)[PART] != b"1/%d" % count):
                break
            waiting.append(record)
            if number == count:
                out.append((waiting[0].offset, record.key, b"".join([w.value or b"" for w in waiting])))
                waiting = []
        else:
            if not waiting:
                return out
        at = waiting[0].offset if waiting else record.offset
        raise StoreError(
            f"a message of the log topic {self.name!r} is not whole: a part is missing at offset {at}",
            fix="put the topic back as it was: nothing may delete its records but streampair",
        )

    async def trim(self, partition: int, before: int) -> None:
        """Delete what lies before an offset.

        Raises
        ------
        SourceError
            The broker does not answer, or refuses.
        """
        admin = AIOKafkaAdminClient(**client_options(self._config))
        try:
            await within(self._config, admin.start())
            target = TopicPartition(*Partition(self.name, partition))
            await within(self._config, admin.delete_records({target: RecordsToDelete(before_offset=before)}))
        finally:
            await stop_quietly(admin.close(), 2.0)


def _numbers(mark: bytes | None) -> tuple[int, int]:
    """Which part a message is, and of how many: 1 of 1 without a mark; 0 of 0 if the mark is not one."""
    if mark is None:
        return 1, 1
    number, _, count = mark.partition(b"/")
    if not (number.isdigit() and count.isdigit()) or int(number) > int(count):
        return 0, 0
    return int(number), int(count)
