"""What is said of a ledger that can't be opened: where it is, what is wrong, and nothing of who may go there."""

from pathlib import Path
from urllib.parse import urlencode

import pytest

from lucius.adapters.postgres.database import Database
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
def test_where_it_is_has_the_port_and_neither_user_nor_password(url: str, where: str) -> None:
    assert Database(url, 1).where == where


@pytest.mark.parametrize("url", ["postgresql://ada:123?4@db/lucius", "postgresql://ada:123#4@db/lucius"])
def test_a_password_that_ends_the_url_is_not_shown(url: str) -> None:
    with pytest.raises(LedgerError, match="special characters in a password") as refused:
        Database(url, 1)
    assert "123" not in str(refused.value)


async def test_one_that_does_not_answer_is_named_with_its_port() -> None:
    port = free_port()
    with pytest.raises(LedgerDown, match=rf"^ledger 127\.0\.0\.1:{port}/lucius can't be reached"):
        await Database(f"postgresql://ada:s3cret@127.0.0.1:{port}/lucius", 1).open()


@pytest.mark.parametrize("name", ["sslrootcert", "sslcrl", "sslcert", "sslkey"])
async def test_a_file_that_is_not_there_is_not_a_server_that_is_away(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(LedgerError) as refused:
        await Database(_with_tls(**{name: str(missing)}), 1).open()
    assert not isinstance(refused.value, LedgerDown)
    assert str(refused.value) == f"LUCIUS_LEDGER_URL: {name}: can't use {missing} (No such file or directory)"


async def test_a_file_without_a_certificate_is_said(tmp_path: Path) -> None:
    list_of_ours = tmp_path / "ca.pem"
    list_of_ours.write_text("a shopping list")
    with pytest.raises(LedgerError, match=f"sslrootcert: can't use {list_of_ours}") as refused:
        await Database(_with_tls(sslrootcert=str(list_of_ours)), 1).open()
    assert not isinstance(refused.value, LedgerDown)


async def test_who_is_to_be_checked_by_a_file_that_nobody_named_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LedgerError, match=r"root certificate file .* does not exist") as refused:
        await Database(_with_tls(), 1).open()
    assert not isinstance(refused.value, LedgerDown)


async def test_a_file_that_is_not_looked_at_stops_nobody() -> None:
    url = f"postgresql://127.0.0.1:{free_port()}/lucius?sslmode=disable&sslrootcert=/nowhere/ca.pem"
    with pytest.raises(LedgerDown):
        await Database(url, 1).open()


def _with_tls(**files: str) -> str:
    return f"postgresql://ada:s3cret@127.0.0.1:{free_port()}/lucius?{urlencode({'sslmode': 'verify-full', **files})}"
