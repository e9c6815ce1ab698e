"""PostgreSQL over TLS: the ledger connects only to a server it trusts."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.ports.errors import LedgerDown
from tests.conformance.builders import accept
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer
from tests.support.tls import Authority


@pytest.fixture(scope="module")
def postgres_server(own_authority: Authority) -> Iterator[PostgresServer]:
    need_postgres()
    server = PostgresServer(
        ssl="on", ssl_cert_file=own_authority.server.name, ssl_key_file=own_authority.server_key.name
    )
    server.give(own_authority.server, own_authority.server_key)
    server.start()
    yield server
    server.remove()


async def test_ledger_connects_over_tls(postgres_server: PostgresServer, own_authority: Authority) -> None:
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": own_authority.ca})
    ledger = await open_postgres(f"{postgres_server.url('over_tls')}&{trust}")
    try:
        await ledger.ledger.commit(accept("a"))
        assert await ledger.ledger.load("a") is not None
        talking = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'lucius%'"
        spoken = [row["ssl"] for row in postgres_server.query(talking)]
        assert spoken
        assert all(spoken)
    finally:
        await ledger.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_postgresql_with_an_unexpected_authority_or_name_raises_ledger_down(
    postgres_server: PostgresServer, own_authority: Authority, other_authority: Authority, wrong: str
) -> None:
    trusted, host = (other_authority, "127.0.0.1") if wrong == "authority" else (own_authority, "localhost")
    trust = urlencode({"sslmode": "verify-full", "sslrootcert": trusted.ca})
    url = postgres_server.url("not_trusted").replace("127.0.0.1", host)
    with pytest.raises(LedgerDown, match="certificate verify failed"):
        await open_postgres(f"{url}&{trust}")
