"""The client stands alone: whoever installs it gets the contract, and nothing of the server."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "src" / "lucius" / "client"
ALLOWED = {"aiohttp", "msgspec", *sys.stdlib_module_names}
OURS = ("lucius.client", "lucius.contract", "lucius.contract_control", "lucius.contract_protocols")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not (node.module == "lucius" and node.names[0].name == "__version__"):
            yield node.module or ""


def test_it_imports_the_contract_aiohttp_msgspec_and_the_standard_library_only() -> None:
    for path in sorted(FOLDER.glob("*.py")):
        foreign = [
            name
            for name in imported(path)
            if name.partition(".")[0] not in ALLOWED and not name.startswith(tuple(f"{ours}." for ours in OURS))
            if name not in OURS
        ]
        assert not foreign, f"{path.name} imports {foreign}"


def test_importing_it_brings_in_nothing_else_of_lucius() -> None:
    look = "import sys, lucius.client; print(*sorted(n for n in sys.modules if n.startswith('lucius.')))"
    names = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert {".".join(name.split(".")[:2]) for name in names} == set(OURS)
