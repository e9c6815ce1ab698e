"""Ports for servers that tests start, stop and restart on the same port."""

import itertools
import os
import random
import socket

# Below the ephemeral port range: otherwise a client that calls a stopped server may be assigned that very port and
# connect to itself. Also below the ports of the conformance kit and the demo. Each process of a test run has its own
# range: while a server is down, no other server may be given its port.
FIRST, EACH, PROCESSES = 10_000, 1_250, 8


def _ports() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    return range(FIRST + number * EACH, FIRST + (number + 1) * EACH)


# Cycle through all ports before repeating one: the process that got a port may not have opened it yet.
_turn = itertools.cycle(random.SystemRandom().sample(_ports(), EACH))


def free_port() -> int:
    for port in itertools.islice(_turn, EACH):
        if _is_free(port):
            return port
    raise RuntimeError("no free port")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
