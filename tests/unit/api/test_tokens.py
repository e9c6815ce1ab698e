"""Callback tokens: only the bearer of an attempt's own directive speaks for it, and for long enough."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from lucius.service.tokens import Claims, TokenSigner
from tests.support.api import SECRET, Api, identity
from tests.unit.api.conftest import Start

Directive = dict[str, Any]
HOUR = 3600.0
DAY = 24 * HOUR


def signed(directive: Directive, secret: str = SECRET, **changes: Any) -> str:
    """A token as the server makes it."""
    claims: dict[str, Any] = {
        "tenant_id": directive["tenant_id"],
        "job_id": directive["jobId"],
        "step_id": directive["stepId"],
        "attempt_no": directive["attempt_no"],
        "lease_id": directive["lease_id"],
        "expires_at": 2**60,
    }
    return TokenSigner((secret.encode(),)).sign(Claims(**{**claims, **changes}))


def tampered(token: str) -> str:
    body, mac = token.split(".")
    claims = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims[3] += 1
    return urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + "." + mac


async def test_a_token_of_another_secret_or_with_another_content_is_refused(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    genuine = directive["callback_token"]
    forged = [
        "nonsense",
        "a.b",
        "..",
        "é.é",
        tampered(genuine),
        genuine[:-2],
        signed(directive, "another secret of ours"),
    ]
    for token in forged:
        answer = await api.callback("ack", directive, token=token)
        answer.problem(401, "INVALID_CALLBACK_TOKEN")
        assert answer.headers["www-authenticate"] == "Bearer"
        (await api.post("/v1/callbacks/ack", b"{", key=token)).problem(401, "INVALID_CALLBACK_TOKEN")
    (await api.post("/v1/callbacks/ack", identity(directive), key="")).problem(401, "INVALID_CALLBACK_TOKEN")
    (await api.post("/v1/callbacks/ack", identity(directive))).problem(401, "INVALID_CALLBACK_TOKEN")  # an API key
    assert (await api.step(directive["jobId"]))["status"] == "INITIATED"
    assert (await api.callback("ack", directive)).ok()["disposition"] == "APPLIED"


@pytest.mark.parametrize(
    "other",
    [{"tenant_id": "globex"}, {"jobId": "another"}, {"stepId": "sis"}, {"attempt_no": 2}, {"lease_id": "another"}],
)
async def test_a_token_speaks_for_its_own_attempt_only(api: Api, other: dict[str, Any]) -> None:
    await api.submit()
    directive = await api.pull_one()
    answer = await api.callback("result", directive, status="SUCCEEDED", **other)
    answer.problem(403, "CALLBACK_TOKEN_MISMATCH")
    assert (await api.step(directive["jobId"]))["status"] == "INITIATED"


async def test_the_tenant_in_a_callback_may_be_spelled_as_the_client_did(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    assert (await api.callback("ack", directive, tenant_id=" ACME")).ok()["disposition"] == "APPLIED"


async def test_a_genuine_token_for_what_is_not_in_the_ledger(api: Api) -> None:
    """As after a restore from a backup."""
    await api.submit()
    directive = await api.pull_one()
    gone = {**directive, "jobId": "gone"}
    (await api.callback("ack", gone, token=signed(gone))).problem(404, "JOB_NOT_FOUND")
    later = {**directive, "stepId": "sis"}
    (await api.callback("ack", later, token=signed(later))).problem(404, "STEP_NOT_FOUND")


async def test_a_token_outlives_the_lease_by_the_late_window(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    (await api.succeed(directive)).ok()
    api.clock.advance(15 * 60 + DAY)
    assert (await api.callback("heartbeat", directive)).ok()["disposition"] == "LATE"
    api.clock.advance(31)
    (await api.callback("heartbeat", directive)).problem(401, "CALLBACK_TOKEN_EXPIRED")


async def test_heartbeats_carry_the_token_with_the_lease(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, late_window_ms=60_000)
    await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    for _ in range(8):  # two hours, where the token alone would have lived for 17 minutes
        api.clock.advance(14 * 60)
        assert (await api.callback("heartbeat", directive)).ok()["disposition"] == "APPLIED"
    api.clock.advance(15 * 60 + 59)
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
    api.clock.advance(2)
    (await api.succeed(directive)).problem(401, "CALLBACK_TOKEN_EXPIRED")


async def test_secrets_can_be_rotated(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, token_secrets=("the new secret of ours", SECRET))
    await api.submit()
    directive = await api.pull_one()
    assert directive["callback_token"] == signed(
        directive, "the new secret of ours", expires_at=api.clock.now() + 30_000 + 900_000 + 86_400_000
    )
    assert (await api.callback("ack", directive, token=signed(directive))).ok()["disposition"] == "APPLIED"


async def test_a_token_outlives_a_stretched_lease_after_the_attempt_was_fenced(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, late_window_ms=60_000)
    await api.submit()
    directive = await api.pull_one()
    for _ in range(8):  # two hours of heartbeats: far past what the token foresaw
        api.clock.advance(14 * 60)
        (await api.callback("heartbeat", directive)).ok()
    await api.sweep(after=15 * 60 + 1)
    await api.sweep(after=10)
    assert (await api.pull_one())["attempt_no"] == 2
    (await api.succeed(directive)).problem(409, "STALE_CALLBACK")
