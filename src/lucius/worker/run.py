"""The main of a service's process."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

import structlog

from lucius.worker.host import host
from lucius.worker.service import Service
from lucius.worker.settings import BadSetting, settings_from

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def run_from_env(services: Sequence[Service]) -> None:
    """Serve until told to stop; exits with 2 and one line if a setting is wrong."""
    configure_logging(os.environ.get("LUCIUS_LOG_LEVEL", "info"), os.environ.get("LUCIUS_LOG_FORMAT", "json"))
    try:
        settings = settings_from()
        if not settings.api_key:
            raise BadSetting("LUCIUS_API_KEY is not set: a key of scope serve for this service")
        asyncio.run(host(services, settings))
    except BadSetting as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None


def configure_logging(level: str, format_: str) -> None:
    renderer = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
