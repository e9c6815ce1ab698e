"""The platform services that ship with Lucius: OCR, EMBEDDING and SIS, each made with `lucius.worker`.

They know the SDK and the message contract, nothing of the control plane. What they need of the extras is imported when
a service starts; without an extra they do what the standard library can.
"""

from collections.abc import Callable

from lucius.services.embedding import embedding_service
from lucius.services.ocr import ocr_service
from lucius.services.settings import ServiceSettings, settings_from
from lucius.services.sis import sis_service
from lucius.worker import Service

SERVICES: dict[str, Callable[[ServiceSettings], Service]] = {
    "ocr": ocr_service,
    "embedding": embedding_service,
    "sis": sis_service,
}

__all__ = ["SERVICES", "ServiceSettings", "settings_from"]
