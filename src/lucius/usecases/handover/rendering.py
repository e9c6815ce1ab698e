"""Writes directives from the job's state at hand-over, so that nothing in them is outdated."""

from collections.abc import Callable
from typing import Any

from lucius.contract import CallbackUrls, Directive, RefRules, StepInput
from lucius.core.decide.derived_state import is_result_valid
from lucius.core.decide.values import item_of, resolve_step_id
from lucius.core.model.decision import Defaults, JobSnapshot
from lucius.core.model.records import Step, message_id
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import SUCCEED, Place, ProtocolDefinition, StepSpec, items_of, spec_id
from lucius.usecases.callbacks.tokens import Claims, TokenSigner
from lucius.usecases.timestamps import timestamp


class DirectiveWriter:
    def __init__(
        self,
        base_url: str,
        signer: TokenSigner,
        late_window_ms: int,
        defaults: Defaults,
        ref_rules: Callable[[str], list[RefRules]] = lambda tenant: [],
        permits_callback: Callable[[str, str], bool] = lambda tenant, url: True,
    ) -> None:
        root = base_url.rstrip("/") + "/v1/callbacks"
        self._urls = CallbackUrls(ack=f"{root}/ack", result=f"{root}/result", heartbeat=f"{root}/heartbeat")
        self._signer = signer
        self._late_window_ms = late_window_ms
        self._defaults = defaults
        self._ref_rules = ref_rules
        self._permits_callback = permits_callback

    def write(self, view: JobSnapshot, step: Step) -> Directive:
        """Return the directive for the step's current attempt. `view` must have the steps listed by `seen_from`."""
        job, command, attempt = view.job, view.job.command, step.attempt
        place = view.protocol.plan.places[spec_id(step.step_id)]
        spec = place.spec
        lease_ms = spec.lease_ms or self._defaults.lease_ms
        ack_deadline = attempt.ack_deadline or attempt.created_at
        item = item_of(view.protocol.plan, view.steps, step)
        return Directive(
            message_id=message_id(job.job_id, step.step_id, attempt.attempt_no),
            jobId=job.job_id,
            stepId=step.step_id,
            tenant_id=command.tenant_id,
            protocol_id=job.protocol_id,
            protocol_version=job.protocol_version,
            request_type=command.request_type,
            step_type=step.step_type,
            kind=step.kind,
            service=step.service,
            attempt_no=attempt.attempt_no,
            lease_id=attempt.lease_id,
            lease_seconds=lease_ms / 1000,
            ack_deadline=timestamp(ack_deadline),
            idempotency_key=step.idempotency_key,
            lane=attempt.routing.lane,
            mode=attempt.routing.resolved_mode,
            routing_key_used=attempt.routing.routing_key_used,
            input_ref=command.input_ref,
            workspace_ref=command.workspace_ref,
            output_ref=command.output_ref,
            payload=command.payload.get(spec.step_id, {}),
            callback_urls=self._callback_urls(command.tenant_id, command.callback_urls),
            callback_token=self._token(view, step, ack_deadline + lease_ms + self._late_window_ms),
            correlation_id=command.correlation_id,
            last_step=_is_last(place),
            inputs=_inputs(view, step),
            doc_id=command.doc_id,
            traceparent=command.traceparent,
            tracestate=command.tracestate,
            timeout_ms=spec.timeout_ms,
            retry_safety=spec.retry_safety,
            guard=render_guard(spec, step),
            item=item[1] if item else None,
            item_index=item[0] if item else None,
            compensates=place.handler_of,
            ref_rules=self._ref_rules(command.tenant_id),
        )

    def _callback_urls(self, tenant_id: str, wanted: dict[str, str]) -> CallbackUrls:
        """Return the client's callback URLs; ours replace those that the policy no longer permits."""
        given = {
            name: url
            for name, url in wanted.items()
            if name in ("ack", "result") and self._permits_callback(tenant_id, url)
        }
        if not given:
            return self._urls
        return CallbackUrls(
            ack=given.get("ack", self._urls.ack),
            result=given.get("result", self._urls.result),
            heartbeat=self._urls.heartbeat,
        )

    def _token(self, view: JobSnapshot, step: Step, expires_at: int) -> str:
        attempt = step.attempt
        return self._signer.sign(
            Claims(
                tenant_id=view.job.tenant_id,
                job_id=view.job.job_id,
                step_id=step.step_id,
                attempt_no=attempt.attempt_no,
                lease_id=attempt.lease_id,
                expires_at=expires_at,
            )
        )


def render_guard(spec: StepSpec, step: Step) -> dict[str, Any] | None:
    """Return guard data if the work may have been done before under the same key.

    That was in this visit, or in a run that gave the step up.
    """
    before = step.tries - 1 + step.repeats
    guarded = before > 0 and spec.retry_safety == "SAFE_TO_RETRY_WITH_GUARD"
    return {"previous_attempts": before, **(spec.guard or {})} if guarded else None


def _is_last(place: Place) -> bool:
    """Return True if the job succeeds when this step does."""
    following = place.spec.on_success or place.following
    return place.container is None and place.handler_of is None and following == SUCCEED


def seen_from(protocol: ProtocolDefinition, step_id: str) -> list[str]:
    """Return the steps that a directive may need: the step itself, earlier ones in its flow and around it, its maps.

    A compensation handler sees all steps of its job.
    """
    plan, items = protocol.plan, items_of(step_id)
    seen = plan.readable_from(spec_id(step_id))
    return [*(seen if not items else (resolve_step_id(plan, name, items) for name in seen)), step_id]


def _inputs(view: JobSnapshot, step: Step) -> dict[str, StepInput]:
    """Return the results of earlier steps by their protocol names; inside a map, those of the same item."""
    seen = (view.steps.get(name) for name in seen_from(view.protocol, step.step_id)[:-1])
    return {
        spec_id(other.step_id): StepInput(other.result, other.artifact_refs)
        for other in seen
        if other is not None and _is_done(view, other)
    }


def _is_done(view: JobSnapshot, step: Step) -> bool:
    return step.status in (StepStatus.SUCCEEDED, StepStatus.SKIPPED) and is_result_valid(view.job, step)
