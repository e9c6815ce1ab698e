"""Errors name the cause, with or without an answer, and are raised at once if waiting can't help."""

import asyncio
import pickle
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from lucius.client import (
    AsyncClient,
    Conflict,
    Invalid,
    JobFailed,
    LuciusError,
    Misconfigured,
    NotLucius,
    Problem,
    RequestRefused,
    TimedOut,
    Unavailable,
    Unreachable,
)
from lucius.client import errors as tree
from lucius.client.errors import refused
from tests.integration.client.support import OCR, client, unused_address
from tests.support.peer import Handler, always, in_turn, peer

JSON = {"jobId": "j", "status": "QUEUED", "duplicate": False}


async def not_lucius_error(handler: Handler, **options: float) -> NotLucius:
    async with peer() as there, client(there.url, **options) as lucius:
        there.answer = handler
        async with asyncio.timeout(5):
            with pytest.raises(NotLucius) as caught:
                await lucius.submit("OCR", **OCR)
        assert str(caught.value).startswith(there.url)
        return caught.value


async def test_html_page_is_not_lucius() -> None:
    error = await not_lucius_error(always(200, text="<html>hello</html>"))
    assert "does not answer as Lucius does" in str(error)
    error = await not_lucius_error(always(404, text="<html>nothing here</html>"))
    assert (error.status, error.tries) == (404, 1)
    assert "answered 404, not as Lucius does, to POST /v1/commands" in str(error)


async def test_unexpected_json_is_not_lucius() -> None:
    error = await not_lucius_error(always(202, {"hello": "world"}))
    assert str(error).endswith("does not answer as Lucius does: jobId of Accepted is missing")
    await not_lucius_error(always(202, [1, 2]))
    await not_lucius_error(always(202, text="[" * 100_000))
    await not_lucius_error(always(422, {"type": "x", "title": "another API's problem", "status": 422}))
    await not_lucius_error(always(202, {**JSON, "duplicate": "maybe"}))


async def test_invalid_utf8_is_not_lucius() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"jobId": "\xff\xfe"}', content_type="application/json")

    await not_lucius_error(answer)


async def test_redirect_is_not_followed_and_its_target_is_named() -> None:
    async with peer() as elsewhere:
        error = await not_lucius_error(always(302, Location=elsewhere.url))
        assert str(error).endswith(
            f"answered 302, not as Lucius does, to POST /v1/commands, which leads to {elsewhere.url}"
        )
        assert elsewhere.seen == [], "our key must not go there"


async def test_broken_gateway_is_named_after_all_tries() -> None:
    error = await not_lucius_error(always(502, text="bad gateway"), retry_for=0.5)
    assert (error.status, error.maybe_done) == (502, True)
    assert error.tries > 1


async def test_retry_after_of_a_gateway_is_honoured() -> None:
    async with peer() as there, client(there.url) as lucius:
        there.answer = in_turn(always(503, text="later", Retry_After="1"), always(202, JSON))
        began = asyncio.get_running_loop().time()
        await lucius.submit("OCR", **OCR)
        assert asyncio.get_running_loop().time() - began >= 1.0


async def test_retry_after_beyond_the_budget_is_not_waited_for() -> None:
    error = await not_lucius_error(always(503, text="later", Retry_After="60"))
    assert (error.retry_after, error.tries) == (60, 1)


async def test_refused_connection_is_unreachable() -> None:
    with unused_address() as url:
        async with client(url, retry_for=0) as lucius:
            with pytest.raises(Unreachable) as caught:
                await lucius.get("j")
        assert (caught.value.url, caught.value.failure, caught.value.tries) == (url, "no_connection", 1)
        assert str(caught.value) == f"no server answers at {url}: Connection refused"


async def test_unknown_host_is_unreachable() -> None:
    async with client("http://no-such-host.invalid:1", retry_for=0) as lucius:
        with pytest.raises(Unreachable, match=r"no server answers at http://no-such-host\.invalid:1: "):
            await lucius.get("j")


async def test_https_url_of_a_plain_server_is_unreachable() -> None:
    async with peer() as there, client(there.url.replace("http:", "https:"), retry_for=0) as lucius:
        with pytest.raises(Unreachable) as caught:
            await lucius.get("j")
        assert caught.value.failure == "no_connection"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a folder with key and certificate in `both.pem`, and the certificate in `cert.pem`."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout both.pem -out cert.pem"
    for_here = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *for_here], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "both.pem").open("a").write((tmp_path / "cert.pem").read_text())
    return tmp_path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_untrusted_certificate_is_not_retried(certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate / "both.pem")
    async with peer(serving) as there, client(there.url) as lucius, asyncio.timeout(5):
        with pytest.raises(Unreachable, match="can't be trusted") as caught:
            await lucius.submit("OCR", **OCR)
        assert (caught.value.failure, caught.value.tries, caught.value.maybe_done) == ("untrusted", 1, False)
        there.answer = always(202, JSON)
        async with client(there.url, tls=ssl.create_default_context(cafile=str(certificate / "cert.pem"))) as trusting:
            assert (await trusting.submit("OCR", **OCR)).jobId == "j"


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://", "ftp://127.0.0.1:1", "http://[::1", "http://h:99999", "127.0.0.1:8080"]
)
def test_invalid_address_is_refused_at_construction(url: str) -> None:
    with pytest.raises(Misconfigured, match="is not an address: it looks like http://host:port"):
        AsyncClient(url, api_key="k")


@pytest.mark.parametrize("url", ["ftp://u:secret@host", "http://u:sec/ret@host", "http://u:secret@host:port"])
def test_malformed_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Misconfigured, match="…@host") as refused:
        AsyncClient(url, api_key="k")
    assert "u:sec" not in str(refused.value)


def test_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="has more than a host") as caught:
        AsyncClient("http://me:secret@host", api_key="k")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a b", "clé"])
def test_invalid_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        AsyncClient("http://h", api_key=key)
    assert "clé" not in str(caught.value)


async def test_trailing_newline_of_a_key_is_ignored() -> None:
    async with peer() as there, client(there.url + "/", api_key=" k\n") as lucius:
        there.answer = always(202, JSON)
        await lucius.submit("OCR", **OCR)
        assert (there.seen[0].headers["authorization"], there.seen[0].path) == ("Bearer k", "/v1/commands")


def test_from_env_names_the_missing_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LUCIUS_URL", "LUCIUS_API_KEY"):
        with pytest.raises(Misconfigured, match=f"{name} is not set"):
            AsyncClient.from_env()
        monkeypatch.setenv(name, "http://host/lucius/")
    lucius = AsyncClient.from_env()
    assert repr(lucius) == "AsyncClient('http://host/lucius')"


def test_every_error_survives_pickling() -> None:
    problem = Problem(type="t", title="T", status=409, code="JOB_LIVE", detail="d", jobId="j")
    for error in (
        refused(problem, "POST /x", 2.0),
        Unreachable("http://h", "lost", "r"),
        NotLucius("http://h", "r", 502),
        TimedOut("j", 1.0, None),
        Misconfigured("m"),
    ):
        error.tries = 3
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.tries) == (type(error), str(error), 3)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Invalid), (413, Invalid), (409, Conflict), (500, Unavailable), (503, Unavailable), (507, Unavailable)],
)
def test_status_decides_the_type_of_the_error(status: int, kind: type[RequestRefused]) -> None:
    error = refused(Problem(type="t", title="T", status=status, code="X", retry_after_seconds=7), "GET /x")
    assert type(error) is kind
    assert (error.retry_after, str(error)) == (7, f"T [X, {status} to GET /x]")


def test_drawn_error_tree_equals_the_classes() -> None:
    drawn = [line.strip("│├└─ ").split()[0] for line in (tree.__doc__ or "").splitlines() if "─" in line]
    defined = [
        kind.__name__
        for kind in vars(tree).values()
        if isinstance(kind, type) and issubclass(kind, LuciusError) and kind is not LuciusError
    ]
    assert sorted(drawn) == sorted(defined)
    assert issubclass(JobFailed, LuciusError)
