"""Lock of the one process that may write a ledger file; the operating system releases it however that process ends."""

import fcntl
import os
from pathlib import Path

from lucius.ports.errors import LedgerBusy


class WriterLock:
    """An exclusive lock on `<ledger>.lock`. The file names its holder, for the error message of others."""

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(ledger.name + ".lock")
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._fd, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LedgerBusy(
                f"ledger {ledger} is open in process {holder}, and only one process may write it: stop that process "
                f"(see it with `ps -p {holder}`), or speak to it over HTTP instead of opening its ledger"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two different files."""
        os.close(self._fd)
