"""The request of a call or a webhook, rendered when the step is dispatched so that every attempt sends the same."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from lucius.core.draft import Draft
from lucius.core.model import Millis, Request, Step
from lucius.core.protocol import Notify, StepSpec, items_of
from lucius.core.tools import ToolError
from lucius.core.values import render, too_large

TIMEOUT_MS: Millis = 30_000
"""What a call may take whose step has no timeout_ms."""
LEASE_SLACK_MS: Millis = 15_000


def lease_ms(spec: StepSpec) -> Millis:
    """The engine makes the call itself: only its own death loses one, and then waiting for long is no use."""
    return spec.lease_ms or (spec.timeout_ms or TIMEOUT_MS) + LEASE_SLACK_MS


def with_requests(draft: Draft, spec: StepSpec, step: Step) -> Step:
    """Raises ToolError."""
    if spec.notify is not None:
        return replace(step, request=_webhook(draft, spec, spec.notify, step))
    call = spec.external_call
    assert call is not None, "an external_call says what to call"
    request = _rendered(draft, spec, step, call.method, call.url, call.headers, call.body)
    guard = call.guard
    if guard is None:
        return replace(step, request=request)
    asks = _rendered(draft, spec, step, guard.method, guard.url, guard.headers, guard.body)
    return replace(step, request=request, guard_request=asks)


def _webhook(draft: Draft, spec: StepSpec, notify: Notify, step: Step) -> Request:
    at = datetime.fromtimestamp(draft.now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    request = _rendered(draft, spec, step, "POST", notify.url, {}, notify.data)
    body = {"type": notify.type, "timestamp": at, "data": request.body}
    return replace(request, body=body)


def _rendered(
    draft: Draft, spec: StepSpec, step: Step, method: str, url: str, headers: dict[str, str], body: Any
) -> Request:
    template = {"url": url, "headers": headers, "body": body}
    rendered = render(draft, template, spec.step_id, items_of(step.step_id))
    if size := too_large(rendered):
        raise ToolError(f"the request has {size} bytes; pass a reference to what is large instead")
    return Request(
        method, _text(rendered["url"]), {k: _text(v) for k, v in rendered["headers"].items()}, rendered["body"]
    )


def _text(value: Any) -> str:
    """As JSON writes it: `true`, and lists and objects that can be read again."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
