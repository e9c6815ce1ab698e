"""HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as in other tools."""

import asyncio
import os
from pathlib import Path

import pytest

from lucius.client import Client, Misconfigured, NotLucius, Unreachable
from lucius.client.http import proxy_for
from tests.integration.cli.support import job
from tests.integration.client.support import client, unused_address
from tests.support.peer import always, peer

FAR = "http://lucius.invalid:8080"


@pytest.fixture(autouse=True)
def without_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("url", "no_proxy", "found"),
    [
        ("https://lucius.example.com", "", "http://secure:3128"),
        ("http://lucius.example.com", "", "http://plain:3128"),
        ("https://lucius.example.com", "other.com, example.com", None),
        ("https://lucius.example.com", ".example.com", None),
        ("https://lucius.example.com:8443", "lucius.example.com:8443", None),
        ("https://lucius.example.com:8443", "lucius.example.com:9", "http://secure:3128"),
        ("https://notexample.com", "example.com", "http://secure:3128"),
        ("https://lucius.example.com", "*", None),
        ("http://10.0.0.7:8080", "10.0.0.7", None),
        ("http://127.0.0.1:8080", "", None),
        ("http://127.1.2.3", "", None),
        ("http://[::1]:8080", "", None),
        ("http://localhost:8080", "", None),
        ("http://lucius.localhost", "", None),
        ("http://localhost.example.com", "", "http://plain:3128"),
    ],
)
def test_environment_chooses_the_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, found: str | None
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "plain:3128")
    monkeypatch.setenv("https_proxy", "http://secure:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_for(url) == found


def test_no_proxy_is_used_without_variables() -> None:
    assert proxy_for(FAR) is None


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@proxy:1080", "http://", "http://me:hunter2@proxy:nope"])
def test_unusable_proxy_is_refused_at_construction_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(Misconfigured, match="HTTP_PROXY is not a proxy") as refused:
        Client(FAR, api_key="k")
    assert "hunter2" not in str(refused.value)


async def test_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer() as proxy:
        proxy.answer = always(body=job())
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("://", "://me:hunter2@"))
        async with client(FAR) as lucius:
            assert (await lucius.get("j-1")).jobId
    (seen,) = proxy.seen
    assert (seen.headers["host"], seen.path) == ("lucius.invalid:8080", "/v1/jobs/j-1")
    assert seen.headers["proxy-authorization"].startswith("Basic ")


async def test_netrc_password_does_not_replace_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine lucius.invalid login me password hunter2\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with peer() as proxy:
        proxy.answer = always(body=job())
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with client(FAR, api_key="mine") as lucius:
            await lucius.get("j-1")
    assert proxy.seen[0].headers["authorization"] == "Bearer mine"


async def test_proxy_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer() as there:
        there.answer = always(body=job())
        with unused_address() as nowhere:
            monkeypatch.setenv("HTTP_PROXY", nowhere)
            async with client(there.url, retry_for=0) as lucius:
                assert (await lucius.get("j-1")).jobId


async def test_unreachable_proxy_is_not_reported_as_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with unused_address() as nowhere:
        monkeypatch.setenv("HTTPS_PROXY", nowhere.replace("://", "://me:hunter2@"))
        async with client("https://lucius.invalid", retry_for=0) as lucius:
            with pytest.raises(
                Unreachable, match=r"the proxy before https://lucius\.invalid does not answer"
            ) as raised:
                await lucius.get("j-1")
    assert "hunter2" not in str(raised.value)


async def test_refusal_by_a_proxy_is_quoted_without_the_proxy_password(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:hunter2@127.0.0.1:{port}")
        async with client("https://lucius.invalid") as lucius:
            with pytest.raises(NotLucius, match="behind a proxy that answers 407") as raised:
                await lucius.submit("OCR", tenant="acme", input="blob://in/a", output="blob://out/a")
    assert "hunter2" not in str(raised.value)
    assert not raised.value.maybe_done
    assert len(asked) == 1
    assert asked[0].startswith(b"CONNECT lucius.invalid:443 ")
    assert b"Authorization: Bearer" not in asked[0]  # the key is only for Lucius
