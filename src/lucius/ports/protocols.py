"""Where protocols come from."""

import typing

from lucius.core.protocol import Protocol
from lucius.ports.errors import ProtocolError


class ProtocolSource(typing.Protocol):
    def resolve(self, request_type: str, version: int | None = None) -> Protocol | None:
        """The protocol for a request type or one of its aliases: that version, or the newest."""

    def list(self) -> tuple[Protocol, ...]:
        """Every version of every protocol in force, by request type, oldest version first."""

    def refresh(self) -> bool:
        """Look for changes and take them over; True if there were any. Cheap when nothing changed."""

    def problems(self) -> tuple[ProtocolError, ...]:
        """What was refused and why; the last good version of it, if there was one, is still in force."""
