"""Protocol files as the server would read them. Loads what compiles schemas and expressions only when asked."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lucius.adapters.protocols_dir import ProtocolFile


def read_file(path: Path) -> "ProtocolFile":
    """Raises ProtocolError."""
    from lucius.adapters import protocols_dir  # noqa: PLC0415
    from lucius.adapters.expressions import CelTools  # noqa: PLC0415

    return protocols_dir.read_file(path, CelTools())
