"""Errors that adapters raise.

ExpectedError
├── LedgerError
│   ├── VersionConflict      the job changed since it was read: read it again and decide again
│   ├── AlreadyAccepted      the tenant's idempotency key is taken: names the job that holds it
│   ├── LimitReached         a counter is at its cap: names the counter
│   ├── VersionPublished     a published protocol version would have changed
│   ├── LedgerAway           no commit is possible: back off as a whole
│   │   ├── LedgerFull       no space left: nothing of this commit was kept
│   │   ├── LedgerBusy       another process holds the ledger for writing
│   │   └── LedgerDown       no connection: the current commit may be durable or not
│   │       └── EngineDown   the same for the engine through which jobs are changed
│   ├── ForeignEngine        the job belongs to another kind of engine, which does not run here
│   ├── LedgerTooNew         written by a newer Lucius
│   ├── LedgerTooOld         made by an unreleased development version: can't be upgraded
│   └── LedgerCorrupt        the file is not a ledger, or is damaged
├── ArchiveError             an archive can't be written or read
├── BusError
│   ├── BusDown              no connection: stop, use up no attempt, try again later
│   ├── MessageRefused       the bus refused this particular message
│   └── OutcomeUnknown       it may have been delivered: counts as handed over
├── CallError                a code and a message, neither contains a secret
│   ├── CallRefused          our own rules forbid the call: it was not sent, and never will be
│   └── CallFailed           no usable response: `sent` if the request may have reached the peer
├── ProtocolError            a protocol or config file is wrong: file, line, reason
└── SettingsError            an environment variable has a value that can't be used
"""

from collections.abc import Sequence

MAX_FAULTS = 100
"""Maximum faults of one file that are reported."""


class ExpectedError(Exception):
    """Base of every error that Lucius raises on purpose."""


class LedgerError(ExpectedError):
    pass


class VersionConflict(LedgerError):
    pass


class AlreadyAccepted(LedgerError):
    def __init__(self, job_id: str, idempotency_hash: str) -> None:
        super().__init__(f"accepted already as job {job_id}")
        self.job_id = job_id
        self.idempotency_hash = idempotency_hash


class LimitReached(LedgerError):
    def __init__(self, counter: str, limit: int) -> None:
        super().__init__(f"{counter} is at its limit of {limit}")
        self.counter = counter
        self.limit = limit


class VersionPublished(LedgerError):
    pass


class LedgerAway(LedgerError):
    pass


class LedgerFull(LedgerAway):
    pass


class LedgerBusy(LedgerAway):
    pass


class LedgerDown(LedgerAway):
    pass


class EngineDown(LedgerDown):
    pass


class ForeignEngine(LedgerError):
    pass


class LedgerTooNew(LedgerError):
    pass


class LedgerTooOld(LedgerError):
    pass


class LedgerCorrupt(LedgerError):
    pass


class ArchiveError(ExpectedError):
    pass


class BusError(ExpectedError):
    pass


class BusDown(BusError):
    pass


class MessageRefused(BusError):
    pass


class OutcomeUnknown(BusError):
    pass


class CallError(ExpectedError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__()
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class CallRefused(CallError):
    pass


class CallFailed(CallError):
    def __init__(self, code: str, message: str, *, sent: bool) -> None:
        super().__init__(code, message)
        self.sent = sent


class ProtocolError(ExpectedError):
    """A fault in an operator's file. `others` are further faults of the same file."""

    def __init__(
        self, reason: str, *, file: str = "", line: int | None = None, others: "tuple[ProtocolError, ...]" = ()
    ) -> None:
        where = f"{file}:{line}: " if line else (f"{file}: " if file else "")
        super().__init__(where + reason)
        self.reason = reason
        self.file = file
        self.line = line
        self.others = others

    @property
    def everything(self) -> "tuple[ProtocolError, ...]":
        """This fault and the others, in their order in the file."""
        return (self, *self.others)

    @staticmethod
    def joined(faults: "Sequence[ProtocolError]") -> "ProtocolError":
        """Return the first of some faults with the others, up to MAX_FAULTS; the same fault counts once."""
        first, *others = {str(fault): fault for fault in faults}.values()
        first.others = tuple(others[: MAX_FAULTS - 1])
        return first


class SettingsError(ExpectedError):
    """An environment variable has a value that can't be used."""
