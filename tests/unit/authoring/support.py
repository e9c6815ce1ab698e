"""Builders for short protocols, and a simulation of them as `lucius simulate` runs it."""

from typing import Any

import msgspec

from lucius.authoring.report import Report
from lucius.authoring.script import Script
from lucius.cli.simulation import simulate_protocol
from lucius.core.protocol.definition import ProtocolDefinition


def protocol(*steps: dict[str, Any], **fields: Any) -> ProtocolDefinition:
    named = {"protocol_id": "p", "version": 1, "request_type": "P", "input_schema": {"type": "object"}}
    return msgspec.convert({**named, "steps": list(steps), **fields}, ProtocolDefinition)


def task(step_id: str, **fields: Any) -> dict[str, Any]:
    return {"step_id": step_id, "step_type": "X", "service": "x", **fields}


def decision(step_id: str, otherwise: str, **choices: str) -> dict[str, Any]:
    timeline_of = [{"when": when, "then": then} for then, when in choices.items()]
    return {"step_id": step_id, "kind": "decision", "decision": {"choices": timeline_of, "otherwise": otherwise}}


def approval(step_id: str, *approvers: str, quorum: int = 1, **fields: Any) -> dict[str, Any]:
    asked = {"approvers": approvers, "quorum": quorum}
    return {"step_id": step_id, "kind": "human_approval", "human_approval": asked, **fields}


def wait(step_id: str, **fields: Any) -> dict[str, Any]:
    kinds = {name: fields.pop(name) for name in ("duration_ms", "until", "signal") if name in fields}
    return {"step_id": step_id, "kind": "wait", "wait": kinds, **fields}


def call(step_id: str, url: str = "https://a.example/x", **fields: Any) -> dict[str, Any]:
    inner = {name: fields.pop(name) for name in ("result", "errors", "guard", "method", "body") if name in fields}
    return {"step_id": step_id, "kind": "external_call", "external_call": {"url": url, **inner}, **fields}


def simulate(
    made: ProtocolDefinition, script: Script | None = None, payload: dict[str, Any] | None = None, **more: Any
) -> Report:
    return simulate_protocol(made, payload or {}, script or Script(), **more)


def statuses(report: Report) -> dict[str, str]:
    return {step.step_id: step.status for step in report.steps}


def timeline_of(report: Report, step_id: str | None) -> list[str]:
    return [entry.text for entry in report.timeline if entry.step_id == step_id]


def path_of(report: Report) -> list[str]:
    return [leg.step_id for leg in report.path]
