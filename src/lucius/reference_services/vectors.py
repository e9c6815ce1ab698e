"""The `vectors.json` format: chunks of a document with a vector each."""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from lucius.reference_services.chunking import ChunkBy, check_sizes, chunk_spans, min_chunk_count
from lucius.reference_services.documents import DocumentText
from lucius.reference_services.models import Model
from lucius.reference_services.pages import PageSpan, page_at
from lucius.worker import NonRetryable

MAX_CHUNKS = 20_000
MAX_VECTOR_VALUES = 5_200_000
"""Over all vectors of a file, which keeps it within the limits of a workspace."""
EMBED_BATCH_CHUNKS = 32


class Chunk(Struct, frozen=True):
    index: int
    start: int
    end: int
    text: str
    vector: list[float]
    page: int | None = None
    """Page on which the chunk begins, if known."""


class Vectors(Struct, frozen=True, kw_only=True):
    """Content of `vectors.json`. `model` names the model that made the vectors."""

    model: str
    dimensions: int
    chunk_size: int
    chunk_overlap: int
    chunk_by: ChunkBy = "size"
    pages: list[PageSpan] = msgspec.field(default_factory=list)
    unread_pages: int = 0
    """Number of pages whose text is missing because they could not be read."""
    chunks: list[Chunk]


# built here: msgspec builds a type's decoder at first use, which several threads may not do at once
_decode_vectors = msgspec.json.Decoder(Vectors).decode


class Chunking(Struct, frozen=True):
    """Payload members that control splitting and embedding."""

    chunk_size: int = 800
    chunk_overlap: int | None = None
    chunk_by: ChunkBy = "size"
    min_chunk_size: int = 0
    model: str | None = None
    dimensions: int | None = None

    @property
    def overlap(self) -> int:
        """The configured overlap, or an eighth of the chunk size, so that small chunks need no further setting."""
        return self.chunk_size // 8 if self.chunk_overlap is None else self.chunk_overlap


def embed_document(
    document: DocumentText,
    chunking: Chunking,
    model: Model,
    on_split: Callable[[], None] = lambda: None,
    checkpoint: Callable[[int, int], None] = lambda done, total: None,
) -> Vectors:
    """Split a document into chunks and embed them.

    `checkpoint` is called before every batch with the number of embedded chunks and of all chunks, `on_split` while the
    text is split; both may raise to abort. Raises NonRetryable if sizes are invalid or there are too many chunks.
    """
    check_sizes(chunking.chunk_size, chunking.overlap, chunking.min_chunk_size)
    if chunking.chunk_size > model.max_text_chars:
        raise NonRetryable("INVALID_PAYLOAD", f"chunk_size is at most {model.max_text_chars} with {model.name}")
    _check_chunk_count(min_chunk_count(document.text, chunking.chunk_by, chunking.chunk_size, chunking.overlap), model)
    spans = chunk_spans(
        document.text,
        chunking.chunk_by,
        chunking.chunk_size,
        chunking.overlap,
        chunking.min_chunk_size,
        on_split,
    )
    _check_chunk_count(len(spans), model)
    texts = [document.text[start:end] for start, end in spans]
    vectors = [vector for batch in _batches(texts, checkpoint) for vector in model.embed(batch)]
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
    """Parse and check a `vectors.json`. Raises NonRetryable if it is not valid."""
    try:
        vectors = _decode_vectors(data)
    except msgspec.DecodeError as error:
        raise NonRetryable("UNSUPPORTED_INPUT", f"not a vectors.json: {error}") from error
    if any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise NonRetryable("UNSUPPORTED_INPUT", "a vectors.json whose vectors differ in length from its dimensions")
    return vectors


def _batches(texts: list[str], checkpoint: Callable[[int, int], None]) -> Iterator[list[str]]:
    for start in range(0, len(texts), EMBED_BATCH_CHUNKS):
        checkpoint(start, len(texts))
        yield texts[start : start + EMBED_BATCH_CHUNKS]


def _check_chunk_count(chunks: int, model: Model) -> None:
    limit = min(MAX_CHUNKS, MAX_VECTOR_VALUES // model.dimensions)
    if chunks > limit:
        raise NonRetryable("INPUT_TOO_LARGE", f"more than {limit} chunks; choose a larger chunk_size")
