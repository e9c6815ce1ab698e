"""Headers that identify a service process in its pulls and callbacks."""

import os
import socket
from collections.abc import Mapping

from lucius.version import __version__

INSTANCE_HEADER = "X-Lucius-Instance"
MAX_VERSION_CHARS = 40
MAX_AGENT_CHARS = 128  # the orchestrator shows no more


def process_headers(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for a process of these services, given the version of each, which may be empty."""
    return {INSTANCE_HEADER: f"{socket.gethostname()}:{os.getpid()}", "User-Agent": _agent(versions)}


def _agent(versions: Mapping[str, str]) -> str:
    """Return the versions that are known, as many as fit, and the SDK's. Only printable ASCII is kept."""
    sdk = f"lucius-worker/{__version__}"
    agent = ""
    for service, version in versions.items():
        shown = "".join(char for char in version if "!" <= char <= "~")[:MAX_VERSION_CHARS]
        product = f"{service}/{shown} "
        if shown and len(agent) + len(product) + len(sdk) <= MAX_AGENT_CHARS:
            agent += product
    return agent + sdk
