"""Random cases on both engines for as long as one likes, or one case again: python -m tests.temporal.twin_soak.

Batches run in turn with the shortcuts of the Temporal engine and without them, unless LUCIUS_TEMPORAL_FASTPATH is set.
"""

import argparse
import asyncio
import itertools
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import structlog

from tests.support.fastpath import FASTPATH
from tests.support.temporal import TemporalServer
from tests.temporal.twin_plane import planes
from tests.temporal.twin_run import Twins

BATCH = 100


async def soak(seeds: list[int], minutes: float, *, durable: bool) -> int:
    """Run cases until the time is up, and return how many differ."""
    server = TemporalServer().start()
    deadline = time.monotonic() + minutes * 60
    wrong = cases = unsteady = 0
    values = [os.environ[FASTPATH]] if FASTPATH in os.environ else ["on", "off"]
    try:
        for value in itertools.cycle(values):
            os.environ[FASTPATH] = value
            with tempfile.TemporaryDirectory() as folder:
                async with planes(Path(folder), server, durable=durable) as both:
                    twins = Twins(both)
                    for found in await twins.run(seeds):
                        wrong += 1
                        print(found, flush=True)
            for seed, lines in twins.once.items():
                shown = "\n  ".join(line[:400] for line in lines[:6])
                print(f"seed {seed} differed at first, not with slower clocks\n  {shown}", flush=True)
            cases, unsteady = cases + len(seeds), unsteady + len(twins.once)
            print(f"{cases} cases, {wrong} differ, {unsteady} only at first; the last {FASTPATH}={value}", flush=True)
            if time.monotonic() >= deadline and value == values[-1]:
                break
            seeds = random.SystemRandom().sample(range(10_000_000), BATCH)
    finally:
        server.remove()
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, action="append", help="this case; may be given several times")
    parser.add_argument("--durable", action="store_true", help="ledgers in files, not in memory")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(1 if asyncio.run(soak(asked.seed or list(range(BATCH)), asked.minutes, durable=asked.durable)) else 0)


if __name__ == "__main__":
    main()
