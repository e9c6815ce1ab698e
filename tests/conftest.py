"""Fixtures and collection hooks of all tests: the terminal, exported settings and load of the machine do not matter."""

import gc
import os
import signal
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.fastpath import FASTPATH
from tests.support.postgres import PostgresServer, binaries
from tests.support.temporal import TemporalServer

# A narrow terminal or a developer's exported settings would change what the product prints and does. One setting may be
# exported to run the tests with it: LUCIUS_TEMPORAL_FASTPATH.
for name in [name for name in os.environ if name.startswith("LUCIUS_") or name in ("COLUMNS", "LINES", "NO_COLOR")]:
    if name != FASTPATH:
        del os.environ[name]

settings.register_profile("lucius", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lucius")

# Tests that mostly wait, for clocks and for processes to start; the longest first.
SLOW = (
    "tests/e2e/test_long_step.py",
    "tests/e2e/test_shipped_conformance.py",
    "tests/e2e/test_replicas.py",
    "tests/temporal/test_migration.py",
    "tests/temporal/test_storm.py",
    "tests/temporal/test_signals.py",
    "tests/e2e/test_new_service.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/",
    "tests/integration/conformance_kit/",
    "tests/temporal/",
)

# These take minutes: a Temporal server, the conformance kit run against all shipped services (hundreds of processes),
# API fuzzing with thousands of requests, and the benchmarks. `make test-long`, and CI, run them beside the other
# tests.
LONG = (
    "tests/temporal/",
    "tests/e2e/test_temporal",
    "tests/e2e/test_shipped_conformance.py",
    "tests/e2e/test_new_service.py",
    "tests/e2e/test_node_service.py",
    "tests/e2e/test_openapi_fuzz.py",
    "tests/e2e/test_bench.py",
    "tests/integration/conformance_kit/",
)
NOT_LONG = "tests/temporal/test_replay.py"
LONGEST_SECONDS = 300  # then the test is taken to hang; hundreds of jobs take this long on a busy machine

HANDLED = (signal.SIGINT, signal.SIGTERM)

NO_POSTGRES = "PostgreSQL is not installed: scripts/test_servers.sh installs it on Debian, as root"


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Restore logging and signal handlers after each test: running a command in this process, for one, changes them."""
    logging, handlers = structlog.get_config(), {number: signal.getsignal(number) for number in HANDLED}
    yield
    structlog.configure(**logging)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start one PostgreSQL per process of the test run. Tests that stop it or slow it down start their own."""
    need_postgres()
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Yield the URL of a ledger for this test only: its schema does not exist yet and is dropped afterwards."""
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.url(schema)
    postgres.execute(f"set lock_timeout = '10s'; drop schema if exists {schema} cascade")


@pytest.fixture
def emptied_postgres_url(postgres: PostgresServer) -> str:
    """Return the URL of an emptied ledger that tests share in turn: creating its tables takes longer than most tests
    take.
    """
    postgres.execute(_EMPTY)
    return postgres.url("in_turn")


_EMPTY = """
    DO $$ DECLARE name text; BEGIN
        SET LOCAL lock_timeout = '10s';
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'in_turn'
            AND tablename NOT IN ('ledger_versions', 'protocol_revision', 'engine', 'callback_availability')
        LOOP
            EXECUTE format('DELETE FROM in_turn.%I', name);
        END LOOP;
        IF to_regclass('in_turn.ledger_versions') IS NOT NULL THEN
            UPDATE in_turn.protocol_revision SET revision = 0;
            UPDATE in_turn.engine SET last_tick = 0, resumed_at = 0;
            UPDATE in_turn.callback_availability SET available_at = 0, available_since = 0;
        END IF;
    END $$
"""


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """Start one non-durable Temporal server per process of the test run. Tests that stop it start their own."""
    server = TemporalServer().start()
    yield server
    server.remove()


def need_postgres() -> None:
    if binaries() is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(NO_POSTGRES)
    pytest.skip(NO_POSTGRES)


def _set_apart(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the long tests, and deselect those that `-m` excludes before xdist distributes the rest."""
    for item in items:
        if item.nodeid.startswith(LONG) and not item.nodeid.startswith(NOT_LONG):
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))
    asked = config.getoption("markexpr")
    if asked in ("long", "not long"):
        away = {item for item in items if (item.get_closest_marker("long") is None) is (asked == "long")}
        config.hook.pytest_deselected(items=list(away))
        items[:] = [item for item in items if item not in away]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder tests so that all xdist workers but one start with a share of the slow files.

    No worker then ends long after the others, and the processors have work while slow tests wait.
    """
    _set_apart(config, items)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    slow = list(dict.fromkeys(name for start in SLOW for name in files if name.startswith(start)))
    quick = [item for name, found in files.items() if name not in slow for item in found]
    hands = max(1, workers - 1)
    ordered: list[pytest.Item] = []
    for worker in range(workers):  # in chunks of the size that xdist distributes
        size = (len(items) - len(ordered)) // (workers - worker)
        names = slow[worker::hands] if worker < hands else []
        share = [item for name in names for item in files[name]]
        room = max(0, size - len(share))
        ordered += share + quick[:room]
        quick = quick[room:]
    items[:] = ordered + quick


def pytest_collection_finish() -> None:
    """Exempt collected tests from garbage collection: scanning a heap of thousands of tests pauses the process."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_POSTGRES in str(report.longrepr)]
    if skipped:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped. {NO_POSTGRES}", red=True, bold=True)
