"""Platform services in this process: shipped ones by name, others as `module:attribute`."""

import importlib
import os
from collections.abc import Sequence

from lucius.cli.errors import Misused
from lucius.services import SERVICES, settings_from
from lucius.worker import Service
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings


async def run_named(names: Sequence[str], settings: WorkerSettings) -> None:
    await host([_service(name) for name in dict.fromkeys(names)], settings)


def _service(name: str) -> Service:
    if ":" in name:
        return _imported(name)
    make = SERVICES.get(name)
    if make is None:
        raise Misused(f"there is no service {name!r}; shipped: {', '.join(SERVICES)}; your own: module:attribute")
    return make(settings_from(os.environ))


def _imported(name: str) -> Service:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Misused(f"can't find service {name!r}: {error}") from error
    if not isinstance(found, Service):
        raise Misused(f"{name} is a {type(found).__name__}, not a lucius.worker.Service")
    return found
