import pytest

from lucius.services.models import ENCODER, Models
from lucius.services.retrieval import Index
from lucius.services.vectors import Chunk, Vectors
from tests.unit.services.retrieval_set import SET
from tests.unit.services.support import hide

MODELS = Models("auto", 1)


def vectors_of(texts: list[str], name: str) -> Vectors:
    model = MODELS.chosen(name, None)
    embedded = zip(texts, model.embed(texts), strict=True)
    chunks = [Chunk(number, 0, len(text), text, vector) for number, (text, vector) in enumerate(embedded)]
    return Vectors(model=model.name, dimensions=model.dimensions, chunk_size=800, chunk_overlap=0, chunks=chunks)


def found_among(index: Index, count: int) -> float:
    """The share of questions whose sentence is among the nearest."""
    asked = [(question, number) for number, (_, questions) in enumerate(SET) for question in questions]
    hits = sum(
        number in [chunk.index for _, chunk in index.nearest(index.query(question), count)]
        for question, number in asked
    )
    return hits / len(asked)


def test_the_encoder_finds_what_was_asked_for_in_other_words_and_hashing_less_of_it() -> None:
    encoder, hashing = (Index(vectors_of([text for text, _ in SET], name), MODELS) for name in (ENCODER, "hash"))
    assert found_among(encoder, 3) >= 0.85
    assert found_among(encoder, 1) >= 0.65
    assert found_among(hashing, 3) <= found_among(encoder, 3) - 0.15


@pytest.mark.parametrize("name", [ENCODER, "hash"])
def test_numpy_makes_it_quicker_and_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = vectors_of([text for text, _ in SET], name)
    one = Index(vectors, MODELS)
    query = one.query("When does the contract expire?")
    ranked = [(chunk.index, round(score, 4)) for score, chunk in one.nearest(query, 10)]
    hide(monkeypatch, ["numpy"])
    assert [(chunk.index, round(score, 4)) for score, chunk in Index(vectors, MODELS).nearest(query, 10)] == ranked


def test_vectors_of_a_model_we_lack_are_not_compared_with_ours() -> None:
    own = [Chunk(0, 0, 3, "cat", [1.0, 0.0]), Chunk(1, 3, 10, "invoice", [0.0, 1.0])]
    theirs = Vectors(model="theirs-2", dimensions=2, chunk_size=9, chunk_overlap=0, chunks=own)
    index = Index(theirs, MODELS)
    assert index.model.name == "hash-256"
    assert [chunk.text for _, chunk in index.nearest(index.query("the invoice"), 1)] == ["invoice"]


def test_vectors_of_a_model_whose_name_has_other_dimensions_here_are_not_either() -> None:
    own = [Chunk(0, 0, 7, "invoice", [1.0])]
    index = Index(Vectors(model="hash-256", dimensions=1, chunk_size=9, chunk_overlap=0, chunks=own), MODELS)
    assert index.nearest(index.query("invoice"), 1)


def test_what_has_nothing_to_do_with_a_prompt_is_not_found() -> None:
    index = Index(vectors_of(["The invoice", "A warehouse"], "hash"), MODELS)
    assert [chunk.index for _, chunk in index.nearest(index.query("warehouse"), 9)] == [1]


def test_a_document_without_chunks_has_nothing_to_find() -> None:
    index = Index(Vectors(model="hash-256", dimensions=256, chunk_size=1, chunk_overlap=0, chunks=[]), MODELS)
    assert index.nearest(index.query("anything"), 3) == []
