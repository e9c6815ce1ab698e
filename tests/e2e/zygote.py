"""Process that forks test processes fast: everything is imported, so a restart after kill -9 is one fork.

Speaks JSON lines with its owner. It and its children are one process group, and end when its stdin does.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

import uvicorn

from lucius.cli.main import app
from tests.e2e.recorder import serve_recorders
from tests.e2e.victim import victim
from tests.e2e.witness import serve_witness

# Imported dynamically, and therefore imported here before the fork.
for name in (
    "httptools",
    "lucius.adapters.bus.redis.consumer",
    "lucius.adapters.bus.redis.dead_letters",
    "lucius.adapters.bus.redis.publisher",
    "lucius.adapters.http.caller",
    "lucius.adapters.ledger.postgres.ledger",
    "lucius.adapters.ledger.sqlite.ledger",
    "lucius.cli.control_plane",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
):
    importlib.import_module(name)

Request = dict[str, Any]


def main() -> None:
    for line in sys.stdin.buffer:
        request: Request = json.loads(line)
        answer = wait(request["wait"], request["seconds"]) if "wait" in request else spawn(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)


def wait(pid: int, seconds: float) -> int | None:
    """Return the exit code as `subprocess` defines it, or None if the process still runs after that time."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def spawn(request: Request) -> int:
    pid = os.fork()
    return pid or become(request)


def become(request: Request) -> NoReturn:
    code = 70
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(request["env"])
        code = run(request["role"], request["args"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(role: str, args: list[str]) -> int:
    try:
        if role == "server":
            uvicorn.run("lucius.api.app:create_app", factory=True, port=int(args[0]), log_level="warning")
        elif role == "lucius":
            app(args, prog_name="lucius")
        elif role == "recorder":
            asyncio.run(serve_recorders(*args))
        elif role == "victim":
            victim(*args).run()
        else:
            asyncio.run(serve_witness(*args))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


if __name__ == "__main__":
    main()
