import pytest

from lucius.reference_services.models import ENCODER, Models
from lucius.reference_services.retrieval import ChunkIndex
from lucius.reference_services.vectors import Chunk, Vectors
from tests.integration.reference_services.retrieval_benchmark import SET
from tests.integration.reference_services.support import hide

MODELS = Models("auto", 1)


def vectors_of(texts: list[str], name: str) -> Vectors:
    model = MODELS.choose(name, None)
    embedded = zip(texts, model.embed(texts), strict=True)
    chunks = [Chunk(number, 0, len(text), text, vector) for number, (text, vector) in enumerate(embedded)]
    return Vectors(model=model.name, dimensions=model.dimensions, chunk_size=800, chunk_overlap=0, chunks=chunks)


def hit_rate(index: ChunkIndex, count: int) -> float:
    """Return the share of questions whose sentence is among the `count` nearest."""
    asked = [(question, number) for number, (_, questions) in enumerate(SET) for question in questions]
    hits = sum(
        number in [chunk.index for _, chunk in index.nearest(index.query(question), count)]
        for question, number in asked
    )
    return hits / len(asked)


def test_encoder_finds_paraphrases_better_than_hashing() -> None:
    encoder, hashing = (ChunkIndex(vectors_of([text for text, _ in SET], name), MODELS) for name in (ENCODER, "hash"))
    assert hit_rate(encoder, 3) >= 0.85
    assert hit_rate(encoder, 1) >= 0.65
    assert hit_rate(hashing, 3) <= hit_rate(encoder, 3) - 0.15


@pytest.mark.parametrize("name", [ENCODER, "hash"])
def test_ranking_is_equal_with_and_without_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = vectors_of([text for text, _ in SET], name)
    one = ChunkIndex(vectors, MODELS)
    query = one.query("When does the contract expire?")
    ranked = [(chunk.index, round(score, 4)) for score, chunk in one.nearest(query, 10)]
    hide(monkeypatch, ["numpy"])
    assert [(chunk.index, round(score, 4)) for score, chunk in ChunkIndex(vectors, MODELS).nearest(query, 10)] == ranked


def test_vectors_of_an_unknown_model_are_replaced() -> None:
    own = [Chunk(0, 0, 3, "cat", [1.0, 0.0]), Chunk(1, 3, 10, "invoice", [0.0, 1.0])]
    theirs = Vectors(model="theirs-2", dimensions=2, chunk_size=9, chunk_overlap=0, chunks=own)
    index = ChunkIndex(theirs, MODELS)
    assert index.model.name == "hash-256"
    assert [chunk.text for _, chunk in index.nearest(index.query("the invoice"), 1)] == ["invoice"]


def test_vectors_with_unexpected_dimensions_are_replaced() -> None:
    own = [Chunk(0, 0, 7, "invoice", [1.0])]
    index = ChunkIndex(Vectors(model="hash-256", dimensions=1, chunk_size=9, chunk_overlap=0, chunks=own), MODELS)
    assert index.nearest(index.query("invoice"), 1)


def test_unrelated_chunk_is_not_found() -> None:
    index = ChunkIndex(vectors_of(["The invoice", "A warehouse"], "hash"), MODELS)
    assert [chunk.index for _, chunk in index.nearest(index.query("warehouse"), 9)] == [1]


def test_document_without_chunks_finds_nothing() -> None:
    index = ChunkIndex(Vectors(model="hash-256", dimensions=256, chunk_size=1, chunk_overlap=0, chunks=[]), MODELS)
    assert index.nearest(index.query("anything"), 3) == []
