"""The EMBEDDING service: splits the document's text into chunks and writes a vector for each to `vectors.json`."""

import msgspec

from lucius.reference_services.documents import Documents
from lucius.reference_services.models import Models
from lucius.reference_services.settings import ServiceSettings
from lucius.reference_services.vectors import Chunking, embed_document
from lucius.version import __version__
from lucius.worker import Service, StepContext, StepResult


def embedding_service(settings: ServiceSettings) -> Service:
    service = Service("embedding", version=__version__)
    documents = Documents()
    models = Models(settings.embedding_model, settings.threads)
    service.startup(models.load)

    @service.step("EMBEDDING", params=Chunking)
    def embed(ctx: StepContext, chunking: Chunking) -> StepResult:
        def checkpoint(done: int, total: int) -> None:
            ctx.raise_if_stopping()
            ctx.progress(done, total, "chunk")

        model = models.choose(chunking.model, chunking.dimensions)
        vectors = embed_document(documents.read_text(ctx), chunking, model, ctx.raise_if_stopping, checkpoint)
        ctx.progress(len(vectors.chunks), len(vectors.chunks), "chunk")
        data = msgspec.json.encode(vectors)
        ref = ctx.files.write("vectors.json", data)
        result: dict[str, object] = {
            "chunks": len(vectors.chunks),
            "dimensions": vectors.dimensions,
            "model": vectors.model,
            "sha256": ref.sha256,
        }
        if vectors.unread_pages:
            result["unread_pages"] = vectors.unread_pages
        return StepResult({**result, **documents.write_output(ctx, "vectors.json", data)}, [ref])

    return service
