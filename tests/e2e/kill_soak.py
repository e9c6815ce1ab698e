"""The kill test for as long as one likes: python -m tests.e2e.kill_soak --minutes 10 [--seed 1]

Each pass is a fresh ledger and a seed of its own, which is printed. The files of a pass that fails are kept.
"""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.chaos import survive
from tests.e2e.support import Zygote
from tests.e2e.test_kill import check

ROUNDS = 12
JOBS = 600
CLIENTS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first pass")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="every process is killed once in each")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # sys.exit runs the cleanup that ends the processes
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    stop = time.monotonic() + arguments.minutes * 60
    passes = 0
    while passes == 0 or time.monotonic() < stop:
        one_pass(seed + passes, arguments.rounds)
        passes += 1
    print(f"{passes} passes, nothing lost, nothing fenced applied", flush=True)


def one_pass(seed: int, rounds: int) -> None:
    print(f"seed {seed}: ", end="", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"lucius-kill-{seed}-"))
    zygote = Zygote()
    began = time.monotonic()
    try:
        outcome = asyncio.run(survive(zygote, folder, seed, rounds=rounds, at_least=JOBS, clients=CLIENTS))
        verdict = check(outcome, rounds, JOBS)
    except BaseException:
        print(f"FAILED; its files are in {folder}", flush=True)
        raise
    finally:
        zygote.close()
    print(f"ok in {time.monotonic() - began:.0f} s: {verdict}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
