"""The model topic: what makes a model, which are refused, when one is due, what is deleted."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from river import compose, preprocessing
from streampair_connectors.codecs.records import Encoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.host import Host
from streampair_connectors.kafka import Cluster, Message, Partition, RecordReader, Routes
from streampair_connectors.kafka.producer import PART, split_messages
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.model_topic import (
    DIGEST,
    Assembler,
    ModelPublisher,
    check_exportable,
    read_model,
)
from streampair_connectors.worker.outputs import Outputs

from streampair import auc
from streampair.engine import DeadLetter, LaneOutput, OrderedRecord, Scored
from streampair.errors import ConfigError, SnapshotError, SourceError, StoreError, StreampairError

KEY, OTHER_KEY = "11" * 32, "22" * 32


def config_of(
    app: str = "a", *, learner: dict[str, Any] | None = None, key: str | None = None, **more: Any
) -> Config:
    store = {} if key is None else {"key_file": SecretStr(key)}
    return parse_config(
        {
            "app": app,
            "kafka": {"bootstrap_servers": "nowhere:1"},
            "input": {"topic": "t", "label": "y", "features": ["x"]},
            "learner": {"class": "streampair.auc.PairOGD", "scoring": "parallel", **(learner or {})},
            "store": store,
            **more,
        }
    )


class Topic:
    """One partition in memory, and what reads and trims it."""

    name = "a-model"

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.start = 0

    def append(self, messages: Sequence[Message]) -> None:
        for message in messages:
            offset = len(self.records)
            self.records.append(
                SimpleNamespace(offset=offset, value=message.value, headers=message.headers or ())
            )

    async def spans(self, partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        return {0: (self.start, len(self.records))}

    async def span(self, place: Partition, first: int, end: int) -> AsyncIterator[Sequence[Any]]:
        yield self.records[first:end]

    async def trim(self, before: int) -> None:
        self.start = max(self.start, before)

    def models(self) -> list[bytes]:
        """Those that a reader from the start finds."""
        assembler = Assembler(config_of())
        return [data for record in self.records[self.start :] if (data := assembler.add(record)) is not None]


class TrimmedMeanwhile(Topic):
    """Its owner trims it to these offsets while it is read, once each: what is gone cannot be read."""

    def __init__(self, *before: int) -> None:
        super().__init__()
        self._before = list(before)

    is_trimmed = RecordReader.is_trimmed

    async def span(self, place: Partition, first: int, end: int) -> AsyncIterator[Sequence[Any]]:
        yield self.records[first : first + 1]
        if self._before:
            await self.trim(self._before.pop(0))
            raise SourceError("the broker refused to read", fix="-")
        yield self.records[first + 1 : end]


def parts(data: bytes, size: int = 1000) -> list[Message]:
    """A message as the producer sends it where one may have so many bytes."""
    message = Message(b"a", data, [(DIGEST, hashlib.sha256(data).digest())])
    return split_messages([message], size, len(data))


def added(messages: Sequence[Message]) -> list[bytes]:
    topic = Topic()
    topic.append(messages)
    return topic.models()


# Putting together


def test_a_model_of_one_message_and_of_many() -> None:
    small, large = b"m" * 100, random.Random(1).randbytes(5000)
    assert len(parts(small)) == 1
    assert len(parts(large)) > 5
    assert added([*parts(small), *parts(large), *parts(small)]) == [small, large, small]


def test_what_is_no_whole_model_is_left_out() -> None:
    large, small = random.Random(1).randbytes(5000), b"m"
    pieces = parts(large)
    assert added([*pieces[1:], *parts(small)]) == [small], "its first part was deleted"
    assert added([*pieces[:-1], *parts(small)]) == [small], "its writer has died"
    assert added([*pieces[:2], *pieces[3:], *parts(small)]) == [small], "a part is missing"
    assert added([*pieces[:2], *pieces]) == [large], "its writer has begun again"
    assert added([Message(b"a", b"something else", []), *parts(small)]) == [small]
    for header in (b"1", b"x/y", b"0/0", b"", b"2/1", b"-1/1"):
        assert added([Message(b"a", b"m", [(PART, header)]), *parts(small)]) == [small]
    digest = [(DIGEST, hashlib.sha256(b"m").digest())]
    assert added([Message(b"a", b"n", digest), Message(b"a", None, digest)]) == []


@pytest.mark.parametrize("seed", range(50))
def test_parts_of_two_writers_never_make_a_model(seed: int) -> None:
    """A writer without transactions goes on for a moment after its successor has begun."""
    coin = random.Random(seed)
    sent = [coin.randbytes(coin.randrange(500, 4000)) for _ in range(8)]
    queues = [[part for data in sent[who::2] for part in parts(data)] for who in (0, 1)]
    mixed = []
    while any(queues):
        queue = coin.choice([queue for queue in queues if queue])
        mixed += queue[: (count := coin.randrange(1, 6))]
        del queue[:count]
    last = coin.randbytes(3000)
    cut = coin.randrange(len(mixed))
    found = added([*mixed[cut:], *parts(last)])
    assert set(found) <= {*sent, last}
    assert found[-1] == last


# Refusals


def data_of(config: Config) -> bytes:
    publisher = ModelPublisher(config, Topic())  # type: ignore[arg-type]
    return publisher._export(lane_of(auc.PairOGD(), 7))


def lane_of(learner: Any, seen: int, sent: list[Any] | None = None, **positions: int) -> Any:
    async def send(target: Partition, messages: list[Message]) -> None:
        if sent is not None:
            sent.append((target, messages))

    known = {int(name[1:]): SimpleNamespace(next_offset=offset) for name, offset in positions.items()}
    lane = SimpleNamespace(
        logged_lane=SimpleNamespace(
            learner=learner[-1] if isinstance(learner, compose.Pipeline) else learner,
            model=learner,
            name="l",
            slots=seen,
        ),
        source=SimpleNamespace(positions=known, due={}),
        topic="t",
        spans={0: (0, 9), 1: (4, 9)},
        learned_time=None,
        store=SimpleNamespace(send=send),
        encoder=Encoder(app="a", learner="l", topic="t", partition=0),
        partition=0,
        bad_count=0,
        bad_causes={},
    )
    lane.positions = OpenLane.positions.fget(lane)  # type: ignore[attr-defined]
    lane.learned_positions = OpenLane.learned_positions.fget(lane)  # type: ignore[attr-defined]
    return lane


def test_a_model_is_read_by_the_workers_of_its_application() -> None:
    found = Assembler(config_of()).load(data_of(config_of()))
    assert (found.model.slots, found.positions, found.scored_until) == (7, {0: 0, 1: 4}, None)
    sealed = data_of(config_of(key=KEY))
    assert b"PairOGD" not in sealed
    assert Assembler(config_of(key=KEY)).load(sealed).model.slots == 7


@pytest.mark.parametrize(
    "case", ["application", "learner", "no key", "another key", "no seal", "damaged", "cut"]
)
def test_a_model_of_others_is_refused_by_name(case: str) -> None:
    ours = config_of()
    plain = data_of(ours)
    sealed = data_of(config_of(key=KEY))
    refusals: dict[str, tuple[Config, bytes, type[StreampairError], str]] = {
        "application": (config_of("b"), plain, ConfigError, "models of application 'a'"),
        "learner": (
            config_of(learner={"options": {"eta": 0.5}}),
            plain,
            ConfigError,
            "made with other settings",
        ),
        "no key": (ours, sealed, ConfigError, "has no sealing key"),
        "another key": (config_of(key=OTHER_KEY), sealed, StoreError, "was sealed with the key"),
        "no seal": (config_of(key=KEY), plain, ConfigError, "not sealed, and this worker has a"),
        "damaged": (
            config_of(key=KEY),
            bytes([*sealed[:-1], sealed[-1] ^ 1]),
            StoreError,
            "was changed or moved",
        ),
        "cut": (ours, plain[:-9], SnapshotError, "damaged or cut short"),
    }
    config, data, kind, words = refusals[case]
    with pytest.raises(kind, match=words) as caught:
        Assembler(config).load(data)
    assert caught.value.fix


async def test_the_newest_whole_model_is_read() -> None:
    topic, config = Topic(), config_of()
    lookup: Any = topic
    assert await read_model(config, lookup) is None
    for seen in (1, 2):
        publisher = ModelPublisher(config, lookup)
        topic.append(parts(publisher._export(lane_of(auc.PairOGD(), seen)), 200))
    topic.append(parts(random.Random(1).randbytes(5000))[:-1])
    found = await read_model(config, lookup)
    assert found is not None
    assert found.model.slots == 2


def test_the_steps_in_front_of_a_learner_are_published_with_it() -> None:
    pipeline = preprocessing.StandardScaler() | auc.PairOGD()
    pipeline.learn_one({"a": 1.0}, True)
    config = config_of()
    publisher = ModelPublisher(config, Topic())  # type: ignore[arg-type]
    found = Assembler(config).load(publisher._export(lane_of(pipeline, 1)))
    assert found.model.steps == ("StandardScaler",)


def test_a_learner_that_cannot_be_exported_is_refused() -> None:
    check_exportable(auc.PairOGD())

    class Unexportable(auc.PairOGD):
        def score_one(self, x: Any) -> float:
            return 1.0

    with pytest.raises(ConfigError, match="the model cannot be published") as caught:
        check_exportable(Unexportable())
    assert "learner.scoring" in str(caught.value)


# Publishing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_when_a_model_is_due() -> None:
    clock = Clock()
    publisher = ModelPublisher(config_of(), Topic(), host=Host(clock))  # type: ignore[arg-type]
    lane = lane_of(auc.PairOGD(), 0)

    def learned(seen: int) -> bool:
        lane.logged_lane.slots = seen
        return publisher.due(lane)

    async def publish(seconds: float) -> None:
        export = publisher._export
        publisher._export = lambda lane: (setattr(clock, "now", clock.now + seconds), export(lane))[1]  # type: ignore[method-assign]
        await publisher.publish(lane)
        publisher._export = export  # type: ignore[method-assign]

    assert learned(0), "the first one, of nothing"
    asyncio.run(publish(30.0))
    assert not learned(0), "the same one again"
    assert learned(1), "the first export compiles: its time does not count"
    asyncio.run(publish(0.01))
    assert not learned(2) or clock.now - publisher._published >= 0.02
    clock.now += 0.03
    assert learned(2), "twice as many, after twice its time"
    lane.logged_lane.slots = 1000
    asyncio.run(publish(0.1))
    clock.now += 1.9
    assert not learned(1099), "a twentieth of the time would be 2 s"
    assert learned(1100), "a tenth more records"
    clock.now += 0.2
    assert learned(1001)
    asyncio.run(publish(2.0))
    clock.now += 4.9
    assert not learned(1002), "it would be 40 s"
    clock.now += 0.2
    assert learned(1002), "at most 5 s"
    inline = parse_config({"app": "a", "input": {"topic": "t", "label": "y"}, "learner": {"class": "a.b"}})
    assert not ModelPublisher(inline, Topic()).due(lane)  # type: ignore[arg-type]


async def test_a_model_is_published_again_while_scorers_go_on_and_no_record_comes() -> None:
    """It says up to where scores are, which is what tells that Kafka has forgotten it."""
    scored, reads = {0: 3, 1: 6}, 0

    async def read(settings: Any, group: str, places: Sequence[Partition], *, stable: bool) -> Any:
        nonlocal reads
        reads += 1
        return {place: SimpleNamespace(offset=scored[place.partition]) for place in places}

    clock, topic, sent = Clock(), Topic(), []
    cluster = Cluster(read_register=read)
    publisher = ModelPublisher(config_of(), topic, host=Host(clock), cluster=cluster)  # type: ignore[arg-type]
    lane = lane_of(auc.PairOGD(), 5, sent, p0=5, p1=6)
    await publisher.begin(lane)
    await publisher.publish(lane)

    async def due_later() -> bool:
        clock.now += 5.1
        publisher.due(lane)
        if publisher._reading is not None:
            await publisher._reading
        return publisher.due(lane)

    assert not publisher.due(lane)
    assert not await due_later(), "no scorer has gone on"
    scored[0] = 5
    assert await due_later()
    await publisher.publish(lane)
    assert publisher._scored == {0: 5, 1: 6}
    before = reads
    assert not await due_later()
    assert reads == before, "all is scored"
    await publisher.stop()


async def test_a_topic_that_its_owner_trims_meanwhile_is_read_again() -> None:
    config, models = config_of(), []
    lookup: Any = Topic()
    for seen in (1, 2, 3):
        models.append(parts(ModelPublisher(config, lookup)._export(lane_of(auc.PairOGD(), seen))))
    assert len(models[0]) == 2  # the first try ends between them
    topic: Any = TrimmedMeanwhile(len(models[0]), len(models[0]) + len(models[1]))
    for messages in models:
        topic.append(messages)
    found = await read_model(config, topic)
    assert found is not None
    assert found.model.slots == 3

    topic = TrimmedMeanwhile(0)
    topic.append(models[0])
    with pytest.raises(SourceError, match="refused to read"):
        await read_model(config, topic)


async def test_where_scorers_begin_is_kept_over_restarts() -> None:
    topic, config = Topic(), config_of()
    lookup: Any = topic
    for p0, p1 in ((5, 6), (50, 60)):
        publisher, sent = ModelPublisher(config, lookup), []
        lane = lane_of(auc.PairOGD(), p0, sent, p0=p0, p1=p1)
        await publisher.begin(lane)
        await publisher.publish(lane)
        (target, messages), *_ = sent
        assert target == Partition("a-model", 0)
        topic.append(split_messages(messages, 200, 10**6))
        found = await read_model(config, lookup)
        assert found is not None
        assert found.positions == {0: p0, 1: p1}
        assert found.scored_until == {0: 5, 1: 6}, "where the lane was when it had scored last"


@pytest.mark.parametrize("seed", range(20))
async def test_a_trim_leaves_the_newest_model_whole(seed: int) -> None:
    """Whatever is on its way when the end of the topic is asked for."""
    coin = random.Random(seed)
    topic, clock = Topic(), Clock()
    lookup: Any = topic
    publisher = ModelPublisher(config_of(), lookup, host=Host(clock))
    publisher._topic = topic  # type: ignore[assignment]
    way: list[Message] = []  # of a model that is being sent
    newest = b""
    trimmed = 0

    async def spans(partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        topic.append(way[: (count := coin.randrange(len(way) + 1))])
        del way[:count]
        return {0: (topic.start, len(topic.records))}

    topic.spans = spans  # type: ignore[method-assign]
    for _ in range(40):
        if coin.random() < 0.6:
            data = coin.randbytes(3000)
            way += parts(data)
            if coin.random() < 0.5:
                # Trimmed while it is sent: the commit before has ended.
                clock.now += 11
                publisher.committed()
                await publisher.stop()
            publisher._count += 1
            topic.append(way)
            way.clear()
            newest = data
        clock.now += coin.choice([1, 11])
        publisher.committed()
        await publisher.stop()
        trimmed = max(trimmed, topic.start)
        assert not newest or topic.models()[-1] == newest
    assert trimmed > 0
    assert len(topic.models()) < 15


# Who sends what


@pytest.mark.parametrize("scoring", ["inline", "parallel"])
def test_the_lane_sends_what_scorers_do_not(scoring: str) -> None:
    sent: list[Any] = []
    lane = lane_of(auc.PairOGD(), 0, sent)
    outputs = Outputs(config_of(learner={"scoring": scoring}), Routes({"a-scores": 1, "a-dead-letters": 1}))
    stages = ["decode", "features", "label", "learn"]
    records = [OrderedRecord(offset, b"x", timestamp=1, partition=0, position=offset) for offset in range(5)]
    letters = [DeadLetter(offset, None, b"x", 0, stage, "why") for offset, stage in enumerate(stages)]
    scored = [Scored(offset, None, None, None, "dead_letter") for offset in range(4)]
    output = LaneOutput([*scored, Scored(4, None, None, 0.5, "learned")], letters, 5)
    asyncio.run(outputs.send(lane, records, output))
    found = {target.topic: messages for target, messages in sent}
    sent_stages = [dict(m.headers)["streampair.stage"].decode() for m in found["a-dead-letters"]]
    assert len(found.get("a-scores", [])) == (5 if scoring == "inline" else 0)
    assert sent_stages == (stages if scoring == "inline" else ["label", "learn"])
    assert lane.bad_count == len(sent_stages)


# Configuration


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"worker": {"roles": ["score"]}}, "leaves nothing to do"),
        ({"worker": {"roles": []}}, "roles"),
        (
            {"learner": {"class": "a.B", "scoring": "parallel"}, "output": {"model_topic": "t"}},
            "different names",
        ),
        (
            {"learner": {"class": "a.B", "scoring": "parallel"}, "output": {"topic": "a-model"}},
            "different names",
        ),
        ({"learner": {"class": "a.B", "scoring": "both"}}, "scoring"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    good = {"app": "a", "input": {"topic": "t", "label": "y"}, "learner": {"class": "a.B"}}
    parse_config(good)
    with pytest.raises(ConfigError, match=words):
        parse_config({**good, **change})


def test_topics_and_groups_of_scoring_in_parallel() -> None:
    config = config_of()
    assert (config.model_topic, config.scorers_group) == ("a-model", "a.scorers")
    inline = config_of(learner={"scoring": "inline"})
    assert inline.model_topic is None
    assert config_of(learner={"scoring": "inline"}, output={"model_topic": "m"}).model_topic == "m"
