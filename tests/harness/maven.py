"""Jars from Maven Central, fetched once into ``.cache``; later runs need no network."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.kafka import Unavailable

__all__ = ["alone", "fetched"]

FETCH_SECONDS = 600.0


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time: two of Maven that fetch the same files wait for each other, or spoil them."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetched(what: str, pom: Path, target: Path, arguments: Sequence[str]) -> Path:
    """Fill a directory by Maven, unless it was filled from the same pom.

    Parameters
    ----------
    what
        Name and version, for messages.
    pom
        The file that names what to fetch.
    target
        The directory; its parent is for all versions.
    arguments
        Of Maven. ``{folder}`` in them becomes the directory to fill.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    Unavailable
        There is no Maven, or it cannot fetch.
    """
    stamp = hashlib.sha256(pom.read_bytes()).hexdigest()
    complete = target / ".complete"
    if complete.exists() and complete.read_text() == stamp:
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(what, "install Maven (Debian: apt-get install maven), needed once to fetch it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.parent / ".fetching"), tempfile.TemporaryDirectory(dir=target.parent) as work:
        if complete.exists() and complete.read_text() == stamp:
            return target  # another process has fetched it meanwhile
        folder = Path(work, "jars")
        folder.mkdir()
        command = [
            *(maven, "--quiet", "--batch-mode", "-f", str(pom)),
            *(each.format(folder=folder) for each in arguments),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=FETCH_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(what, f"Maven did not fetch it in {FETCH_SECONDS:.0f} s; try again") from None
        if done.returncode != 0:
            raise Unavailable(
                what,
                f"Maven could not fetch it; with a network, try: {' '.join(command)}\n" + done.stdout[-2000:],
            )
        (folder / ".complete").write_text(stamp)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    return target
