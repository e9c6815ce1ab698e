"""Runs a step without bus or orchestrator, for unit tests of a service.

outcome = await run_step(service, "OCR", {"pages": [1]}, input=b"...", folder=tmp_path)
assert outcome.result == {"pages": 1}
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lucius.contract import CallbackUrls, Directive, ResultCallback, StepInput
from lucius.worker.context import LocalChannel
from lucius.worker.execution import Executor
from lucius.worker.service import Service
from lucius.worker.timing import Timing
from lucius.worker.workspace import Places, file_ref

NOWHERE = "http://127.0.0.1:9/v1/callbacks"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The RESULT that would have been sent, and the locations of the step's files."""

    status: str
    result: Any
    artifact_refs: list[str]
    failure_class: str | None
    code: str | None
    message: str | None
    retry_after_seconds: float | None
    folder: Path
    """The attempt's own folder: its artifacts and `manifest.json`."""
    output: Path
    """File that `output_ref` names, for the client if the step is the last one."""

    @property
    def succeeded(self) -> bool:
        return self.status == "SUCCEEDED"


async def run_step(
    service: Service,
    step_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    folder: Path,
    input: bytes | None = None,
    inputs: Mapping[str, StepInput] | None = None,
    last_step: bool = True,
    line: LocalChannel | None = None,
    **directive: Any,
) -> Outcome:
    """Run a step as the runtime would, in its thread or process, and return the outcome.

    Further members of the directive may be given by name.
    """
    document = folder / "input"
    if input is not None:
        await asyncio.to_thread(document.write_bytes, input)
    sent = _directive(service, step_type, dict(payload or {}), dict(inputs or {}), folder, last_step, directive)
    executor = Executor(service, Places(blob_root=folder / "blobs", file_roots=(folder,)), Timing(), lambda: None)
    try:
        body = await executor.execute(sent, line or LocalChannel())
    finally:
        executor.close()
    said = msgspec.json.decode(body, type=ResultCallback)
    return Outcome(
        status=said.status,
        result=said.result,
        artifact_refs=said.artifact_refs or [],
        failure_class=said.failure_class,
        code=said.error.code if said.error else None,
        message=said.error.message if said.error else None,
        retry_after_seconds=said.retry_after_seconds,
        folder=folder / "workspace" / sent.stepId / str(sent.attempt_no),
        output=folder / "output",
    )


def _directive(
    service: Service,
    step_type: str,
    payload: dict[str, Any],
    inputs: dict[str, StepInput],
    folder: Path,
    last_step: bool,
    changes: dict[str, Any],
) -> Directive:
    step_id = str(changes.get("stepId", step_type.lower() or "step"))
    fields: dict[str, Any] = {
        "message_id": f"job-1/{step_id}/1",
        "jobId": "job-1",
        "stepId": step_id,
        "tenant_id": "tests",
        "protocol_id": "tests",
        "protocol_version": 1,
        "request_type": step_type or "STEP",
        "step_type": step_type,
        "kind": "task",
        "service": service.name,
        "attempt_no": 1,
        "lease_id": "lease-1",
        "lease_seconds": 900.0,
        "ack_deadline": "2100-01-01T00:00:00.000Z",
        "idempotency_key": f"key-of-{step_id}",
        "lane": 0,
        "mode": "DEFAULT",
        "routing_key_used": "tests",
        "input_ref": file_ref(folder / "input"),
        "workspace_ref": file_ref(folder / "workspace"),
        "output_ref": file_ref(folder / "output"),
        "payload": payload,
        "callback_urls": CallbackUrls(
            ack=f"{NOWHERE}/ack", result=f"{NOWHERE}/result", heartbeat=f"{NOWHERE}/heartbeat"
        ),
        "callback_token": "token-1",
        "correlation_id": "tests",
        "last_step": last_step,
        "inputs": inputs,
    }
    return Directive(**{**fields, **changes})
