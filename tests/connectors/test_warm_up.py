"""Before a worker takes events it compiles what a lane needs: none of it is left for the first events."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import support
from harness.worker_process import WorkerProcess

from streampair.kernels import _jit

pytestmark = pytest.mark.skipif(_jit.DISABLED, reason="with NUMBA_DISABLE_JIT nothing is compiled")

CODE = """
import importlib, json, pkgutil, sys
import streampair.kernels as kernels
from streampair.engine import Facts, Record
from streampair.kernels import Kernel
from streampair.privacy import NoiseKey
from streampair_connectors import assemble
from streampair_connectors.config import parse_config
from streampair_connectors.records import json_decoder

config, values, how = json.load(sys.stdin)
config = parse_config(config)
if how == "the learner alone":
    learner = assemble.build_learner(config, noise_key=NoiseKey(bytes(32)))
    x = dict.fromkeys(config.input.feature_names(), 0.5)
    for y in (True, False, True):
        learner.score_one(x)
        learner.learn_one(x, y)
elif how == "warm":
    assemble.warm_up(config)

def ready():
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"streampair.kernels.{name}") for name in names]
    found = {id(k): k for module in modules for k in vars(module).values() if isinstance(k, Kernel)}
    return {(k.__name__, str(s)) for k in found.values() for s in k.overloads}

before = ready()
lane = assemble.build_logged_lane(
    config, json_decoder(config.input), topic="events", partition=0, noise_key=NoiseKey(bytes(32))
)
lane.read(b"")
lane.start(Facts(registers=False))
for at in range(0, len(values), 50):
    lane.process([Record(i, values[i].encode()) for i in range(at, min(at + 50, len(values)))])
lane.gauges(solve=True)
assert lane.gauges().events["learned"] == len(values)
print(json.dumps(sorted({name for name, _ in ready() - before})))
"""

NAMES = ["a", "b", "c"]
PRIVATE = {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000, "warmup": 50}


def compiled_late(learner: str, options: dict[str, Any], how: str) -> list[str]:
    """The kernels that a lane has to load or compile while it takes events, after a start of this kind."""
    coin = random.Random(1)
    config = {
        "app": "warm",
        "input": {"topic": "events", "label": "y", "features": NAMES},
        "learner": {"class": learner, "options": options},
    }
    values = [
        json.dumps({**{name: coin.uniform(-0.5, 0.5) for name in NAMES}, "y": coin.random() < 0.5})
        for _ in range(300)
    ]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps([config, values, how]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support.ROOT / "tests"), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("learner", "options"),
    [("streampair.auc.PairOGD", {}), ("streampair.auc.PairFTRL", PRIVATE), ("streampair.auc.Forest", {})],
    ids=["PairOGD", "PairFTRL", "Forest"],
)
def test_no_event_waits_for_a_kernel(learner: str, options: dict[str, Any]) -> None:
    assert compiled_late(learner, options, "warm") == []


def test_a_start_with_the_learner_alone_is_caught() -> None:
    assert "sample_take" in compiled_late("streampair.auc.PairOGD", {}, "the learner alone")


def test_a_worker_that_compiles_stops_when_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor waits for seconds, and a first compilation may take a minute."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    config = tmp_path / "warm.toml"
    config.write_text(
        'app = "warm"\nmetrics.port = 0\nkafka.bootstrap_servers = "127.0.0.1:1"\n'
        '[input]\nlabel = "y"\nfeatures = ["a"]\n[learner]\nclass = "streampair.auc.PairFTRL"\n'
        "options = { epsilon = 1.0, delta = 1e-4, horizon = 1000 }\n"
    )
    with WorkerProcess(config) as worker:
        worker.await_log("compiling")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.log()
    told = [json.loads(line)["event"] for line in worker.lines]
    assert told == ["started", "compiling", "stopping", "stopped"]
