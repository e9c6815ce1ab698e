"""Payloads, keys and tokens never appear in the logs, even if requests fail."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.protocols import Serve, approval, fail_step, protocol, task
from tests.support.api import KEY, SECRET, Api, serving, settings_for

PAYLOAD = "the-words-of-a-payload"
RESULT = "the-words-of-a-result"
REASON = "the-words-of-an-error"
FIELD = "the-words-of-a-field"


async def send_failing_requests(api: Api, directive: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests with secrets in them refused or broken, in every possible way."""
    payload = {"ocr": {"language": PAYLOAD}}
    await api.post("/v1/commands", api.command(payload={"ocr": [PAYLOAD]}, **{FIELD: 1}))
    await api.post("/v1/commands", json.dumps(api.command(payload=payload)).encode()[:-5])
    await api.post("/v1/commands", api.command(payload={PAYLOAD: {}}))
    await api.post("/v1/commands", api.command(input_ref=f"https://user:{PAYLOAD}@h/?sig={PAYLOAD}"))
    await api.post("/v1/commands", api.command(payload=payload), key=f"{PAYLOAD}-as-a-key")
    await api.post("/v1/commands:batch", {"commands": [api.command(payload=payload, mode="BURST"), payload]})
    await api.callback("result", directive, status=RESULT, result=RESULT)
    await api.callback("ack", directive, token=f"{RESULT}.{RESULT}", more=RESULT)
    await api.callback("ack", {**directive, "lease_id": RESULT}, token=directive["callback_token"])
    await api.fail(directive, error={"code": "BROKEN", "message": REASON}, logs=RESULT)
    await api.succeed(directive, result=RESULT)

    async def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patched:
        patched.setattr(api.runtime.engine, "create", broken)
        (await api.post("/v1/commands", api.command(payload=payload, idempotency_key="b"))).problem(500, "INTERNAL")
        await api.post("/v1/commands:batch", {"commands": [api.command(payload=payload, idempotency_key="b")]})


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_secrets_are_not_logged(
    tmp_path: Path,
    log_format: str,
    log_stream: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with serving(settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db")) as api:
        job_id = await api.submit(payload={"ocr": {"language": PAYLOAD}}, correlation_id="corr-7")
        directive = await api.pull_one()
        await send_failing_requests(api, directive, monkeypatch)
        await api.sweep(after=400)
        second = await api.pull_one()
        (await api.succeed(directive, result=RESULT)).problem(409, "STALE_CALLBACK")
        (await api.succeed(second, result=RESULT)).ok()
        await asyncio.sleep(0)
    text = log_stream.getvalue() + "".join(capfd.readouterr())
    assert "a bug of ours" in text, "errors are logged, with their traces"
    for secret in (PAYLOAD, RESULT, REASON, KEY, SECRET, directive["callback_token"], second["callback_token"]):
        assert secret not in text
    if log_format == "json":
        check_entries([json.loads(line) for line in log_stream.getvalue().splitlines()], job_id)


def check_entries(entries: list[dict[str, Any]], job_id: str) -> None:
    told = {entry["event"]: entry for entry in entries if entry.get("job_id") == job_id}
    assert told.keys() >= {"JOB_ACCEPTED", "STEP_RETRY_SCHEDULED", "CALLBACK_RESULT", "JOB_SUCCEEDED"}
    for entry in told.values():
        assert (entry["tenant_id"], entry["correlation_id"]) == ("acme", "corr-7")


async def test_operator_acts_are_logged_with_the_actor_but_without_their_texts(
    serve: Serve, log_stream: io.StringIO
) -> None:
    api = await serve(protocol("SIGNED", approval("sign", "finance"), task("read")))
    job_id = await api.submit(request_type="SIGNED", correlation_id="corr-7")
    (await api.post(f"/v1/jobs/{job_id}:pause", {"reason": REASON})).ok(202)
    (await api.post(f"/v1/jobs/{job_id}:resume", {"reason": REASON})).ok(202)
    (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve", {"comment": REASON})).ok()
    await fail_step(api, "read")
    (await api.post(f"/v1/review/{job_id}~run1:skip", {"reason": REASON, "result": RESULT})).ok()
    assert REASON not in log_stream.getvalue()
    assert RESULT not in log_stream.getvalue()
    entries = [json.loads(line) for line in log_stream.getvalue().splitlines()]
    told = {entry["event"]: entry for entry in entries if entry.get("job_id") == job_id}
    assert {entry["correlation_id"] for entry in told.values()} == {"corr-7"}
    for event in ("JOB_PAUSED", "JOB_RESUMED", "STEP_APPROVED", "RUN_STARTED", "STEP_SKIPPED", "REVIEW_CLOSED"):
        assert told[event]["by"] == "dev"
    assert (told["REVIEW_CLOSED"]["act"], told["REVIEW_CLOSED"]["review_id"]) == ("skip", f"{job_id}~run1")
    failed = told["STEP_FAILED"]
    assert (failed["failure_class"], failed["error_code"]) == ("NON_RETRYABLE", "BROKEN")
    assert failed["idempotency_key"] == (await api.step(job_id, "read"))["idempotency_key"]
