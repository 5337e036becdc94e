"""The health of a worker, in its log, its series and its probes, each with the next step."""

from __future__ import annotations

import time

from streampair.errors import StreampairError
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry

__all__ = ["Health"]

log = get_logger(__name__)

_REMIND_SECONDS = 30.0  # between two log lines about the same problem


class Health:
    """The state of one application, from its start to its end.

    Parameters
    ----------
    app, telemetry
        The application, and where its state is published.
    stuck_seconds
        How long events may wait without a commit; None: the default.
    """

    def __init__(self, app: str, telemetry: Telemetry, stuck_seconds: float | None = None) -> None:
        if stuck_seconds is not None:
            telemetry.patience(app, stuck_seconds)
        self._app = app
        self._telemetry = telemetry
        self._stopping = False
        self._ended = False
        self._waiting_since: float | None = None
        self._last_reminder = 0.0

    def starting(self) -> None:
        """Set the state: starting."""
        self._telemetry.health(self._app, "starting")

    def rebalancing(self) -> None:
        """Set the state: partitions are moving."""
        self._telemetry.health(self._app, "rebalancing")

    def waiting(self, what: str) -> None:
        """Set the state: broker or store does not answer; the worker retries until `running` or a stop."""
        now = time.monotonic()
        step = "start the broker or mend the network; the worker goes on by itself and loses nothing"
        if self._waiting_since is None or now - self._last_reminder >= _REMIND_SECONDS:
            log.warning("waiting_for_broker", app=self._app, detail=what, next_step=step)
            self._last_reminder = now
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

        During a stop the log does not say that the broker is back: a last commit without anything to store
        does not contact it.
        """
        if self._waiting_since is not None and not self._stopping:
            seconds = round(time.monotonic() - self._waiting_since, 1)
            log.info("broker_is_back", app=self._app, seconds=seconds)
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

    def failed(self, error: StreampairError) -> None:
        """Set the state: failed."""
        self._ended = True
        self._telemetry.health(self._app, "failed", error.problem, error.fix)
