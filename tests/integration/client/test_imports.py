"""The client stands alone: it loads the contract, the version and small modules for retries, nothing of the server."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "src" / "lucius" / "client"
ALLOWED = {"aiohttp", "msgspec", *sys.stdlib_module_names}
OURS = ("lucius.client", "lucius.contract", "lucius.backoff", "lucius.retry_after", "lucius.version")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_client_imports_only_permitted_modules() -> None:
    for path in sorted(FOLDER.glob("*.py")):
        foreign = [
            name
            for name in imported(path)
            if name.partition(".")[0] not in ALLOWED and not name.startswith(tuple(f"{ours}." for ours in OURS))
            if name not in OURS
        ]
        assert not foreign, f"{path.name} imports {foreign}"


def test_importing_the_client_loads_no_other_lucius_package() -> None:
    look = "import sys, lucius.client; print(*sorted(n for n in sys.modules if n.startswith('lucius.')))"
    names = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert {".".join(name.split(".")[:2]) for name in names} == set(OURS)
