"""What a decision borrows from libraries: expressions, templates and schemas. Deterministic, and without I/O."""

from collections.abc import Mapping
from typing import Any, Protocol


class ToolError(Exception):
    """An expression or template is wrong, or can't be evaluated over these values. The message is for its author."""


class Tools(Protocol):
    def names(self, expression: str) -> frozenset[str]:
        """What an expression reads, as dotted names cut to what is declared: `input`, `job`, `item`, `steps.ocr`.

        Raises ToolError if it can't be parsed.
        """

    def evaluate(self, expression: str, values: Mapping[str, Any]) -> Any:
        """Its value as plain JSON. `values` is nested: `{"input": {…}, "steps": {"ocr": {…}}}`. Raises ToolError."""

    def names_in(self, template: Any) -> frozenset[str]:
        """What the `${…}` inside a template's strings read. Raises ToolError."""

    def render(self, template: Any, values: Mapping[str, Any]) -> Any:
        """The template with every `${expression}` replaced.

        A string that is nothing but one becomes the value itself, whatever its type; within a longer string a value
        is written as text. `${secrets.NAME}` stays, for whoever sends the result. So does `$${`, which stands for
        `${`, and a `${` in a value becomes one: no value can pass for a secret's name. Raises ToolError for a
        missing value.
        """

    def faults(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        """Why a value does not fit a JSON Schema, at most a few; empty if it does."""
