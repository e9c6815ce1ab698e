from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.client import AsyncClient
from tests.integration.client.support import Proxy, Server, client, proxy, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture
async def lucius(server: Server) -> AsyncIterator[AsyncClient]:
    """Yield a client connected directly to the server."""
    async with client(server.url) as made:
        yield made


@pytest.fixture
async def network(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server) as made:
        yield made


@pytest.fixture
async def proxied(network: Proxy) -> AsyncIterator[AsyncClient]:
    """Yield a client connected through an unreliable network."""
    async with client(network.url) as made:
        yield made
