"""SQL of the ledgers is in `.sql` files, which are loaded once and only composed from named fragments."""

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from lucius.adapters.ledger import postgres, sqlite
from lucius.adapters.ledger.sql_files import load_script, load_statements

SQL = re.compile(
    r"\b(SELECT\b|INSERT (OR \w+ )?INTO\b|UPDATE \w+ SET\b|DELETE FROM\b|ORDER BY\b|\w+ JOIN\b"
    r"|(CREATE|ALTER|DROP) (TABLE|INDEX|FUNCTION|SCHEMA)\b"
    r"|WITH (RECURSIVE )?\w+ AS\b|(AND|WHERE) \w+(\.\w+)? ?(=|<|>|IN\b|IS\b))"
)
MODULES = sorted(
    path for package in (postgres, sqlite) for path in Path(str(files(package.__name__))).glob("*.py") if path.is_file()
)


def strings_in(code: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, without its docstrings."""
    tree = ast.parse(code)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def statements_in(code: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in strings_in(code) if SQL.search(text)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_module_holds_no_sql(path: Path) -> None:
    assert statements_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_module_replaces_nothing_in_loaded_sql(path: Path) -> None:
    """Text is replaced only where values are encoded, never in a statement."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    replaced = [
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace"
    ]
    assert set(replaced) <= {"text.replace", "name.replace"}


@pytest.mark.parametrize(
    "code",
    [
        'x = "SELECT 1 FROM jobs"',
        'x = f"DELETE FROM {table}"',
        'x = "INSERT OR IGNORE INTO jobs VALUES (?)"',
        'x = f" AND {column} ORDER BY id"',
        'x = " AND tenant_id = ?"',
    ],
)
def test_sql_in_code_is_found(code: str) -> None:
    assert statements_in(code)


def test_statements_are_composed_of_earlier_ones_and_constants(sql_folder: str) -> None:
    found = load_statements(sql_folder, "jobs", most=20)
    assert found == {
        "live": "live = 1",
        "page": "SELECT id FROM jobs WHERE live = 1\nORDER BY id LIMIT 20",
        "search": "SELECT id FROM jobs WHERE live = 1 {filters}",
    }


def test_unknown_placeholder_is_refused(sql_folder: str) -> None:
    with pytest.raises(ValueError, match=r"jobs\.sql: page: unknown placeholders \['most'\]"):
        load_statements(sql_folder, "jobs")


def test_script_is_split_at_the_ends_of_its_statements(sql_folder: str) -> None:
    assert load_script(sql_folder, "schema") == ("CREATE TABLE a (x, -- one; two\n    y)", "CREATE INDEX b ON a (x)")


@pytest.fixture
def sql_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package with two SQL files."""
    sql = tmp_path / "with_sql" / "sql"
    sql.mkdir(parents=True)
    (sql.parent / "__init__.py").touch()
    (sql / "jobs.sql").write_text(
        "-- Jobs.\n\n-- name: live\nlive = 1\n\n-- name: page\n-- The oldest first.\nSELECT id FROM jobs WHERE {live}\n"
        "ORDER BY id LIMIT {most};\n\n-- name: search (filters)\nSELECT id FROM jobs WHERE {live} {filters}\n"
    )
    (sql / "schema.sql").write_text(
        "-- First.\nCREATE TABLE a (x, -- one; two\n    y);\n\n-- Second.\nCREATE INDEX b ON a (x);\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "with_sql"
