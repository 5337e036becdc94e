"""Computes slow models in a thread, so that the event loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["FitThread"]


class FitThread:
    """Runs computations one after the other, for all lanes of a process: `submit` of `LoggedLane`.

    A computation cannot be interrupted. Its thread is a daemon, so that a stop does not wait for it.

    Examples
    --------
    >>> from streampair_connectors.worker.fits import FitThread
    >>> FitThread()(lambda: 1 + 1).result()
    2
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def __call__(self, compute: Callable[[], Any]) -> Future[Any]:
        """Begin a computation; returns its future."""
        future: Future[Any] = Future()

        def work() -> None:
            with self._turn:
                try:
                    future.set_result(compute())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, name="fit", daemon=True).start()
        return future
