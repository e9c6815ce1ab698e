"""Lucius on Temporal and a plain Temporal application, in turns and several times over: medians with their spread.

python -m bench.run_temporal [--runs 3] [--seconds 8] [--inflight 4 16] [--strict] [--quick] [--stores disk memory]

Each has a dev server of its own, which keeps what it is told on disk or in memory, and shares the machine's cores with
all the rest. The two are both up, and one has load while the other has none: a machine that is slower for a minute is
so for both. Bars are ratios, the median of those of neighbours; a run below one says so, and with --strict ends with an
error. Where PostgreSQL is, API and worker are measured as two processes, too.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field
from tests.support.postgres import binaries

from bench.postgres import Server, postgres
from bench.processes import cpu_seconds, free_port, process, wait_ready
from bench.run import KEY, measure
from bench.temporal_server import TemporalServer, completed, events_per_job, temporal

Figures = dict[str, float]
STORES = ("disk", "memory")
STEPS = 3

OURS, PLAIN, BARE, SHARED = "Lucius", "plain", "plain, bare", "Lucius, PostgreSQL"
PLATFORM = ("ocr", "embedding", "sis")
LOOKED_AT = "embedding"

RATE_BAR = 1.5
LAG_BAR_MS = 1_000.0
SETTLE_SECONDS = 0.5


class Sizes(Struct, frozen=True, kw_only=True):
    runs: int
    pairs: int = 2
    """Measurements per run, with several jobs in flight."""
    seconds: float
    inflight: tuple[int, ...]
    stores: tuple[str, ...] = STORES
    peers: bool = True


QUICK = Sizes(runs=1, pairs=1, seconds=1.0, inflight=(4,), stores=("memory",), peers=False)


class Measured(Struct):
    """Measurements of one system on one store, run by run."""

    rates: dict[int, list[Figures]] = field(default_factory=dict)
    """By number of jobs in flight."""
    spent: list[Figures] = field(default_factory=list)
    events: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


class Bench(Struct):
    folder: Path
    sizes: Sizes
    database: Server | None
    found: dict[tuple[str, str], Measured] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    @property
    def most(self) -> int:
        """Largest number of jobs in flight; CPU is measured there."""
        return max(self.sizes.inflight)

    def of(self, store: str, name: str) -> Measured:
        return self.found.setdefault((store, name), Measured())

    def bar(self, met: bool, said: str) -> None:
        print(f"{'meets the bar' if met else 'BELOW THE BAR'}: {said}", flush=True)
        if not met:
            self.missed.append(said)


class Stack(Struct, frozen=True):
    base_url: str
    pids: dict[str, int]


@contextlib.contextmanager
def lucius(
    folder: Path, server: TemporalServer, ledger_url: str = "", services: tuple[str, ...] = PLATFORM
) -> Iterator[Stack]:
    """Run Lucius: on SQLite one process is API and worker, on PostgreSQL they are two."""
    base_url = f"http://127.0.0.1:{free_port()}"
    env = {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": server.address,
        "LUCIUS_DATA_DIR": str(folder),
        "LUCIUS_LEDGER_URL": ledger_url,
        "LUCIUS_DEV_API_KEY": KEY,
        "LUCIUS_ORCHESTRATOR_URL": base_url,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as running:
        pids = {"API": running.enter_context(_served("lucius.api.app:create_app", base_url, folder, env))}
        if ledger_url:
            pids["worker"] = running.enter_context(_worker(folder, env))
        said = ("-m", "bench.services", "--base-url", base_url, "--api-key", KEY, "--data-dir", str(folder))
        log = folder / "services.log"
        pids["services"] = running.enter_context(process(*said, "--services", *services, log=log)).pid
        yield Stack(base_url, pids)


@contextlib.contextmanager
def _worker(folder: Path, env: dict[str, str]) -> Iterator[int]:
    health, log = f"http://127.0.0.1:{free_port()}", folder / "worker.log"
    command = ("-m", "lucius.cli", "temporal-worker", "--health-port", health.rpartition(":")[2])
    with process(*command, log=log, **env) as started:
        wait_ready(f"{health}/readyz", started, log)
        yield started.pid


@contextlib.contextmanager
def _served(factory: str, base_url: str, folder: Path, env: dict[str, str]) -> Iterator[int]:
    port, log = base_url.rpartition(":")[2], folder / f"{factory.rpartition(':')[2]}.log"
    command = ("-m", "uvicorn", "--factory", factory, "--port", port, "--log-level", "warning")
    with process(*command, log=log, **env) as started:
        wait_ready(f"{base_url}/readyz", started, log)
        yield started.pid


@contextlib.contextmanager
def plain(folder: Path, server: TemporalServer) -> Iterator[Stack]:
    app, works, service = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    env = {"TEMPORAL_ADDRESS": server.address, "SERVICE_URL": service, "APP_URL": app}
    with (
        _served("bench.temporal_plain:service", service, folder, env) as taker,
        _served("bench.temporal_plain:works", works, folder, env) as worker,
        _served("bench.temporal_plain:app", app, folder, env) as api,
    ):
        yield Stack(app, {"API": api, "worker": worker, "services": taker})


# Measurements


def both(bench: Bench, store: str, n: int) -> None:
    """Measure Lucius and the plain application in turns, and the lag last, as its polling slows the rest."""
    folder, durable = bench.folder / f"{store}-{n}", store == "disk"
    with temporal(folder / "ours", durable=durable) as server, temporal(folder / "plain", durable=durable) as other:
        with lucius(folder / "ours" / "data", server) as running, plain(folder / "plain", other) as peer:
            pair = [(OURS, running, server), (PLAIN, peer, other)]
            for inflight in (1, *bench.sizes.inflight):
                for turn in range(1 if inflight == 1 else bench.sizes.pairs):
                    for name, stack, its_server in pair if (n + turn) % 2 == 0 else reversed(pair):
                        _measure_one(bench, bench.of(store, name), stack, its_server, inflight)
        for name, its_server in ((OURS, server), (PLAIN, other)):
            bench.of(store, name).events.append(asyncio.run(events_per_job(its_server.address)))
        others = tuple(name for name in PLATFORM if name != LOOKED_AT)
        with lucius(folder / "lag", server, services=others) as running:
            bench.of(store, OURS).lags.extend(_lags(bench, running))


def shared(bench: Bench, store: str, n: int) -> None:
    assert bench.database is not None
    found, name = bench.of(store, SHARED), f"{store}_{n}"
    folder = bench.folder / f"{store}-shared-{n}"
    with temporal(folder, durable=store == "disk") as server:
        with lucius(folder / "data", server, bench.database.create(name)) as running:
            _measure(bench, found, running, server)
        found.events.append(asyncio.run(events_per_job(server.address)))
    bench.database.drop(name)


def bare(bench: Bench, store: str, n: int) -> None:
    found = bench.of(store, BARE)
    with temporal(bench.folder / f"{store}-bare-{n}", durable=store == "disk") as server:
        for inflight in (1, *bench.sizes.inflight):
            with _spending(found.spent if inflight == bench.most else [], {}, server):
                found.rates.setdefault(inflight, []).append(_bare(server, inflight, bench.sizes.seconds))
        found.events.append(asyncio.run(events_per_job(server.address)))


def _bare(server: TemporalServer, inflight: int, seconds: float) -> Figures:
    command = [sys.executable, "-m", "bench.temporal_plain", "--inflight", str(inflight), "--seconds", str(seconds)]
    env = {**os.environ, "TEMPORAL_ADDRESS": server.address}
    figures: Figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout)
    return figures


def _measure(bench: Bench, found: Measured, running: Stack, server: TemporalServer) -> None:
    for inflight in (1, *bench.sizes.inflight):
        _measure_one(bench, found, running, server, inflight)


def _measure_one(bench: Bench, found: Measured, running: Stack, server: TemporalServer, inflight: int) -> None:
    runs = found.rates.setdefault(inflight, [])
    with _spending(found.spent if inflight == bench.most else [], running.pids, server):
        runs.append(measure(running.base_url, inflight, bench.sizes.seconds, f"of-{inflight}-{len(runs)}"))


def _lags(bench: Bench, running: Stack) -> list[float]:
    """Return lags in milliseconds, measured with the largest number of jobs in flight."""
    told = ("--base-url", running.base_url, "--api-key", KEY, "--service", LOOKED_AT)
    looker = subprocess.Popen([sys.executable, "-m", "bench.temporal_lag", *told], stdout=subprocess.PIPE)
    try:
        measure(running.base_url, bench.most, bench.sizes.seconds, "lag")
        looker.send_signal(signal.SIGTERM)
        lags: list[float] = json.loads(looker.communicate(timeout=30)[0])
        return lags
    finally:
        looker.kill()
        looker.wait()


@contextlib.contextmanager
def _spending(spent: list[Figures], pids: dict[str, int], server: TemporalServer) -> Iterator[None]:
    """Record the CPU that the processes use meanwhile, by name, in milliseconds per ended job."""
    pids = {**pids, "Temporal": server.pid}
    jobs = asyncio.run(completed(server.address))
    before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
    load = _cpu_of_ended()
    yield
    time.sleep(SETTLE_SECONDS)  # Temporal's index lags behind
    now = {name: cpu_seconds([pid]) - before[name] for name, pid in pids.items()}
    now["load"] = _cpu_of_ended() - load
    jobs = asyncio.run(completed(server.address)) - jobs
    spent.append({name: seconds * 1000 / jobs for name, seconds in now.items()})


def _cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Output


def tell(bench: Bench, store: str) -> None:
    print(f"\nTemporal's dev server, which keeps all in {'a file' if store == 'disk' else 'memory'}:")
    names = [name for name in (OURS, SHARED, PLAIN, BARE) if (store, name) in bench.found]
    for name in names:
        for inflight, runs in bench.of(store, name).rates.items():
            _show(f"{name}, {inflight} in flight", runs)
    for name in names:
        _tell_cost(bench.of(store, name), name)
    for name in names:
        if name != OURS:
            times = (f"{_times(bench, store, name, inflight):.2f}" for inflight in bench.of(store, name).rates)
            print(f"{', '.join(times)} times the jobs/s of: {name}")
    _tell_bars(bench, store)


def _times(bench: Bench, store: str, name: str, inflight: int) -> float:
    mine, its = (bench.of(store, x).rates[inflight] for x in (OURS, name))
    if name == PLAIN:
        return statistics.median(_ratios(mine, its))
    return _median(mine, "jobs_per_second") / _median(its, "jobs_per_second")


def _ratios(mine: list[Figures], its: list[Figures]) -> list[float]:
    return [one["jobs_per_second"] / other["jobs_per_second"] for one, other in zip(mine, its, strict=True)]


def _show(name: str, runs: list[Figures]) -> None:
    rates = [run["jobs_per_second"] for run in runs]
    median, p50, p99 = (_median(runs, figure) for figure in ("jobs_per_second", "p50_ms", "p99_ms"))
    spread = f"{min(rates):.1f}-{max(rates):.1f}"
    print(f"{name:<34} {median:>6.1f} jobs/s ({spread:>9})   p50 {p50:>6.0f} ms   p99 {p99:>6.0f} ms", flush=True)


def _tell_cost(found: Measured, name: str) -> None:
    each = {part: _median(found.spent, part) for part in found.spent[0]}
    parts = ", ".join(f"{part} {ms:.1f}" for part, ms in each.items())
    events = statistics.median(found.events)
    said = f"{events:.1f} history events per job, {events / STEPS:.1f} per step"
    print(f"{name}: {sum(each.values()):.1f} ms of CPU per job ({parts}); {said}")


def _tell_bars(bench: Bench, store: str) -> None:
    mine, other = bench.of(store, OURS), bench.of(store, PLAIN)
    for inflight in bench.sizes.inflight:
        ratios = _ratios(mine.rates[inflight], other.rates[inflight])
        times, spread = statistics.median(ratios), f"{min(ratios):.2f}-{max(ratios):.2f}"
        said = f"{times:.2f} times the plain jobs/s ({spread}), {inflight} in flight; at least {RATE_BAR}"
        bench.bar(times >= RATE_BAR, said)
    idle, its = (_median(found.rates[1], "p50_ms") for found in (mine, other))
    bench.bar(idle <= its, f"{idle:.0f} ms for a job alone; at most the plain {its:.0f}")
    events, its = (statistics.median(found.events) / STEPS for found in (mine, other))
    bench.bar(events < its, f"{events:.1f} history events per step; fewer than the plain {its:.1f}")
    lags = sorted(mine.lags) or [math.inf]
    p50, p99 = (lags[min(len(lags) - 1, int(len(lags) * share))] for share in (0.5, 0.99))
    said = f"the ledger is {p50:.0f} ms behind at p50 and {p99:.0f} ms at p99 of {len(mine.lags)} callbacks"
    bench.bar(p99 < LAG_BAR_MS, f"{said}; under {LAG_BAR_MS:.0f}")


def _median(runs: list[Figures], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def in_turns(bench: Bench) -> None:
    """Run all parts in turns, several times, so that a slowdown of the machine affects them all."""
    turns: list[tuple[Callable[[Bench, str, int], None], tuple[str, ...]]] = [(both, (OURS, PLAIN))]
    if bench.sizes.peers:
        turns += [(bare, (BARE,))] if bench.database is None else [(shared, (SHARED,)), (bare, (BARE,))]
    for n in range(bench.sizes.runs):
        for store in bench.sizes.stores:
            for measured, names in turns if n % 2 == 0 else reversed(turns):
                measured(bench, store, n)
                for name in names:
                    _tell_last(bench, store, n, name)
    for store in bench.sizes.stores:
        tell(bench, store)


def _tell_last(bench: Bench, store: str, n: int, name: str) -> None:
    rates = (runs[-1]["jobs_per_second"] for runs in bench.of(store, name).rates.values())
    print(f"run {n + 1}, {store}: {name}: {', '.join(f'{rate:.1f}' for rate in rates)} jobs/s", flush=True)


@contextlib.contextmanager
def _database(wanted: bool) -> Iterator[Server | None]:
    if not wanted or binaries() is None:
        yield None
        return
    with postgres() as server:
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--inflight", type=int, nargs="+", default=(4, 16))
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--strict", action="store_true", help="fail below a bar")
    parser.add_argument("--quick", action="store_true", help="does it still run? The figures mean nothing")
    given = parser.parse_args()
    chosen = Sizes(runs=given.runs, seconds=given.seconds, inflight=tuple(given.inflight), stores=tuple(given.stores))
    sizes = QUICK if given.quick else chosen
    with tempfile.TemporaryDirectory() as folder, _database(sizes.peers) as database:
        bench = Bench(Path(folder), sizes, database)
        in_turns(bench)
    if given.strict and bench.missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
