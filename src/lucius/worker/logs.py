"""Logging of service processes: lines to stderr, configured by environment variables."""

import logging
import os
import sys
from collections.abc import Mapping

import structlog

from lucius.terminal import strip_log_entry

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("json", "console")


def configure_logging(environ: Mapping[str, str] | None = None) -> None:
    """Apply `LUCIUS_LOG_LEVEL` and `LUCIUS_LOG_FORMAT`; unknown values count as `info` and `json`."""
    environ = os.environ if environ is None else environ
    level = LEVELS.get(environ.get("LUCIUS_LOG_LEVEL", "").lower(), logging.INFO)
    to_read = environ.get("LUCIUS_LOG_FORMAT", "").lower() == "console"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *((strip_log_entry,) if to_read else ()),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
            if to_read
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
