import json
import math
from pathlib import Path

import pytest

from lucius.services import Embedding
from lucius.services.vectors import Chunking, chunk_count, cosine, embed, embed_document
from lucius.worker import StepFailure
from tests.unit.services.support import left, stored, task


def put(tmp_path: Path, text: str, name: str = "output.txt") -> str:
    file = tmp_path / name
    file.write_text(text)
    return f"file://{file}"


async def test_it_embeds_what_ocr_left_in_overlapping_chunks(tmp_path: Path) -> None:
    text = "".join(f"word{number:03} " for number in range(50))
    payload = {"chunk_size": 100, "chunk_overlap": 20, "dimensions": 32}
    inputs = {"ocr": left(put(tmp_path, text))}
    output = await Embedding().execute(task(tmp_path, "embedding", payload=payload, inputs=inputs))
    (ref,) = output.artifact_refs
    assert ref.endswith("/job-1/embedding/1/vectors.json")
    vectors = json.loads(stored(tmp_path, ref).read_bytes())
    chunks = vectors["chunks"]
    assert output.result["chunks"] == len(chunks) == 5
    assert [(chunk["start"], chunk["end"]) for chunk in chunks[:2]] == [(0, 100), (80, 180)]
    assert chunks[-1]["end"] == len(text)
    assert all(chunk["text"] == text[chunk["start"] : chunk["end"]] for chunk in chunks)
    assert all(len(chunk["vector"]) == 32 for chunk in chunks)
    assert all(math.isclose(math.hypot(*chunk["vector"]), 1, abs_tol=1e-4) for chunk in chunks)


async def test_as_a_first_step_it_reads_the_clients_document(tmp_path: Path) -> None:
    work = task(tmp_path, "embedding", input_ref=put(tmp_path, "a few words", "in.txt"))
    assert (await Embedding().execute(work)).result["chunks"] == 1


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_small_chunks_need_no_word_about_their_overlap(tmp_path: Path, size: int) -> None:
    ref = put(tmp_path, "a few words " * 10, "in.txt")
    work = task(tmp_path, "embedding", input_ref=ref, payload={"chunk_size": size})
    assert (await Embedding().execute(work)).result["chunks"] >= 120 // size


async def test_the_same_text_always_gives_the_same_vectors(tmp_path: Path) -> None:
    ref = put(tmp_path, "a few words", "in.txt")
    one = await Embedding().execute(task(tmp_path, "embedding", input_ref=ref))
    other = await Embedding().execute(task(tmp_path, "embedding", input_ref=ref, attempt_no=2))
    assert one.result["sha256"] == other.result["sha256"]


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 180, 181, 1000])
def test_the_number_of_chunks_is_known_beforehand(length: int) -> None:
    chunking = Chunking(100, 20, 8)
    chunks = embed_document("x" * length, chunking).chunks
    assert len(chunks) == chunk_count(length, chunking)
    assert chunks[-1].end == length


def test_texts_that_share_words_are_closer() -> None:
    wanted = embed("when is the invoice due", 256)
    assert cosine(wanted, embed("The invoice is due in May.", 256)) > cosine(wanted, embed("Cats sleep a lot.", 256))


@pytest.mark.parametrize(
    "payload",
    [
        {"chunk_size": 0},
        {"chunk_size": 10, "chunk_overlap": 10},
        {"chunk_overlap": -1},
        {"dimensions": 0},
        {"dimensions": 10**6},
        {"chunk_size": "many"},
    ],
)
async def test_a_payload_that_makes_no_sense_fails_for_good(tmp_path: Path, payload: dict[str, object]) -> None:
    with pytest.raises(StepFailure, match="INVALID_PAYLOAD"):
        await Embedding().execute(task(tmp_path, "embedding", payload=payload))


async def test_too_many_chunks_are_refused(tmp_path: Path) -> None:
    payload = {"chunk_size": 2, "chunk_overlap": 1}
    work = task(tmp_path, "embedding", payload=payload, input_ref=put(tmp_path, "x" * 30_000, "in.txt"))
    with pytest.raises(StepFailure, match="INPUT_TOO_LARGE"):
        await Embedding().execute(work)


async def test_a_job_that_is_being_cancelled_stops_between_stages(tmp_path: Path) -> None:
    work = task(tmp_path, "embedding", input_ref=put(tmp_path, "words", "in.txt"))
    work.cancelled.set()
    with pytest.raises(StepFailure, match="CANCELLED"):
        await Embedding().execute(work)
