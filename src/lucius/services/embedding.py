"""EMBEDDING: the document's text cut into chunks with a vector each, as `vectors.json`."""

import msgspec

from lucius import __version__
from lucius.services.documents import Documents, ServiceSettings
from lucius.services.vectors import MAX_CHUNKS, Chunking, Vectors, chunk_count, embed_document
from lucius.worker import NonRetryable, Service, StepContext, StepResult


def embedding(settings: ServiceSettings) -> Service:
    service = Service("embedding", version=__version__)
    documents = Documents(settings)

    @service.step("EMBEDDING", params=Chunking)
    def embed(ctx: StepContext, chunking: Chunking) -> StepResult:
        check(chunking)
        text = documents.read_text(ctx)
        ctx.progress(0.2)
        vectors = vectors_of(text, chunking)
        ctx.raise_if_stopping()
        data = msgspec.json.encode(vectors)
        ctx.progress(0.8)
        ref = ctx.files.write("vectors.json", data)
        handed_over = documents.hand_over(ctx, "vectors.json", data)
        result = {
            "chunks": len(vectors.chunks),
            "dimensions": vectors.dimensions,
            "model": vectors.model,
            "sha256": ref.sha256,
        }
        return StepResult({**result, **handed_over}, [ref])

    return service


def vectors_of(text: str, chunking: Chunking) -> Vectors:
    if chunk_count(len(text), chunking) > MAX_CHUNKS:
        raise NonRetryable("INPUT_TOO_LARGE", f"more than {MAX_CHUNKS} chunks; choose a larger chunk_size")
    return embed_document(text, chunking)


def check(chunking: Chunking) -> None:
    """The orchestrator checks payloads against a schema too; a service does not rely on it."""
    if not 1 <= chunking.chunk_size <= 1_000_000 or not 0 <= chunking.overlap < chunking.chunk_size:
        raise NonRetryable("INVALID_PAYLOAD", "chunk_size must be 1 to 1,000,000 and chunk_overlap below it")
    if not 1 <= chunking.dimensions <= 8192:
        raise NonRetryable("INVALID_PAYLOAD", "dimensions must be 1 to 8192")
