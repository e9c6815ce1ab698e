"""A directive, rendered at hand-over from the job as it stands then: nothing in it can be out of date."""

from lucius.contract import CallbackUrls, Directive, StepInput
from lucius.core.decision import Defaults, JobView
from lucius.core.model import Step, StepStatus, message_id
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
        """The directive for the step's current attempt. `view` has every step that has started."""
        job, command, attempt = view.job, view.job.command, step.attempt
        spec = view.protocol.steps[step.index]
        lease_ms = spec.lease_ms or self._defaults.lease_ms
        ack_deadline = attempt.ack_deadline or attempt.created_at
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
            payload=command.payload.get(step.step_id, {}),
            callback_urls=self._callback_urls(command.callback_urls),
            callback_token=self._token(view, step, ack_deadline + lease_ms + self._late_window_ms),
            correlation_id=command.correlation_id,
            last_step=view.protocol.after(step.step_id) is None,
            inputs=_inputs(view, step),
            doc_id=command.doc_id,
            traceparent=command.traceparent,
            timeout_ms=spec.timeout_ms,
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


def _inputs(view: JobView, step: Step) -> dict[str, StepInput]:
    return {
        earlier.step_id: StepInput(earlier.result, earlier.artifact_refs)
        for earlier in view.steps.values()
        if earlier.index < step.index and earlier.status is StepStatus.SUCCEEDED
    }
