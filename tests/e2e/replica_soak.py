"""The test of replicas for as long as one likes: python -m tests.e2e.replica_soak --minutes 10 [--seed 1]

Each pass has a PostgreSQL and a seed of its own, which is printed; Redis streams and `local:` take turns. The files of
a pass that fails are kept.
"""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.support import Zygote
from tests.e2e.test_replicas import survive
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer

ROUNDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first pass")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="every process is killed twice in each")
    parser.add_argument("--bus", choices=("redis", "local"), default=None, help="only this one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # sys.exit runs the cleanup that ends the processes
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    stop = time.monotonic() + arguments.minutes * 60
    passes = 0
    while passes == 0 or time.monotonic() < stop:
        one_pass(seed + passes, arguments.rounds, arguments.bus or ("redis", "local")[passes % 2])
        passes += 1
    print(f"{passes} passes, nothing lost, nothing applied twice, every counter right", flush=True)


def one_pass(seed: int, rounds: int, bus: str) -> None:
    print(f"seed {seed}, {bus}: ", end="", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"lucius-replicas-{seed}-"))
    began = time.monotonic()
    with ExitStack() as stack:
        zygote = Zygote()
        stack.callback(zygote.close)
        postgres = PostgresServer(fsync=True).start()
        stack.callback(postgres.remove)
        redis = RedisServer(folder).start() if bus == "redis" else None
        if redis is not None:
            stack.callback(redis.stop)
        try:
            verdict = asyncio.run(survive(zygote, postgres, redis, folder, seed=seed, rounds=rounds))
        except BaseException:
            print(f"FAILED; its files are in {folder}", flush=True)
            raise
    print(f"ok in {time.monotonic() - began:.0f} s: {verdict}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
