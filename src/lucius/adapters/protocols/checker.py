"""Checks protocol documents received over HTTP, off the event loop and with a time limit.

The schema library holds the GIL while it compiles and validates. So a document with large or costly schemas is checked
in a process of its own that is killed at the deadline; any other in a thread.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence

import msgspec

from lucius.adapters.protocols.check import findings, is_costly
from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.protocol import Finding

DEADLINE_SECONDS = 10.0
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "SYSTEMROOT")  # and no secrets


class ProtocolChecker:
    """Finds everything that is wrong with a protocol or deserves a warning.

    A costly check runs `main_module`, which reads the protocol from standard input and writes its findings to output.
    """

    def __init__(self, tools: Tools, main_module: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._tools = tools
        self._main_module = main_module
        self._deadline_seconds = deadline_seconds

    async def check(self, protocol: ProtocolDefinition) -> Sequence[Finding]:
        if is_costly(protocol):
            return await self._check_in_process(protocol)
        return await asyncio.to_thread(lambda: tuple(findings(protocol, self._tools)))

    async def _check_in_process(self, protocol: ProtocolDefinition) -> Sequence[Finding]:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._main_module, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
        try:
            async with asyncio.timeout(self._deadline_seconds):
                said, _ = await child.communicate(msgspec.json.encode(protocol))
        except TimeoutError:
            return (
                Finding((), f"its schemas can't be checked within {self._deadline_seconds:g} s: make them simpler"),
            )
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode != 0:
            return (Finding((), f"its schemas can't be checked: the check ended with exit status {child.returncode}"),)
        return msgspec.json.decode(said, type=tuple[Finding, ...])
