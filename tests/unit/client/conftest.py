from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.client import AsyncClient
from tests.unit.client.support import Proxy, Server, client, proxy, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture
async def lucius(server: Server) -> AsyncIterator[AsyncClient]:
    """A client that speaks to the server directly."""
    async with client(server.url) as made:
        yield made


@pytest.fixture
async def network(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server) as made:
        yield made


@pytest.fixture
async def far(network: Proxy) -> AsyncIterator[AsyncClient]:
    """A client with a bad network before the server."""
    async with client(network.url) as made:
        yield made
