"""When models were released and forks charged, as the clock of whoever commits says; kept by the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampair.engine.snapshot import dated

__all__ = ["KEPT", "Dates", "ReleaseDate", "rows_of"]

ReleaseDate = tuple[int, int, float, int | None, int]

KEPT = 8
"""Rows of each kind that are kept: the first one, and the latest."""


class Dates:
    """Dates of releases and of forks, a bounded number of each.

    A lane has no clock: it is told the time with a commit. They say when a process got so far, which no plan
    says: for operators, and in nothing that everybody is shown (docs/privacy.md 7).

    Attributes
    ----------
    releases
        Milliseconds since the epoch, releases by then, mu spent, slots left (None: no horizon), and records
        taken, each of which has a slot.
    forks
        Milliseconds since the epoch, forks charged by then.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine.dates import Dates
    >>> dates = Dates()
    >>> dates.note(1_700_000_000_000, auc.PairFTRL(1.0, 1e-4, 100).privacy, 1, 7)
    >>> dates.releases, dates.forks
    ([], [(1700000000000, 1)])
    """

    def __init__(self) -> None:
        self.releases: list[ReleaseDate] = []
        self.forks: list[tuple[int, int]] = []
        self._released = 0
        self._charged = 0

    def note(self, when: int, report: Any, forks: int, records: int) -> None:
        """Date what is new since the last call, at `when`; if that is no date, it never gets one."""
        known = dated(when)
        if known and report.releases > self._released:
            self.releases.append((when, report.releases, report.mu_spent, report.horizon_left, records))
            _bound(self.releases)
        self._released = report.releases
        if known and forks > self._charged:
            self.forks.append((when, forks))
            _bound(self.forks)
        self.forks = [row for row in self.forks if row[1] <= forks]  # one may have been waived
        self._charged = forks

    def to_state(self) -> dict[str, Any]:
        """What `load` reads, as plain values; {} while there is nothing to keep."""
        if not (self.releases or self.forks or self._charged):
            return {}
        return {
            "releases": [list(row) for row in self.releases],
            "forks": [list(row) for row in self.forks],
            "charged": self._charged,
        }

    def load(self, told: Mapping[str, Any] | None) -> None:
        """Go on with what `summary` has written down; dates that cannot be read are as if never written."""
        if told is None:
            return
        kept = told.get("dates")
        self.releases, self.forks = rows_of(kept)
        counted = told.get("releases")
        self._released = counted if isinstance(counted, int) else 0
        charged = kept.get("charged") if isinstance(kept, Mapping) else None
        self._charged = charged if isinstance(charged, int) else 0


def _bound(rows: list[Any]) -> None:
    if len(rows) > KEPT:
        del rows[1]


def rows_of(kept: Any) -> tuple[list[ReleaseDate], list[tuple[int, int]]]:
    """Releases and forks, as of `Dates`, from what its `to_state` gave; none from anything else."""
    try:
        releases = [(int(t), int(n), float(m), left, int(slot)) for t, n, m, left, slot in kept["releases"]]
        forks = [(int(t), int(n)) for t, n in kept["forks"]]
    except (KeyError, TypeError, ValueError):
        return [], []
    good = all(dated(row[0]) for row in [*releases, *forks])
    good = good and all(left is None or isinstance(left, int) for *_, left, _ in releases)
    return (releases[-KEPT:], forks[-KEPT:]) if good else ([], [])
