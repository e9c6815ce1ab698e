"""Whether a well-formed protocol makes sense: its schemas compile, and their defaults fit them."""

from lucius.contract_protocols import ProtocolFinding
from lucius.core.protocol import Protocol
from lucius.service.protocol_documents import Check


def protocol_check() -> Check:
    def check(protocol: Protocol) -> list[ProtocolFinding]:
        return []

    return check
