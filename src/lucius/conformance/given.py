"""What an author gives as text, on a command line or in an ini file, as Options."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lucius.conformance.feed import check_bus
from lucius.conformance.model import Misuse, Options

SHORTEST_ACK = 2.0  # Retry-After is in whole seconds, and a repeated ACK must fit


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
    side_by_side: int = 4,
    strict: bool = False,
    keep: Path | None = None,
) -> Options:
    """Raises Misuse, which names the option."""
    check_bus(bus, service)
    if ack_seconds < SHORTEST_ACK:
        raise Misuse(f"--ack-seconds must be at least {SHORTEST_ACK:g}")
    return Options(
        command=_command(service_command),
        service=service or None,
        step_type=step_type or None,
        payload=_payload("--payload", payload) or {},
        slow_payload=_payload("--slow-payload", slow_payload),
        bad_payload=_payload("--bad-payload", bad_payload),
        input_file=_file(input_file),
        bus=bus,
        env=dict(_variable(text) for text in env),
        ack_seconds=ack_seconds,
        start_seconds=start_seconds,
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
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"can't read {option} from {text[1:]}: {error}") from None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Misuse(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Misuse(f"{option} must be a JSON object")
    return value


def _file(path: str | Path | None) -> Path | None:
    if not path:
        return None
    found = Path(path)
    if not found.is_file():
        raise Misuse(f"--input: there is no file {found}")
    return found


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Misuse(f"--env {text!r} is not NAME=VALUE")
    return name, value
