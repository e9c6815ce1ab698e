"""Parser of server-sent events, from chunks of bytes."""

from msgspec import Struct

MAX_EVENT_BYTES = 16 * 1024 * 1024


class ServerSentEvent(Struct, frozen=True):
    name: str
    data: bytes


class Parser:
    """Incremental parser. Accepts every line ending that the standard allows, and chunks split anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes. Raises ValueError if one is too large."""
        self._rest += chunk
        held = b"\r" if self._rest.endswith(b"\r") else b""  # may be the first half of \r\n
        lines = self._rest.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        found = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
        return found

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            event = ServerSentEvent(self._name, b"\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._data.append(value)
            self._size += len(value)
        return None
