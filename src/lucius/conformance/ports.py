"""Ports for the played orchestrators, which close and reopen theirs while other cases and other kits run.

A port that is closed for a while must not be taken by another orchestrator: the service would then talk to the wrong
one. So each process has blocks of ports of its own, each marked by a socket that listens on the block's first port, and
gives out no port that is in use by a case.
"""

import random
import socket
from collections import deque
from collections.abc import Iterable, Iterator

HOST = "127.0.0.1"
# Below the range of ephemeral ports: a client that connects to a closed port in that range can end up connected to
# itself.
PORTS = range(20_000, 28_000)
BLOCK_PORTS = 100


def _blocks() -> Iterator[range]:
    starts = range(PORTS.start, PORTS.stop, BLOCK_PORTS)
    for start in random.sample(starts, len(starts)):
        yield range(start, start + BLOCK_PORTS)


class PortBlocks:
    """Gives out ports that no other case and no other process of the kit gets meanwhile."""

    def __init__(self) -> None:
        self._guards: list[socket.socket] = []
        self._unused = deque[int]()

    def take(self) -> int:
        """Return the port that has been unused for longest. Raises RuntimeError if all blocks are taken."""
        if not self._unused:
            self._unused.extend(self._claim_block())
        return self._unused.popleft()

    def give_back(self, ports: Iterable[int]) -> None:
        """Let other cases of this process have these ports."""
        self._unused.extend(ports)

    def close(self) -> None:
        """Release the blocks to other processes."""
        for guard in self._guards:
            guard.close()
        self._guards.clear()
        self._unused.clear()

    def _claim_block(self) -> range:
        for block in _blocks():
            guard = socket.socket()
            try:
                guard.bind((HOST, block.start))
                guard.listen(1)
            except OSError:
                guard.close()
                continue
            self._guards.append(guard)
            return block[1:]
        raise RuntimeError(f"no free block of ports between {PORTS.start} and {PORTS.stop}")
