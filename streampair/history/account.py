"""The account file: every attempt at a release, written and on disk before its noise is drawn."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from streampair.errors import PrivacyError, StoreError

__all__ = ["AttemptAccount", "Standardisation", "attempts_of", "open_account"]

_FORMAT: Final = "streampair.history.account"


@dataclass(frozen=True)
class Standardisation:
    """What the first stage has released, and which rows it has read.

    Attributes
    ----------
    attempt
        Number of the attempt.
    sampled, ids, kind
        Rows in the sample, a sum over all row ids, and whether these are numbers or texts.
    centre, mean, factor, cap
        Mean of the labels; mean and factor of the scaled features; bound of the standardised ones.
    cross
        Covariances of labels and features, and the variances of their noise.
    """

    attempt: int
    sampled: int
    ids: int
    kind: str
    centre: float
    mean: tuple[float, ...]
    factor: tuple[float, ...]
    cap: float
    cross: tuple[tuple[float, ...], ...]


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
    """An attempt at the release of a stage: a MAC of its sums, and whether it has returned its result.

    Of the first stage the result is kept.
    """

    stage: Literal[1, 2]
    sums: str
    finished: bool
    released: Standardisation | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["streampair.history.account"]
    version: Literal[1]
    job: str
    attempts: list[_Attempt]


class AttemptAccount:
    """An account file that this process has locked.

    Parameters
    ----------
    path
        The file.
    document
        What is in it.
    """

    def __init__(self, path: Path, document: _Document) -> None:
        self._path, self._document = path, document

    def attempts(self, stage: int) -> int:
        """Number of attempts at the release of a stage, all of which are charged."""
        return sum(attempt.stage == stage for attempt in self._document.attempts)

    def next_attempt(self, stage: int, proof: Callable[[int], bytes] | None, *, new: bool) -> int:
        """The number of the attempt that may be made now; nothing is written.

        Parameters
        ----------
        stage
            1 or 2.
        proof
            From the number of an attempt to a MAC of it, of the exact sums and of all that shapes the
            release. The number keeps the file from showing whether two attempts had the same sums. None: the
            sums are not known yet, and are not compared.
        new
            Whether the operator asks for a further attempt, which is charged. One that was interrupted is
            finished first, if it had these sums.

        Raises
        ------
        PrivacyError
            If the last attempt has returned its result, or was interrupted and had other sums; unless a new
            one is asked for.
        """
        count = self.attempts(stage)
        if not count:
            return 1
        last = self._last(stage)
        fix = (
            "give new_attempt=True (backfill: --new-attempt) to release once more, which is charged as a "
            "release of its own, whatever is in the table"
        )
        if last.finished:
            if new:
                return count + 1
            raise PrivacyError(
                f"attempt {count} at stage {stage} has been released, as the account {self._path} says",
                fix=fix,
            )
        if proof is not None and not hmac.compare_digest(last.sums, proof(count).hex()):
            if new:
                return count + 1
            raise PrivacyError(
                f"attempt {count} at stage {stage} was interrupted, and had other sums: of another table, or "
                f"under another key or version ({self._path})",
                fix=f"finish it with the table that it was made of, which costs nothing; or {fix}",
            )
        return count

    def begin(self, stage: Literal[1, 2], proof: bytes, number: int) -> None:
        """Write an attempt, unless it is that which was interrupted; it is on disk when this returns."""
        if number > self.attempts(stage):
            self._document.attempts.append(_Attempt(stage, proof.hex(), finished=False))
            self._write()

    def finish(self, stage: int, released: Standardisation | None) -> None:
        """Write that the last attempt of a stage has its result."""
        last = self._last(stage)
        last.finished, last.released = True, released
        self._write()

    def standardisation(self) -> Standardisation | None:
        """What the last attempt of the first stage has released; None: it has not."""
        return self._last(1).released if self.attempts(1) else None

    def check_released(self, standardisation: Standardisation) -> None:
        """Check that an attempt of this account at the first stage has released this.

        Raises
        ------
        PrivacyError
            None has: the attempts of the first stage are in another account, which this one would not charge.
        """
        if not any(standardisation == attempt.released for attempt in self._document.attempts):
            raise PrivacyError(
                f"the account {self._path} has not released the means and spreads of this job",
                fix="give the account that standardised was given: all attempts of a job are in one account",
            )

    def _last(self, stage: int) -> _Attempt:
        return [attempt for attempt in self._document.attempts if attempt.stage == stage][-1]

    def _write(self) -> None:
        """Replace the file at once, or not at all, and wait until it is on disk."""
        part = self._path.with_name(f".{self._path.name}.part")
        try:
            part.unlink(missing_ok=True)  # of a run that was killed; a new file has this mode, and is no link
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._document) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreError(
                f"the account {self._path} cannot be written: {error.strerror}",
                fix="make room on its disk, or correct the permissions of its folder; then run it again with "
                "the same sums",
            ) from None


def attempts_of(path: str | Path) -> tuple[str, int]:
    """The digest of the job of an account, and its attempts at one stage, of the stage with more.

    mu^2 is so many times as large. Without a file the digest is empty, and there are none.

    Raises
    ------
    StoreError
        If the file cannot be read, or is no account.
    """
    document = _read(Path(path), None)
    book = AttemptAccount(Path(path), document)
    return document.job, max(book.attempts(1), book.attempts(2))


@contextlib.contextmanager
def open_account(path: str | Path, job: str) -> Iterator[AttemptAccount]:
    """Lock an account file for a job, and read it; it is made by the first attempt.

    Waits while another process has it. The lock is on a file of its own next to it, ``PATH.lock``, since the
    account is replaced at each change.

    Raises
    ------
    StoreError
        If the file cannot be read, or is no account.
    PrivacyError
        If it is the account of another job.
    """
    target = Path(path).resolve()  # what replaces a link to it would be another account
    try:
        lock = os.open(target.with_name(target.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"the account {target} cannot be opened: {error.strerror}",
            fix="give a path in a folder that exists and can be written",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield AttemptAccount(target, _read(target, job))
    finally:
        os.close(lock)


def _read(path: Path, job: str | None) -> _Document:
    """The document; `job`: refuse that of another one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _Document(_FORMAT, 1, job or "", [])
    except OSError as error:
        raise StoreError(
            f"the account {path} cannot be read: {error.strerror}", fix="check the path and its permissions"
        ) from None
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, ValueError):
        raise StoreError(
            f"{path} is no account of a history job, or is damaged",
            fix="give the account of this job, or put back an undamaged copy of it: it says what is spent",
        ) from None
    if job is not None and document.job != job:
        raise PrivacyError(
            f"{path} is the account of another job",
            fix="to go on with that job, make it with the same parameters and the same salt; a new job has "
            "an account of its own, and what both spend on the same people adds up (mu^2)",
        )
    return document
