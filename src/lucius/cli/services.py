"""Runs platform services in this process: shipped ones by name, others as `module:attribute`."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from lucius.cli.errors import Misused
from lucius.reference_services import SERVICES, settings_from
from lucius.worker import Service
from lucius.worker import settings as worker
from lucius.worker.definition import BadService
from lucius.worker.run import serve


def run_named(names: Sequence[str], **overrides: Any) -> None:
    """Serve until stopped, with settings from the environment, except `overrides`. Raises Misused."""
    try:
        settings = replace(worker.settings_from(), **overrides)
        serve([load_service(name) for name in dict.fromkeys(names)], settings)
    except (worker.BadSetting, BadService) as error:
        raise Misused(str(error)) from error


def load_service(name: str) -> Service:
    if ":" in name:
        return _imported(name)
    make = SERVICES.get(name)
    if make is None:
        raise Misused(f"unknown service {name!r}; built in: {', '.join(SERVICES)}; for your own use module:attribute")
    return make(settings_from(os.environ))


def _imported(name: str) -> Service:
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # a project is run from its folder; it stays, for what the module imports later
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Misused(f"can't import service {name!r}: {error}") from error
    if not isinstance(found, Service):
        raise Misused(f"{name} is a {type(found).__name__}, not a lucius.worker.Service")
    return found
