"""Seeds without end: `python -m tests.simulation.soak [--minutes 10] [--seed-start N]`. The first failure ends it."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulation.tally import Tally
from tests.simulation.trace import Broken
from tests.simulation.world import run

CHUNK = 50
PROGRESS_SECONDS = 10.0


def run_chunk(start: int) -> Tally | str:
    """Return the tally of a chunk, or the report of its first failing seed."""
    tally = Tally()
    for seed in range(start, start + CHUNK):
        try:
            tally.add(run(seed))
        except Broken as broken:
            return str(broken)
    return tally


def tallies(start: int, processes: int, until: float) -> Iterator[Tally | str]:
    with ProcessPoolExecutor(processes) as pool:
        waiting: set[Future[Tally | str]] = set()
        while waiting or time.monotonic() < until:
            while len(waiting) < processes * 2 and time.monotonic() < until:
                waiting.add(pool.submit(run_chunk, start))
                start += CHUNK
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for chunk in done:
                outcome = chunk.result()
                if isinstance(outcome, str):
                    pool.shutdown(wait=False, cancel_futures=True)
                yield outcome


def report(total: Tally, seconds: float, *, faults: bool) -> None:
    hours = total.virtual_seconds / 3600
    jobs = ", ".join(f"{status} {n}" for status, n in sorted(total.jobs.items()))
    print(
        f"{seconds:6.0f}s  {total.seeds} seeds ({total.seeds / seconds:.1f}/s)  "
        f"{total.steps} steps ({total.steps / seconds:.0f}/s)  {hours:.1f} virtual hours  {jobs}",
        flush=True,
    )
    if faults:
        print("\n".join(f"  {kind:<36} {n}" for kind, n in sorted(total.counts.items())), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed-start", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    started = told = time.monotonic()
    total = Tally()
    for outcome in tallies(asked.seed_start, asked.processes, started + asked.minutes * 60):
        if isinstance(outcome, str):
            print(outcome)
            return 1
        total.add(outcome)
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            report(total, told - started, faults=False)
    report(total, time.monotonic() - started, faults=True)
    print(f"every invariant held; the next soak may start with --seed-start {asked.seed_start + total.seeds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
