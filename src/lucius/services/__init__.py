"""The platform services that ship with Lucius: OCR, EMBEDDING and SIS, each a PlatformService on `lucius.worker`.

Their work is simple and needs only the standard library, but real: they read their input, write artifacts and use
what the step before left. They know the worker runtime and the message contract, nothing of the control plane.
"""

from lucius.services.documents import DocumentService
from lucius.services.embedding import Embedding
from lucius.services.ocr import Ocr
from lucius.services.sis import Sis

SERVICES: dict[str, type[DocumentService]] = {kind.service: kind for kind in (Ocr, Embedding, Sis)}

__all__ = ["SERVICES", "DocumentService", "Embedding", "Ocr", "Sis"]
