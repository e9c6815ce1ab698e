"""Workflow code neither reads the setting of the shortcuts nor imports them: a replay must not depend on it."""

import ast
from collections.abc import Sequence
from pathlib import Path

import lucius
from lucius.engine.temporal import workflow
from lucius.engine.temporal.messages import JobMessage
from lucius.engine.temporal.shortcuts import NoShortcuts

PACKAGE = "lucius.engine.temporal"
FOLDER = Path(lucius.__file__).parent / "engine" / "temporal"
READS_SETTINGS = ("lucius.bootstrap", f"{PACKAGE}.fastpath", f"{PACKAGE}.shortcuts")


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions and blocks."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def lucius_modules(name: str) -> dict[str, Path]:
    """Return the module and every module of Lucius that it imports, directly or not."""
    root, found, pending = Path(lucius.__file__).parent.parent, dict[str, Path](), [name]
    while pending:
        module = pending.pop()
        path = root / (module.replace(".", "/") + ".py")
        if module in found or not path.exists():
            continue
        found[module] = path
        pending += [one for one in imports(path) if one.startswith("lucius.")]
    return found


def test_workflow_code_imports_neither_shortcuts_nor_settings() -> None:
    modules = lucius_modules(workflow.__name__)
    assert f"{PACKAGE}.workflow_inbox" in modules, "the search for imports finds nothing"
    wrong = {name: imports(path) for name, path in modules.items() if name.startswith(READS_SETTINGS)}
    assert not wrong


def test_workflow_code_reads_no_environment() -> None:
    for name, path in lucius_modules(workflow.__name__).items():
        if name.startswith(PACKAGE):
            text = path.read_text()
            assert "LUCIUS_" not in text, name
            assert "os.environ" not in text, name
            assert "getenv" not in text, name


def test_only_the_wiring_imports_the_shortcuts() -> None:
    source = Path(lucius.__file__).parent
    users = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if any(one.startswith(f"{PACKAGE}.fastpath") for one in imports(path)) and path.parent != FOLDER / "fastpath"
    }
    assert users == {"bootstrap/temporal.py"}


async def test_plain_route_sends_at_once_and_knows_no_run() -> None:
    sent = list[tuple[str, int]]()

    async def send(job_id: str, messages: Sequence[JobMessage]) -> bool:
        sent.append((job_id, len(messages)))
        return True

    plain = NoShortcuts()
    assert await plain.send_handovers("j1", [], send)
    assert await plain.send_callback("j2", [], send)
    assert sent == [("j1", 0), ("j2", 0)]
    assert plain.run_to_signal("j1") == ""
