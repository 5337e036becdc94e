"""Before a worker takes events it compiles what a lane needs: none of it is left for the first events."""

from __future__ import annotations

import json
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import programs
from harness.worker_process import WorkerProcess
from streampair_connectors.worker import factory

from streampair import auc, metric, ranking
from streampair.kernels import _jit
from streampair.privacy.pipeline_check import class_name

pytestmark = pytest.mark.skipif(_jit.DISABLED, reason="with NUMBA_DISABLE_JIT nothing is compiled")

CODE = """
import importlib, json, pkgutil, time
import streampair.kernels as kernels
from streampair.engine import ExternalState, LaneId, Record
from streampair.kernels import Kernel
from streampair.privacy import NoiseKey
from streampair_connectors.worker import factory
from streampair_connectors.config import parse_config
from streampair_connectors.codecs.records import json_decoder

class Clock:
    later = 0.0

    def monotonic(self):
        return time.monotonic() + self.later

config, values, how, minutes = json.loads(ORDER)
config = parse_config(config)
if how == "the learner alone":
    learner = factory.build_learner(config, noise_key=NoiseKey(bytes(32)))
    x = dict.fromkeys(config.input.feature_names(), 0.5)
    for y in (True, False, True):
        learner.score_one(x)
        learner.learn_one(x, y)
elif how == "warm":
    if minutes:
        # As on a machine that compiles for minutes: the clock runs on, and numba says that it compiles.
        from numba.core import event

        clock, process = Clock(), factory.LoggedLane.process

        def slowly(lane, records):
            if clock.later < 60 * minutes:
                event.start_event("numba:compile")
                clock.later += 60.0
                event.end_event("numba:compile")
            return process(lane, records)

        factory.LoggedLane.process, factory.time = slowly, clock
    factory.warm_up(config)
    if minutes:
        factory.LoggedLane.process, factory.time = process, time

def ready():
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"streampair.kernels.{name}") for name in names]
    found = {id(k): k for module in modules for k in vars(module).values() if isinstance(k, Kernel)}
    return {(k.__name__, str(s)) for k in found.values() for s in k.overloads}

before = ready()
def lane_of():
    key = NoiseKey(bytes(32))
    identity = LaneId(config.app, "events", 0)
    return factory.build_logged_lane(config, json_decoder(config.input), identity, noise_key=key)

lane = lane_of()
lane.read(b"")
lane.start(ExternalState(registers=False))
done = 0
while done < len(values):
    count = 50 if lane.room is None else min(50, lane.room)
    lane.process([Record(i, values[i].encode()) for i in range(done, min(done + count, len(values)))])
    done += count
    lane.commit()
    lane.committed()
lane.gauges(solve=True)
assert lane.gauges().events["learned"] == len(values)
if lane.privacy is not None:
    assert lane.privacy.releases >= 2
again = lane_of()
again.read(b"")
again.restore(lane.snapshot())
again.gauges(solve=True)
print(json.dumps(sorted({name for name, _ in ready() - before})))
"""

NAMES = ["a", "b", "c", "d"]
PRIVATE = {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000, "warmup": 50}


def compiled_late(
    learner: str,
    options: dict[str, Any],
    start: str,
    *,
    count: int = 300,
    gaps: bool = False,
    minutes: int = 0,
) -> list[str]:
    """The kernels that a lane has to load or compile while it takes events, after a start of this kind."""
    coin = random.Random(1)
    config = {
        "app": "warm",
        "input": {"topic": "events", "label": "y", **({} if gaps else {"features": NAMES})},
        "learner": {"class": learner, "options": options},
    }
    values = []
    for _ in range(count):
        names = coin.sample(NAMES, coin.choice((1, 3, len(NAMES)))) if gaps else NAMES
        values.append(
            json.dumps({**{name: coin.uniform(-0.5, 0.5) for name in names}, "y": coin.random() < 0.5})
        )
    order = json.dumps([config, values, start, minutes])
    with tempfile.TemporaryDirectory() as folder:  # in a process that has called no kernel
        ended = programs.run(f"ORDER = {order!r}\n{CODE}", Path(folder))
    assert ended.code == 0, ended.errors
    return json.loads(ended.printed)  # type: ignore[no-any-return]


OPEN = {"epsilon": 1.0, "delta": 1e-6}  # without a horizon: its first model comes after some 1300 records


@pytest.mark.parametrize(
    ("learner", "options", "count"),
    [
        ("streampair.auc.PairOGD", {}, 300),
        ("streampair.auc.PairFTRL", PRIVATE, 300),
        ("streampair.auc.PairFTRL", OPEN, 3000),
        ("streampair.auc.Forest", {}, 300),
    ],
    ids=["PairOGD", "PairFTRL", "PairFTRL without a horizon", "Forest"],
)
def test_no_event_waits_for_a_kernel(learner: str, options: dict[str, Any], count: int) -> None:
    """A kernel that is loaded or compiled under the first events, which then wait for seconds."""
    assert compiled_late(learner, options, "warm", count=count) == []


@pytest.mark.parametrize("learner", ["streampair.auc.PairOGD", "streampair.auc.Forest"])
def test_no_event_that_lacks_features_waits_for_a_kernel(learner: str) -> None:
    """The kernels of records with gaps are others than those of whole ones."""
    assert compiled_late(learner, {}, "warm", gaps=True) == []


def test_minutes_of_compiling_do_not_end_the_warm_up() -> None:
    """A limit on its time that counts them leaves the first release, and its kernels, to the first events."""
    assert compiled_late("streampair.auc.PairFTRL", OPEN, "warm", count=3000, minutes=9) == []


def test_a_start_with_the_learner_alone_is_caught() -> None:
    """The mutant: a lane has kernels that its learner has not."""
    assert "auc_add_many" in compiled_late("streampair.auc.PairOGD", {}, "the learner alone")


def test_a_worker_that_compiles_stops_when_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor waits for seconds, and a first compilation may take a minute."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    # What lies beside the source is for another processor.
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+sse2")
    config = tmp_path / "warm.toml"
    config.write_text(
        'app = "warm"\nmetrics.address = "127.0.0.1:0"\nkafka.bootstrap_servers = "127.0.0.1:1"\n'
        '[input]\nlabel = "y"\nfeatures = ["a"]\n[learner]\nclass = "streampair.auc.PairFTRL"\n'
        "options = { epsilon = 1.0, delta = 1e-4, horizon = 1000 }\n"
    )
    with WorkerProcess(config) as worker:
        worker.await_log("compiling")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.log()
    events = [json.loads(line)["event"] for line in worker.lines]
    assert events == ["started", "compiling", "stopping", "stopped"]


def test_the_image_compiles_for_every_learner() -> None:
    learners = {f"{module.__name__}.{name}" for module in (auc, metric, ranking) for name in module.__all__}
    assert {path for path, _, _ in factory.LEARNERS_TO_COMPILE} == learners
    for path, options, more in factory.LEARNERS_TO_COMPILE:
        learner = factory.build_learner(factory.minimal_config(path, options, more))
        assert class_name(learner) == path
