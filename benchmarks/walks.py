"""How far a value travels through the code: files entered, and calls, of seven walks.

    python benchmarks/walks.py            # a table
    python benchmarks/walks.py --json     # for machines

Counts, not times: the same on every machine. Each walk is taken once before it is counted, so that imports,
caches and compilation are not in it. What counts are functions that are defined in a file of `streampair` or
`streampair_connectors` and called from Python. Compiled kernels are among them: numba reports them to a
profiler. What they call in turn is compiled with them and not seen; what a dataclass generates is in no file.
`tests/test_walks.py` holds the figures: a walk may only become shorter.

`files`
    distinct files in which a function was called;
`returns`
    how often the next call was in a file that the walk had been in and had left: what a reader who follows
    the calls has to open again;
`calls`
    calls of these functions, comprehensions too.

The walks:

`construct`
    ``auc.PairFTRL(1.0, 1e-6, 10_000, features=[...])``, up to its plan: from epsilon to sigma;
`gradients`
    the same with ``mechanism=privacy.PairGradients()``, whose sigma is that of correlated noise;
`deferred`
    the same without features, up to its first record, which names them;
`batch`
    100 events through `Lane.process`, with a private learner that is past its warm-up;
`commit`
    a commit of a lane whose log lies on a disk, up to where its line is durable;
`snapshot`
    the same with a snapshot;
`config`
    the text of a TOML file, up to the learner that it describes.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import _timing
import streampair_connectors
from streampair_connectors import config as configuration
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.stores import DirectoryStore
from streampair_connectors.worker import factory

import streampair
from streampair import auc, privacy
from streampair.engine import Event, Lane, LaneId, Record
from streampair.privacy import NoiseKey

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.driver import Driver

FEATURES = [f"x{i}" for i in range(8)]
BATCH = 100
#: Records before the batch and the commit that are counted: the warm-up is over then.
BEFORE = 3_000
_PACKAGES = tuple(
    str(Path(package.__file__).parent) for package in (streampair, streampair_connectors) if package.__file__
)

CONFIG = f"""
app = "walks"

[input]
topic = "events"
label = "y"
features = {FEATURES}

[learner]
class = "streampair.auc.PairFTRL"
options = {{ epsilon = 1.0, delta = 1e-6, horizon = 10_000 }}
"""


@dataclasses.dataclass
class Walk:
    """What was called, in order.

    Parameters
    ----------
    files
        The file of each call.
    """

    files: list[str] = dataclasses.field(default_factory=list)

    @property
    def returns(self) -> int:
        """Calls in a file that the walk had left."""
        left: set[str] = set()
        count, here = 0, ""
        for file in self.files:
            if file != here:
                count += file in left
                left.add(here)
                here = file
        return count

    def row(self) -> dict[str, int]:
        """The figures."""
        return {"files": len(set(self.files)), "returns": self.returns, "calls": len(self.files)}


def walked(step: Callable[[], object]) -> Walk:
    """Follow the calls of a function."""
    walk = Walk()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGES):
            walk.files.append(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        step()
    finally:
        sys.setprofile(None)
    return walk


def repeated(step: Callable[[], object]) -> Walk:
    """`walked` of the second time."""
    step()
    return walked(step)


def construct(**options: Any) -> auc.PairFTRL:
    """A learner, whose plan is made with it."""
    return auc.PairFTRL(1.0, 1e-6, 10_000, features=FEATURES, **options)


def deferred() -> None:
    """A learner whose first record names the features."""
    auc.PairFTRL(1.0, 1e-6, 10_000).learn_one(dict.fromkeys(FEATURES, 0.5), True)


def decode(record: Record) -> Event:
    """A record whose offset says all."""
    return Event(dict.fromkeys(FEATURES, (record.offset % 7) / 10), record.offset % 3 == 0)


def batches() -> Callable[[], object]:
    """A lane that is past its warm-up, and takes a batch."""
    learner = auc.PairFTRL(1.0, 1e-6, 10_000, features=FEATURES, noise_key=b"0" * 32)
    lane = Lane(learner, decode, LaneId("walks", "events", 0))
    lane.process([Record(offset, b"") for offset in range(BEFORE)])

    def step() -> None:
        start = lane.next_offset or 0
        lane.process([Record(start + i, b"") for i in range(BATCH)])

    return step


class DiskLane(Driver):
    """A lane of `CONFIG` whose log lies in a directory."""

    def __init__(self, directory: str) -> None:
        self.config = configuration.parse_config(tomllib.loads(CONFIG))
        self.key = NoiseKey(b"0" * 32)
        files = DirectoryStore(Path(directory)).open(self.config.lane_name)
        super().__init__(lambda: None, json_decoder(self.config.input), store=files)

    def new_lane(self) -> Any:
        identity = LaneId(self.config.app, "events", 0)
        return factory.build_logged_lane(self.config, self._decode, identity, noise_key=self.key)

    def extend(self, count: int) -> None:
        """Records that the lane has not taken yet."""
        fields = ", ".join(f'"{name}": 0.5' for name in FEATURES)
        done = len(self.topic)
        self.topic += [
            Record(offset, f'{{{fields}, "y": {"true" if offset % 3 else "false"}}}'.encode())
            for offset in range(done, done + count)
        ]


def commit(*, snapshot: bool) -> Walk:
    """The third commit of a lane, which has taken a batch since the one before."""
    with tempfile.TemporaryDirectory() as directory:
        driver = DiskLane(directory)
        for count in (BEFORE, BATCH, BATCH):
            driver.commit(snapshot=snapshot, when=1)
            driver.extend(count)
            driver.catch_up()
        walk = walked(lambda: driver.commit(snapshot=snapshot, when=1))
        driver.store.close()
    return walk


def configured() -> Any:
    """The learner of a TOML text."""
    return factory.build_learner(configuration.parse_config(tomllib.loads(CONFIG)))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Take the walks."""
    walks: dict[str, Callable[[], Walk]] = {
        "construct": lambda: repeated(construct),
        "gradients": lambda: repeated(lambda: construct(mechanism=privacy.PairGradients())),
        "deferred": lambda: repeated(deferred),
        "batch": lambda: repeated(batches()),
        "commit": lambda: commit(snapshot=False),
        "snapshot": lambda: commit(snapshot=True),
        "config": lambda: repeated(configured),
    }
    for name, take in walks.items():
        yield {"walk": name, **take().row()}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """The table."""
    columns = (("walk", "walk", "<12"), *((name, name, ">10") for name in ("files", "returns", "calls")))
    return _timing.table(columns, rows)


if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, {}, strict=True))
