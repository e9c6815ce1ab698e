"""Checks one protocol in a process of its own: reads the document from standard input, writes findings to output."""

import sys

import msgspec

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.check import findings
from lucius.core.protocol.definition import ProtocolDefinition


def main() -> None:
    protocol = msgspec.json.decode(sys.stdin.buffer.read(), type=ProtocolDefinition)
    sys.stdout.buffer.write(msgspec.json.encode(tuple(findings(protocol, CelTools()))))


if __name__ == "__main__":
    main()
