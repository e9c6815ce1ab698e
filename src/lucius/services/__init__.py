"""The platform services that ship with Lucius: OCR, EMBEDDING and SIS, each made with `lucius.worker`.

They know the SDK and the message contract, nothing of the control plane.
"""

from collections.abc import Callable

from lucius.services.embedding import embedding
from lucius.services.ocr import ocr
from lucius.services.settings import ServiceSettings, settings_from
from lucius.services.sis import sis
from lucius.worker import Service

SERVICES: dict[str, Callable[[ServiceSettings], Service]] = {"ocr": ocr, "embedding": embedding, "sis": sis}

__all__ = ["SERVICES", "ServiceSettings", "settings_from"]
