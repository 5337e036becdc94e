"""Being a member of a group under a fixed name (static membership), and what aiokafka leaves out of it.

Kafka keeps the partitions of a static member that went away until its session has expired, and gives them
back to whoever comes with its id. aiokafka 0.14 sends the id when it joins, but not with its heartbeats.
Three things follow, and are dealt with here:

- A member whose id somebody else has taken is told only that it is unknown; it joins again, and takes the id
  back. Two workers with one id would do that to each other at every heartbeat; `StaticMemberConflicts` counts
  such takeovers.
- Error 82, that an id was taken, has no name in the client: it gets one, so that it can be told from others.
- A leader that comes back under its id is not asked to assign anything. Partitions that were added meanwhile
  stay with nobody, until some member makes the group assign anew: `describe_group` shows it, `Assignor.ask`
  and `rejoin` mend it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocol, ConsumerProtocolMemberMetadata

from streampair.errors import SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import client_options, stop_quietly, within

__all__ = [
    "Assignor",
    "Group",
    "StaticMemberConflicts",
    "describe_group",
    "end_poll",
    "is_fenced",
    "leave_to_others",
    "member_of",
    "rejoin",
]


class FencedInstanceIdError(kafka_errors.BrokerResponseError):  # type: ignore[misc]  # untyped base
    """Another member has joined with the same `group.instance.id`."""

    errno = 82
    message = "FENCED_INSTANCE_ID"
    description = "Another member has joined under this group.instance.id"


# The client looks codes up in this table, and has no entry for this one.
kafka_errors.kafka_errors.setdefault(FencedInstanceIdError.errno, FencedInstanceIdError)


def is_fenced(error: BaseException) -> bool:
    """Whether the client says that another member has taken the id. It wraps the reason into text."""
    return isinstance(error, FencedInstanceIdError) or FencedInstanceIdError.__name__ in str(error)


class StaticMemberConflicts:
    """Counts how often others have taken this worker's group instance id.

    Once is what a restart looks like to the one that is replaced; again and again, that two are running.

    Parameters
    ----------
    instance_id
        The id.
    limit, seconds
        So many within so long are too many.

    Examples
    --------
    >>> takeovers = Takeovers("worker-0")
    >>> [takeovers.note(at) for at in (0.0, 3.0)]
    [None, None]
    >>> takeovers.note(6.0).retriable
    False
    """

    def __init__(self, instance_id: str, *, limit: int = 3, seconds: float = 60.0) -> None:
        self._instance_id = instance_id
        self._seconds = seconds
        self._times: deque[float] = deque(maxlen=limit)

    def note(self, now: float) -> SourceError | None:
        """Count one, at `now` by a monotonic clock in seconds. An error, when there were too many: stop."""
        self._times.append(now)
        if len(self._times) < (self._times.maxlen or 0) or now - self._times[0] > self._seconds:
            return None
        return SourceError(
            f"another worker has joined the group as {self._instance_id!r} {len(self._times)} times within "
            f"{self._seconds:g} s: two workers have the same kafka.group_instance_id, and take the "
            "partitions from each other",
            fix="give each worker an id of its own, such as its host's name by kafka.group_instance_id_env, "
            "or remove the key",
            retriable=False,
        )


class Assignor(RangePartitionAssignor):  # type: ignore[misc]  # untyped base
    """The range assignor; co-partitioned topics need it. One object for each consumer.

    A group assigns anew when its leader joins again, or when another member joins with other words than
    before. The words are not read by anybody, so they carry a number that `ask` changes.
    """

    def __init__(self) -> None:
        self._words = b""
        self._asked = itertools.count(1)

    def ask(self) -> None:
        """Let the next join of this member make the group assign anew."""
        self._words = b"%d" % next(self._asked)

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member says when it joins."""
        return ConsumerProtocolMemberMetadata(self.version, list(topics), self._words)


def member_of(consumer: AIOKafkaConsumer) -> str:
    """Return the name that the group has given to this member; empty when it is in none."""
    return str(consumer._coordinator.member_id)


def rejoin(consumer: AIOKafkaConsumer) -> None:
    """Join the group again, as if the coordinator had asked for it: what is held is revoked in good order."""
    consumer._coordinator.request_rejoin()


def end_poll(consumer: AIOKafkaConsumer) -> None:
    """Say that nobody polls now. The client forgets it after a poll that has failed.

    It then takes the member for one that polls for ever, and `max_poll_interval_seconds` would mean nothing:
    the first poll of a group without offsets fails.
    """
    state = consumer._subscription
    if state._fetch_count:
        state._fetch_count, state._last_fetch_ended = 0, time.monotonic()


def leave_to_others(consumer: AIOKafkaConsumer) -> None:
    """End this member's part in the group, from within its listener: who has its id now keeps it.

    A listener cannot refuse to join again by an ordinary error, which the client swallows. This ends the
    client's task that would join; whoever waits for records is woken by an error.

    Raises
    ------
    asyncio.CancelledError
        Always.
    """
    consumer._subscription.abort_waiters(FencedInstanceIdError())
    raise asyncio.CancelledError


class Group(NamedTuple):
    """A consumer group, as its coordinator tells.

    Attributes
    ----------
    stable
        Whether nobody joins or leaves at the moment.
    members
        In order of their names.
    assigned
        The partitions of a topic that somebody has.
    """

    stable: bool
    members: tuple[str, ...]
    assigned: frozenset[int]


async def describe_group(config: KafkaConfig, group: str, topic: str) -> Group:
    """Ask who is in a group, and which partitions of a topic they have.

    Raises
    ------
    SourceError
        Nobody answers in time, or the cluster refuses.
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
            fix="allow this user to describe the group",
        )
    assigned: set[int] = set()
    for _, _, _, _, assignment, *_ in members:
        if assignment:
            held = ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions()
            assigned.update(p.partition for p in held if p.topic == topic)
    names = tuple(sorted(member[0] for member in members))
    return Group(state == "Stable", names, frozenset(assigned))
