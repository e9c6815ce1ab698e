"""Outbox rows written by this replica, kept in memory so that they can be handed out without a query."""

from collections import OrderedDict
from collections.abc import Callable

from lucius.core.model.records import OutboxRow

MAX_ROWS_PER_SERVICE = 1_000
"""Rows beyond this are left in the database."""


class PrefetchedOutbox:
    """Holds ready rows per service and hands them out round-robin over the tenants, like the database does."""

    def __init__(self) -> None:
        self._services: dict[str, OrderedDict[str, dict[str, OutboxRow]]] = {}
        self._sizes: dict[str, int] = {}
        self._held: set[str] = set()

    def services(self) -> list[str]:
        return list(self._services)

    def add(self, row: OutboxRow, held: bool) -> bool:
        """Keep a row; return False if the service's share is full.

        `held` rows are always kept: the database withholds them from other replicas.
        """
        self.discard(row)
        if self._sizes.get(row.service, 0) >= MAX_ROWS_PER_SERVICE and not held:
            return False
        rows = self._services.setdefault(row.service, OrderedDict()).setdefault(row.tenant_id, {})
        self._sizes[row.service] = self._sizes.get(row.service, 0) + 1
        rows[row.outbox_id] = row
        if held:
            self._held.add(row.outbox_id)
        return True

    def discard(self, row: OutboxRow) -> None:
        """Remove a row if it is kept."""
        self._held.discard(row.outbox_id)
        tenants = self._services.get(row.service)
        rows = tenants.get(row.tenant_id) if tenants is not None else None
        if tenants is None or rows is None or rows.pop(row.outbox_id, None) is None:
            return
        self._sizes[row.service] -= 1
        if not rows:
            del tenants[row.tenant_id]
        if not tenants:
            del self._services[row.service]
            del self._sizes[row.service]

    def take(self, service: str, limit: int, wanted: Callable[[OutboxRow], bool]) -> list[OutboxRow]:
        """Remove and return one wanted row of each tenant, then the next of each, up to `limit`.

        Tenants without a wanted row keep their place in the rotation.
        """
        tenants = self._services.get(service, OrderedDict[str, dict[str, OutboxRow]]())
        taken: list[OutboxRow] = []
        skipped: set[str] = set()
        while len(taken) < limit:
            tenant_id = next((name for name in tenants if name not in skipped), None)
            if tenant_id is None:
                break
            row = next((row for row in tenants[tenant_id].values() if wanted(row)), None)
            if row is None:
                skipped.add(tenant_id)
            else:
                tenants.move_to_end(tenant_id)
                taken.append(row)
                self.discard(row)
        return taken

    def take_held(self) -> list[OutboxRow]:
        """Remove and return all held rows."""
        held = [
            row
            for tenants in self._services.values()
            for rows in tenants.values()
            for row in rows.values()
            if row.outbox_id in self._held
        ]
        for row in held:
            self.discard(row)
        return held

    def clear(self) -> None:
        self._services.clear()
        self._sizes.clear()
        self._held.clear()
