"""Finds all rights that a user lacks, without using any of them (KIP-430)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import InitProducerIdRequest_v0
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import client_options, stop_quietly, within

__all__ = ["Missing", "missing_rights"]

Missing = tuple[str, str, str]
"""Resource type (topic, group, transactional-id), name, and the operation that is not allowed."""

_BITS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Alter": 7, "Describe": 8, "DescribeConfigs": 10}
_UNKNOWN = -(2**31)  # the broker does not report operations
_TOPIC_DENIED, _GROUP_DENIED, _ID_DENIED, _CLUSTER_DENIED = 29, 30, 53, 31
_RETRIES, _RETRY_SECONDS = 15, 0.2
_INVALID_TIMEOUT = 2**31 - 1  # refused by every broker, after it has checked the rights


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 8
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 8
    RESPONSE_TYPE: ClassVar[type[Response]] = _MetadataResponse
    SCHEMA: ClassVar[Schema] = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _Metadata(Request[_MetadataStruct]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_MetadataStruct]) -> _MetadataStruct:
        return request_struct_class(self._topics, False, False, True)


class _InitProducerId(Request[InitProducerIdRequest_v0]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 22

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id

    def build(self, request_struct_class: type[InitProducerIdRequest_v0]) -> InitProducerIdRequest_v0:
        return request_struct_class(self._id, _INVALID_TIMEOUT)


async def missing_rights(
    config: KafkaConfig,
    topics: Mapping[str, Sequence[str]],
    *,
    groups: Sequence[str],
    transactional_id: str | None,
) -> list[Missing]:
    """Return which rights this user lacks, without using any of them or changing anything.

    Parameters
    ----------
    config
        How to reach the cluster.
    topics
        Required operations on each topic: `Read`, `Write`, `Describe`, `DescribeConfigs`, ...
    groups
        The consumer groups, with `Read`.
    transactional_id
        A transactional id of the application, with `Write`; None: it uses no transactions.

    Returns
    -------
    list
        Missing rights. Empty if the cluster has no authorizer, or is older than 2.3.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        work: list[Awaitable[list[Missing]]] = [
            _missing_on_topics(admin, topics),
            *(_missing_on_group(admin, group) for group in groups),
        ]
        if transactional_id is not None:
            work.append(_missing_on_transactional_id(admin, transactional_id))
        missing: list[Missing] = []
        for part in work:
            missing += await within(config, _empty_if_unsupported(part))
        return missing
    finally:
        await stop_quietly(admin.close(), 2.0)


async def _empty_if_unsupported(work: Awaitable[list[Missing]]) -> list[Missing]:
    """Missing rights; empty if the broker is too old to report them."""
    try:
        return await work
    except (
        kafka_errors.IncompatibleBrokerVersion,
        kafka_errors.UnsupportedVersionError,
        NotImplementedError,
    ):
        return []


async def _missing_on_topics(
    admin: AIOKafkaAdminClient, topics: Mapping[str, Sequence[str]]
) -> list[Missing]:
    answer = await admin._send_request(_Metadata(list(topics)))
    missing: list[Missing] = []
    for code, topic, _, _, allowed in answer.topics:
        wanted = topics[topic]
        if code == _TOPIC_DENIED:
            missing += [("topic", topic, operation) for operation in ("Describe", *wanted)]
        elif code == 0 and allowed != _UNKNOWN:
            missing += [("topic", topic, name) for name in wanted if not allowed >> _BITS[name] & 1]
    return list(dict.fromkeys(missing))


async def _missing_on_group(admin: AIOKafkaAdminClient, group: str) -> list[Missing]:
    found = await _allowed_on_group(admin, group)
    if found is None:
        return [("group", group, "Read")]
    return [] if found == _UNKNOWN or found >> _BITS["Read"] & 1 else [("group", group, "Read")]


async def _allowed_on_group(admin: AIOKafkaAdminClient, group: str) -> int | None:
    """Bit set of the operations allowed on a group; None: not even Describe."""
    for _ in range(_RETRIES):
        try:
            (answer,) = await admin.describe_consumer_groups([group], include_authorized_operations=True)
            break
        except kafka_errors.GroupAuthorizationFailedError:
            return None
        except kafka_errors.GroupCoordinatorNotAvailableError:  # a cluster without any group yet
            await asyncio.sleep(_RETRY_SECONDS)
    else:
        return _UNKNOWN
    (found,) = answer.groups
    if found[0] == _GROUP_DENIED:
        return None
    return int(found[6]) if len(found) > 6 else _UNKNOWN


async def _missing_on_transactional_id(admin: AIOKafkaAdminClient, name: str) -> list[Missing]:
    where = await admin._send_request(FindCoordinatorRequest(name, 1))
    if where.error_code == _ID_DENIED:
        return [("transactional-id", name, "Describe"), ("transactional-id", name, "Write")]
    if where.error_code:
        return []
    answer = await admin._send_request_to_node(where.coordinator_id, _InitProducerId(name))
    if answer.error_code in (_ID_DENIED, _CLUSTER_DENIED):
        return [("transactional-id", name, "Write")]
    return []
