"""Requests of calls and webhooks, rendered when the step is dispatched so that every attempt sends the same."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import render, render_url, too_large
from lucius.core.model.records import Millis, Request, Step
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import Notify, StepSpec, items_of

DEFAULT_TIMEOUT_MS: Millis = 30_000
"""Timeout of a call whose step has no timeout_ms."""
LEASE_SLACK_MS: Millis = 15_000


def lease_ms(spec: StepSpec) -> Millis:
    """Return the lease of a call: short, as the engine makes the call and only its own death can let it expire."""
    return spec.lease_ms or (spec.timeout_ms or DEFAULT_TIMEOUT_MS) + LEASE_SLACK_MS


def render_requests(changes: Changeset, spec: StepSpec, step: Step) -> Step:
    """Return the step with its rendered requests. Raises ToolError."""
    if spec.notify is not None:
        return replace(step, request=_render_webhook(changes, spec, spec.notify, step))
    call = spec.external_call
    assert call is not None, "an external_call has its call"
    request = _render_request(changes, spec, step, call.method, call.url, call.headers, call.body)
    guard = call.guard
    if guard is None:
        return replace(step, request=request)
    guard_request = _render_request(changes, spec, step, guard.method, guard.url, guard.headers, guard.body)
    return replace(step, request=request, guard_request=guard_request)


def _render_webhook(changes: Changeset, spec: StepSpec, notify: Notify, step: Step) -> Request:
    at = datetime.fromtimestamp(changes.now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    request = _render_request(changes, spec, step, "POST", notify.url, {}, notify.data)
    body = {"type": notify.type, "timestamp": at, "data": request.body}
    return replace(request, body=body)


def _render_request(
    changes: Changeset, spec: StepSpec, step: Step, method: str, url: str, headers: dict[str, str], body: Any
) -> Request:
    items = items_of(step.step_id)
    target = render_url(changes, url, spec.step_id, items)
    rendered = render(changes, {"headers": headers, "body": body}, spec.step_id, items)
    if size := too_large({"url": target, **rendered}):
        raise ToolError(f"the request has {size} bytes; pass a reference to what is large instead")
    return Request(method, target, {k: _header_text(v) for k, v in rendered["headers"].items()}, rendered["body"])


def _header_text(value: Any) -> str:
    """Return a header value as text: strings unchanged, others as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
