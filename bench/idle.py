"""Replicas with nothing to do: each an engine with its sweeper, relay, calls, webhooks, listener and fallback polls.

python -m bench.idle --ledger-url postgresql://… --replicas 8

Says `ready` when all are, and goes on until it is ended. `cost` starts several of these and says what they, and
PostgreSQL with all that it runs, take of a core.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import structlog
from msgspec import Struct

from bench.postgres import Server
from bench.processes import cpu_seconds, run_fast
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings

PROCESSES = 8

CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lucius'"
TRANSACTIONS = "SELECT sum(xact_commit) FROM pg_stat_database"  # sessions report at intervals


async def serve(ledger_url: str, replicas: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as running:
        for _ in range(replicas):
            folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
            # `memory:` is a bus that the relay publishes to, at no cost of its own.
            settings = load_settings({}, data_dir=folder, ledger_url=ledger_url, bus_url="memory:")
            await running.enter_async_context(open_runtime(settings))
        print("ready", flush=True)
        await ended.wait()


@contextmanager
def idle_process(ledger_url: str, replicas: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.idle", "--ledger-url", ledger_url, "--replicas", str(replicas)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.terminate()


class Cost(Struct, frozen=True):
    """Shares of a core, and PostgreSQL's connections and transactions."""

    clients: float
    postgres: float
    connections: int
    transactions_per_second: float

    @property
    def share(self) -> float:
        return self.clients + self.postgres

    def __str__(self) -> str:
        return (
            f"clients {self.clients:.1%} and PostgreSQL {self.postgres:.1%}, "
            f"with {self.connections} connections and {self.transactions_per_second:.0f} transactions/s"
        )


def cost(server: Server, ledger_url: str, replicas: int, settled_seconds: float, seconds: float) -> Cost:
    """Measure idle replicas after `settled_seconds`, when they know each other and start-up connections are closed."""
    with ExitStack() as running:
        shares = [replicas // PROCESSES + (n < replicas % PROCESSES) for n in range(min(PROCESSES, replicas))]
        clients = [running.enter_context(idle_process(ledger_url, share)) for share in shares]
        for client in clients:
            assert client.stdout is not None
            if client.stdout.readline() != b"ready\n":
                raise SystemExit("an idle replica did not start")
        time.sleep(settled_seconds)
        pids = [client.pid for client in clients]
        began, transactions = time.monotonic(), server.ask(TRANSACTIONS)
        before = cpu_seconds(pids), cpu_seconds([server.pid])
        time.sleep(seconds)
        took = time.monotonic() - began
        return Cost(
            (cpu_seconds(pids) - before[0]) / took,
            (cpu_seconds([server.pid]) - before[1]) / took,
            server.ask(CONNECTIONS),
            (server.ask(TRANSACTIONS) - transactions) / took,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger-url", required=True)
    parser.add_argument("--replicas", type=int, required=True)
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    run_fast(serve(arguments.ledger_url, arguments.replicas))


if __name__ == "__main__":
    main()
