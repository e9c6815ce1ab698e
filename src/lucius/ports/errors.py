"""What an adapter may answer beside success.

LuciusError
├── LedgerError
│   ├── VersionConflict      the job moved since it was read: read again and decide anew
│   ├── AlreadyAccepted      the tenant's idempotency key is taken: names the job that holds it
│   ├── LimitReached         a counter is at its cap: names the counter
│   ├── VersionPublished     a published protocol version would have changed
│   ├── LedgerAway           nothing can be committed, whatever it is: back off as a whole
│   │   ├── LedgerFull       no space left: nothing of this commit was kept
│   │   ├── LedgerBusy       another process holds the ledger for writing
│   │   └── LedgerDown       no connection: what was being committed may be durable or not
│   │       └── EngineDown   the same of the engine that jobs are changed through
│   ├── ForeignEngine        the job is another engine's to change, and there is none of that kind here
│   ├── LedgerTooNew         written by a newer Lucius
│   └── LedgerCorrupt        the file is not a ledger, or is damaged
├── ArchiveError             an archive can't be written or read
├── BusError
│   ├── BusDown              no connection: stop, burn nothing, try again later
│   ├── MessageRefused       the bus refused this very message
│   └── OutcomeUnknown       it may have left us: counts as handed over
├── CallError                a code and a message, neither with a secret in it
│   ├── CallRefused          our own rules forbid the call: it was not sent, and never will be
│   └── CallFailed           no usable answer: says whether the request may have reached the peer
└── ProtocolError            a protocol or config file is wrong: file, line, reason
"""


class LuciusError(Exception):
    """Base of every error that Lucius raises on purpose."""


class LedgerError(LuciusError):
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


class LedgerCorrupt(LedgerError):
    pass


class ArchiveError(LuciusError):
    pass


class BusError(LuciusError):
    pass


class BusDown(BusError):
    pass


class MessageRefused(BusError):
    pass


class OutcomeUnknown(BusError):
    pass


class CallError(LuciusError):
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


class ProtocolError(LuciusError):
    def __init__(self, reason: str, *, file: str = "", line: int | None = None) -> None:
        where = f"{file}:{line}: " if line else (f"{file}: " if file else "")
        super().__init__(where + reason)
        self.reason = reason
        self.file = file
        self.line = line
