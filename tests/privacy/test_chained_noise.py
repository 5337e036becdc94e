"""Replay-safe noise: the same input gives the same bytes, anything else gives fresh ones.

See docs/privacy 8.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from streampair.errors import ConfigError, SnapshotError
from streampair.privacy import ChainedNoise, NoiseKey
from streampair.privacy.noise import MAC, SILENT
from streampair.privacy.provenance import PackedIdentities

KEY = NoiseKey(bytes(range(32)))

Step = tuple[bytes, bytes]
steps = st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), min_size=1, max_size=8)


def run(history: list[Step], identity: bytes = b"x", key: NoiseKey = KEY) -> list[tuple[bytes, bytes]]:
    """Noise and digest of every step."""
    chain = ChainedNoise(key, identity)
    out = []
    for record, values in history:
        chain.record(record)
        chain.advance(values)
        out.append((chain.take(3).tobytes(), chain.digest))
    return out


@given(one=steps, two=steps)
def test_noise_is_shared_exactly_as_long_as_everything_was_equal(one: list[Step], two: list[Step]) -> None:
    first, second = run(one), run(two)
    common = 0
    while common < min(len(one), len(two)) and one[common] == two[common]:
        common += 1
    assert first[:common] == second[:common]
    seen = {noise for noise, _ in first}
    assert len(seen) == len(first)  # no step repeats the noise of another
    for noise, digest in second[common:]:
        assert noise not in seen
        assert digest not in {d for _, d in first}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([(b"ab", b"c")], [(b"a", b"bc")]),  # the parts are kept apart
        ([(b"", b"c")], [(b"c", b"")]),
        ([(b"a", b""), (b"b", b"")], [(b"b", b""), (b"a", b"")]),  # order
    ],
)
def test_nothing_is_confused(one: list[Step], two: list[Step]) -> None:
    assert run(one)[-1] != run(two)[-1]


def test_key_and_identity_count() -> None:
    history = [(b"r", b"g")]
    assert run(history) == run(history)
    assert run(history, identity=b"y")[0] != run(history)[0]
    assert run(history, key=NoiseKey(b"1" * 32))[0] != run(history)[0]


def test_keyed_by_the_step_alone_it_would_give_the_gradients_away() -> None:
    """The mutant: one noise under two different gradients cancels, which the true chain does not allow."""

    def released(gradients: list[float], chained: bool) -> np.ndarray:
        chain = ChainedNoise(KEY, b"x")
        out = []
        for g in gradients:
            chain.advance(np.array([g]).tobytes() if chained else b"")
            out.append(g + chain.take(1)[0, 0])
        return np.array(out)

    here, there = [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    broken = released(there, False) - released(here, False)
    assert broken == pytest.approx([0.0, 1.0, 0.0], abs=1e-12)
    true = released(there, True) - released(here, True)
    assert true[0] == 0.0
    assert abs(true[1] - 1.0) > 1e-3
    assert abs(true[2]) > 1e-3


def test_the_noise_is_standard_normal_and_independent_over_steps() -> None:
    chain = ChainedNoise(KEY, b"sample")
    rows = []
    for _ in range(20_000):
        chain.advance(b"")
        rows.append(chain.take(3)[0])
    sample = np.array(rows)
    assert stats.kstest(sample.ravel(), "norm").pvalue > 1e-6
    n = len(sample)
    assert abs((sample[1:, 0] * sample[:-1, 0]).mean()) * np.sqrt(n) < 5.0
    assert abs((sample[:, 0] * sample[:, 1]).mean()) * np.sqrt(n) < 5.0
    assert abs((sample[:, 2] ** 2).mean() - 1.0) * np.sqrt(n / 2) < 5.0


@given(
    records=st.integers(1, 300).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
    ),
    before=st.integers(0, 3),
)
def test_a_batch_of_records_without_noise_is_one_after_the_other(records: list[bytes], before: int) -> None:
    """Bit for bit, packed or not, also while they wait; a batch in another order is another one."""
    rows = np.frombuffer(b"".join(records), dtype=np.uint8).reshape(len(records), -1)

    def ended(take: Callable[[ChainedNoise], None]) -> tuple[object, ...]:
        """The digest after these steps, the noise of the next one, and the state of a copy before it."""
        chain = ChainedNoise(KEY, b"x")
        chain.digests = []
        for _ in range(before):
            chain.wait(b"before")
        take(chain)
        assert chain.digests == [SILENT] * (before + len(records))
        assert chain.steps == len(chain.digests)
        chain.advance(b"")
        end = chain.digest, chain.take(2).tobytes()
        again = ChainedNoise(KEY, b"x")
        for _ in range(before):
            again.wait(b"before")
        take(again)
        return *end, again.to_state(), copy.copy(again).digest

    def one_by_one(chain: ChainedNoise) -> None:
        for record in records:
            chain.record(record)
            chain.advance(b"")

    def waiting(chain: ChainedNoise) -> None:
        for record in records:
            chain.wait(record)

    alone = ended(one_by_one)
    assert ended(waiting) == alone
    assert ended(lambda chain: chain.skip(records)) == alone
    assert ended(lambda chain: chain.skip(PackedIdentities(rows))) == alone
    assert list(PackedIdentities(rows)) == records
    assert (PackedIdentities(rows)[-1], list(PackedIdentities(rows)[1:])) == (records[-1], records[1:])
    turned = PackedIdentities(np.ascontiguousarray(rows[::-1]))
    assert (ended(lambda chain: chain.skip(turned)) == alone) is (records == records[::-1])


def test_records_of_many_lengths_wait_in_bounded_room() -> None:
    one, two = ChainedNoise(KEY, b"x"), ChainedNoise(KEY, b"x")
    for i in range(3000):
        record = bytes([i % 251]) * (i % 7)
        one.wait(record)
        two.record(record)
        two.advance(b"")
        assert len(one._waiting) < 256
    assert one.to_state() == two.to_state()


def test_nothing_is_drawn_outside_of_a_step() -> None:
    chain = ChainedNoise(KEY, b"x")
    with pytest.raises(RuntimeError, match="outside of a step"):
        chain.take(1)
    chain.advance(b"")
    first = chain.take(2)
    assert not np.any(np.isin(chain.take(2), first))  # within a step it goes on
    restored = ChainedNoise(KEY, b"x")
    restored.load_state(chain.to_state())
    with pytest.raises(RuntimeError, match="outside of a step"):
        restored.take(1)


@pytest.mark.parametrize("position", [0, 1, 4])
def test_a_restored_chain_goes_on_to_the_bit(position: int) -> None:
    history = [(bytes([i]), bytes([i * 2])) for i in range(6)]
    chain = ChainedNoise(KEY, b"x")
    for record, values in history[:position]:
        chain.record(record)
        chain.advance(values)
        chain.take(3)
    for other in (ChainedNoise(KEY, b"x"), copy.copy(chain), copy.deepcopy(chain)):
        other.load_state(chain.to_state())
        for (record, values), (noise, digest) in zip(
            history[position:], run(history)[position:], strict=True
        ):
            other.record(record)
            other.advance(values)
            assert (other.take(3).tobytes(), other.digest) == (noise, digest)


@pytest.mark.parametrize("damage", [{"chain": b"short"}, {"chain": "text"}, {"steps": -1}, {"steps": None}])
def test_a_damaged_chain_is_refused(damage: dict[str, Any]) -> None:
    chain = ChainedNoise(KEY, b"x")
    with pytest.raises(SnapshotError):
        chain.load_state({**chain.to_state(), **damage})


def test_no_key_can_be_found() -> None:
    secret = bytes(range(100, 132))
    chain = ChainedNoise(NoiseKey(secret), b"x")
    chain.advance(b"")
    chain.take(1)
    for holder in (chain, chain._mac):
        with pytest.raises(TypeError, match="holds its key"):
            pickle.dumps(holder)
    assert secret not in repr(chain.to_state()).encode("latin-1")
    text = f"{chain!r} {NoiseKey(secret)!r} {NoiseKey(secret)} {chain.to_state()!r}"
    assert secret.hex() not in text
    assert repr(secret)[2:-1] not in text
    attributes = [getattr(chain, name) for name in chain.__slots__]
    assert not any(secret in value for value in attributes if isinstance(value, bytes))


def test_keys() -> None:
    assert NoiseKey(b"1" * 32) == NoiseKey(b"1" * 32) != NoiseKey(b"2" * 32)
    assert copy.copy(KEY) is copy.deepcopy(KEY) is KEY
    absent = pickle.loads(pickle.dumps(KEY))
    assert (KEY.absent, absent.absent) == (False, True)
    assert absent != KEY
    with pytest.raises(ConfigError, match="no pickle holds one"):
        absent.mac()
    assert len({KEY, NoiseKey(bytes(range(32)))}) == 1
    for bad in (b"short", "x" * 64, None):
        with pytest.raises(ConfigError, match="at least 32 bytes"):
            NoiseKey(bad)  # type: ignore[arg-type]


@given(key=st.binary(min_size=32, max_size=200), message=st.binary(max_size=100))
def test_the_mac_is_that_of_the_standard_library(key: bytes, message: bytes) -> None:
    assert MAC(key)(message) == hmac.new(key, message, hashlib.sha256).digest()


def test_the_chain_is_the_documented_one() -> None:
    """Written out by hand: a change of it would make every replay a new release."""
    (noise, digest), *_ = run([(b"record", b"values")])
    who = hashlib.blake2b(b"x", digest_size=32, person=b"streampair who").digest()
    place = (1).to_bytes(8, "big") + (6).to_bytes(4, "big")
    h = hashlib.blake2b(bytes(32) + who + place + b"record" + b"values", digest_size=32).digest()
    assert digest == hmac.new(bytes(range(32)), b"ledger" + h, hashlib.sha256).digest()
    assert noise[:8].hex() == "4c4f1e245e5beebf"
