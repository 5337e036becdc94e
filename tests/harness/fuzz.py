"""Feeds damaged input to everything that reads from outside: ``make fuzz``.

Good input is damaged at random: bytes are flipped, cut, inserted, repeated and exchanged, and values of
documents are replaced by others of any kind. What reads it may accept it, or refuse it with an error of
streampair. Anything else is a find: another exception, or a process that dies. Each case is a function of its
number, so that a find can be repeated.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import io
import json
import random
import sys
import tempfile
import tomllib
import urllib.request
import urllib.response
import warnings
from collections.abc import Callable, Sequence
from email.message import Message
from itertools import chain
from typing import Any

from streampair_connectors.codecs import formats
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.codecs.records import csv_decoder, json_decoder
from streampair_connectors.codecs.registry import SchemaRegistry, _NoRedirect
from streampair_connectors.config import InputConfig, SchemaRegistryConfig, load_config, parse_config
from streampair_connectors.worker.factory import build_lane, build_logged_lane

from streampair import auc, metric, models
from streampair.engine import ExternalState, LaneId, Record
from streampair.engine.snapshot import pack, unpack
from streampair.engine.wal import Chain, LogKey, Register
from streampair.errors import RecordError, StreampairError

NAMES = ["amount", "age", "card"]
EVENTS = [
    b'{"amount": 12.5, "age": 30, "card": "visa", "y": true, "id": "a1", "t": 17}',
    b'{"amount": -1e3, "age": null, "card": "mc", "y": 0, "id": 7, "nested": {"a": [1, 2, {"b": null}]}}',
    '{"amount": 3, "age": 1, "card": "\u00e9\\u0000\U0001f600", "y": null}'.encode(),
    b'{"before": null, "after": {"amount": 2, "id": 1, "y": true}, "op": "c", "ts_ms": 5, "note": "12:30"}',
    b'{"amount": "1.5", "age": 2, "y": 1, "y": 1, "nested": {"b": 2, "c": [{}]}, "\\u0061ge": 3}',
]
LINES = [b"12.5,30,visa,true,a1", b'1e3,,"a ""quoted"" text",0,7', b"-0,5,mc,1,"]
CONFIGURATION = b"""app = "fraud"
[kafka]
bootstrap_servers = "localhost:9092"
[input]
topic = "payments"
label = "bad"
features = { amount = [0, 100], card = ["debit", "credit"] }
[learner]
class = "streampair.auc.PairFTRL"
options = { epsilon = 1.0, delta = 1e-4, horizon = 1000 }
[output]
headers = ["traceparent"]
[worker]
batch_size = 20
"""
# What a value of a document is replaced by.
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63 - 1, -(2**63), 1e308, -0.0, "", "x", "\x00", "9" * 400),
    *([], {}, [1, "a"], {"a": 1}, [[0.0] * 3] * 3),
)


def damaged(coin: random.Random, data: bytes) -> bytes:
    """Good bytes after one to four changes."""
    for _ in range(coin.randint(1, 4)):
        place, other = coin.randrange(len(data) + 1), coin.randrange(len(data) + 1)
        first, last = min(place, other), max(place, other)
        data = coin.choice(
            [
                data[:place] + bytes([coin.randrange(256)]) + data[place + 1 :],
                data[:place] + bytes([coin.choice(b'\x00\xff"{}[],:0-.e\\\n')]) + data[place:],
                data[:place],
                data[:first] + data[last:],
                data[:last] + data[first:last] * coin.choice([1, 1, 50]) + data[last:],
                data[place:] + data[:place],
            ]
        )[:100_000]
    return data


def replaced(coin: random.Random, value: Any, share: float = 0.1) -> Any:
    """A document of which some values are others, are missing, or stand elsewhere."""
    if coin.random() < share:
        return coin.choice(VALUES)
    if isinstance(value, dict):
        items = [
            (key, replaced(coin, item, share)) for key, item in value.items() if coin.random() > share / 3
        ]
        if items and coin.random() < share:
            items.append((coin.choice(["", "x", items[0][0]]), coin.choice(VALUES)))
        return dict(items)
    if isinstance(value, list):
        items = [replaced(coin, item, share) for item in value if coin.random() > share / 3]
        return items * 2 if coin.random() < share / 3 else items
    return value


def record(value: bytes | None) -> Record:
    return Record(0, value, b"k", 1000)


@functools.cache
def decoders() -> list[Callable[[Any], Any]]:
    plain = InputConfig(label="y", id="id", features=["amount", "age"])
    declared: Any = {"amount": [0.0, 9.0], "card": ["visa", "mc"]}
    found = [
        json_decoder(plain),
        json_decoder(InputConfig(label="y", id="id", features=NAMES), gaps=True, texts=True),
        json_decoder(InputConfig(label="y", label_type="any"), gaps=True, texts=True),
        json_decoder(InputConfig(label="y", features=declared)),
        json_decoder(InputConfig(label="y", id="id", features=["amount", "nested.b"]), gaps=True),
        json_decoder(InputConfig(label="y", id="id", features=["amount"], envelope="debezium")),
        json_decoder(InputConfig(label="y", features=["amount", "age"], fields={"amount": "number"})),
    ]
    header = [*NAMES, "y", "id"]
    found += [csv_decoder(plain, header), csv_decoder(plain, header, gaps=True)]
    return found


def events(coin: random.Random) -> None:
    """Events one by one, and in a batch: the same values, or the same refusals."""
    decode = coin.choice(decoders())
    good = LINES if decode in decoders()[-2:] else EVENTS
    values = [damaged(coin, each) if coin.random() < 0.7 else each for each in coin.choices(good, k=4)]
    alone: list[Any] = []
    for value in values:
        try:
            alone.append(decode(record(value)))
        except RecordError as error:
            alone.append(str(error))
    many = getattr(decode, "many", None)
    rows = None if many is None else many([record(value) for value in values])
    if rows is None:
        return
    for i, each in enumerate(alone):
        refusal = (rows.refused or {}).get(i)
        if isinstance(each, str):
            assert str(refusal) == each, (values[i], each, refusal)
            continue
        assert refusal is None, (values[i], each, refusal)
        x = dict(zip(rows.names, rows.values[i].tolist(), strict=True))
        assert repr(x) == repr({str(k): float(v) for k, v in each.x.items()}), values[i]
        assert repr(rows.labels[i]) == repr(each.y), values[i]
        assert rows.ids is None or rows.ids[i] == each.id, values[i]


@functools.cache
def label_readers() -> tuple[Any, Any]:
    config = parse_config(
        {
            "app": "fraud",
            "input": {"features": ["amount"]},
            "label_input": {"topic": "labels", "id": "id", "label": "y", "after": "30d"},
            "learner": {"class": "streampair.auc.PairOGD"},
        }
    )
    return LabelDecoder(config), event_ids(config)


def labels(coin: random.Random) -> None:
    """Messages of a labels topic, and the ids of events."""
    decode, ids = label_readers()
    found = record(damaged(coin, coin.choice(EVENTS)))
    ids([found])
    decode.many([found])
    decode(found)


def configurations(coin: random.Random) -> None:
    """Configurations as files, and as documents whose values are others."""
    if coin.random() < 0.5:
        with tempfile.NamedTemporaryFile(suffix=".toml") as file:
            file.write(damaged(coin, CONFIGURATION))
            file.flush()
            load_config(file.name)
    else:
        table = tomllib.loads(CONFIGURATION.decode())
        share = coin.choice([0.01, 0.03, 0.1])
        parse_config({key: replaced(coin, item, share) for key, item in table.items()})


@functools.cache
def learned() -> list[Any]:
    """Learners of some records, with all that a document of a model can have."""
    coin = random.Random(1)
    makers = [
        lambda: auc.PairOGD(),
        lambda: auc.Forest(trees=3),
        lambda: metric.PairOGD(),
        lambda: auc.PairFTRL(1.0, 1e-3, 1000, warmup=20, window=10),
    ]
    made = []
    for make in makers:
        learner = make()
        for _ in range(80):
            y = coin.random() < 0.5
            learner.learn_one({name: coin.gauss(float(y), 1.0) for name in NAMES}, y)
        made.append(learner)
    return made


@functools.cache
def documents() -> list[bytes]:
    return [models.dumps(learner) for learner in learned()]


def model_files(coin: random.Random) -> None:
    """Models as files: one that is accepted scores, explains and describes itself."""
    data = coin.choice(documents())
    if coin.random() < 0.5:
        model = models.loads(damaged(coin, data))
    else:
        model = models.loads(
            json.dumps(replaced(coin, json.loads(data), coin.choice([0.0003, 0.002, 0.01]))).encode()
        )
    model.score_one(dict.fromkeys(NAMES, 0.5))
    repr(model)
    model.score_one({"amount": "text", "unknown": 1.0})


LEARNERS: tuple[dict[str, Any], ...] = (
    {"class": "streampair.auc.PairOGD"},
    {
        "class": "streampair.auc.PairFTRL",
        "options": {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000, "seed": 1},
    },
)


@functools.cache
def lane_config(number: int) -> Any:
    table = {"app": "fuzz", "input": {"label": "y", "features": ["amount", "age"]}}
    return parse_config({**table, "learner": LEARNERS[number]})


def new_lane(number: int) -> Any:
    config = lane_config(number)
    return build_lane(config, json_decoder(config.input))


@functools.cache
def snapshot(number: int) -> bytes:
    lane = new_lane(number)
    lane.process([Record(n, EVENTS[0]) for n in range(30)])
    return bytes(lane.snapshot())


def snapshots(coin: random.Random) -> None:
    """Snapshots with damaged bytes, and with values that are others under a checksum that is right."""
    number = coin.randrange(len(LEARNERS))
    lane = new_lane(number)
    if coin.random() < 0.5:
        lane.restore(damaged(coin, snapshot(number)))
    else:
        lane.restore(pack(replaced(coin, unpack(snapshot(number)), coin.choice([0.0005, 0.003, 0.02]))))


@functools.cache
def log() -> bytes:
    """The log of a lane with some entries."""
    config = lane_config(1)
    lane = build_logged_lane(config, json_decoder(config.input), LaneId(config.app, "events", 0))
    lane.read(b"")
    appended = [lane.start(ExternalState(registers=False))[0]]
    for first in (0, 20, 40):
        output = lane.process([Record(first + n, EVENTS[0]) for n in range(20)])
        appended += [[output.line], [lane.commit()]]
        lane.committed()
    return b"".join(chain.from_iterable(each.frames for part in appended for each in part if each))


def logs(coin: random.Random) -> None:
    """Logs of lanes, and registers."""
    key = LogKey()
    text = Register(3, "00" * 16, "", 1, 2, 30, 0, void=False).text(key)
    if coin.random() < 0.5:
        Register.read(key, damaged(coin, text.encode()).decode("utf-8", "replace"))
    else:
        Register.read(key, json.dumps(replaced(coin, json.loads(text))))
    frames = damaged(coin, log())
    Chain.peek(frames)
    config = lane_config(1)
    build_logged_lane(config, json_decoder(config.input), LaneId(config.app, "events", 0)).read(frames)


class Answers(urllib.request.HTTPHandler):
    """Answers in place of a registry: whatever it has for a path, with a status."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[int, bytes]] = {}

    def http_open(self, request: urllib.request.Request) -> Any:
        status, body = self.answers.get(request.selector, (404, b'{"error_code": 40403}'))
        answer = urllib.response.addinfourl(io.BytesIO(body), Message(), request.full_url, status)
        answer.msg = "answer"  # type: ignore[attr-defined]  # as http.client sets it
        return answer


@functools.cache
def registry() -> tuple[SchemaRegistry, Answers]:
    """The client, whose requests end in this process: a connection for each case would take minutes."""
    answers = Answers()
    client = SchemaRegistry(SchemaRegistryConfig(url="http://registry"))
    client._open = urllib.request.build_opener(_NoRedirect(), answers).open
    return client, answers


def reference(version: Any) -> dict[str, Any]:
    return {"name": f"test.V{version}", "subject": "other", "version": version}


AVRO = InputConfig(label="y", features=["amount", "age"], format="avro")
FIELDS = [{"name": "amount", "type": "double"}, {"name": "age", "type": ["null", "int"], "default": None}]
SCHEMA = {"type": "record", "name": "Event", "namespace": "test", "fields": FIELDS}


def registries(coin: random.Random) -> None:
    """Answers of a registry: damaged, of wrong shape or status, and with references in circles."""
    client, answers = registry()
    answers.answers.clear()
    for path, version in (
        ("/schemas/ids/7", 1),
        ("/subjects/other/versions/1", 2),
        ("/subjects/other/versions/2", 1),
    ):
        schema: Any = {**SCHEMA, "name": path[1:8] + str(version)}
        if coin.random() < 0.3:
            schema = replaced(coin, schema)
        found: Any = {"id": 7, "schema": json.dumps(schema), "references": [reference(version)]}
        if coin.random() < 0.3:
            del found["references"]
        if coin.random() < 0.6:
            found = replaced(coin, found, coin.choice([0.05, 0.3]))
        body = json.dumps(found).encode()
        if coin.random() < 0.3:
            body = damaged(coin, body)
        if coin.random() < 0.02:
            body = coin.choice(
                [b"[" * 100_000, b"9" * 5_000, b'{"references": [' + b"[" * 50_000, b'"\\ud800"']
            )
        status = coin.choice([200] * 12 + [201, 204, 301, 401, 404, 409, 500])
        answers.answers[path] = status, body
        if path.startswith("/schemas"):
            answers.answers["/subjects/scores"] = answers.answers["/subjects"] = status, body
            answers.answers["/subjects/scores/versions"] = coin.choice([200, 409, 422]), body
    kind = coin.randrange(4)
    if kind == 0:
        client.register("scores", "{}")
    elif kind == 1:
        client.check()
    else:
        try:
            schema = formats._compiled(*client.schema(7))
        except formats._SchemaError:
            return
        message = b"\0\0\0\0\7" + coin.randbytes(coin.randrange(12))
        formats.row_reader(schema, AVRO, formats.FRAME)
        formats.avro_reader(schema, formats.FRAME)(message)


TARGETS: dict[str, Callable[[random.Random], None]] = {
    "events": events,
    "labels": labels,
    "configurations": configurations,
    "models": model_files,
    "snapshots": snapshots,
    "logs": logs,
    "registry": registries,
}


def case(target: str, number: int) -> str | None:
    """What a case has found; None: nothing."""
    try:
        TARGETS[target](random.Random(f"{target} {number}"))
    except StreampairError:
        return None
    except BaseException as error:  # a panic of a compiled library is none of Exception
        return f"{target} {number}: {type(error).__name__}: {error}"
    return None


def cases(target: str, numbers: Sequence[int]) -> list[str]:
    """What some cases have found."""
    warnings.simplefilter("ignore")
    return [found for number in numbers if (found := case(target, number)) is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many cases of each target, in two processes, and print the finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of each target")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    options = parser.parse_args(arguments)
    finds = 0
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for target in options.targets:
            blocks = [
                range(start, min(start + 500, options.first + options.cases))
                for start in range(options.first, options.first + options.cases, 500)
            ]
            found = [each for part in pool.map(cases, [target] * len(blocks), blocks) for each in part]
            finds += len(found)
            print(f"{target}: {options.cases} cases, {len(found)} found", *found[:10], sep="\n  ", flush=True)
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
