"""Protocol documents that come over HTTP: read like files, and judged by the same rules."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lucius.contract import Fault
from lucius.contract_protocols import ProtocolFinding
from lucius.core.check import Finding
from lucius.core.protocol import Protocol
from lucius.service.errors import RejectCode, Rejected
from lucius.service.json_values import fault_of, pointer, too_deep

MAX_FINDINGS = 100

Check = Callable[[Protocol], Iterable[Finding]]
"""All that there is to say about a protocol that is well-formed."""


def read_document(value: Any) -> Protocol:
    """Raises Rejected (INVALID_PROTOCOL) with a pointer."""
    if too_deep(value):
        raise invalid([Fault("", "is nested too deeply")])
    try:
        return msgspec.convert(value, Protocol)
    except msgspec.ValidationError as error:
        raise invalid([fault_of(str(error))]) from None


def require_sound(findings: Iterable[ProtocolFinding]) -> None:
    """Raises Rejected (INVALID_PROTOCOL) if one of them is fatal."""
    if faults := [Fault(finding.pointer, finding.message) for finding in findings if finding.fatal]:
        raise invalid(faults)


def finding(path: Iterable[str | int], message: str, *, fatal: bool = True) -> ProtocolFinding:
    return ProtocolFinding(pointer=pointer(path), message=message, fatal=fatal)


def invalid(faults: Sequence[Fault]) -> Rejected:
    first, more = faults[0], len(faults) - 1
    detail = f"{first.pointer}: {first.message}" + (f" (and {more} more)" if more else "")
    return Rejected(RejectCode.INVALID_PROTOCOL, detail, faults[:MAX_FINDINGS])
