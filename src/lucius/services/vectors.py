"""vectors.json: chunks of a document with a vector each."""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from lucius.services.chunking import ChunkBy, check_sizes, chunk_spans, least_chunks
from lucius.services.documents import Text
from lucius.services.models import Model
from lucius.services.pages import PageSpan, page_at
from lucius.worker import NonRetryable

MAX_CHUNKS = 20_000
MAX_NUMBERS = 5_200_000
"""Of all vectors together: what a file of vectors may hold within the limits of a workspace."""
BATCH = 32


class Chunk(Struct, frozen=True):
    index: int
    start: int
    end: int
    text: str
    vector: list[float]
    page: int | None = None
    """The page it begins on, if known."""


class Vectors(Struct, frozen=True, kw_only=True):
    """vectors.json. `model` is what was used."""

    model: str
    dimensions: int
    chunk_size: int
    chunk_overlap: int
    chunk_by: ChunkBy = "size"
    pages: list[PageSpan] = msgspec.field(default_factory=list)
    unread_pages: int = 0
    """Pages whose text is missing here, since nobody has read them."""
    chunks: list[Chunk]


class Chunking(Struct, frozen=True):
    """The part of a step's payload that says how to cut and embed."""

    chunk_size: int = 800
    chunk_overlap: int | None = None
    chunk_by: ChunkBy = "size"
    min_chunk_size: int = 0
    model: str | None = None
    dimensions: int | None = None

    @property
    def overlap(self) -> int:
        """An eighth of a chunk unless told: a client that asks for small chunks need not think of it."""
        return self.chunk_size // 8 if self.chunk_overlap is None else self.chunk_overlap


def embed_document(
    document: Text, chunking: Chunking, model: Model, between: Callable[[float], None] = lambda done: None
) -> Vectors:
    """`between` is called before every batch with how far it is, 0 to 1, and may raise."""
    check_sizes(chunking.chunk_size, chunking.overlap, chunking.min_chunk_size)
    if chunking.chunk_size > model.longest_text:
        raise NonRetryable("INVALID_PAYLOAD", f"chunk_size is at most {model.longest_text} with {model.name}")
    _refuse_too_many(least_chunks(document.text, chunking.chunk_by, chunking.chunk_size, chunking.overlap), model)
    spans = chunk_spans(
        document.text,
        chunking.chunk_by,
        chunking.chunk_size,
        chunking.overlap,
        chunking.min_chunk_size,
        lambda: between(0.0),
    )
    _refuse_too_many(len(spans), model)
    texts = [document.text[start:end] for start, end in spans]
    vectors = [vector for batch in _batches(texts, between) for vector in model.embed(batch)]
    chunks = [
        Chunk(index, start, end, text, vector, page_at(document.pages, start))
        for index, ((start, end), text, vector) in enumerate(zip(spans, texts, vectors, strict=True))
    ]
    return Vectors(
        model=model.name,
        dimensions=model.dimensions,
        chunk_size=chunking.chunk_size,
        chunk_overlap=chunking.overlap,
        chunk_by=chunking.chunk_by,
        pages=list(document.pages),
        unread_pages=document.unread_pages,
        chunks=chunks,
    )


def read_vectors(data: bytes) -> Vectors:
    """Raises NonRetryable for what is none."""
    try:
        vectors = msgspec.json.decode(data, type=Vectors)
    except msgspec.DecodeError as error:
        raise NonRetryable("UNSUPPORTED_INPUT", f"not a vectors.json: {error}") from error
    if any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise NonRetryable("UNSUPPORTED_INPUT", "a vectors.json whose vectors differ in length from its dimensions")
    return vectors


def _batches(texts: list[str], between: Callable[[float], None]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH):
        between(start / len(texts))
        yield texts[start : start + BATCH]


def _refuse_too_many(chunks: int, model: Model) -> None:
    most = min(MAX_CHUNKS, MAX_NUMBERS // model.dimensions)
    if chunks > most:
        raise NonRetryable("INPUT_TOO_LARGE", f"more than {most} chunks; choose a larger chunk_size")
