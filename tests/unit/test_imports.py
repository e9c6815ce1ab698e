"""The core's independence, checked against everything importable instead of a list of forbidden modules."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "lucius"
ALLOWED = {"msgspec"} | set(sys.stdlib_module_names)
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_core_imports_the_standard_library_msgspec_and_itself_only() -> None:
    for path in sorted((SRC / "core").rglob("*.py")):
        foreign = [
            name
            for name in imported(path)
            if name.partition(".")[0] not in ALLOWED and not name.startswith("lucius.core")
        ]
        assert not foreign, f"{path.name} imports {foreign}"


def test_core_imports_no_clock_randomness_or_io() -> None:
    for path in sorted((SRC / "core").rglob("*.py")):
        impure = [name for name in imported(path) if name.partition(".")[0] in IMPURE]
        assert not impure, f"{path.name} imports {impure}"
