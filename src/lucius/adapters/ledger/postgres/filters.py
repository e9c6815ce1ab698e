"""Conditions of a query: named fragments of an SQL file, and the arguments bound to them."""

from collections.abc import Mapping
from typing import Any


class Arguments:
    """Collects the arguments of a statement and returns their placeholders."""

    def __init__(self, *values: Any) -> None:
        self.values: list[Any] = list(values)

    def add(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


class Filters:
    """Collects conditions for the `filters` slot of a statement."""

    def __init__(self, statements: Mapping[str, str], arguments: Arguments) -> None:
        self._statements = statements
        self._arguments = arguments
        self._conditions: list[str] = []

    def add(self, name: str, value: Any) -> None:
        """Add the condition of this name with a value."""
        self.add_placeholder(name, self._arguments.add(value))

    def add_placeholder(self, name: str, placeholder: str) -> None:
        """Add the condition of this name with a value that is bound already."""
        self._conditions.append(self._statements[name].format(value=placeholder))

    def __str__(self) -> str:
        return " ".join(self._conditions)

    def fill(self, name: str, **slots: str) -> str:
        """Return the statement of this name with the conditions."""
        return self._statements[name].format(filters=str(self), **slots)
