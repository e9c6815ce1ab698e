"""Every example protocol through the real API on every ledger, with services, operators, signals and an HTTP peer."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lucius.bootstrap.settings import Settings
from lucius.usecases.access.auth import hash_key
from tests.support.api import Api, serving, settings_for
from tests.support.peer import Peer, peer

EXAMPLES = Path(__file__).parents[2] / "examples" / "protocols"
PEOPLE = ("anna", "ben", "carl")
SECRET = "whsec_c2VjcmV0LWZvci10aGUtdGVzdHMtb25seQ=="
DAY = 86_400.0


class World:
    """A server whose protocols call a peer instead of example.com, and services with configured answers."""

    def __init__(self, api: Api, peer_server: Peer) -> None:
        self.api = api
        self.peer_server = peer_server
        self.answers: dict[str, list[web.Response]] = {}
        self.results: dict[str, Any] = {}
        self.fails: dict[str, str] = {}
        self.asked: list[str] = []
        self._keys = count()
        peer_server.answer = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        host = request.path.split("/")[1]
        queue = self.answers.get(host, [])
        return queue.pop(0) if queue else web.json_response({"ok": True})

    def answer(self, host: str, body: Any, status: int = 200) -> None:
        self.answers.setdefault(host, []).append(web.json_response(body, status=status))

    async def submit(self, request_type: str, **payload: Any) -> str:
        target = {"type": "Document", "id": "d-1"}
        key = str(next(self._keys))
        return await self.api.submit(request_type=request_type, payload=payload, target=target, idempotency_key=key)

    async def reach(self, job_id: str, is_there: Callable[[Any], bool], services: tuple[str, ...] = ()) -> Any:
        """Let services work and the engine make calls until `is_there` holds for the job; return the job."""
        async with asyncio.timeout(10):
            while not is_there(job := await self.api.job(job_id)):
                with self.api.runtime.notifier.watch(job_id) as moved:
                    if not any([await self._serve(service) for service in services]):
                        job = await self.api.job(job_id)
                        if not is_there(job):
                            await _briefly(moved.wait())
        return job

    async def _serve(self, service: str) -> bool:
        directives = await self.api.pull(service, max=20)
        for directive in directives:
            name = directive["stepId"]
            if name in self.fails:
                (await self.api.fail(directive, failure_class=self.fails.pop(name))).ok()
            else:
                (await self.api.succeed(directive, result=self.results.get(name))).ok()
        return bool(directives)

    async def end(self, job_id: str, *services: str) -> Any:
        return await self.reach(job_id, lambda job: job["completed_at"] is not None, services)


async def _briefly(waiting: Awaitable[Any]) -> None:
    """Wait for a change, but no longer than a service waits between two pulls."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await waiting


Serve = Callable[[Settings], AbstractAsyncContextManager[Api]]


@asynccontextmanager
async def open_world(
    tmp_path: Path, ledger_url: str, serve: Serve, written: Callable[[str], str]
) -> AsyncIterator[World]:
    """Yield a server with the examples. `written` adapts a protocol's text for engines that can't skip days."""
    folder = tmp_path / "protocols"
    folder.mkdir()
    async with peer() as peer_server:
        for path in EXAMPLES.glob("*.yaml"):
            text = path.read_text().replace("https://", peer_server.url + "/")
            (folder / path.name).write_text(written(text.replace(".example.com", "")))
        keys = [
            {"name": name, "sha256": hash_key(name), "scopes": ["approve", "read"], "tenants": ["*"], "groups": groups}
            for name, groups in zip(PEOPLE, (["finance"], ["finance"], ["cfo"]), strict=True)
        ]
        policy = {"hosts": [f"127.0.0.1:{peer_server.port}"], "allow_http": True, "allow_private": True}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"calls": policy, "api_keys": keys}))
        settings = settings_for(
            tmp_path,
            ledger_url=ledger_url,
            protocols_dir=folder,
            config_path=config,
            secrets={"LEDGER_TOKEN": "t-1"},
            webhook_secrets={"DEFAULT": SECRET},
        )
        async with serve(settings) as api:
            assert api.runtime.protocols.problems() == ()
            yield World(api, peer_server)


@pytest.fixture
async def world(ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, ledger_url, serving, lambda text: text) as opened:
        yield opened


def states(job: Any) -> dict[str, str]:
    return {step["stepId"]: step["status"] for step in job["steps"]}


async def test_small_invoice_is_posted_without_approval(world: World) -> None:
    world.results["extract"] = {"amount": 90}
    job = await world.end(await world.submit("INVOICE_APPROVAL", supplier="Acme"), "extract")
    assert job["status"] == "SUCCEEDED"
    assert (states(job)["sign"], states(job)["tell"]) == ("SKIPPED", "SUCCEEDED")
    posted, told = world.peer_server.seen
    assert posted.headers["authorization"] == "Bearer t-1"
    assert posted.json == {"supplier": "Acme", "amount": 90, "reference": job["jobId"]}
    assert told.json["type"] == "invoice.posted"


async def test_large_invoice_needs_two_different_approvers(world: World) -> None:
    world.results["extract"] = {"amount": 9000}
    job_id = await world.submit("INVOICE_APPROVAL", supplier="Acme")
    job = await world.reach(job_id, lambda job: job["status"] == "WAITING_APPROVAL", ("extract",))
    assert job["blocked_on"]["message"].startswith("waiting for approval by finance since ")
    vote = f"/v1/jobs/{job_id}/steps/sign:approve"
    (await world.api.post(vote, {"comment": "fine"}, key="anna")).ok()
    (await world.api.post(vote, {}, key="anna")).problem(409, "ALREADY_VOTED")
    (await world.api.post(vote, {}, key="carl")).problem(403, "NOT_AN_APPROVER")
    (await world.api.post(vote, {}, key="ben")).ok()
    job = await world.end(job_id)
    assert (job["status"], states(job)["post"]) == ("SUCCEEDED", "SUCCEEDED")
    (await world.api.post(vote, {}, key="ben")).problem(409, "APPROVAL_ENDED")


async def test_undecided_approval_is_escalated_and_can_be_rejected(world: World) -> None:
    world.results["extract"] = {"amount": 9000}
    job_id = await world.submit("INVOICE_APPROVAL", supplier="Acme")
    await world.reach(job_id, lambda job: job["status"] == "WAITING_APPROVAL", ("extract",))
    await world.api.sweep(after=2 * DAY)
    job = await world.reach(job_id, lambda job: job["current_step_id"] == "escalate")
    assert "cfo" in job["blocked_on"]["message"]
    (await world.api.post(f"/v1/jobs/{job_id}/steps/escalate:reject", {"comment": "no"}, key="carl")).ok()
    job = await world.end(job_id)
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "REJECTED")
    assert world.peer_server.seen[0].json["type"] == "invoice.rejected"


async def test_pages_are_read_one_by_one_and_failures_are_collected(world: World) -> None:
    world.results["split"] = {"pages": [f"p{n}" for n in range(12)]}
    world.results |= {f"ocr_page.{n}": {"text": f"t{n}"} for n in range(12)}
    world.fails["ocr_page.3"] = "NON_RETRYABLE"
    job = await world.end(await world.submit("PAGE_MAP"), "split", "ocr", "merge")
    assert job["status"] == "SUCCEEDED"
    pages = next(step for step in job["steps"] if step["stepId"] == "pages")["result"]
    assert (pages["total"], pages["failed"], pages["items"][2]["result"]) == (12, 1, {"text": "t2"})
    assert (states(job)["ocr_page.3"], states(job)["ocr_page.11"]) == ("FAILED_FINAL", "SUCCEEDED")


async def test_first_failed_check_cancels_the_others(world: World) -> None:
    world.answer("sanctions", {"hits": 2})
    job_id = await world.submit("PARALLEL_CHECKS", supplier="Acme", vat_id="DE1")
    job = await world.end(job_id)
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "ON_A_SANCTIONS_LIST")
    assert (states(job)["checks"], states(job)["read_papers"]) == ("FAILED_FINAL", "CANCELLED")
    assert world.peer_server.seen[-1].json["type"] == "supplier.declined"


async def test_passed_checks_are_joined(world: World) -> None:
    world.answer("sanctions", {"hits": 0})
    job_id = await world.submit("PARALLEL_CHECKS", supplier="Acme", vat_id="DE1")
    job = await world.end(job_id, "ocr", "vet", "suppliers")
    assert job["status"] == "SUCCEEDED"
    assert set(states(job).values()) == {"SUCCEEDED", "SKIPPED"}


async def test_loop_polls_until_it_is_done(world: World) -> None:
    world.answer("batches", {"id": 7})
    world.answer("batches", {"state": "RUNNING"})
    world.answer("batches", {"state": "DONE"})
    job_id = await world.submit("POLLING")
    await world.reach(job_id, lambda job: (job["blocked_on"] or {}).get("reason") == "TIMER")
    await world.api.sweep(after=30)
    job = await world.end(job_id, "fetch")
    assert job["status"] == "SUCCEEDED"
    assert next(step for step in job["steps"] if step["stepId"] == "ask")["visit"] == 2
    keys = [seen.headers["idempotency-key"] for seen in world.peer_server.seen]
    assert len(set(keys)) == 3, "each visit has its own"


async def test_uncertain_payment_is_undone_in_reverse_order(world: World) -> None:
    world.answer("registry", {"number": "C-1"})
    world.answer("bank", {"why": "no"}, 500)
    job = await world.end(await world.submit("SAGA", amount=40), "archive")
    assert (job["status"], job["compensation"]["status"]) == ("FAILED_FINAL", "COMPLETED")
    assert job["compensation"]["done"] == ["pay", "file", "number"]
    assert world.asked == [
        "POST /registry/v1/numbers",
        "POST /bank/v1/payments",
        "POST /bank/v1/payments/by-purpose/C-1:refund",
        "DELETE /registry/v1/numbers/C-1",
    ]
    (item,) = (await world.api.get(f"/v1/review?jobId={job['jobId']}")).ok()["items"]
    assert item["kind"] == "COMPENSATION"


async def test_forbidden_transition_is_not_retried(world: World) -> None:
    world.answer("documents", {"code": "TRANSITION_FORBIDDEN", "detail": "a DRAFT can not become APPROVED"}, 409)
    job = await world.end(await world.submit("DOMAIN_TRANSITION"), "classify")
    assert job["status"] == "FAILED_FINAL"
    assert world.asked == ["POST /documents/v1/documents/d-1/transitions", "POST /hooks/documents"]
    assert world.peer_server.seen[-1].json["data"]["document"] == "d-1"


async def test_early_signature_is_kept_and_a_missing_one_times_out(world: World) -> None:
    sent = "2020-01-01T08:00:00Z"
    first, second = await world.submit("SIGNATURE", send_at=sent), await world.submit("SIGNATURE", send_at=sent)
    signal = {"name": "signed", "payload": {"outcome": "SIGNED"}}
    (await world.api.post(f"/v1/jobs/{first}:signal", signal)).ok(202)
    job = await world.end(first, "archive")
    assert job["status"] == "SUCCEEDED"
    job = await world.reach(second, lambda job: (job["blocked_on"] or {}).get("reason") == "SIGNAL")
    assert "waits for signal signed, times out at" in job["blocked_on"]["message"]
    (await world.api.post(f"/v1/jobs/{second}:signal", {"name": "sigmed"})).problem(409, "UNKNOWN_SIGNAL")
    await world.api.sweep(after=14 * DAY)
    await world.reach(second, lambda job: job["current_step_id"] == "back_late")
    await world.api.sweep(after=8 * DAY)
    job = await world.end(second)
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "SIGNAL_TIMEOUT")
