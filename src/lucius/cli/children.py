"""Child processes: `lucius` with other arguments. They never outlive the process that started them."""

import asyncio
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from lucius.backoff import Backoff

TIED_TO_STDIN = "LUCIUS_TIED_TO_STDIN"
GRACE_SECONDS = 4.0
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 10.0

Child = asyncio.subprocess.Process


async def spawn(arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None = None) -> Child:
    """Start `lucius <arguments>` in its own session, so that Ctrl-C reaches only this process, which stops it."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # never import from the working directory
        "-m",
        "lucius.cli",
        *arguments,
        env={**env, TIED_TO_STDIN: "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def die_with_parent() -> None:
    """Exit when the parent does, even by kill -9: the pipe on stdin is then closed."""
    if os.environ.get(TIED_TO_STDIN):
        threading.Thread(target=_exit_at_end_of_stdin, daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


async def end(child: Child, within: float = GRACE_SECONDS) -> None:
    """Send SIGTERM, and SIGKILL if the child does not end within that time."""
    if child.returncode is not None:
        return
    with suppress(ProcessLookupError):
        child.terminate()
    try:
        async with asyncio.timeout(within):
            await child.wait()
    except TimeoutError:
        await kill(child)


async def kill(child: Child) -> None:
    """Send SIGKILL and wait for the end."""
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()


async def keep_running(name: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a child until cancelled; restart it when it ends, with growing pauses if it ends at once."""
    import structlog  # noqa: PLC0415 - not needed for help

    log: structlog.stdlib.BoundLogger = structlog.get_logger()
    backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        child = await spawn(arguments, env)
        try:
            code = await child.wait()
        finally:
            await end(child)
        if loop.time() - started > STEADY_SECONDS:
            backoff.went_well()
        pause = backoff.pause()
        log.warning("service exited, restarting", service=name, exit_code=code, in_seconds=pause)
        await asyncio.sleep(pause)
