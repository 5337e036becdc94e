"""The log topic: a topic with unlimited retention that keeps the logs of lanes."""

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
from streampair_connectors.kafka.producer import PART, part_of
from streampair_connectors.kafka.record_reader import RecordReader

__all__ = ["SETTINGS", "LogTopic"]

SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # Deleted records are freed by whole segments; logs are short, so segments are small.
    "segment.bytes": str(16 * 1024 * 1024),
    "unclean.leader.election.enable": "false",
    # The answers then say what the broker's clock shows: events whose labels come later are due by it.
    "message.timestamp.type": "LogAppendTime",
}
"""Settings of a new log topic."""

# With other values entries can be lost silently, and the log is no privacy account.
_REQUIRED: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "unclean.leader.election.enable")


class LogTopic:
    """A topic with one partition per lane, to which only the lanes' owners write.

    Parameters
    ----------
    config
        The cluster.
    name
        Of the topic.
    lookup
        Reads the topic; None: a new connection per call.
    """

    def __init__(self, config: KafkaConfig, name: str, lookup: RecordReader | None = None) -> None:
        self._config = config
        self.name = name
        self._lookup = lookup

    async def ensure(self, partitions: int, *, replication_factor: int | None, strict: bool) -> int:
        """Create the topic if it does not exist, check its settings and add missing partitions.

        Returns the number of its partitions.

        Parameters
        ----------
        partitions
            Of the input topic: the required minimum.
        replication_factor
            Of a new topic; None: the cluster's default.
        strict
            Whether a privacy account depends on the topic: settings that can lose entries are refused.

        Raises
        ------
        ConfigError
            The topic has settings that can lose entries.
        SourceError
            The cluster does not answer, or does not create the topic or its partitions.
        """
        found = (await describe_topics(self._config)).get(self.name)
        if found is None:
            made = await create_topics(
                self._config, {self.name: partitions}, replication_factor, settings={self.name: SETTINGS}
            )
            outcome = made[self.name]
            if isinstance(outcome, SourceError):
                raise outcome
            found = outcome
        if found < partitions:
            await add_partitions(self._config, self.name, partitions)
            found = partitions
        if strict:
            await self.check_settings()
        return found

    async def check_settings(self) -> None:
        """Refuse settings with which entries of a privacy account can be lost.

        Raises
        ------
        ConfigError, SourceError
            As of `ensure`.
        """
        settings = await self.settings()
        for name in _REQUIRED:
            value = settings.get(name)
            if value == SETTINGS[name]:
                continue
            if value is None:
                raise ConfigError(
                    f"the cluster does not say whether the log topic {self.name!r} has {name} = "
                    f"{SETTINGS[name]}: without it entries of the privacy account can be lost",
                    fix="grant the right: kafka-acls.sh --add --operation DescribeConfigs --topic "
                    f"{self.name}",
                )
            raise ConfigError(
                f"the log topic {self.name!r} has {name} = {value}: it can lose entries of the "
                "privacy account",
                fix=f"kafka-configs.sh --alter --topic {self.name} --add-config {name}={SETTINGS[name]}",
            )

    async def settings(self) -> dict[str, str]:
        """Return the settings that keep its entries, as far as they can be read."""
        admin = AIOKafkaAdminClient(**client_options(self._config))
        try:
            await within(self._config, admin.start())
            query = ConfigResource(ConfigResourceType.TOPIC, self.name, dict.fromkeys(_REQUIRED, ""))
            answers = await within(self._config, admin.describe_configs([query]))
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

        Call it after `TransactionalProducer.start`, when no transaction is in flight; an open one is not
        waited for. Messages that the producer has split (`split_messages`) are joined, and have the offset of
        their first part.

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
            first, end = (await lookup.spans([place]))[place.partition]
            async with contextlib.aclosing(lookup.span(place, first, end)) as batches:
                async for records in batches:
                    found.extend(records)
        finally:
            if self._lookup is None:
                await lookup.stop()
        return self._join_parts(found)

    def _join_parts(self, records: Sequence[RecordLike]) -> list[tuple[int, bytes | None, bytes]]:
        """Join the parts of split messages: offset, key and value of each message."""
        out: list[tuple[int, bytes | None, bytes]] = []
        parts: list[RecordLike] = []
        for record in records:
            part_header = dict(record.headers).get(PART)
            number, count = part_of(part_header)
            if number != len(parts) + 1 or (parts and dict(parts[0].headers)[PART] != b"1/%d" % count):
                break
            parts.append(record)
            if number == count:
                out.append((parts[0].offset, record.key, b"".join([w.value or b"" for w in parts])))
                parts = []
        else:
            if not parts:
                return out
        offset = parts[0].offset if parts else record.offset
        raise StoreError(
            f"a message of the log topic {self.name!r} is incomplete: a part is missing at offset {offset}",
            fix="restore the topic: only streampair may delete its records",
        )

    async def trim(self, partition: int, before: int) -> None:
        """Delete the records before an offset.

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
