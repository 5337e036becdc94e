"""Membership of the consumer group: assignors, and static members (`group.instance.id`).

Kafka keeps the partitions of a static member until its session expires, and returns them to the member that
joins with the same id. aiokafka 0.14 sends the id when it joins, but not with its heartbeats. Three
consequences are handled here:

- A member whose id was taken by another worker only learns that it is unknown, joins again and takes the id
  back. Two workers with one id would do that at every heartbeat; `StaticMemberConflicts` counts such
  takeovers.
- Error 82, FENCED_INSTANCE_ID, has no class in the client: it gets one here.
- A leader that returns with its id is not asked for an assignment. Partitions that were added meanwhile stay
  unassigned until some member triggers one: `describe_group` detects it, `Assignor.request_assignment` and
  `rejoin` fix it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocol,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import client_options, stop_quietly, within

__all__ = [
    "Assignor",
    "FencedInstanceIdError",
    "GroupState",
    "Member",
    "StaticMemberConflicts",
    "WholeTopicAssignor",
    "abandon_membership",
    "chosen_member",
    "describe_group",
    "end_poll",
    "is_fenced",
    "member_of",
    "rejoin",
]

_HOLDS = b"holds|"  # begins the metadata of a member that has the partitions


class FencedInstanceIdError(kafka_errors.BrokerResponseError):  # type: ignore[misc]  # untyped base
    """Another member has joined with the same `group.instance.id`."""

    errno = 82
    message = "FENCED_INSTANCE_ID"
    description = "Another member has joined under this group.instance.id"


# The client's table of error codes lacks this one.
kafka_errors.kafka_errors.setdefault(FencedInstanceIdError.errno, FencedInstanceIdError)


def is_fenced(error: BaseException) -> bool:
    """Whether the error means that another member has taken the id; the client may give it as text only."""
    return isinstance(error, FencedInstanceIdError) or FencedInstanceIdError.__name__ in str(error)


class Member(NamedTuple):
    """A member of a consumer group in one generation: the broker refuses its offsets in the next one."""

    generation: int
    member_id: str
    instance_id: str | None = None


class StaticMemberConflicts:
    """Counts how often another worker has taken this worker's group instance id.

    One takeover happens at a restart, to the replaced worker; repeated ones mean that two workers run.

    Parameters
    ----------
    instance_id
        The id.
    limit, seconds
        Takeovers within this time that are an error.

    Examples
    --------
    >>> conflicts = StaticMemberConflicts("worker-0")
    >>> [conflicts.record(now) for now in (0.0, 3.0)]
    [None, None]
    >>> conflicts.record(6.0).retriable
    False
    """

    def __init__(self, instance_id: str, *, limit: int = 3, seconds: float = 60.0) -> None:
        self._instance_id = instance_id
        self._seconds = seconds
        self._times: deque[float] = deque(maxlen=limit)

    def record(self, now: float) -> SourceError | None:
        """Count a takeover at `now`, a monotonic time in seconds; return an error if there were too many."""
        self._times.append(now)
        if len(self._times) < (self._times.maxlen or 0) or now - self._times[0] > self._seconds:
            return None
        return SourceError(
            f"another worker has joined the group as {self._instance_id!r} {len(self._times)} times within "
            f"{self._seconds:g} s: two workers have the same kafka.group_instance_id, and take the "
            "partitions from each other",
            fix="give each worker a unique id, such as its host name in STREAMPAIR_KAFKA__GROUP_INSTANCE_ID, "
            "or remove the key",
            retriable=False,
        )


class Assignor(RangePartitionAssignor):  # type: ignore[misc]  # untyped base
    """Range assignor that can trigger a new assignment. One object per consumer.

    A group makes a new assignment when its leader joins again, or when another member joins with changed
    metadata. So the metadata contain a number, which nobody reads, and `request_assignment` changes it.
    """

    def __init__(self) -> None:
        self._user_data = b""
        self._counter = itertools.count(1)

    def request_assignment(self) -> None:
        """Make the next join of this member trigger a new assignment."""
        self._user_data = b"%d" % next(self._counter)

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Metadata of this member in a join request."""
        return ConsumerProtocolMemberMetadata(self.version, list(topics), self._user_data)


class WholeTopicAssignor(Assignor):
    """Gives all partitions to one member: the one that says it has them, or the first by name.

    A member that joins moves nothing, so it is a standby; when the holder leaves, another one has everything.
    """

    name = "streampair-whole-topic"

    def __init__(self) -> None:
        super().__init__()
        self._assigned_since: int | None = None

    def set_assigned(self, assigned: bool) -> None:
        """Say whether this member has the partitions, from its next join on."""
        if not assigned:
            self._assigned_since = None
        elif self._assigned_since is None:
            self._assigned_since = time.time_ns()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member says when it joins: since when it has the partitions, if it has."""
        words = (
            self._user_data
            if self._assigned_since is None
            else b"%s%d|%s" % (_HOLDS, self._assigned_since, self._user_data)
        )
        return ConsumerProtocolMemberMetadata(self.version, list(topics), words)

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """All partitions of each topic for one member, none for the others."""
        chosen = chosen_member({name: bytes(each.user_data or b"") for name, each in members.items()})
        out = {}
        for name, each in members.items():
            topics = []
            if name == chosen:
                known = ((topic, cluster.partitions_for_topic(topic)) for topic in sorted(each.subscription))
                topics = [(topic, sorted(partitions)) for topic, partitions in known if partitions]
            out[name] = ConsumerProtocolMemberAssignment(cls.version, topics, b"")
        return out


def chosen_member(words: Mapping[str, bytes]) -> str:
    """The member that gets all partitions.

    Parameters
    ----------
    words
        What each member says, by its name. Of two that say they have them, the later has fenced the earlier.

    Examples
    --------
    >>> from streampair_connectors.kafka.membership import chosen_member
    >>> chosen_member({"b": b"", "c": b"holds|17|", "a": b""}), chosen_member({"b": b"", "a": b""})
    ('c', 'a')
    """

    def rank(name: str) -> tuple[int, str]:
        metadata = words[name]
        since = metadata[len(_HOLDS) :].split(b"|")[0] if metadata.startswith(_HOLDS) else b""
        return -int(since) if since.isdigit() else 1, name

    return min(words, key=rank)


def member_of(consumer: AIOKafkaConsumer) -> str:
    """Return the member id of this consumer; empty without a group."""
    return str(consumer._coordinator.member_id)


def rejoin(consumer: AIOKafkaConsumer) -> None:
    """Join the group again, as in a rebalance: the partitions are revoked first."""
    consumer._coordinator.request_rejoin()


def end_poll(consumer: AIOKafkaConsumer) -> float:
    """Mark the poll as ended, which the client forgets after a failed one.

    Returns the moment, by `time.monotonic`, from which the client counts the pause until the next poll.

    It would then count the member as polling forever, and `max_poll_interval` would have no effect:
    the first poll of a group without offsets fails.
    """
    state = consumer._subscription
    if state._fetch_count:
        state._fetch_count, state._last_fetch_ended = 0, time.monotonic()
    return float(state._last_fetch_ended)


def abandon_membership(consumer: AIOKafkaConsumer) -> None:
    """End this membership from within a rebalance listener, so that the other worker keeps the id.

    The client swallows ordinary errors of a listener and joins again. This cancels its task that would join,
    and wakes waiting polls with an error.

    Raises
    ------
    asyncio.CancelledError
        Always.
    """
    consumer._subscription.abort_waiters(FencedInstanceIdError())
    raise asyncio.CancelledError


class GroupState(NamedTuple):
    """State of a consumer group.

    Attributes
    ----------
    stable
        Whether no rebalance is in progress.
    members
        Member ids, sorted.
    clients
        Their client ids.
    assigned
        The partitions of a topic that have an owner.
    """

    stable: bool
    members: tuple[str, ...]
    clients: frozenset[str]
    assigned: frozenset[int]


async def describe_group(config: KafkaConfig, group: str, topic: str) -> GroupState:
    """Return the members of a group, and which partitions of a topic they own.

    Raises
    ------
    SourceError
        No broker answers in time, or the cluster refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(config))
    try:
        await within(config, admin.start())
        (answer,) = await within(config, admin.describe_consumer_groups([group]))
    finally:
        await stop_quietly(admin.close(), 2.0)
    code, _, state, _, _, members, *_ = answer.groups[0]
    if code != 0:
        raise SourceError(
            f"the cluster does not describe the group {group!r}: {kafka_errors.for_code(code).__name__}",
            fix="grant this user Describe on the group",
        )
    assigned: set[int] = set()
    for _, _, _, _, assignment, *_ in members:
        if assignment:
            partitions = ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions()
            assigned.update(p.partition for p in partitions if p.topic == topic)
    names = tuple(sorted(member[0] for member in members))
    clients = frozenset(member[1] for member in members)
    return GroupState(state == "Stable", names, clients, frozenset(assigned))
