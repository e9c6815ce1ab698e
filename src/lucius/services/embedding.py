"""EMBEDDING: the document's text cut into chunks with a vector each, as `vectors.json`."""

import asyncio

import msgspec

from lucius.services.documents import DocumentService, sha256
from lucius.services.vectors import MAX_CHUNKS, Chunking, Vectors, chunk_count, embed_document
from lucius.worker import Output, Task
from lucius.worker.failure import never


class Embedding(DocumentService):
    service = "embedding"

    async def execute(self, task: Task) -> Output:
        chunking = task.payload_as(Chunking)
        check(chunking)
        text = await self.read_text(task)
        task.progress(0.2)
        vectors = await vectors_of(text, chunking)
        task.raise_if_cancelled()
        data = await asyncio.to_thread(msgspec.json.encode, vectors)
        task.progress(0.8)
        ref = await task.workspace.write("vectors.json", data)
        handed_over = await self.hand_over(task, "vectors.json", data)
        result = {
            "chunks": len(vectors.chunks),
            "dimensions": vectors.dimensions,
            "model": vectors.model,
            "sha256": sha256(data),
        }
        return Output({**result, **handed_over}, [ref])


async def vectors_of(text: str, chunking: Chunking) -> Vectors:
    if chunk_count(len(text), chunking) > MAX_CHUNKS:
        raise never("INPUT_TOO_LARGE", f"more than {MAX_CHUNKS} chunks; choose a larger chunk_size")
    return await asyncio.to_thread(embed_document, text, chunking)


def check(chunking: Chunking) -> None:
    """The orchestrator checks payloads against a schema too; a service does not rely on it."""
    if not 1 <= chunking.chunk_size <= 1_000_000 or not 0 <= chunking.overlap < chunking.chunk_size:
        raise never("INVALID_PAYLOAD", "chunk_size must be 1 to 1,000,000 and chunk_overlap below it")
    if not 1 <= chunking.dimensions <= 8192:
        raise never("INVALID_PAYLOAD", "dimensions must be 1 to 8192")
