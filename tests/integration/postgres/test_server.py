"""The test PostgreSQL server does what the replica tests rely on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer


@pytest.mark.parametrize("crash", [False, True])
def test_committed_rows_survive_a_stop_and_a_crash(crash: bool) -> None:
    need_postgres()
    server = PostgresServer(fsync=True).start()
    try:
        server.execute("create table kept as select 7 as number")
        server.restart(crash=crash)
        assert server.query("select number from kept") == [{"number": 7}]
        assert server.query("select setting from pg_settings where name = 'fsync'") == [{"setting": "on"}]
    finally:
        server.remove()


def test_killed_test_run_leaves_no_server_behind() -> None:
    need_postgres()
    script = (
        "from tests.support.postgres import PostgresServer as P; s = P().start(); print(s.log, flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin is not None
    assert run.stdout is not None
    with run.stdin, run.stdout:
        folder = Path(run.stdout.readline().decode().strip()).parent
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        run.kill()
        run.wait()
    deadline = time.monotonic() + 20
    while folder.exists() or _lives(server):
        assert time.monotonic() < deadline, f"{server} lives, or {folder} is there"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
