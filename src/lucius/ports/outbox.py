"""Queue of the directives that a ledger's commits have written."""

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from lucius.core.model.records import Instant, Millis, OutboxRow


class PendingQuery(Struct, frozen=True, kw_only=True):
    """Selects PENDING outbox rows. None means any.

    Ready rows come in fair order: the tenants of a service take turns, each with its oldest first, so that a long
    backlog of one can't starve another that shares its lane. The next call starts after the tenant served last.
    Without a service, the services take turns as well. `except_rows` are rows that the caller already has:
    they are not returned again and use up no turn. With `tenants`, rows of other tenants are neither
    returned nor read, and their turns stay as they were. With `hold_ms`, other processes on the same ledger are not
    given the returned rows for that long; a hold ends on time even if its process dies. Rows whose backoff is over come
    after the ready ones, unless `later` is off; with `tenants` they are not held.
    """

    limit: int
    now: Instant
    service: str | None = None
    except_services: frozenset[str] = frozenset()
    except_rows: frozenset[str] = frozenset()
    lanes: frozenset[int] | None = None
    tenants: frozenset[str] | None = None
    claimed: bool = False
    hold_ms: Millis = 0
    later: bool = True


class Outbox(Protocol):
    """Queue of directives to hand over."""

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        """Return PENDING rows whose `next_attempt_at` has come: unclaimed ones or, if so queried, claimed ones."""

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Release the holds of rows that were not handed over."""
