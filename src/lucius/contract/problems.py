"""Refusals: RFC 9457 problem details."""

from msgspec import Struct, field

from lucius.contract.fields import Check


class Fault(Struct, frozen=True):
    """A fault of a request; `pointer` is a JSON Pointer into its body."""

    pointer: str
    message: str


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Problem details (RFC 9457). `code` is stable and listed in the docs; `title` and `detail` are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    errors: list[Fault] = field(default_factory=list)
    jobId: str | None = None
    disposition: str | None = None
    retry_after_seconds: int | None = None
    checks: dict[str, "Check"] = field(default_factory=dict)
