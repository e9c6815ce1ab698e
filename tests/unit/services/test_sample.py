"""The bundled contract: made by a script, read, embedded and asked about."""

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path

import pypdfium2  # type: ignore[import-untyped]
import pytest
from PIL import Image, ImageChops, ImageStat
from scripts import demo_pdf

from lucius.services.text import plain_text
from lucius.worker.testing import Outcome
from tests.unit.services.chat_peer import chat_peer
from tests.unit.services.support import hide, left, run

SCANNED = 3
QUESTIONS = {
    "When does the agreement end?": ("28 February 2029", 1),
    "How long do we have to pay an invoice?": ("forty-five days", 2),
    "What is the penalty for late delivery?": ("0.5 percent", 2),
    "Who inspected the pumps?": ("Ingrid Solberg", SCANNED),
    "Which law governs the agreement?": ("Sweden", 4),
}
UNANSWERABLE = "What is the name of the Buyer's dog?"


def pages_of(data: bytes) -> list[tuple[str, Image.Image]]:
    document = pypdfium2.PdfDocument(data)
    pages = [(page.get_textpage().get_text_bounded(), page.render(grayscale=True).to_pil()) for page in document]
    document.close()
    return pages


def test_what_is_bundled_is_what_the_script_makes() -> None:
    """To the eye and to a reader; not to the byte, since libraries that draw and pack differ by version."""
    bundled, made = pages_of(demo_pdf.SAMPLE.read_bytes()), pages_of(demo_pdf.build())
    assert [text for text, _ in bundled] == [text for text, _ in made]
    for (_, one), (_, other) in zip(bundled, made, strict=True):
        assert ImageStat.Stat(ImageChops.difference(one, other)).mean[0] < 1


def test_it_is_small_and_needs_ocr() -> None:
    assert demo_pdf.SAMPLE.stat().st_size < 300_000
    assert [number for number, (text, _) in enumerate(pages_of(demo_pdf.SAMPLE.read_bytes()), 1) if not text] == [
        SCANNED
    ]


async def answered(tmp_path: Path, model: str) -> tuple[Outcome, Outcome]:
    settings = {"embedding_model": model}
    ocr = await run("ocr", tmp_path, input=demo_pdf.SAMPLE.read_bytes(), settings=settings)
    inputs = {"ocr": left(*ocr.artifact_refs)}
    embedding = await run("embedding", tmp_path, inputs=inputs, settings=settings)
    inputs["embedding"] = left(*embedding.artifact_refs)
    payload = {"prompt_set": [*QUESTIONS, UNANSWERABLE]}
    return ocr, await run("sis", tmp_path, payload, inputs=inputs, last_step=True, settings=settings)


@pytest.mark.parametrize("model", ["auto", "hash"])
async def test_the_answers_are_found_one_of_them_on_the_scanned_page(tmp_path: Path, model: str) -> None:
    ocr, sis = await answered(tmp_path, model)
    assert (ocr.result["text_pages"], ocr.result["ocr_pages"]) == (3, 1)
    assert ocr.result["confidence"] > 0.95
    *found, last = json.loads(sis.output.read_bytes())["answers"]
    for answer, (fact, page) in zip(found, QUESTIONS.values(), strict=True):
        assert fact in answer["answer"]
        assert answer["sources"][0]["page"] == page
    assert last["answer"] == ""
    assert sis.result["answered"] == len(QUESTIONS)


async def test_meanwhile_the_loop_is_free_for_heartbeats(tmp_path: Path) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    await answered(tmp_path, "auto")
    ticking.cancel()
    assert max(later - earlier for earlier, later in pairwise(ticks)) < 1


async def test_the_scan_is_read_word_for_word(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, {"pages": [SCANNED]}, input=demo_pdf.SAMPLE.read_bytes())
    read = plain_text((outcome.folder / "output.txt").read_bytes()).split()
    assert read == " ".join(line.text for line in demo_pdf.ACCEPTANCE).split()


async def test_without_extras_all_but_the_scan_is_answered(tmp_path: Path, without_extras: None) -> None:
    ocr, sis = await answered(tmp_path, "auto")
    assert (ocr.result["text_pages"], ocr.result["unread_pages"]) == (3, 1)
    told = json.loads(sis.output.read_bytes())
    answers = {found["prompt"]: found for found in told["answers"]}
    known = {prompt: found for prompt, found in QUESTIONS.items() if found[1] != SCANNED}
    for prompt, (fact, page) in known.items():
        assert fact in answers[prompt]["answer"]
        assert answers[prompt]["sources"][0]["page"] == page
    assert sis.result["answered"] == len(known)
    assert sis.result["unread_pages"] == told["unread_pages"] == 1


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("chat", [True, False])
async def test_without_an_ocr_step_it_is_said_that_a_page_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extras: bool, chat: bool
) -> None:
    if not extras:
        hide(monkeypatch)
    data = demo_pdf.SAMPLE.read_bytes()
    embedding = await run("embedding", tmp_path, input=data, settings={"embedding_model": "hash"})
    assert embedding.result["unread_pages"] == 1
    assert json.loads((embedding.folder / "vectors.json").read_bytes())["unread_pages"] == 1
    async with chat_peer() as peer:
        settings = {"embedding_model": "hash", "chat": peer.settings() if chat else None}
        payload = {"prompt_set": ["Which law governs the agreement?"]}
        sis = await run("sis", tmp_path, payload, input=data, settings=settings)
        after = {"embedding": left(*embedding.artifact_refs)}
        later = await run("sis", tmp_path, payload, inputs=after, settings=settings, attempt_no=2)
    for outcome in (sis, later):
        told = json.loads((outcome.folder / "result.json").read_bytes())
        assert outcome.result["unread_pages"] == told["unread_pages"] == 1
        assert chat or told["answers"][0]["sources"][0]["page"] == 4


async def test_nothing_is_said_of_unread_pages_where_all_are_read(tmp_path: Path) -> None:
    _, sis = await answered(tmp_path, "hash")
    assert "unread_pages" not in sis.result
    assert "unread_pages" not in json.loads(sis.output.read_bytes())
