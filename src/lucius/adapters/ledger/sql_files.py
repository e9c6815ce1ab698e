"""Loads the SQL of an adapter from the `.sql` files beside its code, once, when a module is imported.

A file of statements has a line `-- name: claim_rows` before each of them. `{other}` in a statement stands for the
earlier statement of that name in the same file, or for a constant that the loading module passes. Anything else in
braces is a slot that the caller fills when it composes a query; the name line declares it: `-- name: page (filters)`.
Lines that begin with `--` are comments of the file and not part of a statement.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"-- name: (?P<name>\w+)(?: \((?P<slots>[\w, ]+)\))?\n")
_BRACES = re.compile(r"\{(\w+)\}")


def load_statements(package: str, name: str, **constants: object) -> Mapping[str, str]:
    """Return the statements of `sql/<name>.sql` in a package, by name.

    Raises ValueError for a placeholder that is no earlier statement, no constant and no declared slot.
    """
    _, *parts = _NAME.split(_read(package, name))
    known: dict[str, object] = dict(constants)
    statements: dict[str, str] = {}
    for title, slots, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        declared = frozenset((slots or "").split(", "))
        if unknown := {*_BRACES.findall(_body(body))} - known.keys() - declared:
            raise ValueError(f"{package}: {name}.sql: {title}: unknown placeholders {sorted(unknown)}")
        values = {key: value for key, value in known.items() if key not in declared}
        known[title] = statements[title] = _fill(_body(body), values)
    return statements


def _fill(text: str, values: Mapping[str, object]) -> str:
    """Fill the placeholders that have a value; the others are slots."""
    return _BRACES.sub(lambda brace: str(values.get(brace[1], brace[0])), text)


def load_script(package: str, name: str) -> tuple[str, ...]:
    """Return the statements of a script, each of which ends with a semicolon at the end of a line."""
    bodies = (_body(statement) for statement in re.split(r";$", _read(package, name), flags=re.MULTILINE))
    return tuple(body for body in bodies if body)


def _read(package: str, name: str) -> str:
    return files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def _body(text: str) -> str:
    """Return a statement without the file's comments and without its last semicolon."""
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().removesuffix(";")
