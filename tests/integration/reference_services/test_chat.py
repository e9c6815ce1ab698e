"""Answers through an OpenAI-compatible endpoint, against a local one."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lucius.reference_services.chat import INSTRUCTIONS, messages_for
from lucius.reference_services.sis import MAX_CONCURRENT_PROMPTS
from lucius.reference_services.vectors import Chunk
from lucius.worker.testing import Outcome
from tests.integration.reference_services.chat_peer import KEY, ChatPeer, chat_peer, said
from tests.integration.reference_services.support import StopsAt, run_text

TEXT = "The invoice is due in May.\fThe warehouse is in the north. Deliveries arrive every Tuesday."


@pytest.fixture
async def peer() -> AsyncIterator[ChatPeer]:
    async with chat_peer() as found:
        yield found


async def ask_sis(peer: ChatPeer, folder: Path, *prompts: str, **more: Any) -> Outcome:
    payload = {"prompt_set": list(prompts), **more.pop("payload", {})}
    settings = {"chat": peer.settings(**more.pop("chat", {})), "embedding_model": "hash"}
    return await run_text("sis", folder, TEXT, payload, settings=settings, **more)


def answers_in(outcome: Outcome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((outcome.folder / "result.json").read_bytes())["answers"]
    return found


async def test_model_is_asked_with_the_chunks_that_were_found(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["warehouse"] = said("In the north [1].")
    outcome = await ask_sis(peer, tmp_path, "Where is the warehouse?", payload={"max_tokens": 77}, last_step=True)
    (answer,) = answers_in(outcome)
    assert (answer["prompt"], answer["answer"]) == ("Where is the warehouse?", "In the north [1].")
    assert answer["sources"][0]["chunk"] == 0
    (body,) = peer.asked
    assert (body["model"], body["max_tokens"]) == ("test-model", 77)
    assert body["messages"][0] == {"role": "system", "content": INSTRUCTIONS}
    assert "The warehouse is in the north." in body["messages"][1]["content"]
    assert body["messages"][1]["content"].endswith("Question: Where is the warehouse?")
    (headers,) = peer.headers
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert len(headers["Idempotency-Key"]) == 64
    document = json.loads(outcome.output.read_bytes())
    assert (document["method"], document["chat_model"], document["ranked_by"]) == ("chat", "test-model", "hash-256")


async def test_trace_of_the_job_is_sent_to_the_endpoint(peer: ChatPeer, tmp_path: Path) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    carried = {"traceparent": trace, "tracestate": "a=1", "correlation_id": "order-7"}
    assert (await ask_sis(peer, tmp_path, "Where?", **carried)).succeeded
    headers = {name.lower(): text for name, text in peer.headers[0].items()}
    assert (headers["traceparent"], headers["tracestate"], headers["x-correlation-id"]) == (trace, "a=1", "order-7")


@pytest.mark.parametrize(
    ("carried", "left_out"),
    [({"correlation_id": "order\r\n7"}, "x-correlation-id"), ({"traceparent": "00-\n"}, "traceparent")],
)
async def test_invalid_trace_header_is_omitted(
    peer: ChatPeer, tmp_path: Path, carried: dict[str, str], left_out: str
) -> None:
    assert (await ask_sis(peer, tmp_path, "Where?", **carried)).succeeded
    assert left_out not in {name.lower() for name in peer.headers[0]}


@pytest.mark.parametrize(
    "told", [" no answer.\n", "**NO ANSWER**", '"No answer!"', "`NO_ANSWER`", "> *No Answer*…", "[NO ANSWER]"]
)
async def test_no_answer_of_the_model_counts_as_unanswered(peer: ChatPeer, tmp_path: Path, told: str) -> None:
    peer.answers["dog"] = said(told)
    outcome = await ask_sis(peer, tmp_path, "Whose dog is it?")
    assert outcome.result["answered"] == 0
    assert (answers_in(outcome)[0]["answer"], answers_in(outcome)[0]["sources"]) == ("", [])


async def test_endpoint_can_be_used_without_a_key(peer: ChatPeer, tmp_path: Path) -> None:
    assert (await ask_sis(peer, tmp_path, "Where?", chat={"api_key": ""})).succeeded
    assert "Authorization" not in peer.headers[0]


def refused(status: int, body: str = "", **headers: str) -> web.Response:
    return web.Response(
        status=status, text=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


@pytest.mark.parametrize(
    ("answer", "failure_class", "code"),
    [
        (refused(401, f"Incorrect API key provided: {KEY}"), "NON_RETRYABLE", "CHAT_FORBIDDEN"),
        (refused(403, f"{KEY[:12]}...{KEY[-8:]}"), "NON_RETRYABLE", "CHAT_FORBIDDEN"),
        (refused(400, f"the model is unknown to {KEY}"), "NON_RETRYABLE", "CHAT_REFUSED"),
        (refused(404, f"no route for key {KEY[:12]}****"), "NON_RETRYABLE", "CHAT_REFUSED"),
        (refused(307, "", Location="http://127.0.0.1:9/steal"), "NON_RETRYABLE", "CHAT_REFUSED"),
        (refused(429, "slow down"), "RATE_LIMITED", "CHAT_RATE_LIMITED"),
        (refused(500, f"ends in {KEY[-8:]}"), "DEPENDENCY_FAILED", "CHAT_FAILED"),
        (refused(529), "DEPENDENCY_FAILED", "CHAT_FAILED"),
        (refused(502), "TRANSIENT", "CHAT_UNAVAILABLE"),
        (refused(503), "TRANSIENT", "CHAT_UNAVAILABLE"),
        (refused(200, "<html>"), "DEPENDENCY_FAILED", "CHAT_BAD_ANSWER"),
        (refused(200, '{"choices": []}'), "DEPENDENCY_FAILED", "CHAT_BAD_ANSWER"),
        (said(None), "DEPENDENCY_FAILED", "CHAT_BAD_ANSWER"),
        (said(" \n"), "DEPENDENCY_FAILED", "CHAT_BAD_ANSWER"),
        (said("", "length"), "NON_RETRYABLE", "CHAT_CUT_OFF"),
        (said(None, "length"), "NON_RETRYABLE", "CHAT_CUT_OFF"),
        (said("", "content_filter"), "NON_RETRYABLE", "CHAT_CUT_OFF"),
    ],
)
async def test_endpoint_refusal_has_a_failure_class_and_never_shows_the_key(
    peer: ChatPeer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: web.Response,
    failure_class: str,
    code: str,
) -> None:
    peer.answers["x"] = answer
    outcome = await ask_sis(peer, tmp_path, "x")
    assert (outcome.failure_class, outcome.code) == (failure_class, code)
    shown = f"{outcome.message}{capfd.readouterr()}"
    assert not any(part in shown for part in (KEY, KEY[:12], KEY[-8:]))
    assert len(peer.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_of_the_endpoint_is_reported(peer: ChatPeer, tmp_path: Path, status: int) -> None:
    peer.answers["seconds"] = refused(status, Retry_After="17")
    assert (await ask_sis(peer, tmp_path, "seconds")).retry_after_seconds == 17
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    peer.answers["date"] = refused(status, Retry_After=until)
    waits = (await ask_sis(peer, tmp_path, "date")).retry_after_seconds
    assert waits is not None
    assert 60 < waits <= 90


async def test_unreachable_endpoint_is_a_failed_dependency(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask_sis(peer, tmp_path, "x", chat={"base_url": "http://127.0.0.1:9/v1"})
    assert (outcome.failure_class, outcome.code) == ("DEPENDENCY_FAILED", "CHAT_UNREACHABLE")


async def test_slow_endpoint_times_out(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask_sis(peer, tmp_path, "x", chat={"timeout_seconds": 0.0001})
    assert (outcome.failure_class, outcome.code) == ("TRANSIENT", "CHAT_TIMEOUT")


async def test_oversized_endpoint_answer_is_refused(
    peer: ChatPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.reference_services.chat.MAX_ANSWER_BYTES", 1000)
    peer.answers["x"] = said("y" * 1000)
    assert (await ask_sis(peer, tmp_path, "x")).code == "CHAT_BAD_ANSWER"


async def test_model_that_refuses_max_tokens_is_asked_with_max_completion_tokens(
    peer: ChatPeer, tmp_path: Path
) -> None:
    told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    peer.answers["x"] = refused(400, told)
    outcome = await ask_sis(peer, tmp_path, "x")
    assert outcome.code == "CHAT_REFUSED"
    assert [name for body in peer.asked for name in body if name.endswith("tokens")] == [
        "max_tokens",
        "max_completion_tokens",
    ]


async def test_retry_asks_only_unanswered_prompts_again(peer: ChatPeer, tmp_path: Path) -> None:
    prompts = [f"question {number}" for number in range(6)]
    peer.answers["question 4"] = refused(429, Retry_After="1")
    peer.slow = "question 5"  # asked together with question 4, and answered after it
    outcome = await ask_sis(peer, tmp_path, *prompts)
    assert outcome.code == "CHAT_RATE_LIMITED"
    assert sorted(peer.questions) == prompts
    del peer.answers["question 4"]
    outcome = await ask_sis(peer, tmp_path, *prompts, attempt_no=2)
    assert peer.questions[6:] == ["question 4"]
    assert [found["answer"] for found in answers_in(outcome)] == [f"You asked: {prompt}" for prompt in prompts]
    assert (await ask_sis(peer, tmp_path, *prompts, attempt_no=3, chat={"model": "other"})).succeeded
    assert len(peer.asked) == 13  # another model needs new answers
    assert (await ask_sis(peer, tmp_path, *prompts, attempt_no=4, idempotency_key="of another run")).succeeded
    assert len(peer.asked) == 19


@pytest.mark.parametrize("answer", [said("", "length"), said("")])
async def test_empty_answer_is_not_stored(peer: ChatPeer, tmp_path: Path, answer: web.Response) -> None:
    peer.answers["x"] = answer
    assert not (await ask_sis(peer, tmp_path, "x")).succeeded
    del peer.answers["x"]
    assert answers_in(await ask_sis(peer, tmp_path, "x", attempt_no=2))[0]["answer"] == "You asked: x"


async def test_empty_answer_cut_by_the_limit_names_the_limit(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["x"] = said("", "length")
    assert "max_tokens" in str((await ask_sis(peer, tmp_path, "x")).message)


async def test_truncated_answer_is_marked_and_asked_again_by_a_retry(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["price"] = said("The price is 1,2", "length")
    prompts = ("What is the price?", "Where?")
    outcome = await ask_sis(peer, tmp_path, *prompts, payload={"output_format": "text"}, last_step=True)
    first, second = answers_in(outcome)
    assert (first["answer"], first["truncated"]) == ("The price is 1,2", True)
    assert "truncated" not in second
    assert (outcome.result["answered"], outcome.result["truncated"]) == (2, 1)
    assert "The price is 1,2 … (cut off)" in outcome.output.read_text()
    peer.answers["price"] = said("The price is 1,240 euros.")
    outcome = await ask_sis(peer, tmp_path, *prompts, attempt_no=2)
    assert answers_in(outcome)[0]["answer"] == "The price is 1,240 euros."
    assert "truncated" not in outcome.result
    assert len(peer.asked) == 3


async def test_equal_prompts_are_asked_once(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask_sis(peer, tmp_path, "one", "two", "one", "one", "two")
    assert sorted(peer.questions) == ["one", "two"]
    assert [found["prompt"] for found in answers_in(outcome)] == ["one", "two", "one", "one", "two"]
    assert outcome.result["answered"] == 5


async def test_only_chunks_shown_to_the_model_are_sources(
    peer: ChatPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.reference_services.chat.MAX_CONTEXT_CHARS", 1000)
    text = "Deliveries arrive at the northern warehouse. " * 100
    settings = {"chat": peer.settings(), "embedding_model": "hash"}
    payload = {"prompt_set": ["Where do deliveries arrive?"], "top_k": 50}
    (answer,) = answers_in(await run_text("sis", tmp_path, text, payload, settings=settings))
    assert len(answer["sources"]) == 2


async def test_damaged_stored_answer_is_asked_again(peer: ChatPeer, tmp_path: Path) -> None:
    await ask_sis(peer, tmp_path, "x")
    (kept,) = (tmp_path / "workspace" / "sis" / "answers").iterdir()
    kept.write_bytes(b"{")
    assert (await ask_sis(peer, tmp_path, "x", attempt_no=2)).succeeded
    assert len(peer.asked) == 2


async def test_chat_stops_between_prompts_when_cancelled(peer: ChatPeer, tmp_path: Path) -> None:
    line = StopsAt(4)
    outcome = await ask_sis(peer, tmp_path, *[f"question {number}" for number in range(10)], line=line)
    assert outcome.code == "CANCELLED"
    assert len(peer.asked) == 2 * MAX_CONCURRENT_PROMPTS


def test_messages_contain_only_chunks_that_fit() -> None:
    chunks = [Chunk(number, 0, 20_000, "x" * 20_000, [], page=3) for number in range(3)]
    messages, shown = messages_for("Why?", chunks)
    content = messages[1]["content"]
    assert shown == 2
    assert "[1] (page 3) xxx" in content
    assert "[2] (page 3) xxx" in content
    assert "[3]" not in content
    assert len(content) < 24_200
