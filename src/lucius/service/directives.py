"""A directive, rendered at hand-over from the job as it stands then: nothing in it can be out of date."""

from typing import Any

from lucius.contract import CallbackUrls, Directive, StepInput
from lucius.core.decision import Defaults, JobView
from lucius.core.derived import counts
from lucius.core.model import Step, StepStatus, message_id
from lucius.core.protocol import SUCCEED, Place, Protocol, StepSpec, items_of, spec_id
from lucius.core.values import item_of, step_id_seen
from lucius.service.timestamps import timestamp
from lucius.service.tokens import Claims, TokenSigner


class DirectiveWriter:
    def __init__(self, base_url: str, signer: TokenSigner, late_window_ms: int, defaults: Defaults) -> None:
        root = base_url.rstrip("/") + "/v1/callbacks"
        self._urls = CallbackUrls(ack=f"{root}/ack", result=f"{root}/result", heartbeat=f"{root}/heartbeat")
        self._signer = signer
        self._late_window_ms = late_window_ms
        self._defaults = defaults

    def write(self, view: JobView, step: Step) -> Directive:
        """The directive for the step's current attempt. `view` has the steps that are `seen_from` it."""
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
            callback_urls=self._callback_urls(command.callback_urls),
            callback_token=self._token(view, step, ack_deadline + lease_ms + self._late_window_ms),
            correlation_id=command.correlation_id,
            last_step=_is_last(place),
            inputs=_inputs(view, step),
            doc_id=command.doc_id,
            traceparent=command.traceparent,
            timeout_ms=spec.timeout_ms,
            retry_safety=spec.retry_safety,
            guard=_guard(spec, step),
            item=item[1] if item else None,
            item_index=item[0] if item else None,
            compensates=place.handler_of,
        )

    def _callback_urls(self, wanted: dict[str, str]) -> CallbackUrls:
        if not wanted:
            return self._urls
        return CallbackUrls(
            ack=wanted.get("ack", self._urls.ack),
            result=wanted.get("result", self._urls.result),
            heartbeat=self._urls.heartbeat,
        )

    def _token(self, view: JobView, step: Step, expires_at: int) -> str:
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


def _guard(spec: StepSpec, step: Step) -> dict[str, Any] | None:
    """For what may have been done before under the same key: in this visit, or in a run that gave it up."""
    before = step.tries - 1 + step.repeats
    guarded = before > 0 and spec.retry_safety == "SAFE_TO_RETRY_WITH_GUARD"
    return {"previous_attempts": before, **(spec.guard or {})} if guarded else None


def _is_last(place: Place) -> bool:
    """Whether this step's success is the job's."""
    following = place.spec.on_success or place.following
    return place.container is None and place.handler_of is None and following == SUCCEED


def seen_from(protocol: Protocol, step_id: str) -> list[str]:
    """The steps that a directive may need: the step itself, those before it in its own flow and around it, and the
    maps it is in. A handler sees all that its job did."""
    plan, items = protocol.plan, items_of(step_id)
    seen = plan.seen_from(spec_id(step_id))
    return [*(seen if not items else (step_id_seen(plan, name, items) for name in seen)), step_id]


def _inputs(view: JobView, step: Step) -> dict[str, StepInput]:
    """Results of earlier steps, by the protocol's names; inside a map, those of the same item."""
    seen = (view.steps.get(name) for name in seen_from(view.protocol, step.step_id)[:-1])
    return {
        spec_id(other.step_id): StepInput(other.result, other.artifact_refs)
        for other in seen
        if other is not None and _is_done(view, other)
    }


def _is_done(view: JobView, step: Step) -> bool:
    return step.status in (StepStatus.SUCCEEDED, StepStatus.SKIPPED) and counts(view.job, step)
