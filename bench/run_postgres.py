"""Lucius on PostgreSQL, several times over, and DBOS on the same one in turns with it: medians with their spread.

python -m bench.run_postgres [--runs 3] [--seconds 8] [--strict] [--quick] [--parts speed dbos]

All processes share the machine's cores: the API with its engine, a process of services that answer at once, the load
generator and PostgreSQL. Bars are those of two cores; a run below one says so, and with --strict ends with an error.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

from bench.postgres import SETTINGS, Server, postgres
from bench.processes import free_port, process, wait_ready
from bench.run import measure, show, stack

Figures = dict[str, float]
PARTS = ("speed", "dbos")

ONE, MANY = "1 in flight", "32 in flight"
HANDED = "DBOS, 32, steps handed to a service"
PLAIN = "DBOS, 32, steps in its own process"

FASTEST_BAR = 250.0


class Bench(Struct):
    server: Server
    folder: Path
    runs: int
    seconds: float
    parts: frozenset[str]
    found: dict[str, list[Figures]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def note(self, name: str, figures: Figures) -> None:
        self.found.setdefault(name, []).append(figures)

    def bar(self, met: bool, said: str) -> None:
        print(f"{'meets the bar' if met else 'BELOW THE BAR'}: {said}", flush=True)
        if not met:
            self.missed.append(said)

    @contextlib.contextmanager
    def lucius(self, name: str, ledger_url: str) -> Iterator[str]:
        with stack(self.folder / name, ledger_url) as base_url:
            yield base_url


def speed(bench: Bench, n: int) -> None:
    """A new database each time: none has the past of the one before."""
    name = f"lucius_{n}"
    with bench.lucius(name, bench.server.create(name)) as base_url:
        bench.note(ONE, measure(base_url, 1, bench.seconds, f"one-{n}"))
        bench.note(MANY, measure(base_url, 32, bench.seconds, f"many-{n}"))
    bench.server.drop(name)


def dbos(bench: Bench, n: int) -> None:
    for name, way in ((HANDED, _handed), (PLAIN, _plain)):
        database = f"dbos_{way.__name__}_{n}"
        bench.note(name, way(bench, bench.server.create(database)))
        bench.server.drop(database)


def _plain(bench: Bench, url: str) -> Figures:
    command = [sys.executable, "-m", "bench.dbos_peer", "--inflight", "32", "--seconds", str(bench.seconds)]
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
            wait_ready(f"{base_url}/readyz", peer)
        return measure(app, 32, bench.seconds, "handed")


def tell(bench: Bench) -> None:
    medians = {name: show(name, runs) for name, runs in bench.found.items()}
    for name in (HANDED, PLAIN):
        if name in medians and MANY in medians:
            print(f"{medians[MANY] / medians[name]:.1f} times {name}")
    if MANY in medians:
        bench.bar(medians[MANY] >= FASTEST_BAR, f"{medians[MANY]:.0f} jobs/s, {MANY}; at least {FASTEST_BAR:.0f}")


def run(bench: Bench) -> None:
    with_dbos = "dbos" in bench.parts
    if with_dbos and importlib.util.find_spec("dbos") is None:
        print("DBOS is not installed (uv sync --group bench): not measured")
        with_dbos = False
    for n in range(bench.runs):
        if "speed" in bench.parts:
            speed(bench, n)
        if with_dbos:
            dbos(bench, n)
    tell(bench)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--strict", action="store_true", help="fail below a bar")
    parser.add_argument("--quick", action="store_true", help="does it still run? The figures mean nothing")
    given = parser.parse_args()
    if given.quick:
        given.runs, given.seconds, given.parts = 1, 1.0, [part for part in given.parts if part != "dbos"]
    print("PostgreSQL:", ", ".join(f"{name}={value}" for name, value in {"fsync": "on", **SETTINGS}.items()))
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        bench = Bench(server, Path(folder), given.runs, given.seconds, frozenset(given.parts))
        run(bench)
    if given.strict and bench.missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
