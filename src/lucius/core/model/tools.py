"""Interface to library functions that decisions use: expressions, templates and schemas. Deterministic, without I/O."""

from collections.abc import Mapping
from typing import Any, Protocol

ITEM = "[*]"
"""Path element for a list item, or for a member whose name is computed."""


class ToolError(Exception):
    """An expression or template is invalid, or can't be evaluated over these values. The message is for its author."""


class Tools(Protocol):
    def names(self, expression: str) -> frozenset[str]:
        """Return the names an expression reads, cut to what is declared: `input`, `job`, `item`, `steps.ocr`.

        Raises ToolError if it can't be parsed.
        """

    def paths(self, expression: str) -> frozenset[tuple[str, ...]]:
        """Return the full paths an expression reads: `input.a.b > 1` reads ("input", "a", "b").

        `input.a[0].b` reads ("input", "a", ITEM, "b"), and so does `x.b` in `input.a.exists(x, x.b)`. Raises ToolError.
        """

    def tested(self, expression: str) -> frozenset[tuple[str, ...]]:
        """Return the paths that an expression tests with `has(…)` or `.?`. Raises ToolError."""

    def expressions_in(self, template: Any) -> tuple[str, ...]:
        """Return the expressions inside the `${…}` of a template's strings. Raises ToolError."""

    def evaluate(self, expression: str, values: Mapping[str, Any]) -> Any:
        """Return an expression's value as plain JSON. Raises ToolError.

        `values` is nested: `{"input": {…}, "steps": {"ocr": {…}}}`.
        """

    def names_in(self, template: Any) -> frozenset[str]:
        """Return the names that the `${…}` in a template's strings read. Raises ToolError."""

    def render(self, template: Any, values: Mapping[str, Any]) -> Any:
        """Return the template with every `${expression}` replaced. Raises ToolError for a missing value.

        A string that consists of one expression becomes the value itself, with its type; in a longer string a value is
        written as text. `${secrets.NAME}` stays for the sender to fill in. So does `$${`, which stands for `${`; a `${`
        in a value becomes `$${`, so that no value is read as a secret's name.
        """

    def render_url(self, template: str, values: Mapping[str, Any]) -> str:
        """Render a URL template with its values percent-encoded; `${secrets.NAME}` stays, as in `render`.

        Raises ToolError also for a value in the scheme or the host, for an empty path segment, and for one that is `.`
        or `..`, encoded or not.
        """

    def url_fault(self, template: str) -> str | None:
        """Return why a URL template is unusable for all values; None if it is usable. Raises ToolError."""

    def faults(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        """Return why a value does not fit a JSON Schema, at most a few reasons; empty if it does."""
