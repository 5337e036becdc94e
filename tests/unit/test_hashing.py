"""BLAKE2b on batches gives what RFC 7693 prints; random lengths and keys are in `test_kernel_references`."""

from __future__ import annotations

import numpy as np
import pytest

from streampair import kernels
from streampair.kernels import hashing

pytestmark = pytest.mark.skipif(kernels.DISABLED, reason="not compiled, its sums warn of overflow")


def hashed(data: bytes, key: bytes = b"", size: int = 64) -> bytes:
    digest = np.zeros(size, dtype=np.uint8)
    block = key.ljust(128, b"\0") if key else b""
    hashing.blake2b(np.frombuffer(block + data, dtype=np.uint8).copy(), len(key), digest)
    return digest.tobytes()


def test_the_example_of_appendix_a() -> None:
    assert hashed(b"abc").hex() == (
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"
    )


def test_the_self_test_of_appendix_e() -> None:
    """A hash of hashes of six lengths, at four sizes, with and without a key."""

    def sequence(length: int, seed: int) -> bytes:
        a, b, out = 0xDEAD4BAD * seed % 2**32, 1, bytearray()
        for _ in range(length):
            a, b = b, (a + b) % 2**32
            out.append(b >> 24)
        return bytes(out)

    output = b""
    for size in (20, 32, 48, 64):
        for length in (0, 3, 128, 129, 255, 1024):
            data = sequence(length, length)
            output += hashed(data, size=size) + hashed(data, sequence(size, size), size)
    assert hashed(output, size=32).hex() == "c23a7800d98123bd10f506c61e29da5603d763b8bbad2e737f5e765a7bccd475"
