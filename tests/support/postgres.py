"""A real PostgreSQL for tests: its own cluster, which can be stopped, crashed and restarted on its port."""

import asyncio
import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Self

import asyncpg

from tests.support.guard import Guard
from tests.support.ports import free_port

READY_SECONDS = 30.0
USER = "lucius"
DATABASE = "postgres"
# Durability that tests need not wait for: a server crash loses no commit even so, only a machine crash would.
CARELESS = {"fsync": "off", "full_page_writes": "off"}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "logging_collector": "off",
    "timezone": "UTC",
}


@cache
def binaries() -> Path | None:
    """Return the folder of the server's programs, or None if not installed. Debian keeps them out of PATH."""
    homes = sorted(
        Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda home: float(home.parent.name), reverse=True
    )
    on_path = shutil.which("initdb")
    homes += [Path(on_path).resolve().parent] if on_path else []
    return next((home for home in homes if (home / "initdb").exists() and (home / "postgres").exists()), None)


class PostgresServer:
    """Runs a cluster in its own folder: under root the server runs as another user, without access to `tmp_path`."""

    def __init__(self, *, fsync: bool = False, **settings: str) -> None:
        self.port = free_port()
        self._user = _user()
        self._settings = SETTINGS | ({} if fsync else CARELESS) | settings
        self._folder = Path(tempfile.mkdtemp(prefix="lucius-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        shutil.chown(self._folder, self._user)
        self._run("initdb", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C", "--no-sync")

    def url(self, schema: str | None = None) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}" + (f"?schema={schema}" if schema else "")

    def give(self, *files: Path) -> None:
        """Copy files into the data folder by their names: the server refuses keys that others can read."""
        for file in files:
            copy = self._data / file.name
            shutil.copyfile(file, copy)
            copy.chmod(0o600)
            shutil.chown(copy, self._user)

    def start(self) -> Self:
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program("postgres"), "-D", self._data, "-k", self._folder, "-p", str(self.port), *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._identity(),
            )
        self._guard = Guard(f"kill -QUIT {self._process.pid}; sleep 1; rm -rf {self._folder}")
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            assert self._process.poll() is None, f"PostgreSQL ended at once: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"PostgreSQL does not start: {self.log.read_text()[-2000:]}"
            time.sleep(0.01)
        return self

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server. With `crash`, every process ends at once, and the next start recovers from the log."""
        if self._process is not None and self._guard is not None:
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(READY_SECONDS)
            self._guard.dismiss()
            self._process = self._guard = None

    def restart(self, *, crash: bool = False) -> None:
        self.stop(crash=crash)
        self.start()

    def remove(self) -> None:
        self.stop(crash=True)
        shutil.rmtree(self._folder)

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Run a statement and return its rows. Works in sync and async tests: it uses its own thread and event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._query(statement, values)).result()

    def execute(self, script: str) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._execute(script)).result()

    def dump(self, schema: str) -> str:
        """Return the schema and its rows as SQL, the same text as long as nothing has changed."""
        options = ["--schema", schema, "--inserts", "--dbname", self.url()]
        done = subprocess.run([self._program("pg_dump"), *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        # Newer versions write a random key into these lines.
        lines = done.stdout.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))

    async def _execute(self, script: str) -> None:
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(script)
        finally:
            await connection.close()

    async def _query(self, statement: str, values: tuple[object, ...]) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self.url())
        try:
            return [dict(row) for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _ready(self) -> bool:
        """Return True if `postmaster.pid` says ready: a server in recovery accepts connections but refuses sessions."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        mine = self._process is not None and lines[:1] == [str(self._process.pid)]
        return mine and len(lines) > 7 and lines[7].strip() == "ready"

    def _run(self, program: str, *args: str) -> None:
        command: list[str | Path] = [self._program(program), "-D", self._data, *args]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, **self._identity())
        assert done.returncode == 0, done.stderr

    def _program(self, name: str) -> Path:
        home = binaries()
        assert home is not None, "PostgreSQL is not installed"
        return home / name

    def _identity(self) -> dict[str, Any]:
        if os.getuid() != 0:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}


def _user() -> str:
    """Return the user to run the server as: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return getpass.getuser()
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
