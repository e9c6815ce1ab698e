"""The storm for as long as one likes: python -m tests.temporal.storm_soak --minutes 10 [--seed 1]

Each pass has servers and a seed of its own, which is printed; `local:` and Redis streams take turns, and every two
passes the values of LUCIUS_TEMPORAL_FASTPATH, unless it is set. The files of a pass that fails are kept.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.fastpath import FASTPATH
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.temporal import TemporalServer
from tests.temporal.storm_cluster import TemporalZygote
from tests.temporal.test_storm import survive

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first pass")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="every process is killed once in each")
    parser.add_argument("--bus", choices=("local", "redis"), default=None, help="only this one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # sys.exit runs the cleanup that ends the processes
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    stop = time.monotonic() + arguments.minutes * 60
    passes = 0
    values = [os.environ[FASTPATH]] if FASTPATH in os.environ else ["on", "off"]
    while passes == 0 or time.monotonic() < stop:
        os.environ[FASTPATH] = values[passes // 2 % len(values)]
        one_pass(seed + passes, arguments.rounds, arguments.bus or ("local", "redis")[passes % 2])
        passes += 1
    print(f"{passes} passes, nothing lost, nothing applied twice, every counter right", flush=True)


def one_pass(seed: int, rounds: int, bus: str) -> None:
    print(f"seed {seed}, {bus}, {FASTPATH}={os.environ[FASTPATH]}: ", end="", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"lucius-storm-{seed}-"))
    began = time.monotonic()
    with ExitStack() as stack:
        zygote = TemporalZygote()
        stack.callback(zygote.close)
        postgres = PostgresServer(fsync=True).start()
        stack.callback(postgres.remove)
        temporal = TemporalServer(durable=True).start()
        stack.callback(temporal.remove)
        redis = RedisServer(folder, durable=True).start() if bus == "redis" else None
        if redis is not None:
            stack.callback(redis.stop)
        bus_url = redis.url if redis else "local:"
        try:
            verdict = asyncio.run(
                survive(zygote, postgres, temporal, folder, seed=seed, rounds=rounds, bus_url=bus_url)
            )
        except BaseException:
            print(f"FAILED; its files are in {folder}", flush=True)
            raise
    print(f"ok in {time.monotonic() - began:.0f} s: {verdict}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
