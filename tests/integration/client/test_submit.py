"""Submitting: one command is one job, even if the answer is lost."""

import asyncio
import math
import time
from pathlib import Path

import pytest

from lucius.client import (
    Accepted,
    AsyncClient,
    Command,
    Conflict,
    Forbidden,
    Invalid,
    Misconfigured,
    Target,
    TooMany,
    Unauthenticated,
    Unreachable,
)
from lucius.usecases.access.auth import hash_key
from tests.integration.client.support import OCR, Proxy, Server, client, running

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_all_options_of_submit_arrive(lucius: AsyncClient, server: Server) -> None:
    accepted = await lucius.submit(
        "OCR",
        **OCR,
        payload={"ocr": {"language": "de"}},
        idempotency_key="k-1",
        mode="BURST",
        doc_id="d-1",
        correlation_id="c-1",
        target=Target("Document", "t-1"),
        protocol_version=1,
        trace=TRACE,
    )
    assert (accepted.status, accepted.duplicate) == ("DISPATCHING", False)
    job = await lucius.get(accepted.jobId)
    assert (job.tenant_id, job.request_type, job.input_ref, job.output_ref) == (
        "acme",
        "OCR",
        "blob://in/a.pdf",
        "blob://out/a.json",
    )
    assert (job.mode, job.doc_id, job.idempotency_key, job.correlation_id) == ("BURST", "d-1", "k-1", "c-1")
    assert (job.target, job.traceparent) == (Target("Document", "t-1"), TRACE)
    assert (await server.api.pull_one())["payload"]["language"] == "de"


async def test_path_becomes_a_file_ref(lucius: AsyncClient, tmp_path: Path) -> None:
    accepted = await lucius.submit("OCR", tenant="acme", input=tmp_path / "a b.pdf", output=tmp_path / "out")
    job = await lucius.get(accepted.jobId)
    assert (job.input_ref, job.output_ref) == (f"file://{tmp_path}/a%20b.pdf", f"file://{tmp_path}/out")


async def test_changed_file_is_a_new_job(lucius: AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"yesterday")
    command = Command("OCR", tenant="acme", input=file, output=tmp_path / "out")
    first, again = await lucius.submit_many([command, command])
    file.write_bytes(b"today")
    changed = await lucius.submit("OCR", tenant="acme", input=file, output=tmp_path / "out")
    assert isinstance(first, Accepted)
    assert isinstance(again, Accepted)
    assert (again.jobId, again.duplicate) == (first.jobId, True)
    assert again.accepted_at == (await lucius.get(first.jobId)).created_at
    assert (changed.jobId != first.jobId, changed.duplicate) == (True, False)


async def test_equal_content_finds_the_same_job_and_another_key_a_new_one(lucius: AsyncClient) -> None:
    first, again = await lucius.submit("OCR", **OCR), await lucius.submit("OCR", **OCR)
    assert (again.jobId, first.duplicate, again.duplicate) == (first.jobId, False, True)
    other = await lucius.submit("OCR", **OCR, idempotency_key="another")
    assert (other.jobId != first.jobId, other.duplicate) == (True, False)


@pytest.mark.parametrize("key", [None, "k-1"])
async def test_lost_answer_creates_no_second_job(
    proxied: AsyncClient, network: Proxy, lucius: AsyncClient, key: str | None
) -> None:
    network.plan.extend(["cut", "cut"])
    accepted = await proxied.submit("OCR", **OCR, idempotency_key=key)
    assert accepted.duplicate, "the first try made it"
    assert len(network.seen) == 3
    assert [job.jobId async for job in lucius.jobs()] == [accepted.jobId]


@pytest.mark.parametrize("fault", ["502", "503", "504", "429"])
async def test_answer_of_a_proxy_is_retried(proxied: AsyncClient, network: Proxy, fault: str) -> None:
    network.plan.append(fault)
    assert not (await proxied.submit("OCR", **OCR)).duplicate


async def test_hanging_server_is_asked_again(network: Proxy) -> None:
    network.plan.append("hang")
    async with client(network.url, timeout=0.3) as lucius:
        assert not (await lucius.submit("OCR", **OCR)).duplicate
    assert len(network.seen) == 2


async def test_slow_server_is_waited_for(network: Proxy) -> None:
    network.plan.append("late")
    async with client(network.url, timeout=5.0) as lucius:
        assert not (await lucius.submit("OCR", **OCR)).duplicate
    assert len(network.seen) == 1


async def test_command_reaches_a_server_that_starts_meanwhile(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with client(server.url) as lucius:
        sending = asyncio.create_task(lucius.submit("OCR", **OCR))
        await asyncio.sleep(0.3)
        await server.start()
        assert not (await sending).duplicate
    await server.stop()


async def test_limit_is_waited_out_for_the_retry_after(tmp_path: Path) -> None:
    async with running(tmp_path, tenant_inflight=1) as server, client(server.url) as lucius:
        first = await lucius.submit("OCR", **OCR, idempotency_key="1")
        began = time.monotonic()
        second = asyncio.create_task(lucius.submit("OCR", **OCR, idempotency_key="2"))
        await asyncio.sleep(0.1)
        await server.api.finish(first.jobId)
        assert not (await second).duplicate
        assert time.monotonic() - began >= 1.0, "Retry-After says 1"


async def test_limit_beyond_the_budget_names_the_retry_after(tmp_path: Path) -> None:
    async with running(tmp_path, tenant_inflight=0) as server, client(server.url, retry_for=0.5) as lucius:
        with pytest.raises(TooMany) as caught:
            await lucius.submit("OCR", **OCR)
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("TENANT_LIMIT", 429, 1)
    assert not caught.value.maybe_done


async def test_absent_server_is_reported_after_all_tries(server: Server) -> None:
    await server.stop()
    async with client(server.url, retry_for=0.4) as lucius:
        with pytest.raises(Unreachable) as caught:
            await lucius.submit("OCR", **OCR)
    assert (caught.value.failure, caught.value.maybe_done) == ("no_connection", False)
    assert caught.value.tries > 1
    assert str(caught.value).startswith(f"no server answers at {server.url}: ")


async def test_invalid_payload_is_reported_with_pointers(lucius: AsyncClient) -> None:
    with pytest.raises(Invalid) as caught:
        await lucius.submit("SIS", **OCR, payload={"sis": {"top_k": "many"}})
    refusal = caught.value
    assert (refusal.code, refusal.status, refusal.title) == (
        "INVALID_PAYLOAD",
        422,
        "The payload does not fit the protocol's steps",
    )
    assert {fault.pointer for fault in refusal.errors} == {"/payload/sis/prompt_set", "/payload/sis/top_k"}
    assert all(fault.pointer in str(refusal) for fault in refusal.errors)
    assert "[INVALID_PAYLOAD, 422 to POST /v1/commands]" in str(refusal)


async def test_key_of_another_command_names_its_job(lucius: AsyncClient) -> None:
    first = await lucius.submit("OCR", **OCR, idempotency_key="k")
    with pytest.raises(Conflict) as caught:
        await lucius.submit("OCR", **{**OCR, "input": "blob://in/b.pdf"}, idempotency_key="k")
    assert (caught.value.code, caught.value.job_id) == ("IDEMPOTENCY_KEY_REUSED", first.jobId)


async def test_wrong_key_is_refused_at_once(server: Server) -> None:
    async with client(server.url, api_key="wrong", retry_for=30) as lucius:
        async with asyncio.timeout(2):
            with pytest.raises(Unauthenticated, match="UNAUTHENTICATED, 401 to POST /v1/commands"):
                await lucius.submit("OCR", **OCR)


async def test_forbidden_webhook_is_refused(lucius: AsyncClient) -> None:
    with pytest.raises(Invalid) as caught:
        await lucius.submit("OCR", **OCR, callback_url="ftp://elsewhere.example/hook")
    assert caught.value.code == "CALLBACK_URL_FORBIDDEN"
    assert caught.value.errors[0].pointer == "/callback_urls/job"


async def test_current_trace_is_sent(server: Server, network: Proxy) -> None:
    current = [TRACE]
    async with client(network.url, trace=lambda: current[0]) as lucius:
        job = await lucius.get((await lucius.submit("OCR", **OCR)).jobId)
    assert job.traceparent == TRACE
    assert all(f"traceparent: {TRACE}".encode() in head for head in network.heads)


# Concurrent submissions


def many(count: int) -> list[Command]:
    return [Command("OCR", **OCR, idempotency_key=f"k-{n}") for n in range(count)]


async def test_submit_many_returns_each_outcome_in_order(lucius: AsyncClient) -> None:
    commands = many(3)
    commands[1] = Command("NONSENSE", **OCR)
    first, second, third = await lucius.submit_many(commands)
    assert isinstance(first, Accepted)
    assert isinstance(third, Accepted)
    assert isinstance(second, Invalid)
    assert (second.code, second.status) == ("UNKNOWN_REQUEST_TYPE", 422)
    assert "UNKNOWN_REQUEST_TYPE" in str(second)
    assert (await lucius.get(third.jobId)).idempotency_key == "k-2"
    assert await lucius.submit_many([]) == []


async def test_submit_many_sends_chunks_and_lost_answers_create_no_job_twice(
    proxied: AsyncClient, network: Proxy, lucius: AsyncClient
) -> None:
    network.plan.extend(["cut", "pass", "cut"])
    outcomes = await proxied.submit_many(many(501))
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len({one.jobId for one in accepted}) == 501
    assert len(network.seen) == 4, "two chunks, each twice"
    assert all(one.duplicate for one in accepted)
    assert len([job async for job in lucius.jobs()]) == 501


async def test_large_commands_make_small_chunks(proxied: AsyncClient, network: Proxy) -> None:
    commands = [Command("SIS", **OCR, payload={"sis": {"prompt_set": [f"{n}" + "x" * 3000]}}) for n in range(400)]
    outcomes = await proxied.submit_many(commands)
    assert all(isinstance(outcome, Accepted) for outcome in outcomes), outcomes[0]
    assert len(network.seen) == 2


async def test_commands_of_submit_many_over_a_limit_are_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path, tenant_inflight=2) as server, client(server.url) as lucius:
        sending = asyncio.create_task(lucius.submit_many(many(4)))
        async with asyncio.timeout(10):
            for _ in range(4):
                await server.api.succeed(*await server.api.pull(wait_seconds=5))
        assert all(isinstance(outcome, Accepted) for outcome in await sending)


async def test_commands_of_submit_many_that_stay_over_the_limit_are_reported(tmp_path: Path) -> None:
    async with running(tmp_path, tenant_inflight=2) as server, client(server.url, retry_for=0.5) as lucius:
        outcomes = await lucius.submit_many(many(3))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Accepted", "Accepted", "TooMany"]


async def test_key_without_the_tenant_is_forbidden(tmp_path: Path) -> None:
    config = tmp_path / "lucius.yaml"
    config.write_text(
        f"api_keys: [{{name: k, sha256: {hash_key('k')}, scopes: [submit, read], tenants: [other]}}]", encoding="utf-8"
    )
    async with running(tmp_path, config_path=config) as server, client(server.url, api_key="k") as lucius:
        with pytest.raises(Forbidden) as caught:
            await lucius.submit("OCR", **OCR)
        assert caught.value.code == "FORBIDDEN_TENANT"
        with pytest.raises(Forbidden):
            await lucius.pause("whatever")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_number_that_json_lacks_is_refused_before_sending(number: float) -> None:
    async with client("http://127.0.0.1:1", retry_for=0.0) as lucius:
        with pytest.raises(Misconfigured, match=r"^/payload/ocr/limits/1 is -?(nan|inf), which JSON cannot carry"):
            await lucius.submit("OCR", **OCR, payload={"ocr": {"limits": (1.0, number)}})
        with pytest.raises(Misconfigured, match=r"^/payload/a~1b is "):
            await lucius.submit_many([Command("OCR", **OCR, payload={"a/b": number})])
        with pytest.raises(Misconfigured, match=r"^/payload is "):
            await lucius.signal("job", "signed", payload=number)
        with pytest.raises(Misconfigured, match=r"^/result/score is "):
            await lucius.reviews.act("item", "skip", reason="known", result={"score": number})
        with pytest.raises(Misconfigured, match=r"^/body is "):
            await lucius.request("POST", "/v1/anything", body={"body": number})
