"""Snapshots: what goes in comes out; what is damaged, foreign or forged does not."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import lanes
from harness.driver import Driver
from harness.support import in_one_case
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from river import linear_model, preprocessing

from streampair import auc
from streampair.engine import LaneId, Monitoring, RegretConfig, Saving
from streampair.engine import snapshot as envelope
from streampair.engine.snapshot import pack, unpack
from streampair.errors import ConfigError, LaneStoppedError, SnapshotError

arrays = st.sampled_from(["bool", "int8", "int32", "int64", "uint8", "uint64", "float32", "float64"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
            and b.flags.writeable
            and b.flags.c_contiguous
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))


@settings(deadline=None)
@given(tree=st.dictionaries(st.text(), trees, max_size=4), signed=st.booleans())
def test_what_goes_in_comes_out(tree: dict[str, Any], signed: bool) -> None:
    """A value, or a bit of it, that a snapshot changes."""
    key = lanes.KEY if signed else None
    data = pack(tree, signing_key=key)
    assert same(tree, unpack(data, signing_keys=[] if key is None else [key]))
    assert pack(tree, signing_key=key) == data


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {3}, object(), np.float64(1.0), np.array(["a"]), np.array([1j]), np.array([None])],
)
def test_anything_else_is_refused_when_written(value: Any) -> None:
    with pytest.raises(SnapshotError, match=r"body\.state.*cannot be saved"):
        pack({"state": value})


SIGNED = Saving(signing_keys=[lanes.KEY])
REGRET = Monitoring(regret=RegretConfig())


def snapshot(**options: Any) -> bytes:
    driver = Driver(lanes.pair_ogd, **options)
    driver.feed(lanes.stream(20))
    return driver.lane.snapshot()


def restore(data: bytes, make: Any = lanes.pair_ogd, **options: Any) -> None:
    Driver(make, **options).lane.restore(data)


def test_every_changed_byte_is_noticed() -> None:
    data = snapshot()
    rng = np.random.default_rng(0)
    header = 11 + 2 + 1 + 32 + 32
    tag = range(header - 32, header)  # all zeros where there is no key: nothing depends on it
    for position in [*range(header), *rng.integers(header, len(data), 300).tolist()]:
        if position in tag:
            continue
        with pytest.raises(SnapshotError):
            restore(
                data[:position] + bytes([data[position] ^ 1 << int(rng.integers(8))]) + data[position + 1 :]
            )


def test_every_changed_byte_of_a_signed_snapshot_is_noticed() -> None:
    data = snapshot(saving=SIGNED)
    for position in range(0, 200):
        with pytest.raises(SnapshotError):
            restore(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :], saving=SIGNED)


def test_a_truncated_snapshot_is_refused_wherever_it_ends() -> None:
    data = snapshot()
    for size in [*range(0, 100), len(data) // 2, len(data) - 1]:
        with pytest.raises(SnapshotError) as caught:
            restore(data[:size])
        assert "Fix:" in str(caught.value)
    with pytest.raises(SnapshotError, match="damaged"):
        restore(data + b"\x00")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"{}", "does not begin like one"),
        (pickle.dumps({"a": 1}), "does not begin like one"),
    ],
)
def test_what_is_no_snapshot_is_called_so(data: bytes, message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        restore(data)


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_version_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(envelope, "FORMAT_VERSION", version)
    other = snapshot()
    monkeypatch.undo()
    with pytest.raises(SnapshotError, match=rf"format version {version}, this release reads 1.*newer one"):
        restore(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"identity": LaneId("other", "events", 0)}, "belongs to app 'other'"),
        (
            {"identity": LaneId("test", "other", 0)},
            "topic 'other', partition 0; this lane is app 'test', topic 'events'",
        ),
        ({"identity": LaneId("test", "events", 1)}, "partition 1; this lane"),
        (
            {"saving": Saving(fingerprint="abc")},
            r"configuration changed.*the fingerprint was 'abc', now it is ''",
        ),
        ({"saving": SIGNED}, None),  # a signed one is readable without the key: it holds no pickle
    ],
)
def test_a_snapshot_of_another_lane_is_refused(options: dict[str, Any], message: str | None) -> None:
    data = snapshot(**options)
    if message is None:
        restore(data)
        return
    with pytest.raises(SnapshotError, match=message):
        restore(data)


def test_a_snapshot_of_another_model_is_refused() -> None:
    data = snapshot()
    with pytest.raises(SnapshotError, match=r"PairOGD \(PairOGD\), this lane has StandardScaler"):
        restore(
            snapshot(saving=SIGNED),
            lambda: preprocessing.StandardScaler() | lanes.pair_ogd(),
            saving=lanes.SAVING,
        )
    with pytest.raises(SnapshotError, match="radius"):
        restore(data, lambda: auc.PairOGD(seed=3, radius=3.0))


def test_a_lane_with_a_key_takes_only_its_own_signature() -> None:
    with pytest.raises(SnapshotError, match="not signed"):
        restore(snapshot(), saving=SIGNED)
    with pytest.raises(SnapshotError, match="signature of the snapshot does not match"):
        restore(snapshot(saving=Saving(signing_keys=[b"another key of enough bytes"])), saving=SIGNED)


def test_a_signing_key_can_be_changed() -> None:
    """The first key signs, all of them are tried; without the old one its snapshots are refused."""
    new = b"a new key of enough bytes"
    old = snapshot(saving=SIGNED)
    driver = Driver(lanes.pair_ogd, saving=Saving(signing_keys=[new, lanes.KEY]))
    driver.lane.restore(old)
    written = driver.lane.snapshot()
    assert same(unpack(written, signing_keys=[new]), unpack(written))
    with pytest.raises(SnapshotError, match="signature of the snapshot does not match"):
        unpack(written, signing_keys=[lanes.KEY])
    with pytest.raises(SnapshotError, match="signature of the snapshot does not match"):
        restore(old, saving=Saving(signing_keys=[new]))


def test_a_short_key_signs_nothing() -> None:
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        pack({}, signing_key=b"short")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        Saving(signing_keys=[b"short"])


class Payload:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def forged(path: Path, *, key: bytes | None) -> bytes:
    """A snapshot of a LogisticRegression lane whose pickle is hostile, with every checksum right."""
    driver = Driver(linear_model.LogisticRegression, saving=lanes.SAVING)
    driver.feed(lanes.stream(5))
    body = unpack(driver.lane.snapshot())
    body["steps"][0]["data"] = pickle.dumps(Payload(path))
    return pack(body, signing_key=key)


@pytest.mark.parametrize(
    ("written_with", "message"),
    [(None, "not signed"), (b"the key of somebody else", "signature of the snapshot does not match")],
)
def test_a_hostile_pickle_is_never_loaded(tmp_path: Path, written_with: bytes | None, message: str) -> None:
    data = forged(tmp_path / "pwned", key=written_with)
    with pytest.raises(SnapshotError, match=message):
        restore(data, linear_model.LogisticRegression, saving=lanes.SAVING)
    # A valid signature of an honest snapshot does not carry over to another body.
    honest = forged(tmp_path / "x", key=lanes.KEY)
    head = data[: 11 + 3] + data[14:46] + honest[46:78] + data[78:]
    with pytest.raises(SnapshotError):
        restore(head, linear_model.LogisticRegression, saving=lanes.SAVING)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_in_place_of_our_own_state_is_never_loaded(tmp_path: Path) -> None:
    body = unpack(snapshot())
    body["steps"][0] |= {"kind": "pickle", "data": pickle.dumps(Payload(tmp_path / "pwned"))}
    with pytest.raises(SnapshotError, match="was saved as 'pickle'"):
        restore(pack(body))
    assert list(tmp_path.iterdir()) == []


def test_a_lane_that_will_not_be_saved_still_loads_no_pickle(tmp_path: Path) -> None:
    for key in (None, lanes.KEY):
        with pytest.raises(SnapshotError, match="nothing vouches for it"):
            restore(forged(tmp_path / "pwned", key=key), linear_model.LogisticRegression, saving=None)
    assert list(tmp_path.iterdir()) == []


def test_the_mutant_would_have_been_caught(tmp_path: Path) -> None:
    """The payload does fire when it is loaded: the tests above would see a lane that unpickles too early."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "pwned")))
    assert [f.name for f in tmp_path.iterdir()] == ["pwned"]


def test_a_model_that_cannot_be_pickled_is_refused_at_the_start() -> None:
    def local() -> Any:
        class Local(linear_model.LogisticRegression):
            pass

        return Local()

    with pytest.raises(ConfigError, match="cannot be pickled"):
        Driver(local, saving=lanes.SAVING)


def test_restore_is_for_a_fresh_lane() -> None:
    driver = Driver(lanes.pair_ogd)
    driver.feed(lanes.stream(5))
    data = driver.lane.snapshot()
    with pytest.raises(SnapshotError, match="already processed"):
        driver.lane.restore(data)


@pytest.mark.parametrize(
    "part", ["steps", "auc", "regret", "next_offset", "events", "bad", "clean", "outside"]
)
@in_one_case("value", ["missing", 7, "text", []])
def test_a_body_with_the_wrong_parts_is_a_clear_error(part: str, value: Any) -> None:
    body = unpack(snapshot(monitoring=REGRET))
    if value == "missing":
        del body[part]
    else:
        body[part] = value
    driver = Driver(lanes.pair_ogd, monitoring=REGRET)
    if (part, value) in [("next_offset", 7), ("bad", []), ("steps", [])]:
        return  # right types; that no step is missing is checked elsewhere
    with pytest.raises(SnapshotError):
        driver.lane.restore(pack(body))
    with pytest.raises(LaneStoppedError, match="middle of"):
        driver.feed(lanes.stream(1))


def test_the_layout_is_the_documented_one() -> None:
    data = pack({"a": 1}, signing_key=lanes.KEY)
    assert data[:11] == b"streampair\x00"
    assert data[11:13] == b"\x00\x01"
    assert data[13] == 1
    assert data[14:46] == hashlib.blake2b(data[11:14] + data[78:], digest_size=32).digest()
    assert data[78:] == b"\x81\xa1a\x01"
