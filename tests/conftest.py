"""What holds for every test: neither a developer's terminal nor exported settings nor a loaded machine matter."""

import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer, binaries

# A test runner's own width, and settings a developer has exported, would change what the product prints and does.
for name in [name for name in os.environ if name.startswith("LUCIUS_") or name in ("COLUMNS", "LINES", "NO_COLOR")]:
    del os.environ[name]

settings.register_profile("lucius", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lucius")

NO_POSTGRES = "PostgreSQL is not installed: scripts/test_servers.sh installs it on Debian, as root"


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
            AND tablename NOT IN ('schema_version', 'protocol_revision', 'engine')
        LOOP
            EXECUTE format('DELETE FROM in_turn.%I', name);
        END LOOP;
        IF to_regclass('in_turn.schema_version') IS NOT NULL THEN
            UPDATE in_turn.protocol_revision SET revision = 0;
            UPDATE in_turn.engine SET last_tick = 0, resumed_at = 0;
        END IF;
    END $$
"""


def need_postgres() -> None:
    if binaries() is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(NO_POSTGRES)
    pytest.skip(NO_POSTGRES)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_POSTGRES in str(report.longrepr)]
    if skipped:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped. {NO_POSTGRES}", red=True, bold=True)
