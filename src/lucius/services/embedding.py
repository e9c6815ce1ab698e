"""EMBEDDING: the document's text cut into chunks with a vector each, as `vectors.json`."""

import msgspec

from lucius import __version__
from lucius.services.documents import Documents
from lucius.services.models import Models
from lucius.services.settings import ServiceSettings
from lucius.services.vectors import Chunking, embed_document
from lucius.worker import Service, StepContext, StepResult

READ = 0.05
"""How far the step is once it has the text."""
EMBEDDED = 0.95


def embedding_service(settings: ServiceSettings) -> Service:
    service = Service("embedding", version=__version__)
    documents = Documents(settings)
    models = Models(settings.embedding_model, settings.threads)
    service.startup(models.load)

    @service.step("EMBEDDING", params=Chunking)
    def embed(ctx: StepContext, chunking: Chunking) -> StepResult:
        def between(done: float) -> None:
            ctx.raise_if_stopping()
            ctx.progress(READ + done * (EMBEDDED - READ))

        model = models.chosen(chunking.model, chunking.dimensions)
        vectors = embed_document(documents.read_text(ctx), chunking, model, between)
        ctx.progress(EMBEDDED)
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
        return StepResult({**result, **documents.hand_over(ctx, "vectors.json", data)}, [ref])

    return service
