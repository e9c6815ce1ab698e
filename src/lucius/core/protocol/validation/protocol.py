"""Validates a protocol as a whole, so that faults are found before any job runs."""

from collections.abc import Iterator

from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.flow import check_flows
from lucius.core.protocol.validation.locations import Finding, lay_out
from lucius.core.protocol.validation.names import check_names
from lucius.core.protocol.validation.redact import check_redact
from lucius.core.protocol.validation.shape import check_shapes, check_size, check_waits

__all__ = ["Finding", "check_protocol"]

MAX_FATAL_FINDINGS = 100


def check_protocol(protocol: ProtocolDefinition, tools: Tools) -> tuple[Finding, ...]:
    """Return all findings on a protocol in the order of the checks, up to MAX_FATAL_FINDINGS fatal ones.

    Schemas are checked by their compiler.
    """
    found: list[Finding] = []
    fatal = 0
    for finding in _findings(protocol, tools):
        found.append(finding)
        fatal += finding.fatal
        if fatal == MAX_FATAL_FINDINGS:
            break
    return tuple(found)


def _findings(protocol: ProtocolDefinition, tools: Tools) -> Iterator[Finding]:
    layout = lay_out(protocol)
    yield from check_shapes(layout)
    yield from check_size(layout)
    yield from check_flows(layout)
    yield from check_names(layout, tools, protocol.input_schema)
    yield from check_waits(layout, protocol.policies)
    yield from check_redact(protocol)
