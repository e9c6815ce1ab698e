"""Child processes: `lucius` again with other arguments, which never outlive the process that started them."""

import asyncio
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()

TIED = "LUCIUS_TIED_TO_STDIN"
GRACE_SECONDS = 4.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
STEADY_SECONDS = 10.0

Child = asyncio.subprocess.Process


async def spawn(arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None = None) -> Child:
    """`lucius <arguments>`, in a session of its own: Ctrl-C is ours to pass on."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # what lies in the working directory is not ours to import
        "-m",
        "lucius.cli",
        *arguments,
        env={**env, TIED: "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def die_with_parent() -> None:
    """A child's side: its stdin is a pipe from the parent, and ends when the parent does, by kill -9 too."""
    if os.environ.get(TIED):
        threading.Thread(target=_exit_at_end_of_stdin, daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


async def end(child: Child, within: float = GRACE_SECONDS) -> None:
    """SIGTERM, and SIGKILL for one that does not heed it."""
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
    """kill -9."""
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()


async def keep_running(name: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Until cancelled: a child that ends is started again, ever more slowly if it ends at once."""
    quick_ends = 0
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        child = await spawn(arguments, env)
        try:
            code = await child.wait()
        finally:
            await end(child)
        quick_ends = 0 if loop.time() - started > STEADY_SECONDS else quick_ends + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(quick_ends, 10))
        log.warning("service ended, it will be started again", service=name, exit_code=code, in_seconds=pause)
        await asyncio.sleep(pause)
