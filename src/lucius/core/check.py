"""Whether a protocol makes sense: found when it is validated, so that no job has to find out."""

from collections.abc import Iterator

from lucius.core.check_flow import check_flows
from lucius.core.check_names import check_names
from lucius.core.check_shape import check_shapes, check_size, check_waits
from lucius.core.check_sites import Finding, lay_out
from lucius.core.protocol import Protocol
from lucius.core.tools import Tools

__all__ = ["Finding", "check_protocol"]


def check_protocol(protocol: Protocol, tools: Tools) -> tuple[Finding, ...]:
    """All that there is to say about a protocol, in the order of the checks. Schemas are for whoever compiles them."""
    return tuple(_findings(protocol, tools))


def _findings(protocol: Protocol, tools: Tools) -> Iterator[Finding]:
    layout = lay_out(protocol)
    yield from check_shapes(layout)
    yield from check_size(layout)
    yield from check_flows(layout)
    yield from check_names(layout, tools)
    yield from check_waits(layout, protocol.policies)
