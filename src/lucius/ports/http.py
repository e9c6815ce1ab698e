"""Port for the engine's outbound HTTP requests: one request, one response.

Only the adapter knows the values of secrets; nothing that it returns or raises contains them.
"""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct, field

from lucius.core.model.records import Instant, Millis


class Outgoing(Struct, frozen=True, kw_only=True):
    """An outbound request. `body` is a JSON value, or text sent as it is.

    `sign_with` names the webhook secret to sign with.
    With `fills_secrets`, `${secrets.NAME}` in the strings stands for a secret and `$${` for a plain `${`. Set it only
    for what was rendered from a protocol, so that client data can't refer to a secret.
    With `from_client`, the URL was given by a client of `tenant_id`: the rules for client URLs apply, concurrency is
    limited apart for that tenant, and the request is signed with that tenant's secrets.
    """

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    timeout_ms: Millis
    idempotency_key: str
    fills_secrets: bool = False
    from_client: bool = False
    tenant_id: str = ""
    sign_with: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    correlation_id: str = ""


class HttpResponse(Struct, frozen=True, kw_only=True):
    """A response with any status. Header names are lower-case; the body is parsed if its content type is JSON."""

    status: int
    headers: dict[str, str]
    body: Any = None
    retry_after_ms: Millis | None = None


class Slot(Struct, frozen=True):
    """Permission for one of a host's concurrent calls. Must be released exactly once."""

    release: Callable[[], None]


class Closed(Struct, frozen=True):
    """Refusal of a slot, until the instant that the host asked for; None if the host has its maximum of calls."""

    until: Instant | None = None


class Caller(Protocol):
    def host(self, url: str, tenant_id: str = "") -> str:
        """Return the key under which calls to a URL are limited; an empty string for a URL that `send` would refuse.

        The key is host and port, apart for each tenant whose client gave the URL.
        """

    def admit(self, host: str) -> Slot | Closed:
        """Reserve a call to a host, by its key from `host`; return Closed if none is allowed now."""

    async def send(self, call: Outgoing) -> HttpResponse:
        """Make the request once. Raises CallRefused or CallFailed."""
