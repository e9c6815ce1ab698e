"""Counts running requests by tenant, and keeps slots free for tenants that have none."""

from collections import Counter


class TenantSlots:
    """Lets one tenant run `parallel` requests at a time, and all tenants together twice as many.

    A tenant gets at most half of the slots that the others leave. So a tenant whose receivers are slow can't take the
    last free slots: another tenant's request starts at once.
    """

    def __init__(self, parallel: int) -> None:
        self._size = 2 * parallel
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._taken.total()

    def has_free(self) -> bool:
        return len(self) < self._size

    def has_room_for(self, tenant_id: str) -> bool:
        free, held = self._size - len(self), self._taken[tenant_id]
        return free > 0 and held < max(1, (free + held) // 2)

    def take(self, tenant_id: str) -> None:
        self._taken[tenant_id] += 1

    def release(self, tenant_id: str) -> None:
        self._taken[tenant_id] -= 1
        if not self._taken[tenant_id]:
            del self._taken[tenant_id]
