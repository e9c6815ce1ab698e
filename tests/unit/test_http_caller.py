"""What the caller sends, where it refuses to, and what it makes of the answer; against a real server."""

import asyncio
import gzip
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from lucius.adapters.http.destination import Resolve, is_public, resolve_by_system
from lucius.adapters.http_caller import HttpCaller
from lucius.core.classify import CODES
from lucius.core.model import FailureClass
from lucius.ports.calls import Answer, Closed, Outgoing, Slot
from lucius.ports.config import CallbackPolicy, CallPolicy
from lucius.ports.errors import CallFailed, CallRefused
from tests.support.clock import ManualClock
from tests.support.peer import Peer, always, in_turn, ok, peer

HERE = CallPolicy(hosts=("127.0.0.1",), allow_http=True, allow_private=True)
ORCHESTRATOR = "http://127.0.0.1:8080"
SECRETS = {"API_KEY": "s3cr3t-value", "STRIPE_KEY": "sk_live_123456"}
HOUR, DAY = 3_600_000, 86_400_000
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class World:
    """A caller with everything that can be turned."""

    def __init__(self, policy: CallPolicy = HERE, resolve: Resolve = resolve_by_system, **options: Any) -> None:
        self.policy = policy
        self.clock = ManualClock()
        settings: dict[str, Any] = {"orchestrator_url": ORCHESTRATOR, "secrets": SECRETS, "webhook_secrets": {}}
        self.caller = HttpCaller(
            policy=lambda: self.policy, clock=self.clock, resolve=resolve, **{**settings, **options}
        )

    async def send(self, url: str, **changes: Any) -> Answer:
        call: dict[str, Any] = {"method": "POST", "timeout_ms": 5_000, "idempotency_key": "key-1"}
        return await self.caller.send(Outgoing(url=url, **{**call, "fills_secrets": True, **changes}))

    def admit(self, url: str) -> Slot | Closed:
        return self.caller.admit(self.caller.host(url))

    async def refusal(self, url: str, **changes: Any) -> str:
        with pytest.raises(CallRefused) as refused:
            await self.send(url, **changes)
        assert CODES[refused.value.code] is FailureClass.NON_RETRYABLE
        return refused.value.code

    async def failure(self, url: str, **changes: Any) -> CallFailed:
        with pytest.raises(CallFailed) as failed:
            await self.send(url, **changes)
        return failed.value


@pytest.fixture
async def there() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


def answering(*addresses: str) -> Resolve:
    """A resolver that has one answer for every name."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


class TestWhatIsSent:
    async def test_json_with_the_steps_key_and_the_trace(self, there: Peer) -> None:
        body = {"amount": 12, "currency": "EUR"}
        answer = await World().send(f"{there.url}/charges?a=b", body=body, headers={"X-Shop": "1"}, traceparent=TRACE)
        (seen,) = there.seen
        assert (seen.method, seen.path, seen.json) == ("POST", "/charges?a=b", body)
        assert seen.headers["idempotency-key"] == "key-1"
        assert seen.headers["traceparent"] == TRACE
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["x-shop"] == "1"
        assert answer == Answer(status=200, headers=answer.headers, body={"ok": True})
        assert answer.headers["content-type"].startswith("application/json")

    @pytest.mark.parametrize("trace", ["00-a\r\nx-evil: 1", "é€", "\ud800", "", TRACE + "\n", TRACE.upper()])
    async def test_a_trace_that_is_none_is_left_out(self, there: Peer, trace: str) -> None:
        assert (await World().send(f"{there.url}/", traceparent=trace)).status == 200
        assert "traceparent" not in there.seen[0].headers
        assert "x-evil" not in there.seen[0].headers

    @pytest.mark.parametrize("changes", [{"body": {"n": "\ud800"}}, {"body": {"n": object()}}])
    async def test_what_cannot_be_written_is_a_failed_call_and_nothing_was_sent(
        self, there: Peer, changes: dict[str, Any]
    ) -> None:
        failed = await World().failure(f"{there.url}/", **changes)
        assert failed.code == "CALL_FAILED"
        assert there.seen == []

    async def test_text_goes_as_it_is_and_no_body_as_none(self, there: Peer) -> None:
        await World().send(f"{there.url}/", body="a,b\n1,ü\n", headers={"Content-Type": "text/csv"})
        await World().send(f"{there.url}/", method="GET")
        assert there.seen[0].body.decode() == "a,b\n1,ü\n"
        assert there.seen[0].headers["content-type"] == "text/csv"
        assert (there.seen[1].method, there.seen[1].body) == ("GET", b"")
        assert "content-type" not in there.seen[1].headers
        assert "traceparent" not in there.seen[1].headers

    async def test_a_protocol_cannot_send_another_idempotency_key(self, there: Peer) -> None:
        await World().send(f"{there.url}/", headers={"Idempotency-key": "mine"})
        assert there.seen[0].headers["idempotency-key"] == "key-1"

    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "internal.example.com"},
            {"content-length": "0"},
            {"Transfer-Encoding": "chunked"},
            {"webhook-signature": "v1,forged"},
            {"X-A": "1\r\nX-B: 2"},
            {"X A": "1"},
            {"X-A": "\ud800"},
            {"": "1"},
        ],
    )
    async def test_headers_that_change_the_request_around_them_are_refused(
        self, there: Peer, headers: dict[str, str]
    ) -> None:
        assert await World().refusal(f"{there.url}/", headers=headers) == "BAD_HEADER"
        assert there.seen == []

    async def test_a_body_larger_than_a_megabyte_is_refused(self, there: Peer) -> None:
        assert await World().refusal(f"{there.url}/", body="x" * (1024 * 1024 + 1)) == "BODY_TOO_LARGE"

    async def test_every_call_has_its_own_connection(self, there: Peer) -> None:
        ports: list[int] = []

        async def note(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            ports.append(request.transport.get_extra_info("peername")[1])
            return await ok(request)

        there.answer = note
        world = World()
        await world.send(f"{there.url}/")
        await world.send(f"{there.url}/")
        assert len(set(ports)) == 2


class TestSecrets:
    async def test_they_are_filled_in_where_the_call_names_them(self, there: Peer) -> None:
        await World().send(
            f"{there.url}/${{secrets.api-key}}",
            headers={"Authorization": "Bearer ${secrets.API_KEY}"},
            body={"keys": ["${secrets.stripe_key}", 1, None], "plain": "$${secrets.API_KEY}"},
        )
        (seen,) = there.seen
        assert seen.path == "/s3cr3t-value"
        assert seen.headers["authorization"] == "Bearer s3cr3t-value"
        assert seen.json == {"keys": ["sk_live_123456", 1, None], "plain": "${secrets.API_KEY}"}

    async def test_a_call_that_is_not_from_a_protocol_gets_none(self, there: Peer) -> None:
        body = {"text": "${secrets.API_KEY} and $${x}"}
        await World().send(f"{there.url}/", fills_secrets=False, body=body, headers={"X-A": "${secrets.API_KEY}"})
        assert there.seen[0].json == body
        assert there.seen[0].headers["x-a"] == "${secrets.API_KEY}"

    async def test_one_that_is_not_there_is_named_and_nothing_is_sent(self, there: Peer) -> None:
        with pytest.raises(CallRefused, match="UNKNOWN_SECRET: there is no secret other-key; set LUCIUS_SECRET_OTHER"):
            await World().send(f"{there.url}/", headers={"X-Key": "${secrets.other-key}"})
        assert there.seen == []

    async def test_an_answer_that_echoes_one_is_blanked(self, there: Peer) -> None:
        async def echo(request: web.Request) -> web.StreamResponse:
            key = request.headers["X-Key"]
            return web.json_response({"you sent": [key], key: "x"}, headers={"X-Echo": key})

        there.answer = echo
        answer = await World().send(f"{there.url}/", headers={"X-Key": "${secrets.API_KEY}"})
        assert answer.body == {"you sent": ["[secret]"], "[secret]": "x"}
        assert answer.headers["x-echo"] == "[secret]"

    async def test_one_that_would_be_cut_in_half_is_blanked_all_the_same(self, there: Peer) -> None:
        there.answer = always(200, None, X_Echo="x" * 1020 + SECRETS["API_KEY"])
        answer = await World().send(f"{there.url}/", headers={"X-Key": "${secrets.API_KEY}"})
        assert answer.headers["x-echo"] == "x" * 1020 + "[sec"

    @pytest.mark.parametrize(
        ("secret", "echo", "shown"),
        [
            ("12345678", {"n": [12345678, 123456789]}, {"n": ["[secret]", 123456789]}),
            ("12345678", 12345678.0, "[secret]"),
            ("00123456", 123456, "[secret]"),
            ("1234.5678", 1234.5678, "[secret]"),
            ("1", True, True),
            ("pin7", "your pin7, or pin77: pin7", "your [secret], or pin77: [secret]"),
            ("a/b c?d=e", "/x/a%2Fb%20c%3Fd%3De", "/x/[secret]"),
        ],
    )
    async def test_nor_is_one_shown_as_a_number_as_a_short_word_or_quoted(
        self, there: Peer, secret: str, echo: Any, shown: Any
    ) -> None:
        there.answer = always(200, echo)
        world = World(secrets={"PIN": secret})
        answer = await world.send(f"{there.url}/", headers={"X-Key": "${secrets.PIN}"})
        assert answer.body == shown
        assert type(answer.body) is type(shown)

    @pytest.mark.parametrize(
        ("url", "policy"),
        [
            ("https://${secrets.API_KEY}.example.com/", HERE),
            ("https://nowhere.invalid/${secrets.API_KEY}", CallPolicy(hosts=("nowhere.invalid",))),
            ("http://127.0.0.1:1/${secrets.API_KEY}", HERE),
            ("https://${secrets.API_KEY}:8443x/", HERE),
        ],
    )
    async def test_no_error_shows_one(self, url: str, policy: CallPolicy) -> None:
        with pytest.raises((CallRefused, CallFailed)) as raised:
            await World(policy).send(url)
        assert "s3cr3t" not in f"{raised.value} {raised.value!r} {raised.value.args}"
        assert raised.value.__cause__ is None


class TestWhereItMayGo:
    @pytest.mark.parametrize(
        ("hosts", "url", "allowed"),
        [
            ((), "https://api.example.com/", False),
            (("api.example.com",), "https://api.example.com/", True),
            (("api.example.com",), "https://API.Example.com./", True),
            (("api.example.com",), "https://api.example.com:8443/", True),
            (("api.example.com",), "https://api.example.com.evil.net/", False),
            (("api.example.com",), "https://evil.net/api.example.com", False),
            (("api.example.com",), "https://evil.net\\@api.example.com/", False),
            (("api.example.com:8443",), "https://api.example.com:8443/", True),
            (("api.example.com:8443",), "https://api.example.com/", False),
            (("*.example.com",), "https://a.b.example.com/", True),
            (("*.example.com",), "https://example.com/", False),
            (("*.example.com",), "https://notexample.com/", False),
            (("*.example.com:443",), "https://a.example.com/", True),
            (("[2606:4700::1111]:443",), "https://[2606:4700::1111]/", True),
            (("[2606:4700::1111]",), "https://[2606:4700:0::1111]:444/", True),
            (("[2606:4700::1111]:443",), "https://[2606:4700::1112]/", False),
            (("xn--bcher-kva.example",), "https://bücher.example/", True),
        ],
    )
    async def test_only_to_hosts_on_the_list(self, hosts: tuple[str, ...], url: str, allowed: bool) -> None:
        world = World(CallPolicy(hosts=hosts), answering())
        if not allowed:
            assert await world.refusal(url) in ("HOST_NOT_ALLOWED", "BAD_URL")
        elif "[" in url:
            assert (await world.failure(url, timeout_ms=1)).code in ("TIMEOUT", "CONNECTION_FAILED")
        else:
            assert (await world.failure(url)).code == "NAME_NOT_RESOLVED"

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "api.example.com",
            "/path",
            "ftp://api.example.com/",
            "file:///etc/passwd",
            "https://",
            "https://:443/",
            "https://api.example.com:0/",
            "https://api.example.com:99999/",
            "https://user:password@api.example.com/",
            "https://[::1/",
            "http://api.example.com/",
            f"https://api.example.com/{'x' * 9000}",
        ],
    )
    async def test_a_url_that_is_none_or_is_not_https_is_refused(self, url: str) -> None:
        world = World(CallPolicy(hosts=("api.example.com",)))
        assert await world.refusal(url) == "BAD_URL"

    @pytest.mark.parametrize(
        "address",
        [
            *("127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
            *("0.0.0.0", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
            *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1"),
            *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1"),
            *("64:ff9b:1::a00:1", "64:ff9b:1:a00:0:100::", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1"),
        ],
    )
    async def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(self, address: str) -> None:
        policy = CallPolicy(hosts=("api.example.com",))
        assert await World(policy, answering(address)).refusal("https://api.example.com/") == "PRIVATE_ADDRESS"
        mixed = World(policy, answering("93.184.216.34", address))
        assert await mixed.refusal("https://api.example.com/") == "PRIVATE_ADDRESS"

    @pytest.mark.parametrize(
        "address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "2002:808:808::1", "64:ff9b::808:808"]
    )
    def test_public_addresses_are_public(self, address: str) -> None:
        assert is_public(ip_address(address))

    @pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"])
    async def test_an_address_in_the_url_is_checked_like_any_other(self, host: str) -> None:
        assert await World(CallPolicy(hosts=(host,))).refusal(f"https://{host}/") == "PRIVATE_ADDRESS"

    @pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
    async def test_other_ways_to_write_this_machine_do_not_help(self, host: str) -> None:
        with pytest.raises((CallRefused, CallFailed)) as raised:
            await World(CallPolicy(hosts=(host,))).send(f"https://{host}/")
        assert raised.value.code in ("PRIVATE_ADDRESS", "NAME_NOT_RESOLVED", "BAD_URL")

    async def test_the_connection_goes_to_the_address_that_was_checked(self, there: Peer) -> None:
        asked: list[str] = []

        async def rebinding(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

        world = World(replace(HERE, hosts=("api.example.com",)), rebinding)
        await world.send(f"http://api.example.com:{there.port}/")
        assert asked == ["api.example.com"]
        assert there.seen[0].headers["host"] == f"api.example.com:{there.port}"

    async def test_a_redirect_is_an_answer_and_is_not_followed(self, there: Peer) -> None:
        there.answer = always(302, None, Location=f"{there.url}/elsewhere")
        answer = await World().send(f"{there.url}/")
        assert (answer.status, answer.headers["location"]) == (302, f"{there.url}/elsewhere")
        assert len(there.seen) == 1

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.9", "0.0.0.0", "a.localhost"])
    async def test_a_protocol_cannot_call_the_orchestrator_itself(self, host: str) -> None:
        world = World(replace(HERE, hosts=(host,)))
        assert await world.refusal(f"http://{host}:8080/v1/commands") == "SELF_CALL"

    async def test_nor_under_another_name_for_this_machine(self) -> None:
        world = World(replace(HERE, hosts=("me.example.com",)), answering("::ffff:127.0.0.1"))
        assert await world.refusal("http://me.example.com:8080/") == "SELF_CALL"

    async def test_nor_by_its_public_name(self) -> None:
        policy = CallPolicy(hosts=("*.example.com",))
        world = World(policy, answering(), orchestrator_url="https://lucius.example.com")
        assert await world.refusal("https://lucius.example.com/v1/commands") == "SELF_CALL"
        assert (await world.failure("https://other.example.com/")).code == "NAME_NOT_RESOLVED"

    async def test_a_policy_that_changes_counts_at_once(self, there: Peer) -> None:
        world = World()
        await world.send(f"{there.url}/")
        world.policy = CallPolicy()
        assert await world.refusal(f"{there.url}/") == "BAD_URL"


class TestWhereClientsMaySendIt:
    """A URL that a client named goes by a list of its own; what protocols may call is none of its business."""

    def world(self, job_hosts: tuple[str, ...] | None, resolve: Resolve, policy: CallPolicy = HERE) -> World:
        return World(policy, resolve, callbacks=lambda: CallbackPolicy(job_hosts=job_hosts))

    async def test_without_a_list_to_any_public_host_by_https(self, there: Peer) -> None:
        world = self.world(None, answering())
        assert (await world.failure("https://any.example.com/", from_client=True)).code == "NAME_NOT_RESOLVED"
        assert await world.refusal("http://any.example.com/", from_client=True) == "BAD_URL"
        assert await world.refusal(f"{there.url}/", from_client=True) == "BAD_URL"
        assert await world.refusal("https://127.0.0.1/", from_client=True) == "PRIVATE_ADDRESS"
        inside = self.world(None, answering("10.0.0.1"))
        assert await inside.refusal("https://any.example.com/", from_client=True) == "PRIVATE_ADDRESS"
        assert there.seen == []

    async def test_with_a_list_to_nobody_else(self, there: Peer) -> None:
        world = self.world(("*.example.com",), answering())
        assert (await world.failure("http://a.example.com/", from_client=True)).code == "NAME_NOT_RESOLVED"
        assert await world.refusal("https://b.example.net/", from_client=True) == "HOST_NOT_ALLOWED"
        assert await world.refusal("https://127.0.0.1/", from_client=True) == "HOST_NOT_ALLOWED"

    async def test_a_listed_host_may_be_private_if_calls_may_go_there(self, there: Peer) -> None:
        hosts = (f"127.0.0.1:{there.port}",)
        assert (await self.world(hosts, answering()).send(f"{there.url}/", from_client=True)).status == 200
        strict = self.world(hosts, answering(), CallPolicy())
        assert await strict.refusal(f"{there.url}/", from_client=True) == "PRIVATE_ADDRESS"

    async def test_the_list_is_not_for_protocols(self, there: Peer) -> None:
        world = self.world(("127.0.0.1",), answering(), replace(HERE, hosts=()))
        assert await world.refusal(f"{there.url}/") == "HOST_NOT_ALLOWED"


class TestWhatComesBack:
    @pytest.mark.parametrize("status", [200, 204, 404, 503])
    async def test_every_status_is_an_answer(self, there: Peer, status: int) -> None:
        there.answer = always(status, None, text="")
        assert (await World().send(f"{there.url}/")).status == status

    @pytest.mark.parametrize(
        ("media_type", "body", "expected"),
        [
            ("application/json", '{"a": [1]}', {"a": [1]}),
            ("application/problem+json; charset=utf-8", '{"code": "X"}', {"code": "X"}),
            ("text/plain", '{"a": 1}', '{"a": 1}'),
            ("application/json", "{broken", "{broken"),
            ("application/json", "", None),
            ("application/octet-stream", "ü", "ü"),
        ],
    )
    async def test_a_body_is_parsed_if_it_is_json(self, there: Peer, media_type: str, body: str, expected: Any) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body.encode(), headers={"Content-Type": media_type})

        there.answer = answer
        assert (await World().send(f"{there.url}/")).body == expected

    @pytest.mark.parametrize(
        ("charset", "body", "expected"),
        [
            ("latin-1", b"\xfc", "ü"),
            ("utf-16", "ü".encode("utf-16") + b"\x00", "ü\ufffd"),
            ("utf-16-le", b"\x00\xd8", "\ufffd"),
            ("shift_jis", "日本".encode("shift_jis"), "日本"),
            ("idna", b"xn--x", "xn--x"),
            ("undefined", b"x", "x"),
            ("unicode_escape", b"\\ud800", "\\ud800"),
            ("raw_unicode_escape", b"\\ud800", "\\ud800"),
            ("utf-7", b"+2AA-", "+2AA-"),
            ("punycode", b"a-zz", "a-zz"),
            ("rot13", b"abc", "abc"),
            ("base64", b"YQ==", "YQ=="),
            ("nobody-knows", b"x", "x"),
            ("mbcs", b"\xff", "\ufffd"),
        ],
    )
    async def test_text_is_read_by_its_charset_if_that_is_one(
        self, there: Peer, charset: str, body: bytes, expected: str
    ) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body, headers={"Content-Type": f"text/plain; charset={charset}"})

        there.answer = answer
        assert (await World().send(f"{there.url}/")).body == expected

    @pytest.mark.parametrize(
        "head",
        [
            b"200 OK\r\nX-Foo: a\xffb\r\nContent-Type: ;;;===\xff",
            b"200 OK\r\nX-F: \xed\xa0\x80\r\nRetry-After: \xff",
            b"429 X\r\nRetry-After: Mon, 01 Jan 0001 00:00:00 +2359",
            b"429 X\r\nRetry-After: 99999 99 99 99 99",
            b'200 OK\r\nContent-Type: text/plain; charset="a\x00b"',
            b"999 Foo",
            b"200 OK\r\nContent-Type: application/json; charset=undefined",
        ],
    )
    async def test_whatever_it_is_it_is_an_answer_that_can_be_kept_or_a_failure(self, head: bytes) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 " + head + b'\r\nContent-Length: 8\r\n\r\n"\\ud800"')
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with suppress(CallFailed):
            answer = await World().send(f"http://127.0.0.1:{port}/", method="GET")
            assert json.dumps([answer.headers, answer.body], ensure_ascii=False).encode()
        server.close()

    async def test_few_headers_are_kept_and_cookies_never(self, there: Peer) -> None:
        many = {f"X-{number:03}": "v" * 5000 for number in range(3)}
        there.answer = always(200, None, Set_Cookie="session=1", ETag="7", Server="x", **many)
        headers = (await World().send(f"{there.url}/")).headers
        assert set(headers) == {"content-type", "date", "etag", "x-000", "x-001", "x-002"}
        assert len(headers["x-000"]) == 1024

    async def test_an_endless_answer_ends_as_too_large(self, there: Peer) -> None:
        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 65536)

        there.answer = endless
        failed = await World().failure(f"{there.url}/")
        assert (failed.code, failed.sent) == ("RESPONSE_TOO_LARGE", True)

    async def test_an_answer_of_exactly_the_limit_is_taken(self, there: Peer) -> None:
        there.answer = always(text="x" * 1000)
        assert len((await World(max_response_bytes=1000).send(f"{there.url}/")).body) == 1000
        assert (await World(max_response_bytes=999).failure(f"{there.url}/")).code == "RESPONSE_TOO_LARGE"

    async def test_an_answer_in_an_encoding_not_asked_for_is_not_unpacked(self, there: Peer) -> None:
        async def packed(request: web.Request) -> web.StreamResponse:
            return web.Response(body=gzip.compress(b"x" * 10**6), headers={"Content-Encoding": "gzip"})

        there.answer = packed
        assert (await World().failure(f"{there.url}/")).code == "RESPONSE_UNREADABLE"
        assert there.seen[0].headers["accept-encoding"] == "identity"

    async def test_json_nested_beyond_reading_is_a_failure(self, there: Peer) -> None:
        there.answer = always(text="[" * 100_000, Content_Type="application/json")
        failed = await World().failure(f"{there.url}/")
        assert (failed.code, failed.sent) == ("RESPONSE_UNREADABLE", True)


class TestWhatGoesWrong:
    async def test_a_silent_peer_is_a_timeout_and_may_have_got_it(self, there: Peer) -> None:
        there.gate.clear()
        failed = await World().failure(f"{there.url}/", timeout_ms=50)
        assert (failed.code, failed.sent) == ("TIMEOUT", True)
        assert failed.message == "POST 127.0.0.1: no complete answer within 50 ms"

    async def test_a_slow_body_is_a_timeout_too(self, there: Peer) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(30)
            return response

        there.answer = slow
        assert (await World().failure(f"{there.url}/", timeout_ms=100)).code == "TIMEOUT"

    async def test_a_resolver_that_hangs_is_a_timeout_and_nothing_was_sent(self) -> None:
        async def hanging(host: str, port: int) -> list[str]:
            await asyncio.sleep(30)
            return []

        failed = await World(CallPolicy(hosts=("a.example.com",)), hanging).failure(
            "https://a.example.com/", timeout_ms=30
        )
        assert (failed.code, failed.sent) == ("TIMEOUT", False)

    async def test_nobody_listening_was_surely_not_sent(self, there: Peer) -> None:
        failed = await World().failure("http://127.0.0.1:1/")
        assert (failed.code, failed.sent) == ("CONNECTION_FAILED", False)

    async def test_a_connection_that_breaks_may_have_been_too_late(self, there: Peer) -> None:
        async def hang_up(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        there.answer = hang_up
        failed = await World().failure(f"{there.url}/")
        assert (failed.code, failed.sent) == ("CONNECTION_LOST", True)
        assert len(there.seen) == 1

    async def test_what_is_not_http_is_unreadable(self) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        failed = await World().failure(f"http://127.0.0.1:{port}/")
        server.close()
        assert failed.code in ("RESPONSE_UNREADABLE", "CONNECTION_LOST")
        assert failed.sent

    async def test_every_code_of_a_failure_is_in_the_table(self) -> None:
        for code in ("TIMEOUT", "CONNECTION_FAILED", "CONNECTION_LOST", "TLS_FAILED", "NAME_NOT_RESOLVED"):
            assert CODES[code] is FailureClass.TRANSIENT
        for code in ("RESPONSE_TOO_LARGE", "RESPONSE_UNREADABLE"):
            assert CODES[code] is FailureClass.NON_RETRYABLE


class TestGates:
    async def test_one_429_with_retry_after_closes_the_host_for_everyone_until_then(self, there: Peer) -> None:
        world = World()
        there.answer = in_turn(always(429, None, Retry_After="7"), ok)
        answer = await world.send(f"{there.url}/a")
        assert (answer.status, answer.retry_after_ms) == (429, 7_000)
        closed = world.admit(f"{there.url}/b")
        assert closed == Closed(world.clock.now() + 7_000)
        assert isinstance(world.admit("http://127.0.0.1:1/"), Slot)
        world.clock.advance(7)
        assert isinstance(world.admit(f"{there.url}/b"), Slot)

    @pytest.mark.parametrize(
        ("status", "header", "wait_ms"),
        [
            (503, "2", 2_000),
            (429, "99999999999999999999", DAY),
            (429, "7200", 2 * HOUR),
            (429, "0", None),
            (429, "-5", None),
            (429, "soon", None),
            (429, "", None),
            (429, "١٢", None),
            (429, "Fri, 31 Dec 9999 23:59:59 GMT", DAY),
            (429, "Wed, 21 Oct 2015 07:28:00 GMT", None),
        ],
    )
    async def test_what_a_retry_after_may_say(self, there: Peer, status: int, header: str, wait_ms: int | None) -> None:
        world = World()
        there.answer = always(status, None, Retry_After=header)
        assert (await world.send(f"{there.url}/")).retry_after_ms == wait_ms
        admitted = world.admit(f"{there.url}/")
        opens_at = world.clock.now() + min(wait_ms or 0, HOUR)  # the others ask again sooner
        assert isinstance(admitted, Slot) if wait_ms is None else admitted == Closed(opens_at)

    async def test_a_retry_after_may_be_a_date(self, there: Peer) -> None:
        world = World()
        there.answer = always(429, None, Retry_After=formatdate(world.clock.now() / 1000 + 90, usegmt=True))
        assert (await world.send(f"{there.url}/")).retry_after_ms == 90_000

    async def test_a_retry_after_of_any_other_answer_closes_nothing(self, there: Peer) -> None:
        world = World()
        there.answer = always(404, None, Retry_After="60")
        await world.send(f"{there.url}/")
        assert isinstance(world.admit(f"{there.url}/"), Slot)

    async def test_a_shorter_wait_does_not_open_a_gate_early(self, there: Peer) -> None:
        world = World()
        there.answer = in_turn(always(429, None, Retry_After="60"), always(429, None, Retry_After="1"))
        await world.send(f"{there.url}/")
        await world.send(f"{there.url}/")
        assert world.admit(f"{there.url}/") == Closed(world.clock.now() + 60_000)

    def test_a_host_has_only_so_many_calls_at_once(self) -> None:
        world = World(replace(HERE, per_host=2))
        first, second = (world.admit("https://a.example.com/x") for _ in range(2))
        assert isinstance(first, Slot)
        assert isinstance(second, Slot)
        assert world.admit("https://A.example.com:443/y") == Closed()
        assert isinstance(world.admit("https://b.example.com/"), Slot)
        first.release()
        assert isinstance(world.admit("https://a.example.com/z"), Slot)

    def test_what_would_be_refused_has_no_host(self) -> None:
        caller = World().caller
        assert caller.host("nonsense") == caller.host("https://${secrets.NOBODY}/") == ""
        assert caller.host("https://[2606:4700::1111]/") == "[2606:4700::1111]:443"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
class TestTls:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> Path:
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=api.example.com",
        ]
        files = ["-addext", "subjectAltName=DNS:api.example.com", "-keyout", "both.pem", "-out", "cert.pem"]
        subprocess.run([*command, *files], cwd=tmp_path, check=True, capture_output=True)
        (tmp_path / "both.pem").open("a").write((tmp_path / "cert.pem").read_text())
        return tmp_path

    async def test_the_certificate_must_be_trusted_and_bear_the_name_in_the_url(self, certificate: Path) -> None:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(certificate / "both.pem")
        trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        policy = CallPolicy(hosts=("*.example.com",), allow_private=True)
        async with peer(serving) as there:
            world = World(policy, answering("127.0.0.1"), tls=trusting)
            assert (await world.send(f"https://api.example.com:{there.port}/")).status == 200
            failed = await world.failure(f"https://other.example.com:{there.port}/")
            assert (failed.code, failed.sent) == ("TLS_FAILED", False)
            untrusting = World(policy, answering("127.0.0.1"))
            assert (await untrusting.failure(f"https://api.example.com:{there.port}/")).code == "TLS_FAILED"
            assert len(there.seen) == 1
