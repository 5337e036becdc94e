"""How a worker is: said in its log, in its series, and to who asks, each time with the next step."""

from __future__ import annotations

import time

from streampair.errors import StreampairError
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry

__all__ = ["Health"]

log = get_logger(__name__)

_REMIND_SECONDS = 30.0  # between two log lines about the same trouble


class Health:
    """The state of one application, from its start to its end.

    Parameters
    ----------
    app, telemetry
        Whose state it is, and where it shows.
    stuck_seconds
        How long events may wait without a commit; None: as long as it is without being told.
    """

    def __init__(self, app: str, telemetry: Telemetry, stuck_seconds: float | None = None) -> None:
        if stuck_seconds is not None:
            telemetry.patience(app, stuck_seconds)
        self._app = app
        self._telemetry = telemetry
        self._stopping = False
        self._waiting_since: float | None = None
        self._last_reminder = 0.0

    def starting(self) -> None:
        """It has begun."""
        self._telemetry.health(self._app, "starting")

    def rebalancing(self) -> None:
        """Partitions move."""
        self._telemetry.health(self._app, "rebalancing")

    def waiting(self, what: str) -> None:
        """Nobody answers, or nothing is stored: it tries again until it is `running` or stops."""
        now = time.monotonic()
        step = "start the broker or mend the network; the worker goes on by itself and loses nothing"
        if self._waiting_since is None or now - self._last_reminder >= _REMIND_SECONDS:
            log.warning("waiting_for_broker", app=self._app, detail=what, next_step=step)
            self._last_reminder = now
        if self._waiting_since is None:
            self._waiting_since = now
        if not self._stopping:
            self._telemetry.health(self._app, "waiting", what, step)

    def running(self) -> None:
        """All is well, perhaps again.

        At a stop the log does not say that the broker is back: a last commit that has nothing to store has
        not asked it.
        """
        if self._waiting_since is not None and not self._stopping:
            seconds = round(time.monotonic() - self._waiting_since, 1)
            log.info("broker_is_back", app=self._app, seconds=seconds)
            self._waiting_since = None
        if not self._stopping:
            self._telemetry.health(self._app, "running")

    def stopping(self) -> None:
        """It was asked to stop: until it has, nothing else is said."""
        self._stopping = True
        self._telemetry.health(self._app, "stopping")
        log.info("stopping", app=self._app)

    def stopped(self) -> None:
        """It has ended in good order."""
        self._telemetry.health(self._app, "stopped")
        log.info("stopped", app=self._app)

    def failed(self, error: StreampairError) -> None:
        """It has ended by itself."""
        self._telemetry.health(self._app, "failed", error.problem, error.fix)
