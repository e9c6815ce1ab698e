"""Protocols of every kind, written into a folder that a server reads."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from tests.support.api import Api

Document = dict[str, Any]
Serve = Callable[..., Awaitable[Api]]


def task(step_id: str, **more: Any) -> Document:
    return {"step_id": step_id, "step_type": step_id.upper(), "service": step_id, **more}


def wait(step_id: str, timeout_ms: int | None = None, **what: Any) -> Document:
    step = {"step_id": step_id, "kind": "wait", "wait": what}
    return {**step, "timeout_ms": timeout_ms} if timeout_ms else step


def approval(step_id: str, *approvers: str, timeout_ms: int | None = None, **more: Any) -> Document:
    step = {"step_id": step_id, "kind": "human_approval", "human_approval": {"approvers": list(approvers), **more}}
    return {**step, "timeout_ms": timeout_ms} if timeout_ms else step


def protocol(request_type: str, *steps: Document, **more: Any) -> Document:
    name = request_type.lower()
    return {"protocol_id": name, "version": 1, "request_type": request_type, "steps": list(steps), **more}


def write_protocols(folder: Path, *documents: Document) -> Path:
    folder.mkdir(exist_ok=True)
    for document in documents:
        (folder / f"{document['protocol_id']}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


# The subject of most of these tests: three tasks in sequence.
CHAIN = protocol("CHAIN", task("scan"), task("read"), task("file"))


async def complete_step(api: Api, service: str, **said: Any) -> dict[str, Any]:
    """Let the service take its one directive and succeed; return the directive."""
    directive = await api.pull_one(service)
    (await api.succeed(directive, **said)).ok()
    return directive


async def fail_step(api: Api, service: str, **said: Any) -> dict[str, Any]:
    """Let the service take its one directive and fail permanently; return the directive."""
    directive = await api.pull_one(service)
    error = {"code": "BROKEN", "message": "it broke"}
    (await api.fail(directive, **{"failure_class": "NON_RETRYABLE", "error": error, **said})).ok()
    return directive


async def events(api: Api, job_id: str, type_: str) -> list[dict[str, Any]]:
    listed = (await api.get(f"/v1/jobs/{job_id}/events?limit=500")).ok()["events"]
    return [event["data"] for event in listed if event["type"] == type_]


async def statuses(api: Api, job_id: str) -> dict[str, str]:
    return {step["stepId"]: step["status"] for step in (await api.job(job_id))["steps"]}
