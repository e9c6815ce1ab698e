"""Types of fields that several messages share."""

from typing import Annotated

from msgspec import Meta, Struct

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # RFC 3339, UTC, milliseconds
Reason = Annotated[str, Meta(max_length=1024)]


class Error(Struct, frozen=True, omit_defaults=True):
    code: Annotated[str, Meta(min_length=1, max_length=128)]
    message: Annotated[str, Meta(max_length=8192)] = ""


class ProgressCounts(Struct, frozen=True):
    """Progress of an attempt in units of its work: page 7 of 20."""

    done: Count
    total: Count | None = None
    """Unset while unknown."""
    unit: Annotated[str, Meta(max_length=32)] = ""
    """A noun in the singular: page, chunk, prompt."""


class Check(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of one health check. `detail` describes the problem or gives a hint."""

    ok: bool
    detail: str = ""
