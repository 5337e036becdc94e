"""The key of a noise source is in no pickle, copy, state, text or error (docs/privacy 7.3)."""

from __future__ import annotations

import base64
import copy
import pickle
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness.learners import PRIVATE, stream

from streampair import auc
from streampair.engine.snapshot import pack
from streampair.errors import ConfigError, StreampairError
from streampair.privacy import NoiseKey

every_private_learner = pytest.mark.parametrize("name", PRIVATE)
PIECE = 6  # bytes of a key that are found by chance about once in 1e11 places


def traces(secret: bytes) -> list[bytes]:
    """What of a key would give it away: as it is, masked as HMAC masks it, and the cipher's that it gives."""
    forms = [secret, secret[::-1], NoiseKey(secret).mac()(b"cipher")]
    forms += [bytes(byte ^ mask for byte in secret) for mask in (0x36, 0x5C)]
    return [form[start : start + PIECE] for form in forms for start in range(len(form) - PIECE + 1)]


def holds_key(data: bytes, secret: bytes) -> bool:
    """Whether bytes have a piece of a key in them, plain or in a usual text of bytes."""
    texts = (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1])
    pieces = [text[start : start + 12].encode() for text in texts for start in range(0, len(text) - 11)]
    return any(piece in data for piece in (*traces(secret), *pieces))


def taught(name: str, secret: bytes, slots: int = 12) -> Any:
    model = PRIVATE[name](noise_key=secret)
    model.bind_noise("lane")
    for x, y in stream(model, slots):
        model.learn_one(x, y)
    return model


def exposed(model: Any) -> Iterator[bytes]:
    """Everything that leaves a learner as bytes or text."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps(model, protocol)
    for part in (
        model.noise_key,
        [model.noise_key],
        model.settings,
        model._get_params(),
        model._private.counts,
    ):
        yield pickle.dumps(part)
    yield pack(model.to_state())
    yield pickle.dumps(model.to_state())
    for value in (model, model.noise_key, model.privacy, model.settings, model.run.stream, model.plan()):
        yield f"{value} {value!r}".encode()


def errors(model: Any, secret: bytes) -> Iterator[bytes]:
    """What is said where a key is wrong, and where one is held by what cannot be pickled."""
    tries: list[Callable[[], Any]] = [
        lambda: NoiseKey(secret[:31]),
        lambda: NoiseKey(secret.hex()),  # type: ignore[arg-type]
        lambda: model.bind_noise("lane", key=secret[::-1] + secret),
        lambda: model.load_state({**model.clone().to_state(), "params": {"noise_key": secret}}),
        lambda: pickle.dumps(model.run.stream),
        lambda: pickle.dumps(model.noise_key.mac()),
    ]
    for each in tries:
        with pytest.raises((StreampairError, TypeError)) as caught:
            each()
        yield f"{caught.value} {caught.value!r}".encode()


@every_private_learner
def test_the_key_is_in_nothing_that_leaves(name: str) -> None:
    secret = secrets.token_bytes(32)
    model = taught(name, secret)
    copies = [model, copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model)), model.clone()]
    copies[3].bind_noise("lane", key=secret)
    for each in copies:
        if each.run is not None and each.slots:
            assert not any(holds_key(data, secret) for data in exposed(each))
    assert not any(holds_key(data, secret) for data in errors(model, secret))


def test_a_key_that_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: what `NoiseKey` was, whose pickle had the secret; a repr with a digit; a masked key."""
    secret = secrets.token_bytes(32)
    model = taught("auc-warm-up", secret)
    with monkeypatch.context() as patch:
        patch.setattr(NoiseKey, "__reduce__", lambda self: (NoiseKey, (self._secret,)))
        assert pickle.loads(pickle.dumps(model.noise_key)) == model.noise_key
        assert sum(holds_key(data, secret) for data in exposed(model)) >= 4
    with monkeypatch.context() as patch:
        patch.setattr(NoiseKey, "__repr__", lambda self: self._secret.hex()[:16])
        assert any(holds_key(data, secret) for data in exposed(model))
    for leak in (secret[5:11], bytes(b ^ 0x36 for b in secret), repr(secret).encode(), secret.hex().encode()):
        assert holds_key(b"..." + leak + b"...", secret)
    assert not any(holds_key(data, secrets.token_bytes(32)) for data in exposed(model))


@every_private_learner
@pytest.mark.parametrize("slots", [0, 12])
def test_an_unpickled_learner_goes_on_once_it_has_its_key_again(name: str, slots: int) -> None:
    """It scores and reports without; it learns nothing, and changes nothing, until it has it."""
    secret = secrets.token_bytes(32)
    model = taught(name, secret, slots)
    other = pickle.loads(pickle.dumps(model))
    events = stream(model, 30)[slots:]
    assert other.noise_key.absent
    assert (
        other.score_one(events[0][0]) == model.score_one(events[0][0])
        if hasattr(model, "score_one")
        else True
    )
    assert other.privacy.mu_spent == model.privacy.mu_spent
    before = copy.deepcopy(other.to_state())
    with pytest.raises(ConfigError, match="no pickle holds one"):
        other.learn_one(*events[0])
    for name_of_part, value in other.to_state().items():
        assert repr(value) == repr(before[name_of_part]) or slots == 0
    if slots:
        other.bind_noise("lane", key=secret)
        assert other.noise_key == model.noise_key
        for x, y in events:
            model.learn_one(x, y)
            other.learn_one(x, y)
        assert np.array_equal(model.run.released, other.run.released)


def test_a_key_is_given_only_to_who_had_it() -> None:
    for owner_key in (None, bytes(32)):
        model = auc.PairFTRL(noise_key=owner_key, warmup=0)
        with pytest.raises(ConfigError, match="noise_key="):
            model.bind_noise("lane", key=bytes(range(32)))
    model.bind_noise("lane", key=bytes(32))
    assert model.noise_key == NoiseKey(bytes(32))
    # New ones draw what they would have drawn: the buffer's coins too.
    make = PRIVATE["auc-sampled"]
    one, two = (make(noise_key=bytes(range(32)), features=[f"f{i}" for i in range(5)]) for _ in range(2))
    two = pickle.loads(pickle.dumps(two))
    two.bind_noise("", key=bytes(range(32)))
    for x, y in stream(one, 40):
        one.learn_one(x, y)
        two.learn_one(x, y)
    assert np.array_equal(one.run.released, two.run.released)
