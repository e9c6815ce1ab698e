"""Parts of `faulty_service`, standard library only: HTTP requests, pauses, and a spool that survives a kill."""

import json
import os
import random
import socket
import urllib.parse
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0

Json = dict[str, Any]


class OrchestratorReply:
    def __init__(self, status: int, retry_after: float, body: Any) -> None:
        self.status = status
        self.retry_after = retry_after
        self.body: Json = body if isinstance(body, dict) else {}

    @property
    def fenced(self) -> bool:
        """True if the answer means that the attempt is no longer current."""
        late = self.body.get("disposition") == "LATE" and not self.body.get("lease_expires_at")
        return late or (400 <= self.status < 500 and not self.retryable)

    @property
    def retryable(self) -> bool:
        """True if the status is temporary and worth a retry."""
        return self.status in (408, 425, 429) or self.status >= 500


class KeepAliveConnection:
    """Sends one request at a time. `shut_down` may be called from a signal handler or another thread."""

    def __init__(self) -> None:
        self._connection: HTTPConnection | None = None

    def post(self, url: str, body: Json, token: str, timeout: float) -> OrchestratorReply:
        """POST JSON and return the answer. Raises OSError or HTTPException if there is none."""
        parts = urllib.parse.urlsplit(url)
        connection = self._connection = HTTPConnection(parts.netloc, timeout=timeout)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            raw = response.read()
            return OrchestratorReply(response.status, float(response.headers.get("Retry-After") or 0), _parsed(raw))
        finally:
            connection.close()

    def shut_down(self) -> None:
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


class RetryPauses:
    """Pauses that grow with each failure, with jitter, and are never shorter than the orchestrator's Retry-After."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_SECONDS

    def after(self, reply: OrchestratorReply | None) -> float:
        seconds = self._next * random.uniform(0.7, 1.3)
        self._next = min(self._next * 2, MAX_PAUSE_SECONDS)
        return max(seconds, reply.retry_after if reply else 0.0)


class Spool:
    """Folder with one file for each attempt: begun, or done with its RESULT. Files are written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, key: str, entry: Json) -> None:
        fresh = self._folder / f"{key}.tmp"
        with fresh.open("w") as file:
            json.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / f"{key}.json")

    def read(self, key: str) -> Json | None:
        path = self._folder / f"{key}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def entries(self) -> list[tuple[str, Json]]:
        return [(path.stem, json.loads(path.read_text())) for path in sorted(self._folder.glob("*.json"))]
