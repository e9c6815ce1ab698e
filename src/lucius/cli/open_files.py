"""Keeps clients from using up the files that this process may have open.

Each connection takes one. Without any left, the ledger, configuration and protocols can't be opened either.
"""

import resource
from contextlib import suppress

import structlog

RESERVED_FILES = 512  # for ledger, bus, outbound calls, configuration, and connections just refused
DEFAULT_CONNECTIONS = 4_000

log = structlog.get_logger()


def fit_connections(wanted: int) -> int:
    """Return how many connections may be open at once: `wanted`, unless too few files may be open.

    Raises this process's soft limit on open files where its hard limit permits. 0 wants no limit, and gets the one of
    open files, if there is one.
    """
    files = _raise_open_files((wanted or DEFAULT_CONNECTIONS) + RESERVED_FILES)
    if files == resource.RLIM_INFINITY:
        return wanted
    fitting = max(files - RESERVED_FILES, files // 2)
    if wanted > fitting:
        log.warning(
            "fewer connections than LUCIUS_MAX_CONNECTIONS are accepted: the limit on open files is too low",
            connections=fitting,
            open_files=files,
        )
    return min(wanted or fitting, fitting)


def _raise_open_files(wanted: int) -> int:
    """Raise the soft limit on open files to `wanted` as far as permitted; return the limit, RLIM_INFINITY for none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):  # some systems permit less than their hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
