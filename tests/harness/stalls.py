"""How long this process did not run, for tests of time-outs of a second: others may take the processor."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_SECONDS = 0.02  # between two looks at the clock


class Stalls:
    """Measures in a thread, within a ``with`` block, for how long no thread of this process got on."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._end.wait(_SECONDS):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last - _SECONDS), now

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
