"""Runs the three processes, several times over, and prints medians with their spread.

python -m bench.run [--runs 3] [--seconds 8] [--behind 100000]
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.history import write_history
from bench.processes import free_port, process, wait_ready

KEY = "bench-key-of-enough-characters"


class Stack(Struct, frozen=True):
    base_url: str
    pids: dict[str, int]


@contextlib.contextmanager
def stack(data_dir: Path, ledger_url: str = "", **settings: str) -> Iterator[Stack]:
    """Run API and engine, on SQLite by default, and one process of services that answer at once.

    `settings` are further variables of the API's environment.
    """
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    env = {
        "LUCIUS_DATA_DIR": str(data_dir),
        "LUCIUS_LEDGER_URL": ledger_url,
        "LUCIUS_DEV_API_KEY": KEY,
        "LUCIUS_ORCHESTRATOR_URL": base_url,
        **settings,
    }
    serve = ("-m", "uvicorn", "--factory", "lucius.api.app:create_app", "--port", str(port), "--log-level", "warning")
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "server.log"
    with process(*serve, log=log, **env) as server:
        wait_ready(f"{base_url}/readyz", server, log)
        services = ("-m", "bench.services", "--base-url", base_url, "--api-key", KEY, "--data-dir", str(data_dir))
        with process(*services, log=data_dir / "services.log") as workers:
            yield Stack(base_url, {"API": server.pid, "services": workers.pid})


def measure(base_url: str, inflight: int, seconds: float, prefix: str) -> dict[str, float]:
    load = ("-m", "bench.load", "--base-url", base_url, "--api-key", KEY, "--inflight", str(inflight))
    command = [sys.executable, *load, "--seconds", str(seconds), "--prefix", prefix]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def show(name: str, runs: list[dict[str, float]]) -> float:
    rates = [run["jobs_per_second"] for run in runs]
    median = statistics.median(rates)
    p50 = statistics.median(run["p50_ms"] for run in runs)
    p99 = statistics.median(run["p99_ms"] for run in runs)
    spread = f"{min(rates):.0f}-{max(rates):.0f}"
    print(f"{name:<34} {median:>8.0f} jobs/s ({spread:>9})   p50 {p50:>6.1f} ms   p99 {p99:>6.1f} ms", flush=True)
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--behind", type=int, default=100_000)
    arguments = parser.parse_args()
    rates: dict[str, list[dict[str, float]]] = {"1 in flight": [], "32 in flight": [], "32, with finished jobs": []}
    with tempfile.TemporaryDirectory() as folder:
        past = Path(folder) / "past.db"
        if arguments.behind:
            write_history(past, arguments.behind)
        for n in range(arguments.runs):
            with stack(Path(folder) / f"empty-{n}") as running:
                rates["1 in flight"].append(measure(running.base_url, 1, arguments.seconds, f"one-{n}"))
                rates["32 in flight"].append(measure(running.base_url, 32, arguments.seconds, f"many-{n}"))
            if arguments.behind:
                full = Path(folder) / f"full-{n}"
                full.mkdir()
                shutil.copy(past, full / "ledger.db")
                with stack(full) as running:
                    figures = measure(running.base_url, 32, arguments.seconds, f"full-{n}")
                    rates["32, with finished jobs"].append(figures)
                shutil.rmtree(full)
    show("1 in flight", rates["1 in flight"])
    empty = show("32 in flight", rates["32 in flight"])
    if arguments.behind:
        behind = show(f"32 in flight, {arguments.behind:,} finished", rates["32, with finished jobs"])
        print(f"with {arguments.behind:,} finished jobs: {behind / empty:.2f} of the empty ledger's rate")


if __name__ == "__main__":
    main()
