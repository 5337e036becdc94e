"""Simulate many seeds, or one with all that happens.

python -m harness.simulation --seeds 1000
python -m harness.simulation --seed 59
"""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import os
import sys
import time

from harness.simulation.scenario import FaultError, Run, simulate


def fault_of(seed: int) -> str | None:
    """What is wrong with the run of a seed, with its schedule; None: nothing is."""
    try:
        simulate(seed)
    except FaultError as error:
        return str(error)
    return None


def one(seed: int) -> int:
    """Run one seed, and print all that happens."""
    runs: list[Run] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = getattr(record, "fields", {})
            runs[0].note(f"log: {record.getMessage()} {fields}")

    logger = logging.getLogger("streampair_connectors")
    logger.addHandler(Lines())
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    fault = None
    try:
        simulate(seed, runs.append)
    except FaultError as error:
        fault = str(error)
    print(runs[0].plan, *runs[0].trace, fault or "all holds", sep="\n")
    return fault is not None


def many(seeds: range, jobs: int) -> int:
    """Run many seeds, and print the faults."""
    begin, found = time.monotonic(), 0
    with multiprocessing.Pool(jobs, functools.partial(logging.disable, logging.CRITICAL)) as pool:
        for fault in pool.imap_unordered(fault_of, seeds, chunksize=20):
            if fault is not None:
                found += 1
                print(fault, flush=True)
    seconds = time.monotonic() - begin
    print(f"{len(seeds)} seeds, {found} with a fault; {seconds:.0f} s")
    return found > 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with all that happens")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        return one(options.seed)
    return many(range(options.first, options.first + options.seeds), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
