"""The health of an application: its state from the start to the end, on the log and in the metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from streampair.errors import StreampairError
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry

__all__ = ["Health"]

log = get_logger(__name__)

_REMIND_SECONDS = 30.0  # between two log lines about the same problem
_CHANGE_SECONDS = 5.0  # between two about different ones


class Health:
    """The state of one application, from its start to its end.

    Parameters
    ----------
    app, telemetry
        The application, and where its state is published.
    """

    def __init__(self, app: str, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry
        self._stopping = False
        self._ended = False
        self._waiting_since: float | None = None
        self._last_reminder = 0.0
        self._last_problem = ""

    def starting(self) -> None:
        """Set the state: starting."""
        self._telemetry.health(self._app, "starting")

    def rebalancing(self) -> None:
        """Set the state: partitions are moving."""
        self._telemetry.health(self._app, "rebalancing")

    def waiting(self, what: str, fix: str = "start the broker or repair the network") -> None:
        """Set the state: broker or schema registry does not answer; it is tried again until a stop."""
        now = time.monotonic()
        step = f"{fix}; the worker goes on by itself and loses nothing"
        patience = _REMIND_SECONDS if what == self._last_problem else _CHANGE_SECONDS
        if self._waiting_since is None or now - self._last_reminder >= patience:
            log.warning("waiting", app=self._app, detail=what, next_step=step)
            self._last_reminder, self._last_problem = now, what
        if self._waiting_since is None:
            self._waiting_since = now
        if not self._stopping:
            self._telemetry.health(self._app, "waiting", what, step)

    def awaiting_model(self, topic: str) -> None:
        """Set the state: a scorer has no model yet."""
        step = 'start a worker with the role "learn": it publishes a model at its start'
        log.info("waiting_for_model", app=self._app, topic=topic, next_step=step)
        if not self._stopping:
            self._telemetry.health(self._app, "waiting", f"no model in {topic} yet", step)

    def running(self) -> None:
        """Set the state: running, perhaps again.

        During a stop the log does not say that it runs again: a last commit without anything to store does
        not contact the broker.
        """
        if self._waiting_since is not None and not self._stopping:
            seconds = round(time.monotonic() - self._waiting_since, 1)
            log.info("running_again", app=self._app, seconds=seconds)
            self._waiting_since = None
        if not self._stopping:
            self._telemetry.health(self._app, "running")

    def stopping(self) -> None:
        """Set the state: stopping. No later state replaces it until the end."""
        if self._ended:
            return
        self._stopping = True
        self._telemetry.health(self._app, "stopping")
        log.info("stopping", app=self._app)

    def stopped(self) -> None:
        """Set the state: stopped normally."""
        self._ended = True
        self._telemetry.health(self._app, "stopped")
        log.info("stopped", app=self._app)

    @contextlib.contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Set the state at the end of the block: stopped, or failed by a `StreampairError`, which goes on."""
        try:
            yield
        except StreampairError as error:
            self.failed(error)
            raise
        self.stopped()

    def failed(self, error: StreampairError) -> None:
        """Set the state: failed."""
        self._ended = True
        self._telemetry.health(self._app, "failed", error.problem, error.fix)
