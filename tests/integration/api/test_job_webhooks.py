"""Job webhooks: clients that set `callback_urls.job` are notified of the job's end once it is durable."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from standardwebhooks import Webhook, WebhookVerificationError

from lucius.adapters.http.caller import HttpCaller
from lucius.core.model.records import OutboxRow
from lucius.core.protocol.definition import WEBHOOK_SERVICE
from lucius.ports.clock import SystemClock
from lucius.ports.http import Closed, HttpResponse, Outgoing, Slot
from lucius.ports.outbox import PendingQuery
from lucius.usecases.access.webhook_secrets import derive_secret
from tests.integration.api.conftest import key_entry
from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock
from tests.support.peer import Peer, Seen, always, in_turn, ok, peer
from tests.support.until import until

T = TypeVar("T")
LONG_KEY = "a-key-of-more-than-20-characters"
SECRET = "whsec_" + "c2VjcmV0LWZvci10aGUtdGVzdHMtb25seQ=="
NEW, OTHER = "whsec_YSBuZXcgc2VjcmV0IG9mIDI0IGJ5dGVz", "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl"
CONFIG = "callbacks: {job_hosts: ['127.0.0.1:%d', localhost]}\ncalls: {allow_private: true, per_host: 2}\n"


@pytest.fixture
async def receiver() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path, receiver: Peer) -> AsyncIterator[Api]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % receiver.port)
    secrets = {"DEFAULT": OTHER, "ACME_NEW": NEW}
    now = ManualClock(SystemClock().now())  # receivers refuse signatures of another time
    settings = settings_for(tmp_path, config_path=config, webhook_secrets=secrets, webhook_master=SECRET)
    async with serving(settings, now) as api:
        yield api


async def test_signed_webhook_reports_how_the_job_ended(api: Api, receiver: Peer) -> None:
    job_id = await api.submit(callback_urls={"job": receiver.url + "/hook"}, correlation_id="c-7")
    assert receiver.seen == []
    (await api.succeed(await api.pull_one(), result={"pages": 3})).ok()
    await receiver.saw(1)
    (seen,) = receiver.seen
    told = Webhook(derive_secret(SECRET, "acme")).verify(seen.body, seen.headers)
    assert (seen.path, seen.headers["webhook-id"]) == ("/hook", f"{job_id}~run1")
    assert (told["type"], told["data"]["jobId"], told["data"]["status"]) == ("job.succeeded", job_id, "SUCCEEDED")
    assert (told["data"]["output"], told["data"]["correlation_id"]) == ({"pages": 3}, "c-7")
    assert told["data"]["reported_output_ref"] is None


async def test_webhook_names_the_reported_output(api: Api, receiver: Peer) -> None:
    await api.submit(callback_urls={"job": receiver.url}, output_ref="blob://out/")
    (await api.succeed(await api.pull_one(), artifact_refs=["blob://out/a.json"])).ok()
    await receiver.saw(1)
    data = receiver.seen[0].json["data"]
    assert (data["output_ref"], data["reported_output_ref"]) == ("blob://out/", "blob://out/a.json")


async def test_webhook_carries_trace_and_correlation_id_of_the_submission(api: Api, receiver: Peer) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"traceparent": trace, "tracestate": "a=1", "x-correlation-id": "order-7"}
    command = api.command(callback_urls={"job": receiver.url + "/hook"})
    (await api.post("/v1/commands", command, headers=headers)).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    await receiver.saw(1)
    assert {name: receiver.seen[0].headers[name] for name in headers} == headers


async def test_webhook_is_repeated_until_it_is_accepted_and_then_never_again(api: Api, receiver: Peer) -> None:
    receiver.answer = in_turn(always(500), ok)
    job_id = await api.submit(callback_urls={"job": receiver.url})
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await receiver.saw(1)
    webhooks = api.runtime.loops.webhooks
    await changed(api, job_id, lambda: rows(api), lambda found: [row.attempt_no for row in found] == [2])
    await webhooks.start_due()
    assert len(receiver.seen) == 1
    api.clock.advance(60)
    await webhooks.start_due()
    await changed(api, job_id, lambda: api.event_types(job_id), lambda types: "JOB_NOTICE_SENT" in types)
    assert [seen.json["type"] for seen in receiver.seen] == ["job.failed_final"] * 2
    assert len({seen.headers["webhook-id"] for seen in receiver.seen}) == 1
    api.clock.advance(10**6)
    await webhooks.start_due()
    assert len(receiver.seen) == 2


def is_signed(secret: str, seen: Seen) -> bool:
    try:
        Webhook(secret).verify(seen.body, seen.headers)
    except WebhookVerificationError:
        return False
    return True


async def end_job(api: Api, url: str, tenant_id: str, key: str = "") -> str:
    """End a job of this tenant, which starts its notice; return the job id."""
    job_id = await api.submit(callback_urls={"job": url}, tenant_id=tenant_id, idempotency_key=key or tenant_id)
    (await api.succeed(await api.pull_one())).ok()
    return job_id


async def test_tenants_have_different_webhook_secrets(api: Api, receiver: Peer) -> None:
    shown = {}
    for number, tenant in enumerate(("acme", "globex"), start=1):
        await end_job(api, receiver.url, tenant)
        await receiver.saw(number)
        answer = await api.get(f"/v1/tenants/{tenant}/webhook-secrets")
        (shown[tenant],) = answer.ok()["secrets"]
        assert answer.headers["cache-control"] == "no-store"
    by_acme, by_globex = receiver.seen
    assert [is_signed(shown["acme"], seen) for seen in (by_acme, by_globex)] == [True, False]
    assert [is_signed(shown["globex"], seen) for seen in (by_acme, by_globex)] == [False, True]
    assert not any(is_signed(secret, seen) for secret in (SECRET, OTHER) for seen in receiver.seen)


async def test_webhook_secret_of_a_tenant_is_rotated_with_overlap(api: Api, receiver: Peer, tmp_path: Path) -> None:
    derived = derive_secret(SECRET, "acme")
    for number, names in enumerate(("[ACME_NEW, derived]", "[ACME_NEW]"), start=1):
        tenants = f"tenants: {{acme: {{webhook_secrets: {names}}}}}\n"
        (tmp_path / "config.yaml").write_text(CONFIG % receiver.port + tenants)
        wanted = tuple(names.strip("[]").split(", "))
        await until(lambda wanted=wanted: _named(api) == wanted)  # type: ignore[misc]
        await end_job(api, receiver.url, "acme", names)
        await receiver.saw(number)
    overlap, after = receiver.seen
    assert [is_signed(secret, overlap) for secret in (NEW, derived)] == [True, True]
    assert [is_signed(secret, after) for secret in (NEW, derived)] == [True, False]
    assert (await api.get("/v1/tenants/acme/webhook-secrets")).ok() == {"tenant_id": "acme", "secrets": [NEW]}


def _named(api: Api) -> tuple[str, ...]:
    tenants = api.runtime.config.current().tenants or {}
    return tenants["acme"].webhook_secrets if "acme" in tenants else ()


async def test_webhook_secrets_are_shown_to_operators_of_the_tenant_only(
    api: Api, receiver: Peer, tmp_path: Path, log_stream: io.StringIO
) -> None:
    keys = [key_entry("acmes", "operate", tenants=("acme",)), key_entry("reads", "read", "submit", tenants=("*",))]
    (tmp_path / "config.yaml").write_text(CONFIG % receiver.port + yaml.safe_dump({"api_keys": keys}))
    await until(lambda: api.runtime.auth.key_count == 3)  # with the one that the server was started with
    assert (await api.get("/v1/tenants/ACME/webhook-secrets", key="acmes")).ok()["tenant_id"] == "acme"
    (await api.get("/v1/tenants/globex/webhook-secrets", key="acmes")).problem(403, "FORBIDDEN_TENANT")
    (await api.get("/v1/tenants/acme/webhook-secrets", key="reads")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/tenants/acme/webhook-secrets", key="")).problem(401, "UNAUTHENTICATED")
    (await api.get("/v1/tenants/a%20b/webhook-secrets")).problem(422, "INVALID_TENANT")
    (shown,) = [
        line for line in map(json.loads, log_stream.getvalue().splitlines()) if "secrets were shown" in str(line)
    ]
    assert (shown["by"], shown["tenant_id"]) == ("acmes", "acme")
    assert derive_secret(SECRET, "acme") not in log_stream.getvalue()


async def test_receiver_with_retry_after_pauses_webhooks_of_its_own_tenant_only(api: Api, receiver: Peer) -> None:
    receiver.answer = always(429, None, Retry_After="600")
    quiet = await end_job(api, receiver.url, "acme")
    await changed(api, quiet, lambda: rows(api), lambda found: all(row.next_attempt_at for row in found))
    receiver.answer = ok
    told = await end_job(api, receiver.url, "globex")
    await receiver.saw(2)
    assert receiver.seen[1].json["data"]["jobId"] == told
    caller = api.runtime.caller
    assert isinstance(caller.admit(caller.host(receiver.url)), Slot)
    assert isinstance(caller.admit(caller.host(receiver.url, "acme")), Closed)


@pytest.mark.parametrize("host", ["127.0.0.2", "hooks.example.com"])
async def test_webhook_host_outside_the_list_is_refused_at_submission(api: Api, receiver: Peer, host: str) -> None:
    body = api.command(callback_urls={"job": f"https://{host}:{receiver.port}/"})
    (await api.post("/v1/commands", body)).problem(422, "CALLBACK_URL_FORBIDDEN")


async def test_webhooks_without_a_list_go_only_to_public_https_hosts(tmp_path: Path, receiver: Peer) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("calls: {hosts: ['127.0.0.1'], allow_http: true, allow_private: true}\n")
    async with serving(settings_for(tmp_path, config_path=config, dev=False, dev_api_key=LONG_KEY)) as api:
        api.key = LONG_KEY
        for url in (receiver.url, receiver.url.replace("http:", "https:")):
            body = api.command(callback_urls={"job": url})
            (await api.post("/v1/commands", body)).problem(422, "CALLBACK_URL_FORBIDDEN")


async def test_listed_host_with_a_private_address_gets_no_webhook_unless_calls_permit_it(
    tmp_path: Path, receiver: Peer
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("callbacks: {job_hosts: ['127.0.0.1']}\n")
    async with serving(settings_for(tmp_path, config_path=config, dev=False, dev_api_key=LONG_KEY)) as api:
        api.key = LONG_KEY
        job_id = await api.submit(callback_urls={"job": receiver.url.replace("http:", "https:")})
        (await api.succeed(await api.pull_one())).ok()
        await changed(api, job_id, lambda: api.event_types(job_id), lambda types: "JOB_NOTICE_FAILED" in types)
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
    assert receiver.seen == []


async def test_missing_webhook_secret_is_generated_and_kept(tmp_path: Path, receiver: Peer) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % receiver.port)
    for starts in (1, 2):
        async with serving(settings_for(tmp_path, config_path=config), ManualClock(SystemClock().now())) as api:
            await api.submit(callback_urls={"job": receiver.url})
            (await api.succeed(await api.pull_one())).ok()
            await receiver.saw(starts)
    path = tmp_path / "webhook-master.secret"
    assert path.stat().st_mode & 0o077 == 0
    secret = derive_secret(path.read_text(), "acme")
    assert [Webhook(secret).verify(seen.body, seen.headers)["type"] for seen in receiver.seen] == ["job.succeeded"] * 2


async def test_hanging_receiver_delays_no_other_webhook(api: Api, receiver: Peer) -> None:
    receiver.gate.clear()
    for number in range(60):
        await api.submit(callback_urls={"job": receiver.url}, idempotency_key=f"slow-{number}")
    for directive in await api.pull("ocr", max=60):
        (await api.succeed(directive)).ok()
    await receiver.saw(2)
    async with peer() as other:
        job_id = await api.submit(callback_urls={"job": other.url.replace("127.0.0.1", "localhost")})
        (await api.succeed(await api.pull_one())).ok()
        await other.saw(1)
        assert other.seen[0].json["data"]["jobId"] == job_id
    assert len(receiver.seen) == 2
    receiver.gate.set()
    await receiver.saw(60)
    assert len({seen.headers["webhook-id"] for seen in receiver.seen}) == len(receiver.seen) == 60


async def test_receiver_with_retry_after_is_not_called_again_and_uses_up_no_attempts(api: Api, receiver: Peer) -> None:
    receiver.answer = always(429, None, Retry_After="600")
    for number in range(5):
        job_id = await api.submit(callback_urls={"job": receiver.url}, idempotency_key=f"job-{number}")
        (await api.succeed(await api.pull_one())).ok()
        await changed(api, job_id, lambda: rows(api), lambda found: all(row.next_attempt_at for row in found))
    assert len(receiver.seen) == 1
    assert sorted(row.attempt_no for row in await rows(api)) == [1, 1, 1, 1, 2]


async def test_unexpected_error_fails_one_webhook_and_no_other(
    api: Api, receiver: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = HttpCaller.send

    async def breaking(caller: HttpCaller, outgoing: Outgoing) -> HttpResponse:
        if outgoing.url.endswith("/bad"):
            raise KeyError("surprise")
        return await send(caller, outgoing)

    monkeypatch.setattr(HttpCaller, "send", breaking)
    job_id = await api.submit(callback_urls={"job": f"{receiver.url}/bad"}, idempotency_key="bad")
    (await api.succeed(await api.pull_one())).ok()
    await changed(api, job_id, lambda: rows(api), lambda found: [row.attempt_no for row in found] == [2])
    await api.submit(callback_urls={"job": f"{receiver.url}/good"}, idempotency_key="good")
    (await api.succeed(await api.pull_one())).ok()
    await receiver.saw(1)
    metrics = (await api.get("/metrics")).body.decode()
    assert 'lucius_loop_failures_total{loop="webhooks"} 1.0' in metrics


async def test_webhook_is_sent_for_every_run(api: Api, receiver: Peer) -> None:
    job_id = await api.submit(callback_urls={"job": receiver.url})
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    await receiver.saw(1)
    (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": "mended"})).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    await receiver.saw(2)
    assert [seen.json["data"]["run_no"] for seen in receiver.seen] == [1, 2]
    assert [seen.json["type"] for seen in receiver.seen] == ["job.failed_final", "job.succeeded"]


async def rows(api: Api) -> list[OutboxRow]:
    return await api.runtime.store.outbox.pending(PendingQuery(limit=10, now=2**60, service=WEBHOOK_SERVICE))


async def changed(api: Api, job_id: str, look: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> None:
    """Wait until commits of the job have made `is_so` true."""
    async with asyncio.timeout(5):
        with api.runtime.notifier.watch(job_id) as moved:
            while not is_so(await look()):
                await moved.wait()
                moved.clear()


async def test_dev_sends_webhooks_to_this_machine_without_configuration(tmp_path: Path, receiver: Peer) -> None:
    settings = settings_for(tmp_path, dev=True, webhook_master=SECRET)
    async with serving(settings, ManualClock(SystemClock().now())) as api:
        await api.submit(callback_urls={"job": receiver.url + "/hook"})
        (await api.succeed(await api.pull_one())).ok()
        await receiver.saw(1)
        (seen,) = receiver.seen
    assert Webhook(derive_secret(SECRET, "acme")).verify(seen.body, seen.headers)["type"] == "job.succeeded"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/hook", "http://localhost:9/hook", "http://[::1]:9/hook"])
async def test_webhook_to_this_machine_is_refused_outside_dev(tmp_path: Path, url: str) -> None:
    settings = settings_for(tmp_path, dev=False, dev_api_key=LONG_KEY)
    async with serving(settings, ManualClock(SystemClock().now())) as api:
        api.key = LONG_KEY
        refused = await api.post("/v1/commands", api.command(callback_urls={"job": url}))
        refused.problem(422, "CALLBACK_URL_FORBIDDEN")


@pytest.mark.parametrize("url", ["http://10.0.0.1/hook", "http://example.com/hook", "ftp://127.0.0.1/hook"])
async def test_dev_permits_webhooks_to_no_other_host(tmp_path: Path, url: str) -> None:
    async with serving(settings_for(tmp_path, dev=True), ManualClock(SystemClock().now())) as api:
        refused = await api.post("/v1/commands", api.command(callback_urls={"job": url}))
        refused.problem(422, "CALLBACK_URL_FORBIDDEN")
