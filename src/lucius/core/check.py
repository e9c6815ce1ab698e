"""Whether a protocol makes sense: found when it is validated, so that no job has to find out."""

from collections.abc import Iterator

from lucius.core.check_flow import check_flows
from lucius.core.check_names import check_names
from lucius.core.check_shape import check_shapes, check_size, check_waits
from lucius.core.check_sites import Finding, lay_out
from lucius.core.protocol import Protocol
from lucius.core.tools import Tools

__all__ = ["Finding", "check_protocol"]

MAX_FATAL = 100


def check_protocol(protocol: Protocol, tools: Tools) -> tuple[Finding, ...]:
    """All that there is to say about a protocol, in the order of the checks, up to the hundredth that is fatal.

    Schemas are for whoever compiles them.
    """
    found: list[Finding] = []
    fatal = 0
    for finding in _findings(protocol, tools):
        found.append(finding)
        fatal += finding.fatal
        if fatal == MAX_FATAL:
            break
    return tuple(found)


def _findings(protocol: Protocol, tools: Tools) -> Iterator[Finding]:
    layout = lay_out(protocol)
    yield from check_shapes(layout)
    yield from check_size(layout)
    yield from check_flows(layout)
    yield from check_names(layout, tools)
    yield from check_waits(layout, protocol.policies)
