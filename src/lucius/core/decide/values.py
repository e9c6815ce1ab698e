"""Values that expressions and templates of a protocol can read of a job: its input, results so far, and map items."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lucius.core.decide.changeset import Changeset
from lucius.core.model.records import Job, Step
from lucius.core.model.statuses import StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import Plan, item_step_id, items_of
from lucius.core.protocol.redaction import MASK, redact_payload

MAX_VALUE_BYTES = 256 * 1024
"""Maximum size of a result, a request or a list of items. Larger values belong in the workspace, with a reference."""

_encode = msgspec.json.Encoder().encode


def too_large(value: Any) -> int | None:
    """Return the size of a value in bytes if it exceeds MAX_VALUE_BYTES, else None."""
    size = len(_encode(value))
    return size if size > MAX_VALUE_BYTES else None


def evaluate(changes: Changeset, expression: str, spec_id: str, items: tuple[int, ...]) -> Any:
    """Evaluate an expression. Raises ToolError."""
    tools = changes.env.tools
    return tools.evaluate(expression, values(changes, tools.names(expression), spec_id, items))


def render(changes: Changeset, template: Any, spec_id: str, items: tuple[int, ...]) -> Any:
    """Render a template. Raises ToolError."""
    tools = changes.env.tools
    return tools.render(template, values(changes, tools.names_in(template), spec_id, items))


def render_redacted(changes: Changeset, template: Any, spec_id: str, items: tuple[int, ...]) -> Any:
    """Render a template with redacted values masked in `input` and in a map's `item`. Raises ToolError."""
    tools = changes.env.tools
    return tools.render(template, _redacted_values(changes, tools.names_in(template), spec_id, items))


def _redacted_values(
    changes: Changeset, names: frozenset[str], spec_id: str, items: tuple[int, ...]
) -> Mapping[str, Any]:
    visible = dict(values(changes, names, spec_id, items))
    visible["input"] = redact_payload(changes.job.command.payload, changes.protocol.redact)
    if "item" in visible:
        visible["item"] = _redacted_item(changes, spec_id, items, visible["item"])
    return visible


def _redacted_item(changes: Changeset, name: str, items: tuple[int, ...], item: Any) -> Any:
    """Return a map's item with redacted values masked, all of it if they can't be identified.

    Compares the item with that of the list as evaluated over the redacted payload.
    """
    plan, tools = changes.protocol.plan, changes.env.tools
    mapped = _enclosing_map(plan, name)
    spec = plan.places[mapped].spec.map if mapped is not None else None
    if mapped is None or spec is None:
        return MASK
    depth, seen = plan.places[mapped].maps, tools.names(spec.items)
    if not seen & {"input", "item"}:
        return item
    try:
        found = tools.evaluate(spec.items, _redacted_values(changes, seen, mapped, items[:depth]))
    except ToolError:  # it computes with a redacted value
        return MASK
    is_there = isinstance(found, list) and items[depth] < len(found)
    return _mask_differences(item, found[items[depth]]) if is_there else MASK


def _mask_differences(value: Any, redacted: Any) -> Any:
    match value, redacted:
        case dict(), dict() if value.keys() == redacted.keys():
            return {key: _mask_differences(value[key], member) for key, member in redacted.items()}
        case list(), list() if len(value) == len(redacted):
            return [_mask_differences(one, other) for one, other in zip(value, redacted, strict=True)]
        case _:
            return redacted if value == redacted else MASK


def render_url(changes: Changeset, template: str, spec_id: str, items: tuple[int, ...]) -> str:
    """Render a URL with its values encoded. Raises ToolError."""
    tools = changes.env.tools
    return tools.render_url(template, values(changes, tools.names_in(template), spec_id, items))


def unescape_template(rendered: Any) -> Any:
    """Return rendered text for display: `$${`, the escape of `${`, is resolved."""
    match rendered:
        case str():
            return rendered.replace("$${", "${")
        case list():
            return [unescape_template(item) for item in rendered]
        case dict():
            return {unescape_template(key): unescape_template(item) for key, item in rendered.items()}
        case _:
            return rendered


def values(changes: Changeset, names: Iterable[str], spec_id: str, items: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the values that `names` stand for at a step."""
    plan = changes.protocol.plan
    seen = {name.removeprefix("steps.") for name in names if name.startswith("steps.")}
    found = {name: resolve_step_id(plan, name, items) for name in seen if name in plan.places}
    mapped = _enclosing_map(plan, spec_id) if "item" in names or "item_index" in names else None
    around = item_step_id(mapped, items[: plan.places[mapped].maps]) if mapped is not None else None
    changes.require([*found.values(), *([around] if around else [])])
    visible: dict[str, Any] = {"input": changes.job.command.payload, "job": _describe_job(changes.job)}
    if plan.places[spec_id].handler_of is not None:  # a handler may undo the effect of any run
        visible["steps"] = {name: _describe_effect(changes.find(step_id)) for name, step_id in found.items()}
    else:
        visible["steps"] = {name: _describe_step(changes.current(step_id)) for name, step_id in found.items()}
    if mapped is not None and around is not None:
        index = items[plan.places[mapped].maps]
        container = changes.find(around)
        visible["item_index"] = index
        visible["item"] = container.items[index] if container is not None and container.items else None
    return visible


def resolve_step_id(plan: Plan, name: str, items: tuple[int, ...]) -> str:
    """Return the id of the job's step for a protocol's step that a step at these map items reads."""
    return item_step_id(name, items[: plan.places[name].maps])


def _enclosing_map(plan: Plan, name: str) -> str | None:
    around = plan.places[name].container
    while around is not None and plan.places[around].spec.map is None:
        around = plan.places[around].container
    return around


def item_of(plan: Plan, steps: Mapping[str, Step], step: Step) -> tuple[int, Any] | None:
    """Return index and value of the map item that a step works on; None outside maps or if the map is not loaded."""
    mapped = _enclosing_map(plan, step.step_id.partition(".")[0])
    if mapped is None:
        return None
    items = items_of(step.step_id)
    depth = plan.places[mapped].maps
    container = steps.get(item_step_id(mapped, items[:depth]))
    return (items[depth], container.items[items[depth]]) if container is not None and container.items else None


def _describe_job(job: Job) -> dict[str, Any]:
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


def _describe_effect(step: Step | None) -> dict[str, Any]:
    about = _describe_step(step)
    if step is not None and step.status is not StepStatus.SUCCEEDED and step.effect is not None:
        about["result"] = step.effect
    return about


def _describe_step(step: Step | None) -> dict[str, Any]:
    if step is None:
        return {"status": str(StepStatus.PENDING), "result": None, "artifact_refs": [], "error": None}
    error = step.last_error if step.status is not StepStatus.SUCCEEDED else None  # a later attempt succeeded
    return {
        "status": str(step.status),
        "result": step.result,
        "artifact_refs": step.artifact_refs,
        "error": {"code": error.code, "message": error.message} if error else None,
    }
