"""Parsing of options from the text of a command line or an ini file."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lucius.conformance.buses import check_bus
from lucius.conformance.model import Misuse, Options
from lucius.strict_json import decode_object_option

MAX_PATIENCE_SECONDS = 100.0  # less than the limit of a case
MIN_ACK_SECONDS = 2.0  # room for an ACK repeated after a Retry-After of one second


def options_of(
    *,
    service_command: str,
    service: str | None = None,
    step_type: str | None = None,
    payload: str | None = None,
    slow_payload: str | None = None,
    bad_payload: str | None = None,
    input_file: str | Path | None = None,
    bus: str = "local:",
    env: Iterable[str] = (),
    ack_seconds: float = 3.0,
    start_seconds: float = 30.0,
    patience: float = 15.0,
    side_by_side: int = 4,
    strict: bool = False,
    keep: Path | None = None,
) -> Options:
    """Parse the texts into Options. Raises Misuse, which names the option."""
    check_bus(bus, service)
    if ack_seconds < MIN_ACK_SECONDS:
        raise Misuse(f"--ack-seconds must be at least {MIN_ACK_SECONDS:g}")
    if not 0 < patience <= MAX_PATIENCE_SECONDS:
        raise Misuse(f"--patience must be more than 0 and at most {MAX_PATIENCE_SECONDS:g}")
    return Options(
        command=_command(service_command),
        service=service or None,
        step_type=step_type or None,
        payload=_payload("--payload", payload) or {},
        slow_payload=_payload("--slow-payload", slow_payload),
        bad_payload=_payload("--bad-payload", bad_payload),
        input_file=_file(input_file),
        bus=bus,
        env=dict(_environment_variable(text) for text in env),
        ack_seconds=ack_seconds,
        start_seconds=start_seconds,
        patience=patience,
        side_by_side=side_by_side,
        strict=strict,
        keep=keep,
    )


def _command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Misuse(f"--service-command can't be read: {error}") from None
    if not words:
        raise Misuse("--service-command is empty")
    return words


def _payload(option: str, text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return decode_object_option(option, text)
    except ValueError as error:
        raise Misuse(str(error)) from None


def _file(path: str | Path | None) -> Path | None:
    if not path:
        return None
    found = Path(path)
    if not found.is_file():
        raise Misuse(f"--input: {found} does not exist")
    return found


def _environment_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Misuse(f"--env {text!r} is not NAME=VALUE")
    return name, value
