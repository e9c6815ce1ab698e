"""Protocol documents from the API: decoded like files, and checked by the same rules."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from lucius.contract import Fault
from lucius.contract.protocols import ProtocolFinding
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.protocol import Finding
from lucius.core.protocol.validation.structure import StructureFault, structure_faults
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import fault_of, pointer, too_deep

MAX_FINDINGS = 100

Check = Callable[[ProtocolDefinition], Awaitable[Sequence[Finding]]]
"""Returns all findings about a well-formed protocol without blocking the event loop."""


def read_document(value: Any) -> ProtocolDefinition:
    """Decode a document. Raises Rejected (INVALID_PROTOCOL) with pointers to its faults."""
    if too_deep(value):
        raise invalid([Fault("", "is nested too deeply")])
    try:
        return msgspec.convert(value, ProtocolDefinition)
    except msgspec.ValidationError as error:
        faults = [_fault(fault) for fault in structure_faults(value, ProtocolDefinition)]
        raise invalid(faults or [fault_of(str(error))]) from None


def _fault(fault: StructureFault) -> Fault:
    if fault.missing:
        return Fault(pointer([*fault.path, fault.missing]), "required field is missing")
    if fault.reason.startswith("unknown field "):
        return Fault(pointer(fault.path), f"unknown field{fault.hint}")
    return Fault(pointer(fault.path), fault.reason + fault.hint)


def require_sound(findings: Iterable[ProtocolFinding]) -> None:
    """Raise Rejected (INVALID_PROTOCOL) if a finding is fatal."""
    if faults := [Fault(finding.pointer, finding.message) for finding in findings if finding.fatal]:
        raise invalid(faults)


def finding(path: Iterable[str | int], message: str, *, fatal: bool = True) -> ProtocolFinding:
    return ProtocolFinding(pointer=pointer(path), message=message, fatal=fatal)


def invalid(faults: Sequence[Fault]) -> Rejected:
    first, more = faults[0], len(faults) - 1
    detail = f"{first.pointer}: {first.message}" + (f" (and {more} more)" if more else "")
    return Rejected(RejectCode.INVALID_PROTOCOL, detail, faults[:MAX_FINDINGS])
