"""Outbox rows that this process wrote and can hand out without asking the database for them."""

from collections import OrderedDict
from collections.abc import Callable

from lucius.core.model import OutboxRow

MOST = 1_000
"""Of one service. What is more waits in the database."""


class Reserve:
    """A service's tenants take turns here too."""

    def __init__(self) -> None:
        self._services: dict[str, OrderedDict[str, dict[str, OutboxRow]]] = {}
        self._sizes: dict[str, int] = {}
        self._held: set[str] = set()

    def services(self) -> list[str]:
        return list(self._services)

    def put(self, row: OutboxRow, held: bool) -> bool:
        """Whether there was room. `held` rows are kept from other processes, too."""
        self.drop(row)
        if self._sizes.get(row.service, 0) >= MOST and not held:
            return False
        rows = self._services.setdefault(row.service, OrderedDict()).setdefault(row.tenant_id, {})
        self._sizes[row.service] = self._sizes.get(row.service, 0) + 1
        rows[row.outbox_id] = row
        if held:
            self._held.add(row.outbox_id)
        return True

    def drop(self, row: OutboxRow) -> None:
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
        """One of each tenant, then the next of each, up to the limit."""
        taken: list[OutboxRow] = []
        in_vain = 0
        while len(taken) < limit and (tenants := self._services.get(service)) and in_vain < len(tenants):
            tenant_id, rows = next(iter(tenants.items()))
            tenants.move_to_end(tenant_id)
            row = next((row for row in rows.values() if wanted(row)), None)
            if row is None:
                in_vain += 1
            else:
                in_vain = 0
                taken.append(row)
                self.drop(row)
        return taken

    def take_held(self) -> list[OutboxRow]:
        held = [
            row
            for tenants in self._services.values()
            for rows in tenants.values()
            for row in rows.values()
            if row.outbox_id in self._held
        ]
        for row in held:
            self.drop(row)
        return held

    def clear(self) -> None:
        self._services.clear()
        self._sizes.clear()
        self._held.clear()
