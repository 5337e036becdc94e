"""Who a private learner is, as far as its noise depends on it, and what it has counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.privacy.noise import ChainedNoise, NoiseKey, NormalStream
from streampair.privacy.packed import Packed

__all__ = ["Counts", "Identity", "told_apart"]

Array = NDArray[np.float64]
_OWN = np.frombuffer(b"own", dtype=np.uint8)


def told_apart(rows: Array, labels: Array, contexts: Sequence[bytes | None] | None) -> Sequence[bytes]:
    """What identifies the record of each row: what the caller said, or its bytes."""
    if contexts is not None and None not in contexts:
        return [b"told" + context for context in contexts]  # type: ignore[operator]
    # One array of bytes: the objects of a list would cost more than the records do.
    n, size = len(rows), 8 * (rows.shape[1] + 1)
    cells = np.empty((n, 3 + size), dtype=np.uint8)
    cells[:, :3] = _OWN
    cells[:, 3:] = np.concatenate((rows, labels[:, None]), axis=1).view(np.uint8)
    own = Packed(cells)
    if contexts is None:
        return own
    return [
        mine if context is None else b"told" + context for mine, context in zip(own, contexts, strict=True)
    ]


class Counts:
    """What a learner has counted; functions of raw data, for the operator's eyes.

    Attributes
    ----------
    null_slots
        Slots without a usable record.
    ignored_features
        Features that are not in the set.
    refused_records
        Records of entities that had been learned from often enough.
    """

    __slots__ = ("ignored_features", "null_slots", "refused_records")

    def __init__(self) -> None:
        self.null_slots = 0
        self.ignored_features = 0
        self.refused_records = 0


class Identity:
    """Who a learner is, as far as its noise depends on it.

    Parameters
    ----------
    key
        The noise key; None for noise from the operating system or a seed.
    seed
        A fixed seed, for tests.
    parameters
        Gives the learner's class and parameters, for the chain.

    Attributes
    ----------
    name, digests
        As `PrivateLearner.bind_noise` says.
    chained
        The state of a chain to continue.
    folded
        The contexts of the null slots before the features were known.
    """

    def __init__(self, key: NoiseKey | None, seed: int | None, parameters: Callable[[], object]) -> None:
        self.key = key
        self.seed = seed
        self.parameters = parameters
        self.name = ""
        self.digests: list[bytes] | None = None
        self.chained: Mapping[str, Any] | None = None
        self.folded = b""

    def buffer_seed(self) -> int | None:
        """Of what the buffer draws: with a noise key a function of it, for a replay must draw the same.

        Without its key, which is in no pickle, a learner has the coins of its state.
        """
        if self.key is None:
            return self.seed
        if self.key.absent:
            return None
        return int.from_bytes(self.key.mac()(b"coins")[:8], "big")

    def open(self, names: Sequence[Hashable], numbers: list[float]) -> NormalStream | ChainedNoise:
        """The noise of a run, with its first record: a chain has to know what is planned.

        Parameters
        ----------
        names
            The features.
        numbers
            Everything that scales or shapes the noise: two learners with the same noise under different
            scales could be subtracted.
        """
        if self.key is None:
            return NormalStream(self.seed)
        told: list[object] = [self.name, self.parameters(), [repr(name) for name in names]]
        # Twelve digits: the last ones differ between processors.
        told.append([f"{number:.12e}" for number in numbers])
        chain = ChainedNoise(self.key, repr(told).encode())
        if self.chained is not None:
            chain.load_state(self.chained)
            self.chained = None
        chain.digests = self.digests
        return chain
