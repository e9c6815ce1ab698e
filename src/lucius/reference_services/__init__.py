"""The platform services that ship with Lucius: OCR, EMBEDDING and SIS, each made with `lucius.worker`.

They depend on the SDK and the message contract, not on the control plane. Packages of the extras are imported when a
service starts; without them each service falls back to what the standard library can do.
"""

from collections.abc import Callable

from lucius.reference_services.embedding import embedding_service
from lucius.reference_services.ocr import ocr_service
from lucius.reference_services.settings import ServiceSettings, settings_from
from lucius.reference_services.sis import sis_service
from lucius.worker import Service

SERVICES: dict[str, Callable[[ServiceSettings], Service]] = {
    "ocr": ocr_service,
    "embedding": embedding_service,
    "sis": sis_service,
}

__all__ = ["SERVICES", "ServiceSettings", "settings_from"]
