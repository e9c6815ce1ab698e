"""Imports packages of optional extras. Without them a service still starts and uses the standard library."""

import importlib
from typing import Any

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def load(module: str, extra: str) -> Any:
    """Import a module; return None if it is not installed or does not work here."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == module.partition(".")[0]:
            return None
        log.warning("extra is only partly installed", extra=extra, module=module, missing=error.name)
    except (ImportError, OSError) as error:  # a wheel whose system libraries are missing; ctypes raises OSError
        log.warning("extra does not work here", extra=extra, module=module, error=str(error))
    return None


def install_hint(extra: str) -> str:
    """Return the install command of an extra, for error messages."""
    return f"pip install 'lucius[{extra}]'"
