"""What holds for every test: neither a developer's terminal nor exported settings nor a loaded machine matter."""

import gc
import os
import signal
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer, binaries
from tests.support.temporal import TemporalServer

# A test runner's own width, and settings a developer has exported, would change what the product prints and does.
for name in [name for name in os.environ if name.startswith("LUCIUS_") or name in ("COLUMNS", "LINES", "NO_COLOR")]:
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
    "tests/unit/conformance_kit/",
    "tests/temporal/",
)

# A Temporal server, the conformance kit and what it finds about whatever ships, which takes hundreds of processes,
# requests by the thousand to all that the API offers, and the benches cost minutes: `make test-long`, and CI, run them
# beside the rest.
LONG = (
    "tests/temporal/",
    "tests/e2e/test_temporal",
    "tests/e2e/test_shipped_conformance.py",
    "tests/e2e/test_new_service.py",
    "tests/e2e/test_node_service.py",
    "tests/e2e/test_openapi_fuzz.py",
    "tests/e2e/test_bench.py",
    "tests/unit/conformance_kit/",
)
NOT_LONG = "tests/temporal/test_replay.py"
LONGEST_SECONDS = 300  # after which one of them hangs; hundreds of jobs take that long on a busy machine

HANDLED = (signal.SIGINT, signal.SIGTERM)

NO_POSTGRES = "PostgreSQL is not installed: scripts/test_servers.sh installs it on Debian, as root"


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """What a test does to the whole process, by running a command in it for one, is not heard of in the next."""
    logging, handlers = structlog.get_config(), {number: signal.getsignal(number) for number in HANDLED}
    yield
    structlog.configure(**logging)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One for each process of the test run. A test that stops or slows it starts one of its own."""
    need_postgres()
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A ledger of this test's own: a schema that does not exist yet, and is dropped afterwards."""
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.url(schema)
    postgres.execute(f"set lock_timeout = '10s'; drop schema if exists {schema} cascade")


@pytest.fixture
def emptied_postgres_url(postgres: PostgresServer) -> str:
    """A ledger that tests use in turn: its tables take longer to make than most tests."""
    postgres.execute(_EMPTY)
    return postgres.url("in_turn")


_EMPTY = """
    DO $$ DECLARE name text; BEGIN
        SET LOCAL lock_timeout = '10s';
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'in_turn'
            AND tablename NOT IN ('schema_version', 'protocol_revision', 'engine', 'door')
        LOOP
            EXECUTE format('DELETE FROM in_turn.%I', name);
        END LOOP;
        IF to_regclass('in_turn.schema_version') IS NOT NULL THEN
            UPDATE in_turn.protocol_revision SET revision = 0;
            UPDATE in_turn.engine SET last_tick = 0, resumed_at = 0;
            UPDATE in_turn.door SET open_at = 0, reopened_at = 0;
        END IF;
    END $$
"""


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """One for each process of the test run, without a memory. A test that stops it starts one of its own."""
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
    """Before the rest is dealt out, those go that are not asked for."""
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
    """All processes of a test run but one start with a share of the slow files, so that none ends long after the others
    and the processors have something to do while those wait."""
    _set_apart(config, items)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    slow = list(dict.fromkeys(name for start in SLOW for name in files if name.startswith(start)))
    quick = [item for name, found in files.items() if name not in slow for item in found]
    hands = max(1, workers - 1)
    ordered: list[pytest.Item] = []
    for worker in range(workers):  # in such parts as xdist deals out
        size = (len(items) - len(ordered)) // (workers - worker)
        names = slow[worker::hands] if worker < hands else []
        share = [item for name in names for item in files[name]]
        room = max(0, size - len(share))
        ordered += share + quick[:room]
        quick = quick[room:]
    items[:] = ordered + quick


def pytest_collection_finish() -> None:
    """Thousands of tests are a large heap: to look for garbage in it each time would stop everything for a moment."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_POSTGRES in str(report.longrepr)]
    if skipped:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped. {NO_POSTGRES}", red=True, bold=True)
