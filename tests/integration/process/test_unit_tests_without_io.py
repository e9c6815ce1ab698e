"""The conftest of tests/unit, run by a pytest of its own, as an audit hook stays for the life of a process."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONFTEST = "from tests.unit.conftest import pytest_runtest_call, pytest_runtest_setup\n"
TESTS = """
import asyncio, socket, sqlite3, subprocess, sys
from contextlib import suppress

import pytest


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return sqlite3.connect(tmp_path_factory.mktemp("db") / "ledger.db")


def test_event_loop():
    asyncio.run(asyncio.sleep(0))


def test_bind():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))


def test_connect_swallowed():
    with socket.socket() as calling, suppress(Exception):
        calling.connect(("127.0.0.1", 9))


def test_process():
    subprocess.run([sys.executable, "-c", ""])


def test_database():
    sqlite3.connect(":memory:")


def test_database_of_a_fixture(database):
    pass


def test_plain():
    pass
"""


def test_unit_test_that_does_io_fails_and_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_io.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    folders = {
        name: "".join(re.findall(r"move this test to (tests/\w+/\w+/)", said))
        for name, said in re.findall(r"^\w+ test_io\.py::(\w+)(.*)$", run.stdout, re.MULTILINE)
    }
    assert folders == {
        "test_event_loop": "",
        "test_bind": "tests/integration/http/",
        "test_connect_swallowed": "tests/integration/http/",
        "test_process": "tests/integration/process/",
        "test_database": "tests/integration/sqlite/",
        "test_database_of_a_fixture": "tests/integration/sqlite/",
        "test_plain": "",
    }, run.stdout
    assert re.findall(r"^PASSED test_io\.py::(\w+)", run.stdout, re.MULTILINE) == ["test_event_loop", "test_plain"]
