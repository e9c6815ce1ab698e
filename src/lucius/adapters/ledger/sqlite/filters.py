"""Conditions of a query: named fragments of an SQL file, and the values bound to them."""

from collections.abc import Collection, Mapping
from typing import Any


class Filters:
    """Collects conditions for the `filters` slot of a statement."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self._statements = statements
        self._conditions: list[str] = []
        self.values: list[Any] = []

    def add(self, name: str, *values: Any) -> None:
        """Add the condition of this name with its values."""
        self._conditions.append(self._statements[name])
        self.values += values

    def add_set(self, name: str, values: Collection[str] | Collection[int]) -> None:
        """Add the condition of this name with one placeholder for each value."""
        self._conditions.append(self._statements[name].format(marks=placeholders(values)))
        self.values += sorted(values)

    def fill(self, name: str, **slots: str) -> str:
        """Return the statement of this name with the conditions."""
        return self._statements[name].format(filters=" ".join(self._conditions), **slots)


def placeholders(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
