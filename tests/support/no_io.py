"""Fails a unit test that opens a socket, starts a process or opens a database."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

FOLDERS = {
    "socket.bind": "tests/integration/http/ (or api/, client/, …, whose servers it uses)",
    "socket.connect": "tests/integration/http/ (or api/, client/, …, whose servers it uses)",
    "sqlite3.connect": "tests/integration/sqlite/",
    **dict.fromkeys(
        ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"),
        "tests/integration/process/ (tests/temporal/ if it starts a Temporal server)",
    ),
}
"""Where a test belongs that causes this audit event. The socket pair of an event loop causes none of them."""

_found: list[str] | None = None
"""What the running test has done so far, or None if it may do anything."""


class UnitTestDidIo(AssertionError):
    """A unit test did I/O."""


def _audit(event: str, args: tuple[object, ...]) -> None:
    if _found is None or event not in FOLDERS:
        return
    message = f"move this test to {FOLDERS[event]} or use a fake: tests/unit does no I/O, and it did {event}{args}"
    _found.append(message)
    raise UnitTestDidIo(message)


@contextmanager
def no_io() -> Iterator[None]:
    """Refuse I/O, and raise UnitTestDidIo at the end even if the code under test caught the refusal."""
    global _found
    _found = []
    cause = None
    try:
        yield
    except UnitTestDidIo:
        raise
    except BaseException as error:
        if not _found:
            raise
        cause = error
    finally:
        found, _found = _found, None
    if found:
        raise UnitTestDidIo(found[0]) from cause


sys.addaudithook(_audit)  # cannot be removed again: once per process, when this module is imported
