"""Sealed values: nothing of them can be read, changed or moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors.stores.encryption import OVERHEAD, Seal

from streampair.errors import ConfigError, StoreError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


@given(plain=st.binary(max_size=300), context=st.binary(max_size=40))
def test_what_is_sealed_opens_again(plain: bytes, context: bytes) -> None:
    seal = Seal([NEW])
    sealed = seal.seal(plain, context)
    assert len(sealed) == len(plain) + OVERHEAD
    assert seal.open(sealed, context) == plain
    assert seal.seal(plain, context) != sealed
    assert len(plain) < 8 or plain not in sealed


def test_any_change_and_any_other_place_is_refused() -> None:
    seal = Seal([NEW])
    sealed = seal.seal(b"a row of somebody", b"lane 0")
    for position in range(len(sealed)):
        for bit in (1, 128):
            changed = bytearray(sealed)
            changed[position] ^= bit
            with pytest.raises(StoreError):
                seal.open(bytes(changed), b"lane 0")
    for cut in range(len(sealed)):
        with pytest.raises(StoreError):
            seal.open(sealed[:cut], b"lane 0")
    with pytest.raises(StoreError, match="was changed or moved"):
        seal.open(sealed, b"lane 1")


def test_keys_can_be_changed() -> None:
    sealed = Seal([OLD]).seal(b"state", b"")
    both = Seal([NEW, OLD])
    assert both.open(sealed, b"") == b"state"
    again = both.seal(b"state", b"")
    assert Seal([NEW]).open(again, b"") == b"state"
    for other in (Seal([NEW]), Seal()):
        with pytest.raises(StoreError, match="was sealed with the key") as caught:
            other.open(sealed, b"")
        for key in (OLD, NEW):
            assert key.hex() not in str(caught.value) + repr(other)


def test_plain_and_sealed_are_never_taken_for_each_other() -> None:
    plain = Seal().seal(b"state", b"")
    assert Seal().open(plain, b"") == b"state"
    assert not Seal().seals
    with pytest.raises(StoreError, match="is not sealed"):
        Seal([NEW]).open(plain, b"")
    with pytest.raises(StoreError, match="is none"):
        Seal().open(Seal([NEW]).seal(b"state", b""), b"")
    with pytest.raises(StoreError, match="was not written by streampair"):
        Seal().open(b"something else", b"")


def test_short_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 32 bytes"):
        Seal([b"short"])
