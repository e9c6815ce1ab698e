"""The tests' own PostgreSQL does what the tests of replicas rely on."""

import pytest

from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_committed_is_there_after_a_stop_and_after_a_crash(crash: bool) -> None:
    need_postgres()
    server = PostgresServer(fsync=True).start()
    try:
        server.execute("create table kept as select 7 as number")
        server.restart(crash=crash)
        assert server.query("select number from kept") == [{"number": 7}]
        assert server.query("select setting from pg_settings where name = 'fsync'") == [{"setting": "on"}]
    finally:
        server.remove()
