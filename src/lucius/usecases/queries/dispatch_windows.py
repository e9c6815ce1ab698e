"""Which dispatch windows are closed: as many directives as `LUCIUS_MAX_UNACKED` are handed over and not picked up."""

from collections.abc import Mapping

from lucius.core.model.counters import UNACKED, unacked_counter, unacked_service


class DispatchWindows:
    """Windows of a service: the one that all tenants share, and those of tenants with `serve` keys of their own."""

    def __init__(self, unacked: Mapping[str, int], max_unacked: int) -> None:
        """Take all counters of un-ACKed directives."""
        self._unacked = {counter: n for counter, n in unacked.items() if n > 0 and counter.startswith(UNACKED)}
        self._max_unacked = max_unacked

    def is_closed(self, service: str, tenant_id: str) -> bool:
        """Return True if every window in use through which the tenant's directives can go is full.

        A window without directives may be one that no service pulls from, so it does not count as open.
        """
        counters = (unacked_counter(service), unacked_counter(service, tenant_id))
        in_use = [self._unacked[counter] for counter in counters if counter in self._unacked]
        return bool(in_use) and min(in_use) >= self._max_unacked

    def closed_for_some(self) -> frozenset[str]:
        """Return the services with a window that is full."""
        return frozenset(unacked_service(counter) for counter, n in self._unacked.items() if n >= self._max_unacked)

    def closed_for_all(self) -> frozenset[str]:
        """Return the services whose shared window is full, as are all others in use."""
        some_open = {unacked_service(counter) for counter, n in self._unacked.items() if n < self._max_unacked}
        full = self.closed_for_some() - some_open
        return frozenset(service for service in full if unacked_counter(service) in self._unacked)


ALL_OPEN = DispatchWindows({}, 1)
