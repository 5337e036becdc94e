"""Where the server has its model from: a file, or the model topic of the application."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

from streampair import models
from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import Config
from streampair_connectors.kafka import AccessError, CredentialsError
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.worker.model_topic import ModelFollower, warm
from streampair_connectors.worker.sessions import ConnectionWatch, run_watched

__all__ = ["FileModel", "ModelSource", "TopicModel", "load_model"]

log = get_logger(__name__)

_RETRY_SECONDS = 1.0


class ModelSource(Protocol):
    """Gives the newest model."""

    @property
    def newest(self) -> models.Model | None:
        """The newest model; None: there is none yet."""

    async def follow(self) -> None:
        """Follow the newest model until it is cancelled.

        Raises
        ------
        StreampairError
            A model cannot be used.
        """


def load_model(path: Path, config: Config | None) -> models.Model:
    """Load a model file, and compile what scores with it.

    Raises
    ------
    ConfigError
        It cannot be read, or is the model of another configuration.
    SnapshotError
        It is no model, or of another version.
    """
    try:
        model = models.load(path)
    except OSError as error:
        raise ConfigError(
            f"the model {path} cannot be read: {error.strerror}", fix="check the path and its permissions"
        ) from None
    made = model.metadata.get("configuration")
    if config is not None and made is not None:
        config.check_settings(f"the model {path}", made, model.metadata.get("settings"))
    warm(model)
    return model


class FileModel:
    """The model of a file, which stays as it is.

    Parameters
    ----------
    model
        The model.
    """

    def __init__(self, model: models.Model) -> None:
        self.newest: models.Model | None = model

    async def follow(self) -> None:
        """Wait until it is cancelled."""
        await asyncio.get_running_loop().create_future()


class TopicModel:
    """The newest model of an application's model topic. While no broker answers, the last one stays.

    Parameters
    ----------
    config
        Of the application.

    Raises
    ------
    ConfigError
        No model is published.
    """

    def __init__(self, config: Config) -> None:
        if config.model_topic is None:
            raise ConfigError(
                f"the application {config.app!r} publishes no model",
                fix=f'add output.model_topic = "{config.app}-model", or serve a file with --model',
            )
        config.require_kafka()
        self._config = config
        self._last: models.Model | None = None
        self._follower: ModelFollower | None = None
        self._problem = ""  # as logged last

    @property
    def newest(self) -> models.Model | None:
        """The newest model; None: there is none yet."""
        found = None if self._follower is None else self._follower.newest
        return self._last if found is None else found.model

    async def follow(self) -> None:
        """Follow the topic until it is cancelled.

        Raises
        ------
        StreampairError
            A model cannot be used.
        """
        while True:
            self._follower, self._last = ModelFollower(self._config), self.newest
            begin = time.monotonic()
            watch = ConnectionWatch(self._config.require_kafka(), self._not_read, self._read)
            try:
                await run_watched(self._follower.follow(), watch.run(self._follower.answers))
            except (SourceError, CredentialsError) as error:
                # Once it serves, credentials may be about to be replaced, here or on the brokers.
                rotates = self.newest is not None and isinstance(error, AccessError | CredentialsError)
                if not (error.retriable or rotates):
                    raise
                self._not_read(error.problem, error.fix)
            await asyncio.sleep(max(0.0, begin + _RETRY_SECONDS - time.monotonic()))

    def _not_read(self, problem: str, fix: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("model_topic_not_read", detail=problem, next_step=fix)

    def _read(self) -> None:
        self._problem = ""
