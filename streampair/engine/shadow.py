"""A shadow: a non-private learner on the records of a lane, which shows operators the cost of privacy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from streampair.engine.lane import Lane
from streampair.engine.records import Event, Record
from streampair.errors import ConfigError

__all__ = ["Shadow"]


class Shadow:
    """Learns from the records of a lane; its only result is the AUC of its scores.

    It is a function of raw data, without a privacy guarantee. It runs in a lane of its own, whose outputs are
    discarded and which is never saved: each start begins with a new one. The state and outputs of the main
    lane do not depend on it. The report of a private learner mentions it.

    Parameters
    ----------
    learner
        An estimator of streampair or River, or a River pipeline. It must not be private: its spend would not
        be accounted for.
    decode, app, topic, partition, positive, auc_window
        As of the lane.
    clock
        Function that returns seconds, used for `seconds` only. Without one `seconds` stays zero.

    Raises
    ------
    ConfigError
        If the learner is private, or cannot be used in a lane.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine import Lane, Record, Shadow
    >>> from streampair.engine.testing import decode_json
    >>> where = {"app": "a", "topic": "t", "partition": 0}
    >>> private = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=100, features=["x"])
    >>> lane = Lane(private, decode_json, **where, shadow=Shadow(auc.PairOGD(), decode_json, **where))
    >>> rows = [b'{"x": {"x": 0.9}, "y": true}', b'{"x": {"x": 0.1}, "y": false}'] * 10
    >>> _ = lane.process([Record(i, row) for i, row in enumerate(rows)])
    >>> lane.gauges().quality.shadow_auc > 0.5, "not private" in lane.privacy.details
    (True, True)
    """

    def __init__(
        self,
        learner: Any,
        decode: Callable[[Record], Event],
        *,
        app: str,
        topic: str,
        partition: int,
        positive: object = True,
        auc_window: int = 1000,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self.seconds = 0.0
        """Time that it has taken, which the lane's own times do not include."""
        self._lane: Lane | None = Lane(
            learner,
            decode,
            app=app,
            topic=topic,
            partition=partition,
            positive=positive,
            on_bad="skip",
            breaker=None,
            auc_window=auc_window,
            snapshots=False,
        )
        if self._lane.private:
            raise ConfigError(
                f"the shadow, {type(self._lane.learner).__name__}, is a private learner, and no account is "
                "kept of what it spends",
                fix="give one that is not private, such as streampair.auc.PairOGD; or run the private one as "
                "an application of its own",
            )

    def process(self, records: Sequence[Record]) -> None:
        """Learn from a batch after the lane has. On an error it is disabled: it must not stop the lane."""
        if self._lane is None:
            return
        begin = self._now()
        try:
            self._lane.process(records)
        except Exception as error:  # whatever foreign code raises
            self._lane = None
            # Not the message: it may quote an event.
            warnings.warn(
                f"the shadow learner failed ({type(error).__name__}) and is disabled until the next start",
                UserWarning,
                stacklevel=2,
            )
        finally:
            self.seconds += self._now() - begin

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock()

    @property
    def auc(self) -> float | None:
        """AUC of its latest scores, each given before its event was learned; None until there is one."""
        value = float("nan") if self._lane is None else self._lane.auc
        return None if value != value else value
