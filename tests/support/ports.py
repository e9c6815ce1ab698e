"""Ports for servers that tests start, stop and start anew on the same port."""

import contextlib
import random
import socket

# Below the range from which systems give out client ports: otherwise a client that calls a server that is down
# may be given the very port it calls, and talk to itself.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")
