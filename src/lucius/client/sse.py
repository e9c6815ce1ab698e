"""Server-sent events: from chunks of bytes to events."""

from msgspec import Struct

MAX_EVENT_BYTES = 16 * 1024 * 1024


class Sent(Struct, frozen=True):
    name: str
    data: bytes


class Parser:
    """Lines may end in any way that the standard allows, and chunks anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Sent]:
        """The events that this chunk completes. Raises ValueError for one that is too large."""
        self._rest += chunk
        held = b"\r" if self._rest.endswith(b"\r") else b""  # half of a line's end, perhaps
        lines = self._rest.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        found = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
        return found

    def _take(self, line: bytes) -> Sent | None:
        if not line:
            event = Sent(self._name, b"\n".join(self._data)) if self._data else None
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
