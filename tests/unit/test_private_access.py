"""Tests use what is public: a test that reads or patches private names breaks with every rename in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MAX_PRIVATE_ACCESSES = 30
PUBLIC = frozenset({"_replace", "_asdict", "_make", "_fields", "_exit"})
"""Public names with an underscore: those of named tuples, and os._exit."""
PATCHES = frozenset({"setattr", "getattr", "hasattr", "delattr", "patch", "object"})
ADVICE = (
    "tests use private names of other objects. Test what the object does instead, give it a small public property "
    "that an operator or developer would use, too (`waiting_count`, `is_available`), make the value a parameter of its "
    "constructor, or patch a constant of the module"
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def is_own(node: ast.expr) -> bool:
    """Return True for `self`, `cls` and `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_accesses(node: ast.AST) -> Iterator[str]:
    """Yield the private names that a node reads, imports or patches."""
    if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lucius"):
        yield from (alias.name for alias in node.names if is_private(alias.name))
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in PATCHES and not (node.args and is_own(node.args[0])):
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from filter(is_private, (text.rpartition(".")[2] for text in texts))


def test_tests_rarely_use_private_names() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{getattr(node, 'lineno', 0)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in private_accesses(node)
    ]
    assert len(found) <= MAX_PRIVATE_ACCESSES, "\n".join((f"{len(found)} times {ADVICE}:", *found))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("cache._bytes", ["_bytes"]),
        ("self.cache._bytes", ["_bytes"]),
        ("from lucius.cli.serve import _service", ["_service"]),
        ("monkeypatch.setattr(store, '_commit', None)", ["_commit"]),
        ("monkeypatch.setattr('lucius.worker.journal._flush', None)", ["_flush"]),
        ("getattr(store, '_commit')", ["_commit"]),
        ("self._bytes + cls._bytes + super()._bytes", []),
        ("key._replace(job_id='j1')", []),
        ("os._exit(1)", []),
        ("lucius.__version__", []),
        ("from lucius.version import __version__", []),
        ("monkeypatch.setattr(store, 'commit', None)", []),
    ],
)
def test_private_name_of_another_object_is_found(source: str, names: list[str]) -> None:
    assert [name for node in ast.walk(ast.parse(source)) for name in private_accesses(node)] == names
