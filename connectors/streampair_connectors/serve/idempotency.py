"""Requests that are answered once: a bounded memory of keys, of this process."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from streampair_connectors.serve.errors import Refusal, unavailable

__all__ = ["Answers"]


class _CachedAnswer(NamedTuple):
    digest: bytes  # of the request
    task: asyncio.Task[bytes]
    expires: float


class Answers:
    """Answers by the keys of their requests: a request that comes again gets the same answer.

    Parameters
    ----------
    seconds
        How long a key is remembered.
    most
        How many keys are remembered. Beyond it the oldest answer is forgotten before its time.
    clock
        Monotonic, in seconds.
    """

    def __init__(
        self, seconds: float = 3600.0, most: int = 100_000, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._answers: OrderedDict[str, _CachedAnswer] = OrderedDict()

    async def answer(
        self,
        key: str,
        request: bytes,
        work: Callable[[], Coroutine[Any, Any, bytes]],
        timeout_seconds: float,
    ) -> bytes:
        """Answer a request: by `work` the first time, by the same result later.

        `work` goes on when the request has timed out; what it refuses is forgotten, and may be tried again.

        Raises
        ------
        Refusal
            422: the key was used for another request. 503: it is not known yet whether `work` succeeds.
        """
        self._forget()
        digest = hashlib.sha256(request).digest()
        known = self._answers.get(key)
        if known is None:
            if len(self._answers) >= self._most:
                self._make_room()
            known = _CachedAnswer(digest, asyncio.create_task(work()), self._clock() + self._seconds)
            self._answers[key] = known
            known.task.add_done_callback(lambda task: self._finished(key, task))
        elif known.digest != digest:
            raise Refusal(
                422,
                "this Idempotency-Key was used for another request",
                fix="make a new key for each event, and send a retry with the body of its first request",
            )
        done, _ = await asyncio.wait({known.task}, timeout=timeout_seconds)
        if not done:
            raise unavailable(
                "the broker has not confirmed the event yet",
                fix="send the request again, with the same Idempotency-Key",
            )
        return known.task.result()

    def _finished(self, key: str, task: asyncio.Task[bytes]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._answers.pop(key, None)

    def _forget(self) -> None:
        now = self._clock()
        while self._answers:
            key, oldest = next(iter(self._answers.items()))
            if oldest.expires > now or not oldest.task.done():
                return
            del self._answers[key]

    def _make_room(self) -> None:
        oldest = next((key for key, each in self._answers.items() if each.task.done()), None)
        if oldest is None:
            raise unavailable("too many events wait for the broker", fix="send the request again later")
        del self._answers[oldest]
