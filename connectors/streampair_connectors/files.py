"""Replay: the lane of `run`, fed from a CSV or JSON lines file, without Kafka."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streampair.engine.lane import DeadLetter, LaneGauges, Record
from streampair.errors import ConfigError
from streampair_connectors.assemble import build_lane
from streampair_connectors.config import Config
from streampair_connectors.reading import Source, open_source
from streampair_connectors.records import Encoder
from streampair_connectors.series import LaneLabels
from streampair_connectors.telemetry import Telemetry
from streampair_connectors.timing import DecodeClock, LaneTimer

__all__ = ["Replay"]

_json = msgspec.json.Encoder()
# From one publication of the lane's numbers to the next: nobody looks more often, and each costs an AUC.
_PUBLISH_SECONDS = 0.25
# So many events, and then an eighth more each time, are told too: of a short file there is a past as well.
_FIRST, _GROWTH, _LATEST = 64, 8, 8192
_MOST_ERRORS = 1000  # different reasons of dead letters that are counted


@dataclass
class Replay:
    """One replay of a file.

    Parameters
    ----------
    config
        The same configuration as for `run`; [kafka], [store] and the topics are not used.
    path
        See :func:`streampair_connectors.reading.open_source`.
    scores
        Called with the scores of each batch, as lines of JSON.
    dead_letters
        Called with each dead letter as one line of JSON, without its end: text in `value`, or bytes that are
        not text in `value_base64`.

    Attributes
    ----------
    events
        Records so far.
    size, position
        Bytes of the file, as it lies there, and how many of them were read so far; None and 0 for a pipe.
    interrupted
        Whether :meth:`interrupt` ended the replay.
    """

    config: Config
    path: str
    scores: Callable[[bytes], object]
    dead_letters: Callable[[bytes], object]
    telemetry: Telemetry = field(default_factory=Telemetry)
    events: int = 0
    size: int | None = None
    position: int = 0
    interrupted: bool = False
    _waiting: bool = field(default=False, init=False, repr=False)
    _errors: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def interrupt(self) -> None:
        """End the replay after the current batch; called from a signal handler.

        Raises
        ------
        KeyboardInterrupt
            The replay waits for events, or was interrupted before.
        """
        again, self.interrupted = self.interrupted, True
        if again or self._waiting:
            raise KeyboardInterrupt

    def commonest_error(self) -> str | None:
        """Return the commonest reason for a dead letter; None without dead letters."""
        return self._errors.most_common(1)[0][0] if self._errors else None

    def run(self, progress: Callable[[int], object] | None = None) -> LaneGauges:
        """Score and learn every record of the file.

        Parameters
        ----------
        progress
            Called after each batch with the number of its records.

        Returns
        -------
        LaneGauges
            The lane's numbers at the end.

        Raises
        ------
        SourceError, ConfigError, LaneStopped
            As the message says.
        """
        with open_source(self.config, self.path) as source:
            return self._run(source, progress)

    def _run(self, source: Source, progress: Callable[[int], object] | None) -> LaneGauges:
        config = self.config
        self.size = source.size
        topic = "stdin" if self.path == "-" else Path(self.path).name
        clock = DecodeClock(source.decode)
        lane = build_lane(config, clock.decode, topic=topic, partition=0, snapshots=False)
        if getattr(lane.learner, "entity", None) is not None:
            raise ConfigError(
                "the learner counts records by entity, which is the key of a message: a file has no keys",
                fix="replay without entity=, or use Kafka",
            )
        labels: LaneLabels = (config.app, topic, "0", config.learner.label())
        timer = LaneTimer(lane, clock, self.telemetry, labels)
        encoder = Encoder(app=config.app, learner=lane.name, topic=topic, partition=0)
        self.telemetry.health(config.app, "running")
        publish_at, publish_after = 0.0, _FIRST
        for batch in self._until_interrupted(_in_parts(source.batches)):
            output = timer.process(batch)
            start = time.perf_counter()
            self.scores(encoder.lines(output.scores))
            for letter in output.dead_letters:
                self.dead_letters(_letter_line(letter))
                if letter.error in self._errors or len(self._errors) < _MOST_ERRORS:
                    self._errors[letter.error] += 1
                self.telemetry.history.dead_letter(labels, letter.stage, letter.offset)
            timer.encoded(time.perf_counter() - start)
            self.events += len(batch)
            early = publish_after <= self.events <= _LATEST
            if early or time.monotonic() >= publish_at:
                self.telemetry.publish(labels, timer.gauges(final=early), None, timer.seconds)
                publish_at = time.monotonic() + _PUBLISH_SECONDS
                publish_after = self.events + max(_FIRST, self.events // _GROWTH)
            if progress is not None:
                self.position = 0 if source.size is None else source.position()
                progress(len(batch))
        gauges = timer.gauges(final=True)
        self.telemetry.publish(labels, gauges, None, timer.seconds)
        return gauges

    def _until_interrupted(self, batches: Iterator[Sequence[Record]]) -> Iterator[Sequence[Record]]:
        while not self.interrupted:
            try:
                self._waiting = True
                batch = next(batches, None)
                self._waiting = False
            except KeyboardInterrupt:
                self.interrupted = True
                return
            if batch is None:
                return
            yield batch


def _in_parts(batches: Iterable[Sequence[Record]]) -> Iterator[Sequence[Record]]:
    """The same records, at first in small batches; a lane does with them what it does with large ones."""
    done = 0
    for batch in batches:
        at = 0
        while at < len(batch):
            size = max(_FIRST, done // _GROWTH) if done < _LATEST else len(batch)
            part = batch[at : at + size]
            at += len(part)
            done += len(part)
            yield part


def _letter_line(letter: DeadLetter) -> bytes:
    line: dict[str, Any] = {"offset": letter.offset, "stage": letter.stage, "error": letter.error}
    try:
        line["value"] = None if letter.value is None else letter.value.decode("utf-8")
    except UnicodeDecodeError:
        line["value_base64"] = base64.b64encode(letter.value or b"").decode()
    return _json.encode(line)
