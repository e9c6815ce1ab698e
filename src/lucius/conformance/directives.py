"""Directives as the orchestrator writes them, and malformed ones."""

import secrets
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

TENANT = "conformance"
LANES = 16


class DirectiveFactory(Struct, kw_only=True):
    """Creates directives for one service, with callbacks to `base_url` and files in `folder`."""

    base_url: str
    folder: Path
    service: str
    step_type: str
    input_ref: str
    ack_seconds: float
    client_url: str = ""
    """Base URL of a client that wants the callbacks instead of the orchestrator."""
    made: int = 0

    def directive(
        self,
        payload: dict[str, Any],
        *,
        lease_seconds: float,
        job_id: str | None = None,
        step_id: str | None = None,
        attempt_no: int = 1,
    ) -> dict[str, Any]:
        self.made += 1
        job_id = job_id or str(uuid.uuid4())
        step_id = step_id or self.service
        root = f"{self.base_url}/v1/callbacks"
        trace = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        return {
            "message_id": f"{job_id}/{step_id}/{attempt_no}",
            "jobId": job_id,
            "stepId": step_id,
            "tenant_id": TENANT,
            "protocol_id": "conformance",
            "protocol_version": 1,
            "request_type": self.step_type,
            "step_type": self.step_type,
            "kind": "task",
            "service": self.service,
            "attempt_no": attempt_no,
            "lease_id": secrets.token_hex(12),
            "lease_seconds": lease_seconds,
            "ack_deadline": timestamp_in(self.ack_seconds),
            "idempotency_key": secrets.token_hex(32),
            "lane": self.made % LANES,
            "mode": "DEFAULT",
            "routing_key_used": TENANT,
            "input_ref": self.input_ref,
            "workspace_ref": (self.folder / "workspace" / "lucius" / TENANT / job_id).as_uri(),
            "output_ref": (self.folder / "output" / f"{job_id}.out").as_uri(),
            "payload": payload,
            "callback_urls": {"ack": f"{root}/ack", "result": f"{root}/result", "heartbeat": f"{root}/heartbeat"},
            "callback_token": f"{secrets.token_urlsafe(48)}.{secrets.token_urlsafe(32)}",
            "correlation_id": job_id,
            "last_step": True,
            "inputs": {},
            "doc_id": None,
            "traceparent": trace,
            "timeout_ms": None,
            "retry_safety": "SAFE_TO_RETRY",
            "guard": None,
            "item": None,
            "item_index": None,
            "compensates": None,
        }

    def client_callback_urls(self) -> dict[str, str]:
        """Return callback_urls of a client's own, which can't be guessed."""
        root = f"{self.client_url}/hooks/{secrets.token_hex(4)}"
        return {kind: f"{root}/{kind}-of-it?for={secrets.token_hex(4)}" for kind in ("ack", "result", "heartbeat")}


def timestamp_in(seconds: float) -> str:
    """Return the time `seconds` from now as on the wire: RFC 3339, UTC, milliseconds."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


NEEDED = ("jobId", "stepId", "attempt_no", "lease_id", "callback_token", "callback_urls")


def malformed_messages(good: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield malformed messages that a service must survive, each with a name for its fault."""
    for name in NEEDED:
        yield f"without {name}", {key: value for key, value in good.items() if key != name}
    yield "attempt_no is a word", {**good, "attempt_no": "one"}
    yield "attempt_no is 0", {**good, "attempt_no": 0}
    yield "jobId is a list", {**good, "jobId": [good["jobId"]]}
    yield "payload is a string", {**good, "payload": "{}"}
    yield "lease_seconds is negative", {**good, "lease_seconds": -1}
    yield "callback_urls is a string", {**good, "callback_urls": "http://127.0.0.1/"}
    yield "callback URLs lead nowhere", {**good, "callback_urls": dict.fromkeys(good["callback_urls"], "not a URL")}
    yield "an empty object", {}
    yield "null", None
    yield "a number", 7
    yield "a string", "directive"
    yield "a list", [[]]
