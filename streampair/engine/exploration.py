"""Exploration: a share of the events that their scores would stop is let pass, so that outcomes become known.

Where scores stop events, no label of those ever comes, and figures of the others say nothing of all. If a
coin lets some pass, an outcome that is observed stands for as many as were stopped for it: its weight is 1
over the share. The weight is that of the score that acted, whatever the settings are when the label comes.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Final

from streampair.engine.wal import NOT_ACTING, Acting
from streampair.evaluation.quality import MOST_WEIGHT

__all__ = ["Exploration", "weight_of"]

_PLACE: Final = struct.Struct(">iq")


class Exploration:
    """Which events whose scores are at or above a threshold are let pass.

    The coin of an event is a function of the secret and of the event's place in its topic: workers that have
    the secret toss the same one, at every start. Nothing that a sender chooses has an influence on it, such
    as the id of the event.

    Parameters
    ----------
    threshold
        Scores of at least this stop their events.
    share
        Probability with which such an event is let pass, in (0, 1).
    key
        The secret, at least 32 random bytes.
    topic
        Of the events.

    Attributes
    ----------
    now
        What holds for the next event.
    acting
        What held for events that were scored before, those first, and `now`.

    Notes
    -----
    The coin is HMAC-SHA256 of topic, partition and offset, as a number in [0, 1), and lets an event pass if
    it is below the share. With a larger share all events are let pass that a smaller one lets pass.

    Examples
    --------
    >>> from streampair.engine.exploration import Exploration
    >>> exploration = Exploration(0.8, 0.25, bytes(32), "payments")
    >>> [exploration.marks(score, 0, 3) for score in (0.9, 0.7, None)]
    [True, False, False]
    >>> [exploration.weight(0.9, 0, offset) for offset in (2, 3)], exploration.weight(0.7, 0, 3)
    ([0.0, 4.0], 1.0)
    """

    def __init__(self, threshold: float, share: float, key: bytes, topic: str) -> None:
        # Tells secrets apart, and says nothing of them.
        name = hmac.digest(key, b"identity of the secret of exploration", "sha256")[:8] if key else b""
        self._key, self._topic = key, topic.encode() + b"\0"
        self.now = Acting(threshold, share, name)
        self.acting: Sequence[Acting] = [self.now]

    @classmethod
    def none(cls, topic: str) -> Exploration:
        """No score stops an event now; the coins of earlier events are not known."""
        return cls(NOT_ACTING.threshold, NOT_ACTING.share, NOT_ACTING.key, topic)

    def marks(self, score: float | None, partition: int, offset: int) -> bool:
        """Whether the event at a place is to be let pass although this score of it would stop it."""
        stopped = score is not None and score >= self.now.threshold
        return stopped and self._coin(partition, offset) < self.now.share

    def weight(self, score: float, partition: int, offset: int) -> float:
        """The weight of the outcome of the event at a place, by what held when it was scored.

        Returns
        -------
        float
            As of `weight_of`; 0 also if the secret was another one.
        """
        before = (each for each in self.acting if each.until and offset < each.until.get(partition, 0))
        acted = next(before, self.acting[-1])
        explored = acted.key == self.now.key and self._coin(partition, offset) < acted.share
        return weight_of(score, acted.threshold, acted.share, explored=explored)

    def _coin(self, partition: int, offset: int) -> float:
        digest = hmac.digest(self._key, self._topic + _PLACE.pack(partition, offset), "sha256")
        return int.from_bytes(digest[:8]) * 2.0**-64


def weight_of(score: float, threshold: float | None, share: float | None, *, explored: bool | None) -> float:
    """The weight of an outcome, from what held when its score was given, or what the score's message says.

    Parameters
    ----------
    score, threshold, share
        The score, and what held when it was given; None: no score was to stop an event.
    explored
        Whether the event was to be let pass all the same.

    Returns
    -------
    float
        1 if the score did not stop the event; 1 over the share if it was let pass; 0 if it was to be stopped,
        so that its outcome stands for nothing, and if no weight follows from the share.

    Examples
    --------
    >>> from streampair.engine.exploration import weight_of
    >>> [weight_of(score, 0.8, 0.02, explored=score > 0.9) for score in (0.7, 0.8, 1.0)]
    [1.0, 0.0, 50.0]
    """
    if threshold is None or share is None or not score >= threshold:
        return 1.0
    # A message may say anything, such as NaN.
    if not explored or not 0.0 < share <= 1.0:
        return 0.0
    weight = 1.0 / share
    return weight if weight <= MOST_WEIGHT else 0.0
