"""What a lane's snapshot holds, and the checks before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from streampair.engine.envelope import unpack
from streampair.errors import SnapshotError

__all__ = ["Snapshot", "dated", "since_of", "summary", "unreadable"]

_YEAR_10000 = 253_402_300_800_000


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """What a snapshot holds; `unpack` gives it as a table, and this checks the types."""

    writer: str
    app: str
    topic: str
    partition: int
    name: str
    fingerprint: str
    next_offset: int | None
    clean: bool
    steps: list[dict[str, Any]]
    auc: dict[str, Any]
    regret: dict[str, Any] | None
    events: dict[str, int]
    stages: dict[str, int]
    seen: int
    bad: list[int]
    ledger: dict[str, Any] | None
    privacy: dict[str, Any] | None
    outside: dict[str, int]

    @classmethod
    def read(cls, data: bytes, signing_key: bytes | None) -> Snapshot:
        """What the bytes of a snapshot hold.

        Raises
        ------
        SnapshotError
            If it is damaged, of another format version, or not signed as asked.
        """
        try:
            return msgspec.convert(unpack(data, signing_key=signing_key), cls, strict=True)
        except msgspec.ValidationError as error:
            raise unreadable(error) from error

    def check(self, app: str, topic: str, partition: int, fingerprint: str) -> None:
        """Refuse the snapshot of another lane.

        Raises
        ------
        SnapshotError
        """
        lane, saved = (app, topic, partition), (self.app, self.topic, self.partition)
        if saved != lane:
            raise SnapshotError(
                "the snapshot belongs to app {!r}, topic {!r}, partition {!r}; this lane is app {!r}, "
                "topic {!r}, partition {!r}".format(*saved, *lane),
                fix="point the store at this lane's own directory",
            )
        if self.fingerprint != fingerprint:
            raise SnapshotError(
                "the configuration changed since the snapshot was written "
                f"(fingerprint {self.fingerprint!r}, now {fingerprint!r})",
                fix="put the old learner and input settings back, or give the new configuration another app "
                "name, which starts from the beginning",
            )


def unreadable(error: Exception) -> SnapshotError:
    """A body whose parts are not what they should be."""
    return SnapshotError(
        f"the snapshot does not hold what it should ({type(error).__name__}: {error})",
        fix="restore with the release that wrote it",
    )


def summary(
    report: Any, since: int | None = None, dates: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The numbers of a privacy report, for whoever reads a snapshot without its model.

    Parameters
    ----------
    report
        Of a private learner; None: it is not private.
    since
        Date of the first record in milliseconds, as its source says: metadata, as all dates of records are.
        None, 0: unknown.
    dates
        Of releases and forks, as `Dates.to_state` gives them.
    """
    if report is None:
        return None
    known: dict[str, Any] = {"since": since} if since else {}
    known |= {"dates": dates} if dates else {}
    names = (
        *("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "releases"),
        *("horizon", "horizon_left", "kind", "guarantee", "unit"),
    )
    return {**{name: getattr(report, name) for name in names}, **known}


def since_of(told: dict[str, Any] | None) -> int:
    """The date that `summary` was given; 0 if nobody has written it down."""
    return dated((told or {}).get("since", 0))


def dated(timestamp: Any) -> int:
    """Milliseconds of a date up to the year 9999; 0 for anything else: producers set what they like."""
    return timestamp if isinstance(timestamp, int) and 0 < timestamp < _YEAR_10000 else 0
