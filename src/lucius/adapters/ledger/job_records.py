"""Builds the record of a job from a ledger's rows, without decoding them."""

from collections.abc import Iterable

from msgspec import Raw

from lucius.ports.archive import JobRecord


class JobRecordBuilder:
    """Collects the rows of one job, table by table."""

    def __init__(self, job_id: str, command: bytes, head: bytes) -> None:
        self.job_id = job_id
        self.command = command
        self.head = head
        self.size = len(command) + len(head)
        self._tables: dict[str, list[Raw]] = {}

    def add(self, table: str, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.size += len(body)
            self._tables.setdefault(table, []).append(Raw(body))

    def build(self) -> JobRecord:
        job = b'{"command":%b,%b' % (self.command, self.head[1:])
        return JobRecord(
            jobId=self.job_id,
            job=Raw(job),
            steps=self._tables.get("steps", []),
            attempts=self._tables.get("attempts", []),
            events=self._tables.get("events", []),
            quarantined=self._tables.get("quarantined", []),
            reviews=self._tables.get("reviews", []),
        )
