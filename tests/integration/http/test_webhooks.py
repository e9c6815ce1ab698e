"""Webhooks follow the Standard Webhooks convention, verified with its own library."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from lucius.adapters.http.caller import HttpCaller
from lucius.adapters.http.signing import parse_keys, signed_headers
from lucius.ports.clock import SystemClock
from lucius.ports.config import CallPolicy
from lucius.ports.errors import CallRefused
from lucius.ports.http import Outgoing
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


async def notify(remote: Peer, by: HttpCaller, secret: str = "default", body: Any = BODY) -> Seen:
    call = Outgoing(
        method="POST",
        url=f"{remote.url}/hooks",
        body=body,
        timeout_ms=5_000,
        idempotency_key="step-key-1",
        sign_with=secret,
        fills_secrets=True,
    )
    await by.send(call)
    return remote.seen[-1]


async def test_webhook_is_verified_with_its_secret_only() -> None:
    async with peer() as remote:
        seen = await notify(remote, caller(DEFAULT=NEW))
    assert Webhook(NEW).verify(seen.body, seen.headers) == BODY
    assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == "step-key-1"
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(seen.body, seen.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(seen.body.replace(b"1.5", b"9.5"), seen.headers)


async def test_webhook_is_signed_with_old_and_new_secret_during_a_rotation() -> None:
    async with peer() as remote:
        seen = await notify(remote, caller(DEFAULT=f"{NEW} {OLD}"))
    assert len(seen.headers["webhook-signature"].split(" ")) == 2
    assert Webhook(NEW).verify(seen.body, seen.headers) == Webhook(OLD).verify(seen.body, seen.headers) == BODY


async def test_webhook_is_signed_with_the_named_secret() -> None:
    async with peer() as remote:
        seen = await notify(remote, caller(DEFAULT=OLD, BILLING_TEAM=NEW), "billing-team")
    assert Webhook(NEW).verify(seen.body, seen.headers) == BODY


async def test_webhook_is_signed_after_its_secrets_are_filled_in() -> None:
    async with peer() as remote:
        seen = await notify(remote, caller(DEFAULT=NEW), body={"token": "${secrets.TOKEN}"})
    assert Webhook(NEW).verify(seen.body, seen.headers) == {"token": "a-token"}


async def test_webhook_without_a_secret_is_not_sent() -> None:
    async with peer() as remote:
        with pytest.raises(CallRefused, match=r"UNKNOWN_SECRET: .* set LUCIUS_WEBHOOK_SECRET_DEFAULT"):
            await notify(remote, caller(OTHER=NEW))
        assert remote.seen == []


def test_example_of_the_specification_has_the_specified_signature() -> None:
    keys = parse_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330_000, b'{"test": 2432232314}', keys)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_signature_equals_that_of_the_library() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    ours = signed_headers("msg_1", round(at.timestamp() * 1000) + 999, b'{"a":"\xc3\xbc"}', parse_keys(NEW))
    assert ours["webhook-signature"] == Webhook(NEW).sign("msg_1", at, '{"a":"ü"}')


@pytest.mark.parametrize(
    "secret",
    ["", "  ", "plain", NEW.removeprefix("whsec_"), "whsec_", NEW + "!!!!", "whsec_c2hvcnQ=", f"{NEW} plain"],
)
def test_invalid_webhook_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="LUCIUS_WEBHOOK_SECRET_DEFAULT: ") as refused:
        caller(DEFAULT=secret)
    assert not secret.strip() or secret not in str(refused.value)
