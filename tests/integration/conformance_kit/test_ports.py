"""Ports of the played orchestrators: no other case or process gets one while its orchestrator is away."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lucius.conformance import ports
from lucius.conformance.attempt_log import AttemptLog
from lucius.conformance.feed import LocalFeed
from lucius.conformance.ports import BLOCK_PORTS, HOST, PortBlocks
from lucius.conformance.server import Orchestrator

TAKE_ALL_OF_A_BLOCK = """
from lucius.conformance.ports import BLOCK_PORTS, PortBlocks
blocks = PortBlocks()
print(*(blocks.take() for _ in range(BLOCK_PORTS - 1)), flush=True)
input()
"""


@pytest.fixture
def blocks() -> Iterator[PortBlocks]:
    made = PortBlocks()
    yield made
    made.close()


def test_port_in_use_is_not_taken_again(blocks: PortBlocks) -> None:
    taken = [blocks.take() for _ in range(3 * BLOCK_PORTS)]
    assert len(set(taken)) == len(taken)


def test_returned_port_is_taken_after_the_unused_ones(blocks: PortBlocks) -> None:
    first = blocks.take()
    blocks.give_back([first])
    later = [blocks.take() for _ in range(BLOCK_PORTS - 1)]
    assert (later.index(first), len(set(later))) == (BLOCK_PORTS - 2, BLOCK_PORTS - 1)


def test_two_processes_share_no_ports(blocks: PortBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_ALL_OF_A_BLOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        block = range(min(theirs) - 1, max(theirs) + 1)
        monkeypatch.setattr(ports, "PORTS", range(block.start, block.stop + BLOCK_PORTS))
        ours = {blocks.take() for _ in range(BLOCK_PORTS - 1)}
        assert not ours & theirs
        with pytest.raises(RuntimeError, match="no free block"):
            blocks.take()
        other.stdin.write("\n")


async def test_port_of_an_absent_orchestrator_is_not_taken_by_another() -> None:
    def orchestrator() -> Orchestrator:
        attempt_log = AttemptLog(lambda: None)
        return Orchestrator(attempt_log, LocalFeed(attempt_log.handed_over), "key", lambda: None)

    away = orchestrator()
    await away.start()
    url = away.url
    await away.go_offline()
    others = [orchestrator() for _ in range(BLOCK_PORTS)]
    async with asyncio.TaskGroup() as group:
        for other in others:
            group.create_task(other.start())
    assert url not in {other.url for other in others}
    await away.go_online()
    with socket.create_connection((HOST, int(url.rpartition(":")[2])), timeout=5):
        pass
    for one in (away, *others):
        await one.close()
