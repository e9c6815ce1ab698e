"""Webhooks as the Standard Webhooks convention has them, read by its own library."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from lucius.adapters.http.signing import parse_keys, signed_headers
from lucius.adapters.http_caller import HttpCaller
from lucius.ports.calls import Outgoing
from lucius.ports.clock import SystemClock
from lucius.ports.config import CallPolicy
from lucius.ports.errors import CallRefused
from tests.support.peer import Peer, Seen, peer

OLD = "whsec_" + b64encode(b"an old secret of 24 byte").decode()
NEW = "whsec_" + b64encode(b"a newer one with thirty-two bytes").decode()
BODY = {"type": "invoice.paid", "timestamp": "2026-01-01T00:00:00.000Z", "data": {"name": "Zoë", "amount": 1.5}}


def caller(**secrets: str) -> HttpCaller:
    return HttpCaller(
        policy=lambda: CallPolicy(hosts=("127.0.0.1",), allow_http=True, allow_private=True),
        clock=SystemClock(),
        orchestrator_url="http://127.0.0.1:8080",
        secrets={"TOKEN": "a-token"},
        webhook_secrets=secrets,
    )


async def notify(there: Peer, by: HttpCaller, secret: str = "default", body: Any = BODY) -> Seen:
    call = Outgoing(
        method="POST",
        url=f"{there.url}/hooks",
        body=body,
        timeout_ms=5_000,
        idempotency_key="step-key-1",
        sign_with=secret,
        fills_secrets=True,
    )
    await by.send(call)
    return there.seen[-1]


async def test_a_receiver_with_the_secret_reads_it() -> None:
    async with peer() as there:
        seen = await notify(there, caller(DEFAULT=NEW))
    assert Webhook(NEW).verify(seen.body, seen.headers) == BODY
    assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == "step-key-1"
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(seen.body, seen.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(seen.body.replace(b"1.5", b"9.5"), seen.headers)


async def test_while_secrets_are_rotated_the_old_and_the_new_one_both_read_it() -> None:
    async with peer() as there:
        seen = await notify(there, caller(DEFAULT=f"{NEW} {OLD}"))
    assert len(seen.headers["webhook-signature"].split(" ")) == 2
    assert Webhook(NEW).verify(seen.body, seen.headers) == Webhook(OLD).verify(seen.body, seen.headers) == BODY


async def test_each_receiver_has_its_own_secret_by_name() -> None:
    async with peer() as there:
        seen = await notify(there, caller(DEFAULT=OLD, BILLING_TEAM=NEW), "billing-team")
    assert Webhook(NEW).verify(seen.body, seen.headers) == BODY


async def test_what_is_signed_is_what_is_sent_secrets_filled_in() -> None:
    async with peer() as there:
        seen = await notify(there, caller(DEFAULT=NEW), body={"token": "${secrets.TOKEN}"})
    assert Webhook(NEW).verify(seen.body, seen.headers) == {"token": "a-token"}


async def test_without_the_secret_nothing_is_sent() -> None:
    async with peer() as there:
        with pytest.raises(CallRefused, match=r"UNKNOWN_SECRET: .* set LUCIUS_WEBHOOK_SECRET_DEFAULT"):
            await notify(there, caller(OTHER=NEW))
        assert there.seen == []


def test_the_example_of_the_specification_gets_the_signature_that_it_shows() -> None:
    keys = parse_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330_000, b'{"test": 2432232314}', keys)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_our_signature_is_the_librarys() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    ours = signed_headers("msg_1", round(at.timestamp() * 1000) + 999, b'{"a":"\xc3\xbc"}', parse_keys(NEW))
    assert ours["webhook-signature"] == Webhook(NEW).sign("msg_1", at, '{"a":"ü"}')


@pytest.mark.parametrize(
    "secret",
    ["", "  ", "plain", NEW.removeprefix("whsec_"), "whsec_", NEW + "!!!!", "whsec_c2hvcnQ=", f"{NEW} plain"],
)
def test_a_secret_that_is_none_is_found_at_the_start_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="LUCIUS_WEBHOOK_SECRET_DEFAULT: ") as refused:
        caller(DEFAULT=secret)
    assert not secret.strip() or secret not in str(refused.value)
