"""Answers through an OpenAI-compatible endpoint, against one that runs here."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lucius.services.chat import INSTRUCTIONS, messages_for
from lucius.services.sis import AT_ONCE
from lucius.services.vectors import Chunk
from lucius.worker import StopReason
from lucius.worker.context import LocalLine
from lucius.worker.testing import Outcome
from tests.unit.services.chat_peer import KEY, ChatPeer, chat_peer, said
from tests.unit.services.support import run_text

TEXT = "The invoice is due in May.\fThe warehouse is in the north. Deliveries arrive every Tuesday."


@pytest.fixture
async def peer() -> AsyncIterator[ChatPeer]:
    async with chat_peer() as found:
        yield found


async def ask(peer: ChatPeer, folder: Path, *prompts: str, **more: Any) -> Outcome:
    payload = {"prompt_set": list(prompts), **more.pop("payload", {})}
    settings = {"chat": peer.settings(**more.pop("chat", {})), "embedding_model": "hash"}
    return await run_text("sis", folder, TEXT, payload, settings=settings, **more)


def answers_in(outcome: Outcome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((outcome.folder / "result.json").read_bytes())["answers"]
    return found


async def test_the_model_is_asked_with_the_parts_that_were_found(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["warehouse"] = said("In the north [1].")
    outcome = await ask(peer, tmp_path, "Where is the warehouse?", payload={"max_tokens": 77}, last_step=True)
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


@pytest.mark.parametrize(
    "told", [" no answer.\n", "**NO ANSWER**", '"No answer!"', "`NO_ANSWER`", "> *No Answer*…", "[NO ANSWER]"]
)
async def test_a_model_that_finds_no_answer_gives_none(peer: ChatPeer, tmp_path: Path, told: str) -> None:
    peer.answers["dog"] = said(told)
    outcome = await ask(peer, tmp_path, "Whose dog is it?")
    assert outcome.result["answered"] == 0
    assert (answers_in(outcome)[0]["answer"], answers_in(outcome)[0]["sources"]) == ("", [])


async def test_an_endpoint_may_need_no_key(peer: ChatPeer, tmp_path: Path) -> None:
    assert (await ask(peer, tmp_path, "Where?", chat={"api_key": ""})).succeeded
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
async def test_what_the_endpoint_refuses_has_a_class_and_never_shows_the_key(
    peer: ChatPeer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: web.Response,
    failure_class: str,
    code: str,
) -> None:
    peer.answers["x"] = answer
    outcome = await ask(peer, tmp_path, "x")
    assert (outcome.failure_class, outcome.code) == (failure_class, code)
    shown = f"{outcome.message}{capfd.readouterr()}"
    assert not any(part in shown for part in (KEY, KEY[:12], KEY[-8:]))
    assert len(peer.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_an_endpoint_may_say_how_long_to_wait(peer: ChatPeer, tmp_path: Path, status: int) -> None:
    peer.answers["seconds"] = refused(status, Retry_After="17")
    assert (await ask(peer, tmp_path, "seconds")).retry_after_seconds == 17
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    peer.answers["date"] = refused(status, Retry_After=until)
    waits = (await ask(peer, tmp_path, "date")).retry_after_seconds
    assert waits is not None
    assert 60 < waits <= 90


async def test_an_endpoint_that_is_not_there_is_a_failed_dependency(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask(peer, tmp_path, "x", chat={"base_url": "http://127.0.0.1:9/v1"})
    assert (outcome.failure_class, outcome.code) == ("DEPENDENCY_FAILED", "CHAT_UNREACHABLE")


async def test_an_endpoint_that_takes_too_long_is_left(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask(peer, tmp_path, "x", chat={"timeout_seconds": 0.0001})
    assert (outcome.failure_class, outcome.code) == ("TRANSIENT", "CHAT_TIMEOUT")


async def test_an_endpoint_that_never_ends_is_cut_off(
    peer: ChatPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.services.chat.MAX_ANSWER_BYTES", 1000)
    peer.answers["x"] = said("y" * 1000)
    assert (await ask(peer, tmp_path, "x")).code == "CHAT_BAD_ANSWER"


async def test_models_that_know_the_limit_by_its_newer_name_are_asked_again(peer: ChatPeer, tmp_path: Path) -> None:
    told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    peer.answers["x"] = refused(400, told)
    outcome = await ask(peer, tmp_path, "x")
    assert outcome.code == "CHAT_REFUSED"
    assert [name for body in peer.asked for name in body if name.endswith("tokens")] == [
        "max_tokens",
        "max_completion_tokens",
    ]


async def test_a_retry_pays_only_for_what_has_no_answer_yet(peer: ChatPeer, tmp_path: Path) -> None:
    prompts = [f"question {number}" for number in range(6)]
    peer.answers["question 4"] = refused(429, Retry_After="1")
    peer.slow = "question 5"  # asked together with question 4, and answered after it
    outcome = await ask(peer, tmp_path, *prompts)
    assert outcome.code == "CHAT_RATE_LIMITED"
    assert sorted(peer.questions) == prompts
    del peer.answers["question 4"]
    outcome = await ask(peer, tmp_path, *prompts, attempt_no=2)
    assert peer.questions[6:] == ["question 4"]
    assert [found["answer"] for found in answers_in(outcome)] == [f"You asked: {prompt}" for prompt in prompts]
    assert (await ask(peer, tmp_path, *prompts, attempt_no=3, chat={"model": "other"})).succeeded
    assert len(peer.asked) == 13  # another model, another answer
    assert (await ask(peer, tmp_path, *prompts, attempt_no=4, idempotency_key="of another run")).succeeded
    assert len(peer.asked) == 19


@pytest.mark.parametrize("answer", [said("", "length"), said("")])
async def test_an_answer_that_never_came_is_not_kept(peer: ChatPeer, tmp_path: Path, answer: web.Response) -> None:
    peer.answers["x"] = answer
    assert not (await ask(peer, tmp_path, "x")).succeeded
    del peer.answers["x"]
    assert answers_in(await ask(peer, tmp_path, "x", attempt_no=2))[0]["answer"] == "You asked: x"


async def test_an_answer_without_room_says_what_to_raise(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["x"] = said("", "length")
    assert "max_tokens" in str((await ask(peer, tmp_path, "x")).message)


async def test_an_answer_that_was_cut_off_is_marked_and_asked_for_again(peer: ChatPeer, tmp_path: Path) -> None:
    peer.answers["price"] = said("The price is 1,2", "length")
    prompts = ("What is the price?", "Where?")
    outcome = await ask(peer, tmp_path, *prompts, payload={"output_format": "text"}, last_step=True)
    first, second = answers_in(outcome)
    assert (first["answer"], first["truncated"]) == ("The price is 1,2", True)
    assert "truncated" not in second
    assert (outcome.result["answered"], outcome.result["truncated"]) == (2, 1)
    assert "The price is 1,2 … (cut off)" in outcome.output.read_text()
    peer.answers["price"] = said("The price is 1,240 euros.")
    outcome = await ask(peer, tmp_path, *prompts, attempt_no=2)
    assert answers_in(outcome)[0]["answer"] == "The price is 1,240 euros."
    assert "truncated" not in outcome.result
    assert len(peer.asked) == 3


async def test_equal_prompts_are_paid_for_once(peer: ChatPeer, tmp_path: Path) -> None:
    outcome = await ask(peer, tmp_path, "one", "two", "one", "one", "two")
    assert sorted(peer.questions) == ["one", "two"]
    assert [found["prompt"] for found in answers_in(outcome)] == ["one", "two", "one", "one", "two"]
    assert outcome.result["answered"] == 5


async def test_only_what_the_model_was_shown_is_a_source(
    peer: ChatPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.services.chat.MAX_CONTEXT", 1000)
    text = "Deliveries arrive at the northern warehouse. " * 100
    settings = {"chat": peer.settings(), "embedding_model": "hash"}
    payload = {"prompt_set": ["Where do deliveries arrive?"], "top_k": 50}
    (answer,) = answers_in(await run_text("sis", tmp_path, text, payload, settings=settings))
    assert len(answer["sources"]) == 2


async def test_a_kept_answer_that_is_damaged_is_asked_for_again(peer: ChatPeer, tmp_path: Path) -> None:
    await ask(peer, tmp_path, "x")
    (kept,) = (tmp_path / "workspace" / "sis" / "answers").iterdir()
    kept.write_bytes(b"{")
    assert (await ask(peer, tmp_path, "x", attempt_no=2)).succeeded
    assert len(peer.asked) == 2


async def test_it_stops_between_questions_once_nobody_waits(peer: ChatPeer, tmp_path: Path) -> None:
    class Impatient(LocalLine):
        def progress(self, done: float) -> None:
            super().progress(done)
            if done >= 0.4:
                self.stop(StopReason.CANCELLED)

    line = Impatient()
    outcome = await ask(peer, tmp_path, *[f"question {number}" for number in range(10)], line=line)
    assert outcome.code == "CANCELLED"
    assert len(peer.asked) == 2 * AT_ONCE


def test_no_more_of_the_document_is_sent_than_fits() -> None:
    chunks = [Chunk(number, 0, 20_000, "x" * 20_000, [], page=3) for number in range(3)]
    messages, shown = messages_for("Why?", chunks)
    content = messages[1]["content"]
    assert shown == 2
    assert "[1] (page 3) xxx" in content
    assert "[2] (page 3) xxx" in content
    assert "[3]" not in content
    assert len(content) < 24_200
