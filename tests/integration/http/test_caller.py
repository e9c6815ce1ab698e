"""The caller against a real server: requests it sends, requests it refuses, and how it reads the answer."""

import asyncio
import base64
import gzip
import json
import shutil
import socket
import ssl
import subprocess
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from lucius.adapters.http import destination
from lucius.adapters.http.caller import HttpCaller
from lucius.adapters.http.lookups import MAX_PARTY_LOOKUPS, Lookups, Resolve, resolve_by_system
from lucius.core.model.statuses import FailureClass
from lucius.core.policies.failure_classes import CODES
from lucius.ports.config import CallbackPolicy, CallPolicy
from lucius.ports.errors import CallFailed, CallRefused
from lucius.ports.http import Closed, HttpResponse, Outgoing, Slot
from lucius.public_addresses import is_public
from tests.support.clock import ManualClock
from tests.support.peer import Peer, always, in_turn, ok, peer

HERE = CallPolicy(hosts=("127.0.0.1",), allow_http=True, allow_private=True)
ORCHESTRATOR = "http://127.0.0.1:8080"
SECRETS = {"API_KEY": "s3cr3t-value", "STRIPE_KEY": "sk_live_123456"}
ALIASES = {"alias.example.com": "93.184.216.34", "six.example.com": "2606:2800:220:1::1"}
HOUR, DAY = 3_600_000, 86_400_000
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class CallerSetup:
    """A caller with every option adjustable."""

    def __init__(self, policy: CallPolicy = HERE, resolve: Resolve = resolve_by_system, **options: Any) -> None:
        self.policy = policy
        self.clock = ManualClock()
        settings: dict[str, Any] = {"orchestrator_url": ORCHESTRATOR, "secrets": SECRETS, "webhook_secrets": {}}
        self.caller = HttpCaller(
            policy=lambda: self.policy, clock=self.clock, resolve=resolve, **{**settings, **options}
        )

    async def send(self, url: str, **changes: Any) -> HttpResponse:
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
async def remote() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


def resolving_to(*addresses: str) -> Resolve:
    """Return a resolver with the same answer for every name."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


class TestRequest:
    async def test_json_body_is_sent_with_idempotency_key_and_trace(self, remote: Peer) -> None:
        body = {"amount": 12, "currency": "EUR"}
        answer = await CallerSetup().send(
            f"{remote.url}/charges?a=b", body=body, headers={"X-Shop": "1"}, traceparent=TRACE
        )
        (seen,) = remote.seen
        assert (seen.method, seen.path, seen.json) == ("POST", "/charges?a=b", body)
        assert seen.headers["idempotency-key"] == "key-1"
        assert seen.headers["traceparent"] == TRACE
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["x-shop"] == "1"
        assert answer == HttpResponse(status=200, headers=answer.headers, body={"ok": True})
        assert answer.headers["content-type"].startswith("application/json")

    async def test_tracestate_and_correlation_id_are_sent(self, remote: Peer) -> None:
        context = {"traceparent": TRACE, "tracestate": "a=1", "correlation_id": "order-7"}
        await CallerSetup().send(f"{remote.url}/", **context)
        await CallerSetup().send(f"{remote.url}/", **context, headers={"X-Correlation-ID": "of the protocol"})
        assert [seen.headers["tracestate"] for seen in remote.seen] == ["a=1", "a=1"]
        assert [seen.headers["x-correlation-id"] for seen in remote.seen] == ["order-7", "of the protocol"]

    @pytest.mark.parametrize("trace", ["00-a\r\nx-evil: 1", "é€", "\ud800", "", TRACE + "\n", TRACE.upper()])
    async def test_invalid_traceparent_is_omitted(self, remote: Peer, trace: str) -> None:
        assert (await CallerSetup().send(f"{remote.url}/", traceparent=trace)).status == 200
        assert "traceparent" not in remote.seen[0].headers
        assert "x-evil" not in remote.seen[0].headers

    @pytest.mark.parametrize("changes", [{"body": {"n": "\ud800"}}, {"body": {"n": object()}}])
    async def test_unserialisable_body_fails_the_call_and_nothing_is_sent(
        self, remote: Peer, changes: dict[str, Any]
    ) -> None:
        failed = await CallerSetup().failure(f"{remote.url}/", **changes)
        assert failed.code == "CALL_FAILED"
        assert remote.seen == []

    async def test_text_body_is_sent_unchanged_and_a_missing_body_as_none(self, remote: Peer) -> None:
        await CallerSetup().send(f"{remote.url}/", body="a,b\n1,ü\n", headers={"Content-Type": "text/csv"})
        await CallerSetup().send(f"{remote.url}/", method="GET")
        assert remote.seen[0].body.decode() == "a,b\n1,ü\n"
        assert remote.seen[0].headers["content-type"] == "text/csv"
        assert (remote.seen[1].method, remote.seen[1].body) == ("GET", b"")
        assert "content-type" not in remote.seen[1].headers
        assert "traceparent" not in remote.seen[1].headers

    async def test_idempotency_key_cannot_be_overridden_by_a_header(self, remote: Peer) -> None:
        await CallerSetup().send(f"{remote.url}/", headers={"Idempotency-key": "mine"})
        assert remote.seen[0].headers["idempotency-key"] == "key-1"

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
    async def test_forbidden_headers_are_refused(self, remote: Peer, headers: dict[str, str]) -> None:
        assert await CallerSetup().refusal(f"{remote.url}/", headers=headers) == "BAD_HEADER"
        assert remote.seen == []

    async def test_body_over_one_mebibyte_is_refused(self, remote: Peer) -> None:
        assert await CallerSetup().refusal(f"{remote.url}/", body="x" * (1024 * 1024 + 1)) == "BODY_TOO_LARGE"

    @pytest.mark.parametrize(
        ("target", "sent"),
        [
            ("/a%2Fb%3B?ids=1%2C2,3&next=%2F..%3Fx%3A%40", "/a%2Fb%3B?ids=1%2C2,3&next=%2F..%3Fx%3A%40"),
            ("/a b?c=d e|[f]&g=100%&h=%e4#part", "/a%20b?c=d%20e%7C%5Bf%5D&g=100%25&h=%e4"),
            ("?a=1", "/?a=1"),
            ("/?", "/"),
        ],
    )
    async def test_encoded_characters_of_path_and_query_stay_encoded(
        self, remote: Peer, target: str, sent: str
    ) -> None:
        raw: list[str] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            raw.append(request.raw_path)
            return await ok(request)

        remote.answer = answer
        await CallerSetup().send(remote.url + target)
        assert raw == [sent]

    async def test_every_call_has_its_own_connection(self, remote: Peer) -> None:
        ports: list[int] = []

        async def note(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            ports.append(request.transport.get_extra_info("peername")[1])
            return await ok(request)

        remote.answer = note
        world = CallerSetup()
        await world.send(f"{remote.url}/")
        await world.send(f"{remote.url}/")
        assert len(set(ports)) == 2


class TestSecrets:
    async def test_secrets_are_filled_in_where_the_call_names_them(self, remote: Peer) -> None:
        await CallerSetup().send(
            f"{remote.url}/${{secrets.api-key}}",
            headers={"Authorization": "Bearer ${secrets.API_KEY}"},
            body={"keys": ["${secrets.stripe_key}", 1, None], "plain": "$${secrets.API_KEY}"},
        )
        (seen,) = remote.seen
        assert seen.path == "/s3cr3t-value"
        assert seen.headers["authorization"] == "Bearer s3cr3t-value"
        assert seen.json == {"keys": ["sk_live_123456", 1, None], "plain": "${secrets.API_KEY}"}

    async def test_call_without_fills_secrets_gets_none(self, remote: Peer) -> None:
        body = {"text": "${secrets.API_KEY} and $${x}"}
        await CallerSetup().send(
            f"{remote.url}/", fills_secrets=False, body=body, headers={"X-A": "${secrets.API_KEY}"}
        )
        assert remote.seen[0].json == body
        assert remote.seen[0].headers["x-a"] == "${secrets.API_KEY}"

    async def test_unknown_secret_is_named_and_nothing_is_sent(self, remote: Peer) -> None:
        with pytest.raises(CallRefused, match="UNKNOWN_SECRET: there is no secret other-key; set LUCIUS_SECRET_OTHER"):
            await CallerSetup().send(f"{remote.url}/", headers={"X-Key": "${secrets.other-key}"})
        assert remote.seen == []

    async def test_echoed_secret_is_masked_in_the_answer(self, remote: Peer) -> None:
        async def echo(request: web.Request) -> web.StreamResponse:
            key = request.headers["X-Key"]
            return web.json_response({"you sent": [key], key: "x"}, headers={"X-Echo": key})

        remote.answer = echo
        answer = await CallerSetup().send(f"{remote.url}/", headers={"X-Key": "${secrets.API_KEY}"})
        assert answer.body == {"you sent": ["[secret]"], "[secret]": "x"}
        assert answer.headers["x-echo"] == "[secret]"

    async def test_echoed_secret_at_the_header_limit_is_masked(self, remote: Peer) -> None:
        remote.answer = always(200, None, X_Echo="x" * 1020 + SECRETS["API_KEY"])
        answer = await CallerSetup().send(f"{remote.url}/", headers={"X-Key": "${secrets.API_KEY}"})
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
            ("sk_live_123456", {"basic": b64encode(b"sk_live_123456").decode()}, {"basic": "[secret]"}),
            ("sk_live_123456", f"Basic {b64encode(b'ada:sk_live_123456').decode()} ok", "Basic [secret] ok"),
            ("sk_live_123456", b64encode(b"x:sk_live_123456:more").decode().rstrip("="), "[secret]"),
            ("???>>>~~~ab", f"<{urlsafe_b64encode(b'a???>>>~~~ab').decode().rstrip('=')}>", "<[secret]>"),
            ("sk_live_123456", b64encode(b"something else").decode(), b64encode(b"something else").decode()),
        ],
    )
    async def test_echoed_secret_is_masked_as_number_short_word_quoted_or_base64(
        self, remote: Peer, secret: str, echo: Any, shown: Any
    ) -> None:
        remote.answer = always(200, echo)
        world = CallerSetup(secrets={"PIN": secret})
        answer = await world.send(f"{remote.url}/", headers={"X-Key": "${secrets.PIN}"})
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
    async def test_errors_never_contain_a_secret(self, url: str, policy: CallPolicy) -> None:
        with pytest.raises((CallRefused, CallFailed)) as raised:
            await CallerSetup(policy).send(url)
        assert "s3cr3t" not in f"{raised.value} {raised.value!r} {raised.value.args}"
        assert raised.value.__cause__ is None


class TestDestination:
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
    async def test_call_is_permitted_only_to_listed_hosts(
        self, hosts: tuple[str, ...], url: str, allowed: bool
    ) -> None:
        world = CallerSetup(CallPolicy(hosts=hosts), resolving_to())
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
    async def test_invalid_or_unencrypted_url_is_refused(self, url: str) -> None:
        world = CallerSetup(CallPolicy(hosts=("api.example.com",)))
        assert await world.refusal(url) == "BAD_URL"

    @pytest.mark.parametrize(
        "address",
        [
            *("127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
            *("0.0.0.0", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
            *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1"),
            *("168.63.129.16", "192.0.0.192", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"),
            *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1"),
            *("64:ff9b:1::a00:1", "64:ff9b:1:a00:0:100::", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1"),
        ],
    )
    async def test_name_with_a_non_public_address_is_refused(self, address: str) -> None:
        policy = CallPolicy(hosts=("api.example.com",))
        assert await CallerSetup(policy, resolving_to(address)).refusal("https://api.example.com/") == "PRIVATE_ADDRESS"
        mixed = CallerSetup(policy, resolving_to("93.184.216.34", address))
        assert await mixed.refusal("https://api.example.com/") == "PRIVATE_ADDRESS"

    @pytest.mark.parametrize(
        "address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "2002:808:808::1", "64:ff9b::808:808"]
    )
    def test_public_addresses_are_recognised(self, address: str) -> None:
        assert is_public(ip_address(address))

    @pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"])
    async def test_literal_address_in_the_url_is_checked(self, host: str) -> None:
        assert await CallerSetup(CallPolicy(hosts=(host,))).refusal(f"https://{host}/") == "PRIVATE_ADDRESS"

    @pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
    async def test_unusual_spellings_of_loopback_are_refused(self, host: str) -> None:
        with pytest.raises((CallRefused, CallFailed)) as raised:
            await CallerSetup(CallPolicy(hosts=(host,))).send(f"https://{host}/")
        assert raised.value.code in ("PRIVATE_ADDRESS", "NAME_NOT_RESOLVED", "BAD_URL")

    async def test_connection_uses_the_checked_address(self, remote: Peer) -> None:
        asked: list[str] = []

        async def rebinding(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

        world = CallerSetup(replace(HERE, hosts=("api.example.com",)), rebinding)
        await world.send(f"http://api.example.com:{remote.port}/")
        assert asked == ["api.example.com"]
        assert remote.seen[0].headers["host"] == f"api.example.com:{remote.port}"

    async def test_redirect_is_an_answer_and_not_followed(self, remote: Peer) -> None:
        remote.answer = always(302, None, Location=f"{remote.url}/elsewhere")
        answer = await CallerSetup().send(f"{remote.url}/")
        assert (answer.status, answer.headers["location"]) == (302, f"{remote.url}/elsewhere")
        assert len(remote.seen) == 1

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.9", "0.0.0.0", "a.localhost"])
    async def test_call_to_the_orchestrator_itself_is_refused(self, host: str) -> None:
        world = CallerSetup(replace(HERE, hosts=(host,)))
        assert await world.refusal(f"http://{host}:8080/v1/commands") == "SELF_CALL"

    async def test_call_to_lucius_by_another_name_of_this_host_is_refused(self) -> None:
        world = CallerSetup(replace(HERE, hosts=("me.example.com",)), resolving_to("::ffff:127.0.0.1"))
        assert await world.refusal("http://me.example.com:8080/") == "SELF_CALL"

    async def test_call_to_lucius_by_its_public_name_is_refused(self) -> None:
        policy = CallPolicy(hosts=("*.example.com",))
        world = CallerSetup(policy, resolving_to(), orchestrator_url="https://lucius.example.com")
        assert await world.refusal("https://lucius.example.com/v1/commands") == "SELF_CALL"
        assert (await world.failure("https://other.example.com/")).code == "NAME_NOT_RESOLVED"

    async def test_call_to_a_name_that_resolves_to_lucius_is_refused(self) -> None:
        policy = CallPolicy(hosts=("*.example.com",))

        async def resolve(host: str, port: int) -> list[str]:
            return [*ALIASES.values()] if host == "lucius.example.com" else [ALIASES[host]]

        world = CallerSetup(policy, resolve, orchestrator_url="https://lucius.example.com")
        for alias in ALIASES:
            assert await world.refusal(f"https://{alias}/v1/commands") == "SELF_CALL"

    async def test_call_to_lucius_by_loopback_is_refused(self) -> None:
        world = CallerSetup(
            replace(HERE, hosts=("127.0.0.1",)), resolving_to("93.184.216.34"), orchestrator_url="http://a.b:80"
        )
        assert await world.refusal("http://127.0.0.1:80/") == "SELF_CALL"

    async def test_call_to_an_interface_of_this_machine_on_our_port_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(destination, "is_own_address", lambda address: str(address) == "10.1.2.3")
        world = CallerSetup(
            replace(HERE, hosts=("10.1.2.3", "10.1.2.4", "me.example.com")), resolving_to("::ffff:10.1.2.3")
        )
        assert await world.refusal("http://10.1.2.3:8080/v1/commands") == "SELF_CALL"
        assert await world.refusal("http://me.example.com:8080/v1/commands") == "SELF_CALL"
        found = destination.parse("http://10.1.2.4:8080/"), destination.parse("http://10.1.2.3:8081/")
        rules, ourselves = destination.Rules(None, True, True), destination.parse("http://127.0.0.1:8080")
        for other in found:
            assert await destination.addresses(other, rules, ourselves, resolving_to()) == [other.host]

    @pytest.mark.parametrize(
        ("address", "is_own"), [("127.0.0.1", True), ("198.51.100.7", False), ("2001:db8::1", False)]
    )
    def test_own_addresses_are_recognised(self, address: str, is_own: bool) -> None:
        assert destination.is_own_address(ip_address(address)) is is_own

    async def test_changed_policy_applies_at_once(self, remote: Peer) -> None:
        world = CallerSetup()
        await world.send(f"{remote.url}/")
        world.policy = CallPolicy()
        assert await world.refusal(f"{remote.url}/") == "BAD_URL"


class TestClientUrls:
    """URLs from clients are checked against their own list; the list for protocols does not apply."""

    def client_setup(
        self, job_hosts: tuple[str, ...] | None, resolve: Resolve, policy: CallPolicy = HERE
    ) -> CallerSetup:
        return CallerSetup(policy, resolve, callbacks=lambda: CallbackPolicy(job_hosts=job_hosts))

    async def test_tenant_callback_hosts_are_checked_when_a_webhook_is_sent(self) -> None:
        own = {"acme": ("*.acme.com",)}
        secret = f"whsec_{base64.b64encode(bytes(32)).decode()}"
        world = CallerSetup(HERE, resolving_to(), tenant_hosts=own.get, tenant_secrets=lambda tenant: [secret])
        said = {"from_client": True, "tenant_id": "acme"}
        assert await world.refusal("https://any.example.com/", **said) == "HOST_NOT_ALLOWED"
        assert (await world.failure("https://hooks.acme.com/", **said)).code == "NAME_NOT_RESOLVED"
        said = {"from_client": True, "tenant_id": "globex"}
        assert (await world.failure("https://any.example.com/", **said)).code == "NAME_NOT_RESOLVED"

    async def test_client_urls_without_a_list_may_name_any_public_https_host(self, remote: Peer) -> None:
        world = self.client_setup(None, resolving_to())
        assert (await world.failure("https://any.example.com/", from_client=True)).code == "NAME_NOT_RESOLVED"
        assert await world.refusal("http://any.example.com/", from_client=True) == "BAD_URL"
        assert await world.refusal(f"{remote.url}/", from_client=True) == "BAD_URL"
        assert await world.refusal("https://127.0.0.1/", from_client=True) == "PRIVATE_ADDRESS"
        inside = self.client_setup(None, resolving_to("10.0.0.1"))
        assert await inside.refusal("https://any.example.com/", from_client=True) == "PRIVATE_ADDRESS"
        assert remote.seen == []

    async def test_client_urls_with_a_list_may_name_only_listed_hosts(self, remote: Peer) -> None:
        world = self.client_setup(("*.example.com",), resolving_to())
        assert (await world.failure("http://a.example.com/", from_client=True)).code == "NAME_NOT_RESOLVED"
        assert await world.refusal("https://b.example.net/", from_client=True) == "HOST_NOT_ALLOWED"
        assert await world.refusal("https://127.0.0.1/", from_client=True) == "HOST_NOT_ALLOWED"

    async def test_listed_client_host_may_be_private_if_calls_may_go_there(self, remote: Peer) -> None:
        hosts = (f"127.0.0.1:{remote.port}",)
        assert (await self.client_setup(hosts, resolving_to()).send(f"{remote.url}/", from_client=True)).status == 200
        strict = self.client_setup(hosts, resolving_to(), CallPolicy())
        assert await strict.refusal(f"{remote.url}/", from_client=True) == "PRIVATE_ADDRESS"

    async def test_list_for_client_urls_does_not_apply_to_protocols(self, remote: Peer) -> None:
        world = self.client_setup(("127.0.0.1",), resolving_to(), replace(HERE, hosts=()))
        assert await world.refusal(f"{remote.url}/") == "HOST_NOT_ALLOWED"


class TestLookups:
    async def test_slow_names_of_one_tenant_do_not_delay_other_calls(
        self, remote: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answered, look_up, asked = Event(), socket.getaddrinfo, list[str]()

        def slow(host: str, *args: Any, **options: Any) -> Any:
            asked.append(host)
            if host.endswith(".slow.example"):
                answered.wait(10)
            return look_up("127.0.0.1", *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        hosts = ("a.example", "b.example", "*.slow.example")
        secret = f"whsec_{base64.b64encode(bytes(32)).decode()}"
        callbacks = CallbackPolicy(job_hosts=hosts)
        world = CallerSetup(HERE, callbacks=lambda: callbacks, tenant_secrets=lambda tenant: [secret])
        world.policy = replace(HERE, hosts=(*hosts, "127.0.0.1"))
        stuck = [
            asyncio.create_task(
                world.send(
                    f"http://n{i}.slow.example:{remote.port}/", from_client=True, tenant_id="acme", timeout_ms=50
                )
            )
            for i in range(100)
        ]
        given_up = await asyncio.gather(*stuck, return_exceptions=True)
        assert {getattr(error, "code", None) for error in given_up} == {"TIMEOUT"}
        said: dict[str, Any] = {"from_client": True, "tenant_id": "globex"}
        try:
            assert (await world.send(f"http://a.example:{remote.port}/", **said)).status == 200
            assert (await world.send(f"http://b.example:{remote.port}/")).status == 200
        finally:
            answered.set()
        assert sum(host.endswith(".slow.example") for host in asked) == MAX_PARTY_LOOKUPS

    async def test_concurrent_lookups_of_a_tenant_are_limited(self) -> None:
        under_way, most = 0, 0

        async def resolve(host: str, port: int) -> list[str]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            if host == "none":
                raise OSError
            return [host]

        lookups = Lookups(resolve)
        names = [str(i) for i in range(20)] + ["none"] * 3
        found = await asyncio.gather(*(lookups.resolve("acme", name, 1) for name in names), return_exceptions=True)
        assert found[:20] == [[name] for name in names[:20]]
        assert all(isinstance(error, OSError) for error in found[20:])
        assert most == MAX_PARTY_LOOKUPS


class TestAnswer:
    @pytest.mark.parametrize("status", [200, 204, 404, 503])
    async def test_every_http_status_is_an_answer(self, remote: Peer, status: int) -> None:
        remote.answer = always(status, None, text="")
        assert (await CallerSetup().send(f"{remote.url}/")).status == status

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
    async def test_body_is_parsed_only_if_it_is_json(
        self, remote: Peer, media_type: str, body: str, expected: Any
    ) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body.encode(), headers={"Content-Type": media_type})

        remote.answer = answer
        assert (await CallerSetup().send(f"{remote.url}/")).body == expected

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
    async def test_text_is_decoded_by_a_valid_charset(
        self, remote: Peer, charset: str, body: bytes, expected: str
    ) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body, headers={"Content-Type": f"text/plain; charset={charset}"})

        remote.answer = answer
        assert (await CallerSetup().send(f"{remote.url}/")).body == expected

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
    async def test_malformed_response_is_a_storable_answer_or_a_failure(self, head: bytes) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 " + head + b'\r\nContent-Length: 8\r\n\r\n"\\ud800"')
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with suppress(CallFailed):
            answer = await CallerSetup().send(f"http://127.0.0.1:{port}/", method="GET")
            assert json.dumps([answer.headers, answer.body], ensure_ascii=False).encode()
        server.close()

    async def test_only_permitted_headers_are_kept_and_long_values_are_cut(self, remote: Peer) -> None:
        many = {f"X-{number:03}": "v" * 5000 for number in range(3)}
        remote.answer = always(200, None, Set_Cookie="session=1", ETag="7", Server="x", **many)
        headers = (await CallerSetup().send(f"{remote.url}/")).headers
        assert set(headers) == {"content-type", "date", "etag", "x-000", "x-001", "x-002"}
        assert len(headers["x-000"]) == 1024

    async def test_endless_answer_fails_as_too_large(self, remote: Peer) -> None:
        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 65536)

        remote.answer = endless
        failed = await CallerSetup().failure(f"{remote.url}/")
        assert (failed.code, failed.sent) == ("RESPONSE_TOO_LARGE", True)

    async def test_answer_of_exactly_the_limit_is_accepted(self, remote: Peer) -> None:
        remote.answer = always(text="x" * 1000)
        assert len((await CallerSetup(max_response_bytes=1000).send(f"{remote.url}/")).body) == 1000
        assert (await CallerSetup(max_response_bytes=999).failure(f"{remote.url}/")).code == "RESPONSE_TOO_LARGE"

    async def test_compressed_answer_is_not_decompressed(self, remote: Peer) -> None:
        async def packed(request: web.Request) -> web.StreamResponse:
            return web.Response(body=gzip.compress(b"x" * 10**6), headers={"Content-Encoding": "gzip"})

        remote.answer = packed
        assert (await CallerSetup().failure(f"{remote.url}/")).code == "RESPONSE_UNREADABLE"
        assert remote.seen[0].headers["accept-encoding"] == "identity"

    async def test_deeply_nested_json_is_a_failure(self, remote: Peer) -> None:
        remote.answer = always(text="[" * 100_000, Content_Type="application/json")
        failed = await CallerSetup().failure(f"{remote.url}/")
        assert (failed.code, failed.sent) == ("RESPONSE_UNREADABLE", True)


class TestFailures:
    async def test_silent_peer_is_a_timeout_and_the_request_may_have_arrived(self, remote: Peer) -> None:
        remote.gate.clear()
        failed = await CallerSetup().failure(f"{remote.url}/", timeout_ms=50)
        assert (failed.code, failed.sent) == ("TIMEOUT", True)
        assert failed.message == "POST 127.0.0.1: no complete answer within 50 ms"

    async def test_slow_body_is_a_timeout(self, remote: Peer) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(30)
            return response

        remote.answer = slow
        assert (await CallerSetup().failure(f"{remote.url}/", timeout_ms=100)).code == "TIMEOUT"

    async def test_hanging_resolver_is_a_timeout_and_nothing_was_sent(self) -> None:
        async def hanging(host: str, port: int) -> list[str]:
            await asyncio.sleep(30)
            return []

        failed = await CallerSetup(CallPolicy(hosts=("a.example.com",)), hanging).failure(
            "https://a.example.com/", timeout_ms=30
        )
        assert (failed.code, failed.sent) == ("TIMEOUT", False)

    async def test_refused_connection_means_that_nothing_was_sent(self, remote: Peer) -> None:
        failed = await CallerSetup().failure("http://127.0.0.1:1/")
        assert (failed.code, failed.sent) == ("CONNECTION_FAILED", False)

    async def test_broken_connection_means_that_the_request_may_have_arrived(self, remote: Peer) -> None:
        async def hang_up(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        remote.answer = hang_up
        failed = await CallerSetup().failure(f"{remote.url}/")
        assert (failed.code, failed.sent) == ("CONNECTION_LOST", True)
        assert len(remote.seen) == 1

    async def test_answer_that_is_not_http_is_unreadable(self) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        failed = await CallerSetup().failure(f"http://127.0.0.1:{port}/")
        server.close()
        assert failed.code in ("RESPONSE_UNREADABLE", "CONNECTION_LOST")
        assert failed.sent

    async def test_failure_codes_have_their_class(self) -> None:
        for code in ("TIMEOUT", "CONNECTION_FAILED", "CONNECTION_LOST", "TLS_FAILED", "NAME_NOT_RESOLVED"):
            assert CODES[code] is FailureClass.TRANSIENT
        for code in ("RESPONSE_TOO_LARGE", "RESPONSE_UNREADABLE"):
            assert CODES[code] is FailureClass.NON_RETRYABLE


class TestHostLimits:
    async def test_retry_after_of_a_429_closes_the_host_for_all_calls_until_then(self, remote: Peer) -> None:
        world = CallerSetup()
        remote.answer = in_turn(always(429, None, Retry_After="7"), ok)
        answer = await world.send(f"{remote.url}/a")
        assert (answer.status, answer.retry_after_ms) == (429, 7_000)
        closed = world.admit(f"{remote.url}/b")
        assert closed == Closed(world.clock.now() + 7_000)
        assert isinstance(world.admit("http://127.0.0.1:1/"), Slot)
        world.clock.advance(7)
        assert isinstance(world.admit(f"{remote.url}/b"), Slot)

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
    async def test_retry_after_values_are_bounded_and_invalid_ones_ignored(
        self, remote: Peer, status: int, header: str, wait_ms: int | None
    ) -> None:
        world = CallerSetup()
        remote.answer = always(status, None, Retry_After=header)
        assert (await world.send(f"{remote.url}/")).retry_after_ms == wait_ms
        admitted = world.admit(f"{remote.url}/")
        opens_at = world.clock.now() + min(wait_ms or 0, HOUR)  # other calls to the host wait an hour at most
        assert isinstance(admitted, Slot) if wait_ms is None else admitted == Closed(opens_at)

    async def test_retry_after_can_be_a_date(self, remote: Peer) -> None:
        world = CallerSetup()
        remote.answer = always(429, None, Retry_After=formatdate(world.clock.now() / 1000 + 90, usegmt=True))
        assert (await world.send(f"{remote.url}/")).retry_after_ms == 90_000

    async def test_retry_after_of_a_404_closes_nothing(self, remote: Peer) -> None:
        world = CallerSetup()
        remote.answer = always(404, None, Retry_After="60")
        await world.send(f"{remote.url}/")
        assert isinstance(world.admit(f"{remote.url}/"), Slot)

    async def test_shorter_retry_after_does_not_reopen_the_host_early(self, remote: Peer) -> None:
        world = CallerSetup()
        remote.answer = in_turn(always(429, None, Retry_After="60"), always(429, None, Retry_After="1"))
        await world.send(f"{remote.url}/")
        await world.send(f"{remote.url}/")
        assert world.admit(f"{remote.url}/") == Closed(world.clock.now() + 60_000)

    def test_concurrent_calls_to_a_host_are_limited(self) -> None:
        world = CallerSetup(replace(HERE, per_host=2))
        first, second = (world.admit("https://a.example.com/x") for _ in range(2))
        assert isinstance(first, Slot)
        assert isinstance(second, Slot)
        assert world.admit("https://A.example.com:443/y") == Closed()
        assert isinstance(world.admit("https://b.example.com/"), Slot)
        first.release()
        assert isinstance(world.admit("https://a.example.com/z"), Slot)

    def test_unusable_url_has_no_host(self) -> None:
        caller = CallerSetup().caller
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

    async def test_certificate_must_be_trusted_and_match_the_host(self, certificate: Path) -> None:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(certificate / "both.pem")
        trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        policy = CallPolicy(hosts=("*.example.com",), allow_private=True)
        async with peer(serving) as remote:
            world = CallerSetup(policy, resolving_to("127.0.0.1"), tls=trusting)
            assert (await world.send(f"https://api.example.com:{remote.port}/")).status == 200
            failed = await world.failure(f"https://other.example.com:{remote.port}/")
            assert (failed.code, failed.sent) == ("TLS_FAILED", False)
            untrusting = CallerSetup(policy, resolving_to("127.0.0.1"))
            assert (await untrusting.failure(f"https://api.example.com:{remote.port}/")).code == "TLS_FAILED"
            assert len(remote.seen) == 1
