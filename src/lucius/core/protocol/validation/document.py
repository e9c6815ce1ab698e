"""Checks of a protocol document that must distinguish explicit values from defaults, hence before decoding."""

from collections.abc import Iterator
from typing import Any

from lucius.core.protocol.validation.locations import Finding, Path

_REPEATABLE = ("GET", "HEAD")
_ADVICE = (
    "is sent again when its outcome is unknown, because SAFE_TO_RETRY is the default: set retry_safety to "
    "NOT_SAFE_TO_RETRY, SAFE_TO_RETRY_WITH_GUARD, or SAFE_TO_RETRY if the peer honours the Idempotency-Key"
)


def check_document(document: Any) -> Iterator[Finding]:
    """Warn where a call that may change something relies on the default retry safety."""
    for path, step in _steps_in(_member(document, "steps"), ("steps",)):
        call = step.get("external_call")
        if isinstance(call, dict) and "retry_safety" not in step:
            method = call.get("method", "POST")
            if method not in _REPEATABLE:
                yield Finding((*path, "external_call"), f"a {method} {_ADVICE}", fatal=False)


def _steps_in(steps: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        yield from _step_at(step, (*path, number))


def _step_at(step: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if not isinstance(step, dict):
        return
    yield path, step
    yield from _step_at(step.get("compensation"), (*path, "compensation"))
    yield from _steps_in(_member(step.get("map"), "steps"), (*path, "map", "steps"))
    branches = _member(step.get("parallel"), "branches")
    for name, steps in branches.items() if isinstance(branches, dict) else ():
        yield from _steps_in(steps, (*path, "parallel", "branches", name))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
