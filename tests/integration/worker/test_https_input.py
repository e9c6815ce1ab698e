"""`https:` inputs, read from a real TLS server."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lucius.worker import FailureClass, StepFailure, Workspace
from lucius.worker.https_input import Found, HttpsRules, read_https
from lucius.worker.settings import BadSetting, settings_from
from lucius.worker.workspace import Files, Places
from tests.integration.worker.support import directive
from tests.support.tls import SERVER_NAME, Authority

PRIVATE = HttpsRules(allow_private=True, total_seconds=20, idle_seconds=10)
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(autouse=True)
def _trust_our_authority(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))


class Server:
    """Answers each connection with fixed bytes and records the request."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def ref(self) -> str:
        return f"https://127.0.0.1:{self.port}/a%20b.pdf"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            await self.answer(writer)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(authority: Authority, answer: Answer) -> AsyncIterator[Server]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.server, authority.server_key)
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def sends(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)

    return answer


def responds(status: str, body: bytes = b"", *headers: str) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return sends("\r\n".join([*lines, "", ""]).encode(), body)


def workspace(tmp_path: Path, rules: HttpsRules = PRIVATE, **limits: Any) -> Workspace:
    work = directive(workspace_ref=f"file://{tmp_path}/workspace")
    return Workspace(Files(work, Places(https=rules, **limits)))


async def failure_of(tmp_path: Path, ref: str, rules: HttpsRules = PRIVATE, **limits: Any) -> StepFailure:
    with pytest.raises(StepFailure) as failed:
        await workspace(tmp_path, rules, **limits).read(ref)
    return failed.value


async def test_https_input_is_read(tmp_path: Path, authority: Authority) -> None:
    body = b"document " * 50_000
    async with serving(authority, responds("200 OK", body)) as server:
        assert await workspace(tmp_path).read(server.ref) == body
    assert server.requests[0].startswith(b"GET /a%20b.pdf HTTP/1.1\r\n")


async def test_query_is_sent_and_fragment_is_not(tmp_path: Path, authority: Authority) -> None:
    async with serving(authority, responds("200 OK", b"x")) as server:
        assert await workspace(tmp_path).read(f"{server.ref}?version=3#page=2") == b"x"
    assert server.requests[0].startswith(b"GET /a%20b.pdf?version=3 HTTP/1.1\r\n")


async def test_chunked_and_unframed_bodies_are_read(tmp_path: Path, authority: Authority) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    for answer in (chunked, b"HTTP/1.1 200 OK\r\n\r\nhello world"):
        async with serving(authority, sends(answer)) as server:
            assert await workspace(tmp_path).read(server.ref) == b"hello world"


async def test_no_credentials_are_sent_and_proxies_of_the_environment_are_not_used(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ada password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with serving(authority, responds("200 OK", b"x")) as server:
        await workspace(tmp_path).read(server.ref)
    names = {line.partition(b":")[0].lower() for line in server.requests[0].split(b"\r\n")[1:] if line}
    assert names == {b"host", b"accept", b"accept-encoding", b"user-agent", b"connection"}


@pytest.mark.parametrize(
    ("status", "code", "failure_class"),
    [
        ("404 Not Found", "INPUT_NOT_FOUND", FailureClass.NON_RETRYABLE),
        ("410 Gone", "INPUT_NOT_FOUND", FailureClass.NON_RETRYABLE),
        ("401 Unauthorized", "INPUT_FORBIDDEN", FailureClass.NON_RETRYABLE),
        ("403 Forbidden", "INPUT_FORBIDDEN", FailureClass.NON_RETRYABLE),
        ("400 Bad Request", "HTTP_400", FailureClass.NON_RETRYABLE),
        ("204 No Content", "UNSUPPORTED_INPUT", FailureClass.NON_RETRYABLE),
        ("500 Internal Server Error", "HTTP_500", FailureClass.RETRYABLE),
        ("503 Service Unavailable", "HTTP_503", FailureClass.TRANSIENT),
    ],
)
async def test_status_of_the_host_decides_on_the_failure(
    tmp_path: Path, authority: Authority, status: str, code: str, failure_class: FailureClass
) -> None:
    async with serving(authority, responds(status)) as server:
        failure = await failure_of(tmp_path, server.ref)
    assert (failure.code, failure.failure_class) == (code, failure_class)


async def test_rate_limit_carries_its_retry_after(tmp_path: Path, authority: Authority) -> None:
    async with serving(authority, responds("429 Too Many Requests", b"", "Retry-After: 17")) as server:
        failure = await failure_of(tmp_path, server.ref)
    assert (failure.failure_class, failure.retry_after_seconds) == (FailureClass.RATE_LIMITED, 17)


async def test_redirect_is_not_followed(tmp_path: Path, authority: Authority) -> None:
    async with (
        serving(authority, responds("200 OK", b"secret")) as target,
        serving(authority, responds("302 Found", b"", f"Location: {target.ref}")) as server,
    ):
        failure = await failure_of(tmp_path, server.ref)
    assert (failure.code, failure.failure_class) == ("INPUT_REDIRECTED", FailureClass.NON_RETRYABLE)
    assert target.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        responds("200 OK", b"12345"),
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"),
        sends(b"HTTP/1.1 200 OK\r\n\r\n12345"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n"),
    ],
    ids=["length", "chunked", "unframed", "claimed"],
)
async def test_document_over_the_limit_is_refused(tmp_path: Path, authority: Authority, answer: Answer) -> None:
    async with serving(authority, answer) as server:
        failure = await failure_of(tmp_path, server.ref, max_bytes=4)
    assert (failure.code, failure.failure_class) == ("INPUT_TOO_LARGE", FailureClass.NON_RETRYABLE)


async def test_endless_document_is_not_read_beyond_the_limit(tmp_path: Path, authority: Authority) -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 500_000_000:
            writer.write(bytes(100_000))
            sent += 100_000
            await writer.drain()

    async with serving(authority, endless) as server:
        failure = await failure_of(tmp_path, server.ref, max_bytes=1_000_000)
    assert failure.code == "INPUT_TOO_LARGE"
    assert sent < 100_000_000


@pytest.mark.parametrize("size", [b"-1", b"-5", b"-0001"])
async def test_negative_chunk_size_is_refused_without_reading_on(
    tmp_path: Path, authority: Authority, size: bytes
) -> None:
    over = asyncio.Event()

    async def unfinished(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\nhello")
        await over.wait()  # reading to the end of the stream would wait for it

    async with serving(authority, unfinished) as server:
        failure = await failure_of(tmp_path, server.ref)
        over.set()
    assert (failure.code, failure.failure_class) == ("RESPONSE_UNREADABLE", FailureClass.RETRYABLE)


async def test_huge_chunk_size_is_read_up_to_the_limit(tmp_path: Path, authority: Authority) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 60_000 + b"\r\n"
    async with serving(authority, sends(head, bytes(2_000_000))) as server:
        failure = await failure_of(tmp_path, server.ref, max_bytes=1_000_000)
    assert (failure.code, failure.failure_class) == ("INPUT_TOO_LARGE", FailureClass.NON_RETRYABLE)


async def test_unusable_retry_after_is_left_out(tmp_path: Path, authority: Authority) -> None:
    header = "Retry-After: Mon, 01 Jan 99999999999 00:00:00 GMT"
    async with serving(authority, responds("503 Service Unavailable", b"", header)) as server:
        failure = await failure_of(tmp_path, server.ref)
    assert (failure.code, failure.retry_after_seconds) == ("HTTP_503", None)


async def test_compressed_document_is_refused(tmp_path: Path, authority: Authority) -> None:
    async with serving(authority, responds("200 OK", b"x", "Content-Encoding: gzip")) as server:
        failure = await failure_of(tmp_path, server.ref)
    assert (failure.code, failure.failure_class) == ("UNSUPPORTED_INPUT", FailureClass.NON_RETRYABLE)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (sends(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), "CONNECTION_LOST"),
        (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"), "CONNECTION_LOST"),
        (sends(), "CONNECTION_LOST"),
        (sends(b"SSH-2.0-OpenSSH\r\n"), "RESPONSE_UNREADABLE"),
        (sends(b"HTTP/1.1 " + b"1" * 5_000 + b" OK\r\n\r\n"), "RESPONSE_UNREADABLE"),
        (sends(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 200, b"\r\n"), "RESPONSE_UNREADABLE"),
    ],
    ids=["short body", "short chunk", "no answer", "other protocol", "huge status", "many headers"],
)
async def test_broken_answer_is_retried(tmp_path: Path, authority: Authority, answer: Answer, code: str) -> None:
    async with serving(authority, answer) as server:
        failure = await failure_of(tmp_path, server.ref)
    assert failure.code == code
    assert failure.failure_class in (FailureClass.TRANSIENT, FailureClass.RETRYABLE)


async def test_silent_host_fails_at_the_idle_limit(tmp_path: Path, authority: Authority) -> None:
    over = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        await over.wait()

    async with serving(authority, silent) as server:
        rules = HttpsRules(allow_private=True, total_seconds=60, idle_seconds=0.2)
        failure = await failure_of(tmp_path, server.ref, rules)
        over.set()
    assert (failure.code, failure.failure_class) == ("TIMEOUT", FailureClass.TRANSIENT)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=["body", "header"])
async def test_slow_host_fails_at_the_total_limit(tmp_path: Path, authority: Authority, start: bytes) -> None:
    async def drips(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(authority, drips) as server:
        rules = HttpsRules(allow_private=True, total_seconds=0.5, idle_seconds=30)
        began = time.monotonic()
        failure = await failure_of(tmp_path, server.ref, rules)
    assert failure.code == "TIMEOUT"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        "[fe80::1]",
        "10.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
    ],
)
async def test_address_that_is_not_public_is_refused(tmp_path: Path, authority: Authority, host: str) -> None:
    async with serving(authority, responds("200 OK", b"secret")) as server:
        failure = await failure_of(tmp_path, f"https://{host}:{server.port}/x", HttpsRules())
    assert server.requests == []
    assert (failure.code, failure.failure_class) == ("FORBIDDEN_REF", FailureClass.NON_RETRYABLE)
    assert "LUCIUS_HTTPS_ALLOW_PRIVATE" in failure.message


async def test_host_with_a_private_address_among_public_ones_is_refused() -> None:
    found: list[Found] = [(socket.AF_INET, ("93.184.215.14", 443)), (socket.AF_INET, ("10.0.0.1", 443))]
    with pytest.raises(StepFailure) as failed:
        read_https(urlsplit("https://both.example/x"), HttpsRules(), 10, resolve=lambda host, port: found)
    assert failed.value.code == "FORBIDDEN_REF"


async def test_connection_goes_to_the_address_that_was_checked(authority: Authority) -> None:
    lookups: list[str] = []
    async with serving(authority, responds("200 OK", b"x")) as server:

        def resolve(host: str, port: int) -> list[Found]:
            lookups.append(host)
            return [(socket.AF_INET, ("127.0.0.1", server.port))]

        ref = urlsplit(f"https://{SERVER_NAME}/x")  # a name that the system can't resolve
        assert await asyncio.to_thread(read_https, ref, PRIVATE, 10, resolve=resolve) == b"x"
    assert lookups == [SERVER_NAME]
    assert f"Host: {SERVER_NAME}\r\n".encode() in server.requests[0]


async def test_certificate_must_be_trusted_and_of_the_host(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(authority, responds("200 OK", b"x")) as server:
        other = await failure_of(tmp_path, f"https://localhost:{server.port}/x")
        monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "others").ca))
        untrusted = await failure_of(tmp_path, server.ref)
    assert (other.code, untrusted.code) == ("TLS_FAILED", "TLS_FAILED")
    assert server.requests == []


async def test_host_that_cannot_be_reached_or_resolved_is_retried(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        refused = await failure_of(tmp_path, f"https://127.0.0.1:{taken.getsockname()[1]}/x")
    assert (refused.code, refused.failure_class) == ("CONNECTION_FAILED", FailureClass.TRANSIENT)

    def unknown(host: str, port: int) -> list[Found]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    with pytest.raises(StepFailure) as failed:
        read_https(urlsplit("https://gone.example/x"), PRIVATE, 10, resolve=unknown)
    assert (failed.value.code, failed.value.failure_class) == ("NAME_NOT_RESOLVED", FailureClass.TRANSIENT)


@pytest.mark.parametrize(
    "ref",
    [
        "https:///x",
        "https://h:99999/x",
        "https://h:0/x",
        "https://h/\u00e4",
        "https://ada:s3cret@h/x",
        "https://h/x?sig=s3cret",
    ],
)
async def test_ref_that_names_no_plain_address_is_refused(tmp_path: Path, ref: str) -> None:
    failure = await failure_of(tmp_path, ref)
    assert (failure.code, failure.failure_class) == ("UNSUPPORTED_REF", FailureClass.NON_RETRYABLE)
    assert "s3cret" not in failure.message


async def test_outputs_cannot_be_written_to_https(tmp_path: Path) -> None:
    with pytest.raises(StepFailure) as failed:
        await workspace(tmp_path).write_output(b"x", ref="https://h/x")
    assert failed.value.code == "UNSUPPORTED_REF"


def test_private_addresses_and_times_are_settings() -> None:
    assert settings_from({}).places.https == HttpsRules()
    told = {
        "LUCIUS_HTTPS_ALLOW_PRIVATE": "1",
        "LUCIUS_HTTPS_TIMEOUT": "60",
        "LUCIUS_HTTPS_IDLE_TIMEOUT": "5",
    }
    rules = settings_from(told).places.https
    assert (rules.allow_private, rules.total_seconds, rules.idle_seconds) == (True, 60, 5)
    with pytest.raises(BadSetting, match="LUCIUS_HTTPS_ALLOW_PRIVATE"):
        settings_from({"LUCIUS_HTTPS_ALLOW_PRIVATE": "yes"})
