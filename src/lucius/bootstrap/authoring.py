"""Opens what the commands for protocol authors use: the expressions and the protocol files of a real deployment.

The compilers of schemas and expressions are slow to load, so `--help` must not import this module.
"""

from pathlib import Path

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols import directory
from lucius.adapters.protocols.directory import ProtocolFile
from lucius.core.model.tools import Tools

__all__ = ["ProtocolFile", "open_tools", "read_protocol_file"]


def open_tools() -> Tools:
    return CelTools()


def read_protocol_file(path: Path) -> ProtocolFile:
    """Read a protocol file as the server would. Raises ProtocolError."""
    return directory.read_file(path, open_tools())
