"""Ports for servers that tests start, stop and start anew on the same port."""

import itertools
import os
import random
import socket

# Below the range from which systems give out client ports: otherwise a client that calls a server that is down
# may be given the very port it calls, and talk to itself. Below those of the conformance kit and the demo, and for each
# process of a test run its own: while a server is down, nobody else may be given its port.
FIRST, EACH, PROCESSES = 10_000, 1_250, 8


def _ports() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    return range(FIRST + number * EACH, FIRST + (number + 1) * EACH)


# In turn, so that none is given out again before all others were: who was given one may not have opened it yet.
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
