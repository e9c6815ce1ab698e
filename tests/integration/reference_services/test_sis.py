import json
from pathlib import Path
from typing import Any

import pytest

from lucius.contract import ProgressCounts
from lucius.reference_services import SERVICES
from lucius.reference_services.answers import AnswerFinder, Prompts
from lucius.reference_services.documents import DocumentText
from lucius.reference_services.models import Models
from lucius.reference_services.retrieval import ChunkIndex
from lucius.reference_services.sentences import sentences_by_chunk
from lucius.reference_services.vectors import Chunk, Chunking, embed_document
from lucius.worker.testing import Outcome
from tests.integration.reference_services.support import StopsAt, left, run, run_text, service, write_input

TEXT = """The invoice was issued on 3 May. It is due within thirty days.
The parties may terminate the contract in writing. Cats are not mentioned in the appendix.
Deliveries arrive at the northern warehouse every Tuesday morning."""
PROMPTS = {"prompt_set": ["When was the invoice issued?", "Where do deliveries arrive?"]}
MODELS = Models("auto", 1)


def answers_in(outcome: Outcome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((outcome.folder / "result.json").read_bytes())["answers"]
    return found


@pytest.fixture(params=["auto", "hash"])
def model(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"embedding_model": request.param}


async def test_three_steps_pass_their_artifacts_on_to_the_final_output(tmp_path: Path, model: dict[str, Any]) -> None:
    ocr = await run_text("ocr", tmp_path, TEXT)
    inputs = {"ocr": left(*ocr.artifact_refs)}
    payload = {"chunk_size": 120, "chunk_overlap": 30}
    embedding = await run("embedding", tmp_path, payload, inputs=inputs, settings=model)
    inputs["embedding"] = left(*embedding.artifact_refs)
    sis = await run("sis", tmp_path, PROMPTS, inputs=inputs, input_ref="blob://gone/x", last_step=True, settings=model)
    assert sis.artifact_refs[0].endswith("/workspace/sis/1/result.json")
    assert sis.result["prompts"] == sis.result["answered"] == 2
    assert sis.output.read_bytes() == (sis.folder / "result.json").read_bytes()
    first, second = answers_in(sis)
    assert "3 May" in first["answer"]
    assert "northern warehouse" in second["answer"]
    assert first["sources"][0]["score"] == first["score"] > 0


@pytest.mark.parametrize("as_first_step", [True, False])
async def test_sis_reads_text_if_there_are_no_vectors(tmp_path: Path, as_first_step: bool) -> None:
    ref = write_input(tmp_path, "in.txt", TEXT)
    changes: dict[str, Any] = {"input_ref": ref} if as_first_step else {"inputs": {"ocr": left(ref)}}
    outcome = await run("sis", tmp_path, PROMPTS, **changes)
    assert "northern warehouse" in answers_in(outcome)[1]["answer"]


async def test_sis_answers_without_the_extra(tmp_path: Path, without_extras: None) -> None:
    outcome = await run_text("sis", tmp_path, TEXT, PROMPTS)
    assert "northern warehouse" in answers_in(outcome)[1]["answer"]
    assert json.loads((outcome.folder / "result.json").read_bytes())["ranked_by"] == "hash-256"


async def test_client_can_supply_its_own_vectors(tmp_path: Path) -> None:
    chunk = {"index": 7, "start": 0, "end": 30, "text": "The warehouse is in the north.", "vector": [1.0, 0.0]}
    own = {"model": "theirs", "dimensions": 2, "chunk_size": 9, "chunk_overlap": 0, "chunks": [chunk]}
    outcome = await run_text("sis", tmp_path, json.dumps(own), {"prompt_set": ["Where is the warehouse?"]})
    (answer,) = answers_in(outcome)
    assert answer["answer"] == "The warehouse is in the north."
    assert answer["sources"][0]["chunk"] == 7


async def test_source_names_the_page_of_its_best_sentence(tmp_path: Path) -> None:
    text = "Nothing of interest.\fDeliveries arrive at the northern warehouse.\fNothing here either."
    outcome = await run_text("sis", tmp_path, text, {"prompt_set": ["Where do deliveries arrive?"]})
    (answer,) = answers_in(outcome)
    assert answer["answer"] == "Deliveries arrive at the northern warehouse."
    assert answer["sources"][0]["page"] == 2


def test_answer_comes_from_the_closest_chunk() -> None:
    chunking = Chunking(chunk_size=70, chunk_overlap=0)
    vectors = embed_document(DocumentText(TEXT, []), chunking, MODELS.choose("hash", None))
    reader = AnswerFinder(vectors, ChunkIndex(vectors, MODELS))
    found = reader.answer("deliveries at the northern warehouse", Prompts(["x"], top_k=1, max_sentences=1))
    (source,) = found.sources
    assert "northern warehouse" in TEXT[source.start : source.end]
    assert found.answer == "Deliveries arrive at the northern warehouse every Tuesday morning."


@pytest.mark.parametrize("prompt", ["zzz qqq", "What is the capital of France?", "Who won the football match?"])
async def test_prompt_unrelated_to_the_document_has_no_answer(
    tmp_path: Path, prompt: str, model: dict[str, Any]
) -> None:
    outcome = await run_text("sis", tmp_path, TEXT, {"prompt_set": [prompt]}, settings=model)
    assert outcome.result["answered"] == 0
    (answer,) = answers_in(outcome)
    assert (answer["prompt"], answer["answer"], answer["sources"]) == (prompt, "", [])


async def test_min_score_decides_what_counts_as_an_answer(tmp_path: Path) -> None:
    prompt = {"prompt_set": ["What is the capital of France?"], "min_score": 0.0}
    assert (await run_text("sis", tmp_path, TEXT, prompt)).result["answered"] == 1
    assert (await run_text("sis", tmp_path, TEXT, {**PROMPTS, "min_score": 1.0})).result["answered"] == 0


async def test_output_can_be_plain_text_with_short_answers(tmp_path: Path) -> None:
    payload = {"prompt_set": [*PROMPTS["prompt_set"], "zzz"], "output_format": "text", "max_tokens": 2}
    outcome = await run_text("sis", tmp_path, TEXT, payload, last_step=True)
    assert [len(found["answer"].split()) for found in answers_in(outcome)] == [2, 2, 0]
    said = outcome.output.read_text()
    assert said.startswith("When was the invoice issued?\nThe invoice")
    assert said.endswith("zzz\n(no answer found in the document)")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"prompt_set": []},
        {"prompt_set": "x"},
        {"prompt_set": ["x"] * 1001},
        {"prompt_set": ["x"], "top_k": 0},
        {"prompt_set": ["x"], "min_score": 2},
        {"prompt_set": ["x"], "output_format": "pdf"},
    ],
)
async def test_invalid_sis_payload_is_not_retried(tmp_path: Path, payload: dict[str, Any]) -> None:
    outcome = await run_text("sis", tmp_path, TEXT, payload)
    assert (outcome.code, outcome.failure_class) == ("INVALID_PAYLOAD", "NON_RETRYABLE")


@pytest.mark.parametrize("chunks", ["[[]]", '[{"index":0,"start":0,"end":1,"text":"x","vector":[1.0]}]'])
async def test_damaged_vectors_are_not_retried(tmp_path: Path, chunks: str) -> None:
    bad = f'{{"model":"hash-2","dimensions":2,"chunk_size":1,"chunk_overlap":0,"chunks":{chunks}}}'
    outcome = await run(
        "sis", tmp_path, PROMPTS, inputs={"embedding": left(write_input(tmp_path, "vectors.json", bad))}
    )
    assert (outcome.code, outcome.failure_class) == ("UNSUPPORTED_INPUT", "NON_RETRYABLE")


async def test_image_without_an_ocr_step_is_refused_with_a_hint(tmp_path: Path) -> None:
    outcome = await run("sis", tmp_path, PROMPTS, input=b"\xff\xd8\xff\xe0" + bytes(range(256)))
    assert outcome.code == "UNSUPPORTED_INPUT"
    assert "needs an OCR engine" in str(outcome.message)


async def test_sis_stops_between_prompts_when_cancelled(tmp_path: Path) -> None:
    line = StopsAt(2)
    outcome = await run_text("sis", tmp_path, TEXT, {"prompt_set": ["x"] * 4}, line=line)
    assert outcome.code == "CANCELLED"
    assert line.last_progress == ProgressCounts(2, 4, "prompt")


def chunk(index: int, start: int, text: str, end: int | None = None) -> Chunk:
    return Chunk(index, start, start + len(text) if end is None else end, text, [])


def test_sentences_split_across_chunks_are_joined_and_keep_their_heading() -> None:
    text = "1. Term\nThis agreement ends on the last day of May. It may be renewed.\n2. Rest"
    cut = sentences_by_chunk([chunk(0, 0, text[:30]), chunk(1, 25, text[25:])], [])
    assert [sentence.text for sentence in cut[0]] == ["This agreement ends on the last day of May."]
    assert [sentence.in_context for sentence in cut[1]] == [
        "1. Term: This agreement ends on the last day of May.",
        "1. Term: It may be renewed.",
        "2. Rest",
    ]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (10**12, None), (0, 7)])
def test_chunks_with_wrong_offsets_are_used_as_they_are(start: int, end: int | None) -> None:
    ((first, second),) = sentences_by_chunk([chunk(0, start, "One here. Two there.", end)], [])
    assert (first.text, second.text) == ("One here.", "Two there.")


def test_shipped_services_are_known_by_name() -> None:
    assert {name: service(name).name for name in SERVICES} == {"ocr": "ocr", "embedding": "embedding", "sis": "sis"}
    assert service("sis").step_types == ["SIS"]
