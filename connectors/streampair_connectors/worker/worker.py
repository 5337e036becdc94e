"""The worker: reads events from Kafka, scores and learns them, and writes the scores, until it is stopped.

One lane, one consumer group. `Worker` lives as long as the process. It compiles the kernels, and runs one
`session.Session` after the other, each with new connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from streampair_connectors import kafka
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import Changes, Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import KAFKA, Cluster, StaticMemberConflicts
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.factory import taken_cells, warm_up
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.scorer import ScoringWorker
from streampair_connectors.worker.session import Session
from streampair_connectors.worker.sessions import run_sessions

__all__ = ["Worker"]


class Worker:
    """Runs one application.

    Parameters
    ----------
    config
        A complete configuration, with [kafka].
    telemetry
        Receives the metrics; None: a new one.
    create_topics
        Create missing topics with the settings of [topics].
    host, cluster
        Clock and threads, and what makes clients: a simulation has others.

    Attributes
    ----------
    session
        The connection to the cluster; None before the first.
    scorer
        What scores in parallel; None: nothing does here.
    compiling
        Whether kernels are being compiled.

    Notes
    -----
    `run` raises errors that a retry cannot fix. After the first successful connection, the worker waits for a
    broker that is away: the state is `waiting`, nothing is lost, and it continues by itself.
    """

    def __init__(
        self,
        config: Config,
        *,
        telemetry: Telemetry | None = None,
        create_topics: bool = False,
        host: Host = THIS_HOST,
        cluster: Cluster = KAFKA,
    ) -> None:
        self._host = host
        self._cluster = cluster
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        self.telemetry.configured(config.app, Changes(config))
        # The file may be replaced meanwhile: marks and weights come from one secret all the same.
        config = config.model_copy(update={"output": config.output.with_explore_key()})
        self.config = config
        self._health = Health(config.app, self.telemetry)
        if "learn" in config.worker.roles:
            self._health.starting()  # what does not run here has no state
        self._kafka = config.require_kafka()
        self._decode = event_decoder(config, **taken_cells(config))
        self._create_topics = create_topics
        self._stop = asyncio.Event()
        self.compiling = False
        self.session: Session | None = None
        self._joined = False  # some session was connected
        name = self._kafka.group_instance_id
        self._takeovers = None if name is None else StaticMemberConflicts(name)
        scores = config.learner.parallel and "score" in config.worker.roles
        self.scorer = ScoringWorker(config, self.telemetry, host=host, cluster=cluster) if scores else None

    @property
    def lane(self) -> OpenLane | None:
        """The lane; None while it is not open here."""
        return None if self.session is None else self.session.lane

    def stop(self) -> None:
        """Finish the batch, commit and leave the group. Safe to call twice."""
        if not self._stop.is_set():
            self._stop.set()
            if "learn" in self.config.worker.roles:
                self._health.stopping()
            if self.scorer is not None:
                self.scorer.stop()

    async def run(self) -> None:
        """Process events until `stop`.

        Raises
        ------
        SourceError
            No broker answers at the start, a topic does not exist, Kafka refuses a request, or outputs were
            not stored before the stop timeout.
        StoreError, SnapshotError, ConfigError, LaneStoppedError
            As the message says.
        """
        roles = [self._learn()] if "learn" in self.config.worker.roles else []
        if self.scorer is not None:
            roles.append(self.scorer.run())
        tasks = [asyncio.ensure_future(role) for role in roles]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()  # where one has failed, the other leaves its group in peace
            await asyncio.wait(tasks)
        finally:
            await kafka.ended(*tasks)
        for task in tasks:
            task.result()

    async def _learn(self) -> None:
        with self._health.until_the_end():
            if await self._warm_up():
                await run_sessions(
                    self._session,
                    stop=self._stop,
                    health=self._health,
                    joined=lambda: self._joined or self._connected(),
                    working=self._connected,
                    connect_seconds=self._kafka.connect_timeout.seconds,
                    host=self._host,
                )

    async def _warm_up(self) -> bool:
        """Compile the kernels that the lanes need; False: `stop` was called before the end.

        Compilation cannot be interrupted and may take longer than a supervisor waits. So it runs in a daemon
        thread, which does not keep the process alive.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                warm_up(self.config)
            except BaseException as raised:
                error = raised
            self.compiling = False
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, error)

        self.compiling = True
        self._host.begin(work, "warm-up")
        stop = asyncio.ensure_future(self._stop.wait())
        either: set[asyncio.Future[Any]] = {done, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not done.done():
            return False
        error = done.result()
        if error is not None:
            raise error
        return True

    def _connected(self) -> bool:
        return self.session is not None and self.session.connected

    async def _session(self) -> None:
        config, cluster = self.config, self._cluster
        facts = await cluster.check_topics(config, create=self._create_topics)
        self.session = Session(
            config,
            facts,
            await cluster.topic_origin(self._kafka, config.input.topic),
            self._decode,
            telemetry=self.telemetry,
            health=self._health,
            stop=self._stop,
            takeovers=self._takeovers,
            differences=0 if self.session is None else self.session.differences,
            host=self._host,
            cluster=cluster,
        )
        try:
            await self.session.run(first=not self._joined)
        finally:
            self._joined = self._joined or self.session.joined
