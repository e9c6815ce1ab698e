"""Process of the service under test, in a process group of its own, with its output in a file."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from lucius.conformance.model import CaseFailed

TAIL_LINES = 15
TAIL_BYTES = 16 * 1024
POSIX = os.name == "posix"


class ServiceProcess:
    """One start of the command. `on_end` is called when its first process has ended."""

    def __init__(self, child: asyncio.subprocess.Process, on_end: Callable[[], None]) -> None:
        self._child = child
        self._on_end = on_end
        self._watch = asyncio.create_task(self._wait())

    @property
    def exit_code(self) -> int | None:
        return self._child.returncode

    def terminate(self) -> None:
        """Send SIGTERM to the first process only, as a supervisor does; it may pass it on."""
        with suppress(ProcessLookupError):
            self._child.terminate()

    async def kill(self) -> None:
        """Send SIGKILL to the whole process group and wait for the first process to end."""
        with suppress(ProcessLookupError, PermissionError):
            if POSIX:
                os.killpg(self._child.pid, signal.SIGKILL)
            else:
                self._child.kill()
        await self._child.wait()

    async def wait(self, seconds: float) -> int | None:
        """Wait for the process to end; return its exit code, None if it still runs after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._child.wait()
        return self._child.returncode

    async def _wait(self) -> None:
        await self._child.wait()
        self._on_end()


async def start(command: list[str], env: Mapping[str, str], log: Path, on_end: Callable[[], None]) -> ServiceProcess:
    with log.open("ab") as output:
        output.write(f"--- {' '.join(command)}\n".encode())
        output.flush()
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                env=dict(env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise CaseFailed("a command that can be started", f"{command[0]}: {error.strerror or error}") from None
    return ServiceProcess(child, on_end)


def tail(log: Path) -> list[str]:
    """Return the last lines of the service's output."""
    try:
        with log.open("rb") as output:
            output.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = output.read().decode(errors="replace")
    except OSError:
        return []
    return list(deque((line[:500] for line in text.splitlines()), maxlen=TAIL_LINES))


def describe_exit(code: int | None) -> str:
    if code is None:
        return "still runs"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with exit code {code}"
