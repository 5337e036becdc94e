"""Reading a whole topic as one member: the assignor, and which partitions were read to their end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from streampair_connectors.kafka.static_membership import Assignor

__all__ = ["FetchClock", "WholeTopicAssignor", "chosen_member"]

_HOLDS = b"holds|"


class WholeTopicAssignor(Assignor):
    """Gives all partitions to one member: the one that says it has them, or the first by name.

    A member that joins moves nothing, so it is a standby; when the holder leaves, another one has everything.
    Workers of scope "partition" say another name, and the group refuses to mix them.
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
    >>> from streampair_connectors.kafka.whole_topic import chosen_member
    >>> chosen_member({"b": b"", "c": b"holds|17|", "a": b""}), chosen_member({"b": b"", "a": b""})
    ('c', 'a')
    """

    def rank(name: str) -> tuple[int, str]:
        said = words[name]
        since = said[len(_HOLDS) :].split(b"|")[0] if said.startswith(_HOLDS) else b""
        return -int(since) if since.isdigit() else 1, name

    return min(words, key=rank)


class FetchClock:
    """Knows up to which moment each partition was read to its end.

    The client tells the end of a partition with each answer, and not when it had asked. An end proves nothing
    about records that were appended after the question was sent, so this notes that moment for each question.

    Parameters
    ----------
    consumer
        A started consumer.
    """

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._sent: dict[TopicPartition, int] = {}
        fetcher: Any = consumer._fetcher
        inner = fetcher._proc_fetch_request

        async def timed(assignment: Any, node_id: Any, request: Any) -> Any:
            sent = time.time_ns() // 1_000_000
            result = await inner(assignment, node_id, request)
            if assignment.active:
                for topic, partitions in request.topics:
                    for partition, *_ in partitions:
                        state = assignment.state_value(TopicPartition(topic, partition))
                        # Set by the answer alone: an error, or an answer to another position, sets nothing.
                        if state is not None and (state.timestamp or 0) >= sent:
                            self._sent[TopicPartition(topic, partition)] = sent
            return result

        fetcher._proc_fetch_request = timed

    def settled(self, partitions: Iterable[TopicPartition]) -> dict[int, int]:
        """By partition that was read to its end: when the fetch that saw the end was sent, in milliseconds.

        A partition with an open transaction is not read to its end: what is in it is still to come.
        """
        found: dict[int, int] = {}
        state = self._consumer._subscription
        assignment = None if state.subscription is None else state.subscription.assignment
        if assignment is None:
            return found
        waiting = self._consumer._fetcher._records
        for tp in partitions:
            sent = self._sent.get(tp)
            if sent is None or tp not in assignment.tps or tp in waiting:
                continue
            each = assignment.state_value(tp)
            if not each.has_valid_position or each.highwater is None:
                continue
            if each.lso in (None, each.highwater) and each.position >= each.highwater:
                found[tp.partition] = sent
        return found
