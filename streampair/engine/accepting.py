"""Going on where a start is refused, because an operator says so (docs/privacy.md 8, Lemma 28).

Nothing is waived: whatever may be seen a second time is charged, and the report says from then on whose word
it rests on.
"""

from __future__ import annotations

from typing import NamedTuple

from streampair.engine.log import Accepted, Chain, Register
from streampair.engine.opening import ANOTHER, Facts, How, Known, hold
from streampair.engine.records import Append
from streampair.engine.reservations import Reservations
from streampair.errors import PrivacyError

__all__ = ["Acceptance", "NothingToAccept", "accept", "acceptable", "forks_to_accept"]

_ACCEPTED = {
    "register": "went on without a register",
    "rollback": "went on from an older log",
    "span": "went on from an older snapshot",
}


class NothingToAccept(PrivacyError):
    """A start is not refused for what an operator wants to go on without."""


class Acceptance(NamedTuple):
    """What an operator's word comes to.

    Attributes
    ----------
    append
        To be made durable.
    forks
        That it is charged.
    told
        What the report will say.
    problem
        Why a start is refused.
    charged
        Forks before it and after it.
    mu
        Spent before it and after it, as in a report; None without an account.
    """

    append: Append
    forks: int
    told: str
    problem: str
    charged: tuple[int, int]
    mu: tuple[float, float] | None = None


def accept(
    known: Known | None,
    chain: Chain,
    account: Reservations | None,
    facts: Facts,
    how: How,
    when: str,
    *,
    private: bool,
    entity: str,
) -> tuple[Accepted, str, tuple[int, int]]:
    """The entry that lets a lane go on.

    Parameters
    ----------
    known, chain
        What the log says, up to its damage if it has any.
    account
        Of a private learner: it is charged. None: there is none to keep.
    facts
        What stands outside of the log.
    how
        What is missing: the register; the newest entries of the log; the records from the last snapshot to
        the tip, or what they gave.
    when
        The date, for the report.
    private, entity
        As of `check`.

    Returns
    -------
    tuple
        The entry, why a start is refused, and the forks charged before it and after it.

    Raises
    ------
    PrivacyError, SnapshotError, LogDamaged
        If the lane is not refused for that, or for something else too; if the plan has not set aside what
        would be charged, or nothing is known to go on from.
    """
    if known is None:
        raise PrivacyError(
            "there is no log to go on from" if chain.damage is None else chain.damage.problem,
            fix=f"put the newest store back; if it is lost, {ANOTHER}",
        )
    problem = acceptable(known, chain, facts, how, private=private, entity=entity)
    register = None if facts.register is None else Register.read(chain.key, facts.register)
    # A span that was given up before, with no commit since, stays given up.
    from_snapshot = how == "span" or known.given_up is not None
    ledger, charged = None, (0, 0)
    if account is not None:
        if known.ledger is not None:
            account.restore(known.ledger)
        before = account.ledger.charged
        start, forks = forks_to_accept(
            known, account.ledger.size, register=register, from_snapshot=from_snapshot
        )
        if register is not None and not chain.holds(register.sequence, register.tag):
            # What was charged in the entries that are lost is charged again: those views have left. A log
            # that went another way has made its own besides.
            other = register.sequence <= chain.sequence
            forks += register.forks if other else max(register.forks - before, 0)
            account.ledger.generation = max(account.ledger.generation, register.generation)
        account.ledger.accept(forks, start)
        ledger, charged = account.ledger.to_state(), (before, account.ledger.charged)
    forks = charged[1] - charged[0]
    lost = register is not None and register.void and not known.void
    entry = Accepted(
        what=f"{when} ({_ACCEPTED[how]}, {forks} fork(s) charged)",
        charged=forks,
        from_snapshot=from_snapshot,
        next_offset=known.next_offset,
        ledger=ledger,
        void=["it was void in entries of the log that are lost"] if lost else [],
    )
    return entry, problem, charged


def acceptable(known: Known, chain: Chain, facts: Facts, how: How, *, private: bool, entity: str) -> str:
    """Why a start is refused that an operator's word can let go on; arguments as in `check`.

    Raises
    ------
    PrivacyError, SnapshotError, LogDamaged
        If it is refused for another reason, or not refused.
    """
    found: list[str] = []

    def refuse(problem: str, fix: str, cause: How | None = None) -> None:
        if cause == how:
            found.append(problem)
        elif private:
            raise PrivacyError(problem, fix=fix)

    if chain.damage is not None:
        if how != "rollback":
            raise chain.damage
        found.append(chain.damage.problem)
        if private and (facts.register is None or Register.read(chain.key, facts.register) is None):
            raise PrivacyError(
                f"{chain.damage.problem}; and the group has no register, so that nothing tells what was "
                "released",
                fix=f"put the newest copy of the store back; if it is lost, {ANOTHER}",
            )
    hold(known, chain, facts, entity, refuse)
    if how == "register" and found and (facts.offset or 0) > max(known.next_offset or 0, facts.start):
        raise PrivacyError(
            f"{found[0]}; and the group's offset lies beyond the log, which ends at {known.next_offset}: it "
            "is either not the newest store, or a tool has moved the offset",
            fix="put the newest store back. If a tool has moved the offset, move it back first: "
            f"kafka-consumer-groups.sh --reset-offsets --to-offset {known.next_offset or facts.start}",
        )
    if how == "span" and known.span is not None:
        found.append("the way from the last snapshot to the last commit cannot be gone again")
    if not found or not (private or how == "span" or chain.damage is not None):
        raise NothingToAccept(
            {
                "register": "the group's register is there",
                "rollback": "the log is not older than the group's register",
                "span": "no events have to be replayed from the last snapshot",
            }[how]
            if private
            else "this lane keeps no privacy account, and goes on by itself",
            fix="start `streampair run`; `streampair state show` says what it would be refused for",
        )
    return found[0]


def forks_to_accept(
    known: Known, size: int, *, register: Register | None, from_snapshot: bool
) -> tuple[int, int]:
    """Where the lane goes on, and forks for every slot that may have been released and would be seen again.

    Parameters
    ----------
    known
        What the log says.
    size
        Slots in a window.
    register
        The group's, if it has one: it may know of later slots.
    from_snapshot
        Whether the lane goes on from its snapshot, or from its tip.
    """
    tip = known.tip if not from_snapshot else None if known.saved is None else known.saved.tip
    start = 0 if tip is None else tip.slots
    last = max(known.released, start) if register is None else max(known.released, register.slots, start)
    # Nothing beyond the window that was open at the last known slot has been released.
    return start, -(-(last + size - start) // size)
