import json
from pathlib import Path
from typing import Any

import pytest

from lucius.services import SERVICES, Embedding, Ocr, Sis
from lucius.services.sis import Prompts, answer
from lucius.services.vectors import Chunking, embed_document
from lucius.worker import Output, StepFailure
from tests.unit.services.support import left, stored, task

TEXT = """The invoice was issued on 3 May. It is due within thirty days.
The parties may terminate the contract in writing. Cats are not mentioned in the appendix.
Deliveries arrive at the northern warehouse every Tuesday morning."""
PROMPTS = {"prompt_set": ["When is the invoice due?", "Where do deliveries arrive?"]}


def put(tmp_path: Path, text: str) -> str:
    (tmp_path / "in.txt").write_text(text)
    return f"file://{tmp_path}/in.txt"


def answers(tmp_path: Path, output: Output) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(stored(tmp_path, output.artifact_refs[0]).read_bytes())["answers"]
    return found


async def test_the_three_steps_work_through_inputs_to_the_clients_result(tmp_path: Path) -> None:
    ref = put(tmp_path, TEXT)
    ocr = await Ocr().execute(task(tmp_path, "ocr", input_ref=ref))
    inputs = {"ocr": left(*ocr.artifact_refs)}
    payload = {"chunk_size": 120, "chunk_overlap": 30}
    embedding = await Embedding().execute(task(tmp_path, "embedding", payload=payload, inputs=inputs, input_ref=ref))
    inputs["embedding"] = left(*embedding.artifact_refs)
    out = tmp_path / "out"
    out.mkdir()
    work = task(
        tmp_path,
        "sis",
        payload=PROMPTS,
        inputs=inputs,
        input_ref="blob://gone/x",
        last_step=True,
        output_ref=f"file://{out}",
    )
    sis = await Sis().execute(work)
    assert sis.artifact_refs[0].endswith("/job-1/sis/1/result.json")
    assert sis.result["prompts"] == sis.result["answered"] == 2
    assert (out / "job-1-result.json").read_bytes() == stored(tmp_path, sis.artifact_refs[0]).read_bytes()
    first, second = answers(tmp_path, sis)
    assert "invoice" in first["answer"]
    assert "northern warehouse" in second["answer"]
    assert first["sources"][0]["score"] == first["score"] > 0


@pytest.mark.parametrize("as_first_step", [True, False])
async def test_without_vectors_it_reads_text(tmp_path: Path, as_first_step: bool) -> None:
    ref = put(tmp_path, TEXT)
    changes: dict[str, Any] = {"input_ref": ref} if as_first_step else {"inputs": {"ocr": left(ref)}}
    output = await Sis().execute(task(tmp_path, "sis", payload=PROMPTS, **changes))
    assert "northern warehouse" in answers(tmp_path, output)[1]["answer"]


def test_the_closest_chunk_is_looked_at_first() -> None:
    vectors = embed_document(TEXT, Chunking(chunk_size=70, chunk_overlap=0, dimensions=256))
    found = answer("deliveries at the northern warehouse", vectors, Prompts(["x"], top_k=1, max_sentences=1))
    (source,) = found.sources
    assert "northern warehouse" in TEXT[source.start : source.end]
    assert "warehouse" in found.answer


async def test_a_prompt_the_document_says_nothing_about_has_no_answer(tmp_path: Path) -> None:
    work = task(tmp_path, "sis", payload={"prompt_set": ["zzz qqq"]}, input_ref=put(tmp_path, "Invoice"))
    output = await Sis().execute(work)
    assert output.result["answered"] == 0
    assert answers(tmp_path, output)[0] == {"prompt": "zzz qqq", "answer": "", "score": 0.0, "sources": []}


async def test_the_client_may_want_plain_text_and_short_answers(tmp_path: Path) -> None:
    payload = {**PROMPTS, "output_format": "text", "max_tokens": 2}
    out = f"file://{tmp_path}/out.txt"
    work = task(tmp_path, "sis", payload=payload, input_ref=put(tmp_path, TEXT), last_step=True, output_ref=out)
    output = await Sis().execute(work)
    assert all(len(found["answer"].split()) == 2 for found in answers(tmp_path, output))
    assert (tmp_path / "out.txt").read_text().startswith("When is the invoice due?\nThe invoice")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"prompt_set": []},
        {"prompt_set": "x"},
        {"prompt_set": ["x"], "top_k": 0},
        {"prompt_set": ["x"], "output_format": "pdf"},
    ],
)
async def test_a_payload_that_makes_no_sense_fails_for_good(tmp_path: Path, payload: dict[str, Any]) -> None:
    with pytest.raises(StepFailure, match="INVALID_PAYLOAD"):
        await Sis().execute(task(tmp_path, "sis", payload=payload))


async def test_damaged_vectors_fail_for_good(tmp_path: Path) -> None:
    bad = tmp_path / "vectors.json"
    bad.write_text('{"model":"m","dimensions":2,"chunk_size":1,"chunk_overlap":0,"chunks":[[]]}')
    work = task(tmp_path, "sis", payload=PROMPTS, inputs={"embedding": left(f"file://{bad}")})
    with pytest.raises(StepFailure, match="UNSUPPORTED_INPUT"):
        await Sis().execute(work)


def test_the_shipped_services_are_known_by_name() -> None:
    assert {name: kind.service for name, kind in SERVICES.items()} == {
        "ocr": "ocr",
        "embedding": "embedding",
        "sis": "sis",
    }
