"""Modules that come with an extra. Without them a service still starts, and does what the standard library can."""

import importlib
from typing import Any

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def load(module: str, extra: str) -> Any:
    """The module, or None if it is not installed or does not work here."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == module.partition(".")[0]:
            return None
        log.warning("an extra is installed only in part", extra=extra, module=module, missing=error.name)
    except (ImportError, OSError) as error:  # a wheel whose system libraries are missing; by ctypes, the latter
        log.warning("an extra does not work here", extra=extra, module=module, error=str(error))
    return None


def hint(extra: str) -> str:
    """For errors: what would help."""
    return f"pip install 'lucius[{extra}]'"
