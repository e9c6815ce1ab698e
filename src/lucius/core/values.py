"""What expressions and templates of a protocol can see of a job: its input, results so far, and a map's item."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lucius.core.draft import Draft
from lucius.core.model import Job, Step, StepStatus
from lucius.core.protocol import Plan, at_items, items_of

MAX_VALUE_BYTES = 256 * 1024
"""What a result, a request or a list of items may have. More belongs into the workspace, with a reference to it."""

_encode = msgspec.json.Encoder().encode


def too_large(value: Any) -> int | None:
    """Its size in bytes if it is more than a job should carry."""
    size = len(_encode(value))
    return size if size > MAX_VALUE_BYTES else None


def evaluate(draft: Draft, expression: str, spec_id: str, items: tuple[int, ...]) -> Any:
    """Raises ToolError."""
    tools = draft.env.tools
    return tools.evaluate(expression, values(draft, tools.names(expression), spec_id, items))


def render(draft: Draft, template: Any, spec_id: str, items: tuple[int, ...]) -> Any:
    """Raises ToolError."""
    tools = draft.env.tools
    return tools.render(template, values(draft, tools.names_in(template), spec_id, items))


def plain(rendered: Any) -> Any:
    """For a person to read: every `$${`, which keeps text from passing for the name of a secret, is a `${` again."""
    match rendered:
        case str():
            return rendered.replace("$${", "${")
        case list():
            return [plain(item) for item in rendered]
        case dict():
            return {plain(key): plain(item) for key, item in rendered.items()}
        case _:
            return rendered


def values(draft: Draft, names: Iterable[str], spec_id: str, items: tuple[int, ...]) -> Mapping[str, Any]:
    """The values behind `names`, as seen from a step."""
    plan = draft.protocol.plan
    seen = {name.removeprefix("steps.") for name in names if name.startswith("steps.")}
    found = {name: step_id_seen(plan, name, items) for name in seen if name in plan.places}
    mapped = _map_around(plan, spec_id) if "item" in names or "item_index" in names else None
    around = at_items(mapped, items[: plan.places[mapped].maps]) if mapped is not None else None
    draft.require([*found.values(), *([around] if around else [])])
    visible: dict[str, Any] = {"input": draft.job.command.payload, "job": _about(draft.job)}
    if plan.places[spec_id].handler_of is not None:  # it undoes an effect, of whichever run
        visible["steps"] = {name: _about_effect(draft.find(step_id)) for name, step_id in found.items()}
    else:
        visible["steps"] = {name: _about_step(draft.current(step_id)) for name, step_id in found.items()}
    if mapped is not None and around is not None:
        index = items[plan.places[mapped].maps]
        container = draft.find(around)
        visible["item_index"] = index
        visible["item"] = container.items[index] if container is not None and container.items else None
    return visible


def step_id_seen(plan: Plan, name: str, items: tuple[int, ...]) -> str:
    """Which step of the job a protocol's step is, seen from inside these map items."""
    return at_items(name, items[: plan.places[name].maps])


def _map_around(plan: Plan, name: str) -> str | None:
    around = plan.places[name].container
    while around is not None and plan.places[around].spec.map is None:
        around = plan.places[around].container
    return around


def item_of(plan: Plan, steps: Mapping[str, Step], step: Step) -> tuple[int, Any] | None:
    """The map item that a step works on, if it is inside a map and the map is at hand."""
    mapped = _map_around(plan, step.step_id.partition(".")[0])
    if mapped is None:
        return None
    items = items_of(step.step_id)
    depth = plan.places[mapped].maps
    container = steps.get(at_items(mapped, items[:depth]))
    return (items[depth], container.items[items[depth]]) if container is not None and container.items else None


def _about(job: Job) -> dict[str, Any]:
    command = job.command
    return {
        "id": job.job_id,
        "tenant_id": command.tenant_id,
        "request_type": command.request_type,
        "input_ref": command.input_ref,
        "output_ref": command.output_ref,
        "workspace_ref": command.workspace_ref,
        "doc_id": command.doc_id,
        "correlation_id": command.correlation_id,
        "target": command.target,
        "run_no": job.run_no,
    }


def _about_effect(step: Step | None) -> dict[str, Any]:
    about = _about_step(step)
    if step is not None and step.status is not StepStatus.SUCCEEDED and step.effect is not None:
        about["result"] = step.effect
    return about


def _about_step(step: Step | None) -> dict[str, Any]:
    if step is None:
        return {"status": str(StepStatus.PENDING), "result": None, "artifact_refs": [], "error": None}
    error = step.last_error if step.status is not StepStatus.SUCCEEDED else None  # of an attempt that was made up for
    return {
        "status": str(step.status),
        "result": step.result,
        "artifact_refs": step.artifact_refs,
        "error": {"code": error.code, "message": error.message} if error else None,
    }
