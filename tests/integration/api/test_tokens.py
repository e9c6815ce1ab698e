"""Callback tokens: only the bearer of an attempt's directive can report on it, for as long as needed."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from lucius.usecases.callbacks.tokens import Claims, TokenSigner
from lucius.usecases.errors import Rejected
from tests.integration.api.conftest import Start
from tests.support.api import KEY, SECRET, Api, identity

Directive = dict[str, Any]
HOUR = 3600.0
DAY = 24 * HOUR


def signed(directive: Directive, secret: str = SECRET, **changes: Any) -> str:
    """Return a token as the server makes it."""
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


async def test_forged_or_foreign_token_is_refused(api: Api) -> None:
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


def respelled(token: str) -> set[str]:
    """Return variants with one character changed, added or doubled wherever a lenient decoder may ignore it."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    body, mac = token.split(".")
    last = {f"{part[:-1]}{char}" for part in (body, mac) for char in alphabet}
    changed = {f"{one}.{mac}" for one in last} | {f"{body}.{one}" for one in last}
    added = {f"{token[:i]}{char}{token[i:]}" for i in range(len(token) + 1) for char in "=!\n+/ "}
    standard = {f"{body.replace('-', '+').replace('_', '/')}.{mac.replace('-', '+').replace('_', '/')}"}
    return (changed | added | standard) - {token}


def test_respelled_token_is_refused() -> None:
    signer = TokenSigner((SECRET.encode(),))
    for n in range(3):  # the body's length decides how many bits its last character leaves unused
        token = signer.sign(Claims("acme" + "x" * n, "j", "ocr", 1, "l?>", 2**60))
        assert signer.verify(token).tenant_id == "acme" + "x" * n
        for other in respelled(token):
            with pytest.raises(Rejected):
                signer.verify(other)


async def test_two_authorization_headers_are_refused(api: Api) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    token = directive["callback_token"]
    for path, key in ((f"/v1/jobs/{job_id}", KEY), ("/v1/jobs", KEY), ("/v1/callbacks/ack", token)):
        method = "POST" if "callbacks" in path else "GET"
        scope = api.scope(method, path, key, None, None)
        scope["headers"].append((b"authorization", f"Bearer {key}".encode()))
        (await api.asgi(scope, json.dumps(identity(directive)).encode())).problem(401, "UNAUTHENTICATED")
    assert (await api.step(job_id))["status"] == "INITIATED"


@pytest.mark.parametrize(
    "other",
    [{"tenant_id": "globex"}, {"jobId": "another"}, {"stepId": "sis"}, {"attempt_no": 2}, {"lease_id": "another"}],
)
async def test_token_is_valid_for_its_own_attempt_only(api: Api, other: dict[str, Any]) -> None:
    await api.submit()
    directive = await api.pull_one()
    answer = await api.callback("result", directive, status="SUCCEEDED", **other)
    answer.problem(403, "CALLBACK_TOKEN_MISMATCH")
    assert (await api.step(directive["jobId"]))["status"] == "INITIATED"


async def test_tenant_in_a_callback_may_be_spelled_differently(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    assert (await api.callback("ack", directive, tenant_id=" ACME")).ok()["disposition"] == "APPLIED"


async def test_genuine_token_for_an_unknown_job_or_step_is_not_found(api: Api) -> None:
    """As after restoring a backup."""
    await api.submit()
    directive = await api.pull_one()
    gone = {**directive, "jobId": "gone"}
    (await api.callback("ack", gone, token=signed(gone))).problem(404, "JOB_NOT_FOUND")
    later = {**directive, "stepId": "sis"}
    (await api.callback("ack", later, token=signed(later))).problem(404, "STEP_NOT_FOUND")


async def test_token_outlives_the_lease_by_the_late_window(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    (await api.succeed(directive)).ok()
    api.clock.advance(15 * 60 + DAY)
    assert (await api.callback("heartbeat", directive)).ok()["disposition"] == "LATE"
    api.clock.advance(31)
    (await api.callback("heartbeat", directive)).problem(401, "CALLBACK_TOKEN_EXPIRED")


async def test_heartbeats_extend_the_token_with_the_lease(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, late_window_ms=60_000)
    await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    for _ in range(8):  # two hours, where the token alone would have expired after 17 minutes
        api.clock.advance(14 * 60)
        assert (await api.callback("heartbeat", directive)).ok()["disposition"] == "APPLIED"
    api.clock.advance(15 * 60 + 59)
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
    api.clock.advance(2)
    (await api.succeed(directive)).problem(401, "CALLBACK_TOKEN_EXPIRED")


async def test_token_secrets_can_be_rotated(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, token_secrets=("the new secret of ours", SECRET))
    await api.submit()
    directive = await api.pull_one()
    assert directive["callback_token"] == signed(
        directive, "the new secret of ours", expires_at=api.clock.now() + 30_000 + 900_000 + 86_400_000
    )
    assert (await api.callback("ack", directive, token=signed(directive))).ok()["disposition"] == "APPLIED"


async def test_token_of_an_extended_lease_stays_valid_after_fencing(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, late_window_ms=60_000)
    await api.submit()
    directive = await api.pull_one()
    for _ in range(8):  # two hours of heartbeats, far beyond the token's expiry
        api.clock.advance(14 * 60)
        (await api.callback("heartbeat", directive)).ok()
    await api.sweep(after=15 * 60 + 1)
    await api.sweep(after=10)
    assert (await api.pull_one())["attempt_no"] == 2
    (await api.succeed(directive)).problem(409, "STALE_CALLBACK")
