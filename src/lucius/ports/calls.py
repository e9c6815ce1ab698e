"""How the engine asks the outside world for something: one HTTP request, one answer.

Only the caller knows the values of secrets, and nothing that it answers or raises shows them.
"""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct, field

from lucius.core.model import Instant, Millis


class Outgoing(Struct, frozen=True, kw_only=True):
    """`body` is a JSON value, or text that is sent as it is. `sign_with` names the webhook secret to sign with.

    With `fills_secrets`, `${secrets.NAME}` in the strings stands for a secret and `$${` for a plain `${`: only for what
    was rendered from a protocol, so that nobody's data can pass for the name of a secret.
    With `from_client`, the URL is one that a client named, and goes by the rules for those.
    """

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    timeout_ms: Millis
    idempotency_key: str
    fills_secrets: bool = False
    from_client: bool = False
    sign_with: str | None = None
    traceparent: str | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """Whatever the status is. Headers have lower-case names; the body is parsed if it says that it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any = None
    retry_after_ms: Millis | None = None


class Slot(Struct, frozen=True):
    """One of the calls that a host may get at a time. Must be released, once."""

    release: Callable[[], None]


class Closed(Struct, frozen=True):
    """The host asked to be left alone until then, or, without an instant, has as many calls as it may have."""

    until: Instant | None = None


class Caller(Protocol):
    def host(self, url: str) -> str:
        """The host and port of a URL; empty for one that `send` would refuse."""

    def admit(self, host: str) -> Slot | Closed:
        """A place among the calls to a host."""

    async def send(self, call: Outgoing) -> Answer:
        """Make the request, once. Raises CallRefused or CallFailed."""
