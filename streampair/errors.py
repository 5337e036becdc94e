"""Every error that streampair raises, one tree.

    StreampairError
    |-- ConfigError       the configuration or a constructor argument is wrong (also a ValueError)
    |-- RecordError       one event cannot be used (also a ValueError); `stage` says where it failed
    |   |-- NoScoreError        it is good, and the model has learned too little to score it
    |   `-- TombstoneError      it says that something was deleted: there is nothing to score
    |-- LaneStoppedError       a lane stopped itself: a bad event under on_bad="fail", or too many bad events
    |-- PrivacyError      a guarantee cannot be given as asked
    |-- SnapshotError     saved state cannot be read, or belongs to something else
    |-- StoreError        the state store cannot be read or written
    `-- SourceError       a broker, topic or file cannot be reached
        |-- Fenced            what was open here has another owner now
        `-- CommitOutcomeUnknownError    whether a commit was stored is not known

`PrivacyWarning` is a UserWarning: a promise is kept and protects little, or a learner can learn little.

Each message says what happened and what to do about it; `retriable` says whether
trying again, without a change by the user, can help.
"""

from __future__ import annotations

__all__ = [
    "CommitOutcomeUnknownError",
    "ConfigError",
    "FencedError",
    "LaneStoppedError",
    "NoScoreError",
    "PrivacyError",
    "PrivacyWarning",
    "RecordError",
    "SnapshotError",
    "SourceError",
    "StoreError",
    "StreampairError",
    "TombstoneError",
]


class StreampairError(Exception):
    """Base of every error of this package.

    Parameters
    ----------
    problem
        What happened, in one sentence without a full stop.
    fix
        What the reader can do about it, in one sentence without a full stop.
    retriable
        Whether the same call can succeed later without a change by the user.

    Examples
    --------
    >>> from streampair.errors import StreampairError
    >>> str(StreampairError("the tank is empty", fix="fill it"))
    'the tank is empty. Fix: fill it.'
    """

    retriable: bool = False

    def __init__(self, problem: str, *, fix: str, retriable: bool | None = None) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        return f"{self.problem}. Fix: {self.fix}."

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle as cls(*args), which would miss the keyword-only arguments.
        return (_rebuild, (type(self), self.problem, self.fix, self.__dict__.copy()))


def _rebuild(cls: type[StreampairError], problem: str, fix: str, state: dict[str, object]) -> StreampairError:
    error = cls(problem, fix=fix)
    error.__dict__.update(state)
    return error


class ConfigError(StreampairError, ValueError):
    """A configuration key or a constructor argument is wrong."""


class RecordError(StreampairError, ValueError):
    """One event cannot be used. Raised before any state has changed.

    `stage` is one of `"decode"`, `"features"`, `"label"`, `"learn"`. `row` is the number of a row of a batch
    in `problem`, from 0; None: it has none.
    """

    def __init__(
        self,
        problem: str,
        *,
        fix: str,
        stage: str = "features",
        retriable: bool | None = None,
        row: int | None = None,
    ) -> None:
        if row is not None and f"row {row}" not in problem:
            raise ValueError(f"row {row} is not in the message: {problem}")
        super().__init__(problem, fix=fix, retriable=retriable)
        self.stage, self.row = stage, row


class NoScoreError(RecordError):
    """An event is good, but its model has learned too little to score it. A lane learns it unscored."""


class TombstoneError(RecordError):
    """An event says that something was deleted. A lane counts it as a tombstone, and makes no dead letter."""


class LaneStoppedError(StreampairError):
    """A lane stopped itself: a bad event under `on_bad="fail"`, or too many bad events."""


class PrivacyError(StreampairError):
    """A privacy guarantee cannot be given as asked; nothing was released."""


class PrivacyWarning(UserWarning):
    """A private learner protects little, or can learn little, with its parameters or from its records.

    Nothing is refused, and what the report promises holds. A warning about records depends on raw data: it
    is shown where the learner runs, and is in no release, report or state.
    """


class SnapshotError(StreampairError):
    """Saved state cannot be read, or belongs to another model or configuration."""


class StoreError(StreampairError):
    """The state store cannot be read or written."""


class SourceError(StreampairError):
    """A broker, topic or file cannot be reached."""

    retriable = True


class FencedError(SourceError):
    """A lane has another owner, or the broker has given up on this one; what is in memory may be old.

    Drop the lane's state, and open it again if the partition is still assigned: that reads what is committed.
    """


class CommitOutcomeUnknownError(SourceError):
    """A commit was sent and its answer never came: it may be stored, or may not be.

    Drop the lane's state and open it again: that reads which of the two it is.
    """
