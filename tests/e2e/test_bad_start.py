"""uvicorn with the app factory, on an unusable ledger, ends with one line of explanation and no traceback."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite.store import open_sqlite
from tests.support.development_ledger import create_development_file
from tests.support.ports import free_port


def damage(path: Path) -> None:
    path.write_bytes(b"this is a shopping list, and no ledger\n" * 50)


def make_newer(path: Path) -> None:
    open_sqlite(path).file.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (id)")


UVICORN = ["-m", "uvicorn", "--factory", "lucius.api.app:create_app", "--lifespan", "on"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "not a SQLite file"),
        (make_newer, "schema version 999"),
        (make_foreign, "not a Lucius ledger"),
        (create_development_file, "unreleased development version"),
    ],
)
def test_unusable_ledger_prevents_the_start_with_its_reason(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "ledger.db"
    spoil(path)
    before = path.read_bytes()
    env = {**os.environ, "LUCIUS_DATA_DIR": str(tmp_path), "LUCIUS_LEDGER_URL": f"sqlite:///{path}"}
    command = [sys.executable, *UVICORN, "--port", str(free_port())]
    ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode not in (0, None)
    assert reason in said
    assert str(path) in said
    assert "Traceback" not in said
    assert path.read_bytes() == before
