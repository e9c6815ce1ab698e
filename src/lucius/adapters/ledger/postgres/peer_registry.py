"""Registry of live replicas.

Replicas are known in two ways: by the notifications they send, and by counting the connections that listen. Counting
finds replicas whose notifications were missed; notifications find those that joined after the last count.
"""

from collections.abc import Callable

from lucius.ports.peers import MAX_SWEEP_BACKOFF

PEER_TTL_SECONDS = 150.0
"""How long a peer counts as live after its last notification, and how long a count is valid."""
PEERS_AT_BASE_RATE = 4
"""Up to this many replicas poll at the base interval (together twice a second); more replicas poll less often."""
MAX_POLL_BACKOFF = 8.0


class PeerRegistry:
    """Tracks which other replicas use the same schema, and how often each of them needs to poll."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._alone = False
        self._counted_at = self._changed_at = -PEER_TTL_SECONDS
        self._peers: dict[int, float] = {}
        self._sweepers: dict[int, float] = {}
        self._peer_count = self._sweeper_count = 0
        self.is_sweeper = False
        """True if this replica runs a sweeper."""
        self.accepts_callbacks: Callable[[], bool] = lambda: False
        """Return True while services can send callbacks to this replica."""

    @property
    def counted(self) -> tuple[int, int]:
        """Numbers of listening peers and of sweepers among them, as last counted."""
        return self._peer_count, self._sweeper_count

    def record_count(self, others: int, sweepers: int, queried_at: float) -> bool:
        """Store the number of listening peers found by a query; return True if this replica has just become alone."""
        if not others and self._changed_at >= queried_at:
            return False  # a peer joined since the query, or may have joined while the listener was down
        was_alone = self.is_alone()
        self._peer_count, self._sweeper_count, self._counted_at = others, sweepers, self._steady()
        self._alone = others == 0
        return self._alone and not was_alone

    def record_peer(self, sender: int, sweeps: bool) -> None:
        """Store that a notification of peer `sender` arrived."""
        self._alone, self._changed_at = False, self._steady()
        self._peers[sender] = self._steady()
        if sweeps:
            self._sweepers[sender] = self._steady()

    def mark_disconnected(self) -> None:
        """Stop claiming to be alone: without a listener, peers that join are not noticed."""
        self._alone, self._changed_at = False, self._steady()

    def is_alone(self) -> bool:
        """Return True if the last count found no peers, is recent, and none joined since."""
        return self._alone and self._steady() - self._counted_at < PEER_TTL_SECONDS

    def poll_backoff(self) -> float:
        """Return the factor by which to stretch the poll interval.

        All replicas together poll twice a second, and each publishes to the others what it finds.
        """
        return min(self._share(self._peers, self._peer_count), MAX_POLL_BACKOFF)

    def sweep_backoff(self) -> float:
        """Return the factor by which to stretch the sweep interval, from the number of sweepers."""
        return min(self._share(self._sweepers, self._sweeper_count), MAX_SWEEP_BACKOFF)

    def _share(self, seen: dict[int, float], counted: int) -> float:
        if self.is_alone():
            return 1.0
        oldest = self._steady() - PEER_TTL_SECONDS
        for sender in [sender for sender, at in seen.items() if at < oldest]:
            del seen[sender]
        return max(1.0, (max(len(seen), counted) + 1) / PEERS_AT_BASE_RATE)
