"""Short builders: one function for each kind of step, and one for a protocol."""

from typing import Any

from lucius.core.protocol.definition import (
    Approval,
    Call,
    Choice,
    Decide,
    Map,
    Notify,
    Parallel,
    Policies,
    ProtocolDefinition,
    RetryPolicy,
    StepSpec,
    Wait,
)

POLICY = RetryPolicy(backoff_strategy="exponential")
NOT_SAFE = "NOT_SAFE_TO_RETRY"


def task(step_id: str, **fields: Any) -> StepSpec:
    fields = {"service": f"{step_id}-svc", "retry_policy": POLICY, **fields}
    return StepSpec(step_id=step_id, step_type=step_id.upper(), **fields)


def undone_by(step_id: str, handler: str = "", **fields: Any) -> StepSpec:
    """Return a task with a compensation handler, called `undo-…` unless it is named."""
    return task(step_id, compensation=task(handler or f"undo-{step_id}"), **fields)


def risky(step_id: str, **fields: Any) -> StepSpec:
    """Return a task that is unsafe to retry."""
    return task(step_id, retry_safety=NOT_SAFE, **fields)


def call(step_id: str, body: Any = None, url: str = "https://ledger.example/post", **fields: Any) -> StepSpec:
    external = fields.pop("external_call", None) or Call(url=url, body=body)
    return StepSpec(step_id=step_id, kind="external_call", retry_policy=POLICY, external_call=external, **fields)


def notify(step_id: str, data: Any = None, **fields: Any) -> StepSpec:
    webhook = Notify(url="https://hooks.example/in", type="job.moved", data=data)
    return StepSpec(step_id=step_id, kind="notify", retry_policy=POLICY, notify=webhook, **fields)


def decision(step_id: str, choices: dict[str, str], otherwise: str = "FAIL", **fields: Any) -> StepSpec:
    """Return a decision; `choices` maps expressions to targets."""
    chosen = Decide(choices=tuple(Choice(when=when, then=then) for when, then in choices.items()), otherwise=otherwise)
    return StepSpec(step_id=step_id, kind="decision", decision=chosen, **fields)


def pause_for(step_id: str, duration_ms: int, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, kind="wait", wait=Wait(duration_ms=duration_ms), **fields)


def wait_until(step_id: str, until: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, kind="wait", wait=Wait(until=until), **fields)


def wait_for(step_id: str, signal: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, kind="wait", wait=Wait(signal=signal), **fields)


def approval(step_id: str, *approvers: str, quorum: int = 1, **fields: Any) -> StepSpec:
    asked = Approval(
        approvers=approvers or ("ada", "bob", "cleo"),
        quorum=quorum,
        four_eyes=fields.pop("four_eyes", False),
        prompt=fields.pop("prompt", ""),
    )
    return StepSpec(step_id=step_id, kind="human_approval", human_approval=asked, **fields)


def parallel(step_id: str, *branches: Any, join: Any = "fail_fast", **fields: Any) -> StepSpec:
    """Return a parallel step. Each branch is a step or a sequence of steps; they are named b0, b1, …"""
    named = {f"b{n}": tuple(b) if isinstance(b, list | tuple) else (b,) for n, b in enumerate(branches)}
    return StepSpec(step_id=step_id, kind="parallel", parallel=Parallel(branches=named, join=join), **fields)


def each(
    step_id: str, items: str, *body: StepSpec, at_once: int = 8, join: Any = "fail_fast", **fields: Any
) -> StepSpec:
    mapped = Map(items=items, steps=body, max_parallel=at_once, join=join)
    return StepSpec(step_id=step_id, kind="map", map=mapped, **fields)


def protocol(*steps: StepSpec, output_schema: dict[str, Any] | None = None, **policies: Any) -> ProtocolDefinition:
    return ProtocolDefinition(
        protocol_id="SHAPE",
        version=1,
        request_type="SHAPE",
        steps=steps,
        policies=Policies(**policies),
        output_schema=output_schema or {},
    )
