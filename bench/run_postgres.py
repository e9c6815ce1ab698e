"""Lucius on PostgreSQL, several times over, and DBOS on the same one in turns with it: medians with their spread.

python -m bench.run_postgres [--runs 3] [--seconds 8] [--strict] [--quick] [--parts speed dbos history written idle]

All processes share the machine's cores: the API with its engine, a process of services that answer at once, the load
generator and PostgreSQL. Bars are those of two cores; a run below one says so, and with --strict ends with an error.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from bench import written
from bench.history_postgres import migrate, write_history
from bench.idle import cost
from bench.load import WARM_UP
from bench.postgres import SETTINGS, Server, postgres
from bench.processes import cpu_seconds, free_port, process, wait_ready
from bench.run import measure, show, stack

Figures = dict[str, float]
PARTS = ("speed", "dbos", "history", "written", "idle")

ONE, MANY = "1 in flight", "32 in flight"
HANDED = "DBOS, 32, steps handed to a service"
PLAIN = "DBOS, 32, steps in its own process"

FULL = "32 in flight, with a past"

RATE_BAR = 250.0
PAST_BAR = 0.85
IDLE_BAR = 0.05


class Sizes(Struct, frozen=True, kw_only=True):
    runs: int
    seconds: float
    finished: int
    live: int
    replicas: int = 64
    settled_seconds: float = 45.0
    idle_seconds: float = 20.0
    waiting: int = 10_000


QUICK = Sizes(
    runs=1, seconds=1.0, finished=2_000, live=100, replicas=2, settled_seconds=1.0, idle_seconds=1.0, waiting=100
)


class Bench(Struct):
    server: Server
    folder: Path
    sizes: Sizes
    parts: frozenset[str]
    found: dict[str, list[Figures]] = field(default_factory=dict)
    spent: list[dict[str, float]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def note(self, name: str, figures: Figures) -> None:
        self.found.setdefault(name, []).append(figures)

    def bar(self, met: bool, said: str) -> None:
        print(f"{'meets the bar' if met else 'BELOW THE BAR'}: {said}", flush=True)
        if not met:
            self.missed.append(said)

    @contextlib.contextmanager
    def spending(self, pids: dict[str, int]) -> Iterator[None]:
        """Record the CPU seconds that the processes use meanwhile, by name."""
        pids = {**pids, "PostgreSQL": self.server.pid}
        before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
        load = _cpu_of_ended()
        yield
        spent = {name: cpu_seconds([pid]) - before[name] for name, pid in pids.items()}
        self.spent.append({**spent, "load": _cpu_of_ended() - load})


def _cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def speed(bench: Bench, n: int) -> None:
    """Measure on a new database each time, so that no run has the history of the one before."""
    name, seconds = f"lucius_{n}", bench.sizes.seconds
    with stack(bench.folder / name, bench.server.create(name)) as running:
        bench.note(ONE, measure(running.base_url, 1, seconds, f"one-{n}"))
        with bench.spending(running.pids):
            bench.note(MANY, measure(running.base_url, 32, seconds, f"many-{n}"))
    bench.server.drop(name)


def past(bench: Bench, n: int) -> None:
    """Measure with past jobs, created in the first run and reused: a run adds little to them."""
    name = "full"
    if n == 0:
        began = time.monotonic()
        write_history(bench.server.create(name), bench.sizes.finished, bench.sizes.live)
        size = bench.server.ask(f"SELECT pg_database_size('{name}')") / 2**30
        print(f"a past of {size:.1f} GiB was copied in within {time.monotonic() - began:.0f} s", flush=True)
    with stack(bench.folder / f"{name}_{n}", bench.server.url(name)) as running:
        bench.note(FULL, measure(running.base_url, 32, bench.sizes.seconds, f"full-{n}"))


def writes(bench: Bench) -> None:
    """Count after all sessions have ended, so that nothing is missed; includes the few rows of the start."""
    name = "written"
    url = bench.server.create(name)
    asyncio.run(migrate(url))
    before = asyncio.run(written.count(url))
    with stack(bench.folder / name, url) as running:
        measure(running.base_url, 32, bench.sizes.seconds, "written")
    after = asyncio.run(written.count(url))
    written.tell(before, after)
    bench.server.drop(name)


def idle(bench: Bench) -> None:
    sizes, name = bench.sizes, "idle"
    url = bench.server.create(name)
    for jobs in (0, sizes.waiting):
        if jobs:
            write_history(url, 0, jobs)
        found = cost(bench.server, url, sizes.replicas, sizes.settled_seconds, sizes.idle_seconds)
        said = f"{sizes.replicas} idle replicas, {jobs:,} jobs waiting: {found.share:.1%} of a core, {found}"
        bench.bar(found.share < IDLE_BAR, f"{said}; under {IDLE_BAR:.0%}")
    bench.server.drop(name)


def dbos(bench: Bench, n: int) -> None:
    for name, way in ((HANDED, _handed), (PLAIN, _plain)):
        database = f"dbos_{way.__name__}_{n}"
        bench.note(name, way(bench, bench.server.create(database)))
        bench.server.drop(database)


def _plain(bench: Bench, url: str) -> Figures:
    command = [sys.executable, "-m", "bench.dbos_peer", "--inflight", "32", "--seconds", str(bench.sizes.seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "DBOS_URL": url})
    figures: Figures = json.loads(done.stdout)
    return figures


def _handed(bench: Bench, url: str) -> Figures:
    app, service = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    env = {"DBOS_URL": url, "SERVICE_URL": service}
    with contextlib.ExitStack() as running:
        for base_url, name in ((app, "app"), (service, "service")):
            port = base_url.rpartition(":")[2]
            command = ("-m", "uvicorn", "--factory", f"bench.dbos_peer:{name}", "--port", port)
            log = bench.folder / f"dbos-{name}.log"
            peer = running.enter_context(process(*command, "--log-level", "warning", log=log, **env))
            wait_ready(f"{base_url}/readyz", peer, log)
        return measure(app, 32, bench.sizes.seconds, "handed")


def in_turns(bench: Bench) -> None:
    """Run all parts in turns, several times, so that a slowdown of the machine affects them all."""
    turns = [
        turn
        for part, turn in (("speed", speed), ("history", past), ("dbos", dbos))
        if part in bench.parts and not (part == "dbos" and _lacks_dbos())
    ]
    for n in range(bench.sizes.runs):
        for turn in turns if n % 2 == 0 else reversed(turns):
            turn(bench, n)
    tell(bench)


def _lacks_dbos() -> bool:
    lacks = importlib.util.find_spec("dbos") is None
    if lacks:
        print("DBOS is not installed (uv sync --group bench): not measured")
    return lacks


def tell(bench: Bench) -> None:
    medians = {name: show(name, bench.found[name]) for name in (ONE, MANY, FULL, HANDED, PLAIN) if name in bench.found}
    if MANY not in medians:
        return
    _tell_cpu(bench)
    for name in (HANDED, PLAIN):
        if name in medians:
            print(f"{medians[MANY] / medians[name]:.1f} times {name}")
    bench.bar(medians[MANY] >= RATE_BAR, f"{medians[MANY]:.0f} jobs/s, {MANY}; at least {RATE_BAR:.0f}")
    if FULL in medians:
        share = medians[FULL] / medians[MANY]
        behind = f"{bench.sizes.finished:,} finished and {bench.sizes.live:,} live jobs behind it"
        bench.bar(share >= PAST_BAR, f"{share:.2f} of the rate with {behind}; at least {PAST_BAR}")


def _tell_cpu(bench: Bench) -> None:
    """Print CPU per job; a job of the warm-up is counted like any other."""
    jobs = sum(figures["jobs"] for figures in bench.found[MANY]) * (1 + WARM_UP)
    each = {name: sum(spent[name] for spent in bench.spent) * 1000 / jobs for name in bench.spent[0]}
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in each.items())
    print(f"{MANY}: {sum(each.values()):.2f} ms of CPU per job ({parts})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--finished", type=int, default=1_000_000, help="jobs of the past")
    parser.add_argument("--live", type=int, default=50_000, help="jobs of the past that are not over")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--strict", action="store_true", help="fail below a bar")
    parser.add_argument("--quick", action="store_true", help="does it still run? Without DBOS; figures mean nothing")
    given = parser.parse_args()
    chosen = Sizes(runs=given.runs, seconds=given.seconds, finished=given.finished, live=given.live)
    sizes = QUICK if given.quick else chosen
    parts = frozenset(given.parts) - (frozenset(["dbos"]) if given.quick else frozenset())
    print("PostgreSQL:", ", ".join(f"{name}={value}" for name, value in {"fsync": "on", **SETTINGS}.items()))
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        bench = Bench(server, Path(folder), sizes, parts)
        for part, measured in (("idle", idle), ("written", writes)):
            if part in parts:
                measured(bench)
        in_turns(bench)
    if given.strict and bench.missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
