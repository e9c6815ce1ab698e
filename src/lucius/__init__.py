"""Lucius: a durable control plane for document-AI pipelines.

Public besides the names below: `lucius.client`, `lucius.worker`, `lucius.worker.testing`, `lucius.api.app:create_app`
and the pytest plugin. A name is loaded at first use, so a service does not load the client, nor a client the SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lucius.version import __version__

if TYPE_CHECKING:
    from lucius.client import AsyncClient, Client
    from lucius.worker import Service, StepContext, StepResult

__all__ = ["AsyncClient", "Client", "Service", "StepContext", "StepResult", "__version__"]

_HOMES = {
    "AsyncClient": "lucius.client",
    "Client": "lucius.client",
    "Service": "lucius.worker",
    "StepContext": "lucius.worker",
    "StepResult": "lucius.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
