"""Ends of transactions that a broker never lets be written: a start says so in time, and does not hang."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.lost_ends import Outcome, write_ends


class _Busy:
    """A coordinator that is writing the end of an earlier transaction, for ever."""

    async def coordinator_lookup(self, kind: Any, name: str) -> int:
        return 1

    async def send(self, node: int, request: Any) -> Any:
        return SimpleNamespace(error_code=kafka_errors.ConcurrentTransactions.errno)


async def test_an_end_of_offsets_that_cannot_be_written_is_given_up() -> None:
    manager = SimpleNamespace(producer_id=1, producer_epoch=4)
    producer: Any = SimpleNamespace(client=_Busy(), _txn_manager=manager)
    config = KafkaConfig(bootstrap_servers="broker:9092", connect_timeout="50ms")
    async with asyncio.timeout(30):
        with pytest.raises(kafka_errors.RequestTimedOutError):
            await write_ends(config, producer, "id", Outcome(False), [], "group")
