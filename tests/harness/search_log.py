"""Tries scripts of lives and lies one after the other: ``make search-log``."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence

from harness.lying import Refused, Script, play
from streampair.errors import StreampairError

#: What a script must never come to. Anything else that is raised is a fault of the search itself.
Found = (AssertionError, Refused, StreampairError)


def fails(script: Script) -> str | None:
    """What a script has found; None: nothing."""
    try:
        play(script)
    except Found as error:
        return f"{type(error).__name__}: {error}"
    return None


def shortest(script: Script) -> Script:
    """The script without what it needs not to fail."""
    start = 0
    while start < len(script.ops):
        shorter = script._replace(ops=script.ops[:start] + script.ops[start + 1 :])
        if fails(shorter) is None:
            start += 1
        else:
            script = shorter
    return script


def find(seeds: Iterable[int], *, shrink: bool = True) -> str | None:
    """The first script that fails, told in full; None: none does."""
    for seed in seeds:
        script = Script.draw(seed)
        problem = fails(script)
        if problem is not None:
            return f"seed {seed}: {problem}\n{shortest(script) if shrink else script}"
    return None


def _find(seeds: Sequence[int]) -> str | None:
    warnings.simplefilter("ignore")
    return find(seeds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try many scripts, in as many processes as there are processors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first script")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.scripts)
    parts = [seeds[start : start + 500] for start in range(0, len(seeds), 500)]
    begun = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(chosen.jobs) as pool:
        found = [problem for problem in pool.map(_find, parts) if problem is not None]
    print("\n\n".join(found))
    print(f"{len(seeds):,} scripts, {len(found)} found, {time.monotonic() - begun:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
