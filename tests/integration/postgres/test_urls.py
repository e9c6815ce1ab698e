"""The error for a ledger that can't be opened: its location and the cause, without credentials."""

from pathlib import Path
from urllib.parse import urlencode

import pytest

from lucius.adapters.ledger.postgres.database import Database
from lucius.ports.errors import LedgerDown, LedgerError
from tests.support.ports import free_port


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://ada:s3cret@db:5433/lucius?schema=a", "db:5433/lucius"),
        ("postgresql://ada:s3cret@db/lucius", "db/lucius"),
        ("postgresql://ada:s3@cret@db:5433/lucius", "db:5433/lucius"),
        ("postgresql://ada:5432/s3cret@db:5433/lucius", "db:5433/lucius"),
        ("postgresql://ada:s3cret@[::1]:5433/lucius", "[::1]:5433/lucius"),
        ("postgresql://ada:s3cret@a:5432,b:5433/lucius", "a:5432,b:5433/lucius"),
        ("postgresql:///lucius?user=ada&password=s3cret", "localhost/lucius"),
        ("postgresql:///lucius?host=db&port=5433&user=ada&password=s3cret", "db:5433/lucius"),
    ],
)
def test_address_shows_the_port_and_no_credentials(url: str, where: str) -> None:
    assert Database(url, 1).address == where


@pytest.mark.parametrize("url", ["postgresql://ada:123?4@db/lucius", "postgresql://ada:123#4@db/lucius"])
def test_password_at_the_end_of_a_url_is_not_shown(url: str) -> None:
    with pytest.raises(LedgerError, match="special characters in a password") as refused:
        Database(url, 1)
    assert "123" not in str(refused.value)


async def test_unreachable_server_is_named_with_its_port() -> None:
    port = free_port()
    with pytest.raises(LedgerDown, match=rf"^ledger 127\.0\.0\.1:{port}/lucius can't be reached"):
        await Database(f"postgresql://ada:s3cret@127.0.0.1:{port}/lucius", 1).open()


@pytest.mark.parametrize("name", ["sslrootcert", "sslcrl", "sslcert", "sslkey"])
async def test_missing_tls_file_is_not_reported_as_an_outage(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(LedgerError) as refused:
        await Database(_with_tls(**{name: str(missing)}), 1).open()
    assert not isinstance(refused.value, LedgerDown)
    assert str(refused.value) == f"LUCIUS_LEDGER_URL: {name}: can't use {missing} (No such file or directory)"


async def test_tls_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    list_of_ours = tmp_path / "ca.pem"
    list_of_ours.write_text("a shopping list")
    with pytest.raises(LedgerError, match=f"sslrootcert: can't use {list_of_ours}") as refused:
        await Database(_with_tls(sslrootcert=str(list_of_ours)), 1).open()
    assert not isinstance(refused.value, LedgerDown)


async def test_missing_default_root_certificate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LedgerError, match=r"root certificate file .* does not exist") as refused:
        await Database(_with_tls(), 1).open()
    assert not isinstance(refused.value, LedgerDown)


async def test_tls_file_is_ignored_without_tls() -> None:
    url = f"postgresql://127.0.0.1:{free_port()}/lucius?sslmode=disable&sslrootcert=/nowhere/ca.pem"
    with pytest.raises(LedgerDown):
        await Database(url, 1).open()


def _with_tls(**files: str) -> str:
    return f"postgresql://ada:s3cret@127.0.0.1:{free_port()}/lucius?{urlencode({'sslmode': 'verify-full', **files})}"
