"""From the core's records to what the API shows."""

from collections.abc import Iterable
from typing import Any

from lucius import contract
from lucius.core.decision import EndedAttempt, Env, JobView
from lucius.core.derived import counts
from lucius.core.explain import explain
from lucius.core.model import (
    Attempt,
    BlockedReason,
    Compensation,
    ErrorInfo,
    Event,
    Job,
    Pause,
    Quarantined,
    Routing,
    Run,
    Scope,
    Step,
    StepStatus,
)
from lucius.core.protocol import StepSpec, items_of, spec_id
from lucius.core.steps import step_idempotency_key
from lucius.core.transitions import NOT_STARTED
from lucius.service.timestamps import timestamp, timestamp_or_none

MAX_ITEM_STEPS = 200


class Explainer:
    """Says why a job waits, knowing which services are at their cap."""

    def __init__(self, env: Env, saturated: frozenset[str] = frozenset()) -> None:
        self._env = env
        self._saturated = saturated

    def blocked_on(self, view: JobView) -> contract.BlockedOn | None:
        blocked = view.job.blocked
        if blocked is None:
            return None
        reason = blocked.reason
        step = view.steps.get(blocked.step_id) if blocked.step_id else None
        if reason is BlockedReason.HANDOVER and step is not None and step.service in self._saturated:
            reason = BlockedReason.DISPATCH_WINDOW
        return contract.BlockedOn(
            reason=reason,
            message=explain(view, reason, self._env),
            since=timestamp(blocked.since),
            until=timestamp_or_none(blocked.until),
        )


def job_summary(view: JobView, explainer: Explainer) -> contract.JobSummary:
    return contract.JobSummary(**_summary_fields(view, explainer))


def job_view(view: JobView, explainer: Explainer, workflows_url: str = "") -> contract.JobView:
    command = view.job.command
    target = contract.Target(**command.target) if command.target else None
    shown, omitted = _bounded(step_views(view))
    return contract.JobView(
        **_summary_fields(view, explainer),
        steps=shown,
        steps_omitted=omitted,
        output=_output(view),
        runs=[_run(run) for run in view.job.runs],
        paused=_pause(view.job.paused),
        compensation=_compensation(view.job.compensation),
        review_id=view.job.review.review_id if view.job.review else None,
        input_ref=command.input_ref,
        output_ref=command.output_ref,
        workspace_ref=command.workspace_ref,
        doc_id=command.doc_id,
        idempotency_key=command.idempotency_key,
        attempts_total=view.job.attempts_total,
        traceparent=command.traceparent,
        target=target,
        engine=view.job.engine or "embedded",
        engine_url=f"{workflows_url}/{view.job.job_id}" if view.job.engine and workflows_url else None,
    )


def _summary_fields(view: JobView, explainer: Explainer) -> dict[str, Any]:
    job = view.job
    return {
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "request_type": job.command.request_type,
        "protocol_id": job.protocol_id,
        "protocol_version": job.protocol_version,
        "status": job.status,
        "run_no": job.run_no,
        "current_step_id": job.current_step_id,
        "mode": job.routing.resolved_mode,
        "blocked_on": explainer.blocked_on(view),
        "created_at": timestamp(job.created_at),
        "updated_at": timestamp(job.updated_at),
        "completed_at": timestamp_or_none(job.completed_at),
        "error": error_view(job.error),
        "correlation_id": job.command.correlation_id,
    }


def _bounded(steps: list[contract.StepView]) -> tuple[list[contract.StepView], int]:
    """All but what a long map would flood the answer with, and how many were left out."""
    shown, of_items = [], 0
    for step in steps:
        of_items += "." in step.stepId
        if "." not in step.stepId or of_items <= MAX_ITEM_STEPS:
            shown.append(step)
    return shown, len(steps) - len(shown)


def _output(view: JobView) -> Any:
    last = view.steps.get(view.job.output_step_id) if view.job.output_step_id else None
    return last.result if last else None


def _run(run: Run) -> contract.RunView:
    return contract.RunView(
        run_no=run.run_no,
        status=run.status,
        started_at=timestamp(run.started_at),
        completed_at=timestamp(run.completed_at),
        error=error_view(run.error),
    )


def _pause(pause: Pause | None) -> contract.PauseView | None:
    return contract.PauseView(by=pause.by, at=timestamp(pause.at), reason=pause.reason) if pause else None


def _compensation(done: Compensation | None) -> contract.CompensationView | None:
    if done is None:
        return None
    status = "COMPLETED" if done.completed_at is not None else "HALTED" if done.failed is not None else "RUNNING"
    return contract.CompensationView(
        status=status, by=done.by, todo=list(done.todo), done=list(done.done), failed=done.failed
    )


def step_views(view: JobView) -> list[contract.StepView]:
    """Every step of the protocol, in its order: those that have started, and what became of those that have not.

    A map's inner steps are there once for each item that was started. Compensation handlers are there once started.
    """
    job = view.job
    started = {step.step_id: step for step in view.steps.values() if counts(job, step)}
    begun = {spec_id(step_id) for step_id in started}
    absent = [
        _not_started(job, place.spec, place.index, view.steps.get(name))
        for name, place in view.protocol.plan.places.items()
        if name not in begun and place.handler_of is None
    ]
    scopes = {scope.container: scope for scope in job.scopes}
    shown = [_started(view, step, scopes.get(step.step_id)) for step in started.values()]
    return sorted((*shown, *absent), key=lambda step: (step.index, items_of(step.stepId)))


def _started(view: JobView, step: Step, scope: Scope | None) -> contract.StepView:
    attempt, job = step.attempt, view.job
    return contract.StepView(
        stepId=step.step_id,
        index=step.index,
        kind=step.kind,
        step_type=step.step_type,
        service=step.service,
        status=step.status,
        attempt_no=attempt.attempt_no,
        lease_id=attempt.lease_id,
        **_routing_fields(attempt.routing),
        workspace_ref=job.command.workspace_ref,
        idempotency_key=step.idempotency_key,
        progress=attempt.progress,
        result=step.result,
        artifact_refs=step.artifact_refs,
        last_error=error_view(step.last_error),
        ack_deadline=timestamp_or_none(attempt.ack_deadline),
        lease_expires_at=timestamp_or_none(attempt.lease_expires_at),
        retry_at=timestamp_or_none(step.retry_at),
        created_at=timestamp(step.created_at),
        updated_at=timestamp(step.updated_at),
        completed_at=timestamp_or_none(step.completed_at),
        name=view.protocol.plan.places[spec_id(step.step_id)].spec.name,
        run_no=step.run_no,
        visit=step.visit,
        wake_at=timestamp_or_none(step.wake_at),
        awaits_signal=step.awaits if step.status is StepStatus.WAITING else None,
        votes=[
            contract.VoteView(by=vote.by, approves=vote.approves, at=timestamp(vote.at), comment=vote.comment)
            for vote in step.votes
        ],
        items=_counts(scope),
    )


def _counts(scope: Scope | None) -> contract.ItemCounts | None:
    if scope is None:
        return None
    return contract.ItemCounts(total=scope.total, live=scope.live, succeeded=scope.succeeded, failed=scope.failed)


def _not_started(job: Job, spec: StepSpec, index: int, before: Step | None) -> contract.StepView:
    """`before` is what an earlier run made of it: its attempts are counted on, never anew."""
    key = step_idempotency_key(job.tenant_id, job.job_id, spec.step_id, run_no=job.run_no if before else 1)
    if before is not None and before.status is not StepStatus.SUCCEEDED and not before.undone and before.visit == 1:
        key = before.idempotency_key
    return contract.StepView(
        stepId=spec.step_id,
        index=index,
        kind=spec.kind,
        step_type=spec.step_type,
        service=spec.service,
        status=NOT_STARTED.get(job.status, StepStatus.PENDING),
        attempt_no=before.attempt.attempt_no if before else 0,
        lease_id=None,
        **_routing_fields(job.routing),
        workspace_ref=job.command.workspace_ref,
        idempotency_key=key,
        completed_at=timestamp_or_none(job.completed_at),
        name=spec.name,
    )


def _routing_fields(routing: Routing) -> dict[str, Any]:
    return {
        "lane": routing.lane,
        "routing_key_used": routing.routing_key_used,
        "resolved_mode": routing.resolved_mode,
        "decision_source": routing.decision_source,
        "decision_reason": routing.decision_reason,
    }


def attempt_views(
    view: JobView, ended: Iterable[EndedAttempt], quarantined: Iterable[Quarantined]
) -> list[contract.AttemptView]:
    """The history and, for steps still under way, the attempt that is current."""
    kept = {(item.step_id, item.attempt_no): item for item in quarantined}
    history = [(item.step_id, item.attempt) for item in ended]
    seen = {(step_id, attempt.attempt_no) for step_id, attempt in history}
    current = [
        (step.step_id, step.attempt)
        for step in view.steps.values()
        if (step.step_id, step.attempt.attempt_no) not in seen
    ]
    ordered = sorted(
        history + current, key=lambda item: (view.protocol.index(item[0]), items_of(item[0]), item[1].attempt_no)
    )
    return [_attempt(view, step_id, attempt, kept.get((step_id, attempt.attempt_no))) for step_id, attempt in ordered]


def _turn(view: JobView, step_id: str) -> tuple[int, tuple[int, ...]]:
    return view.protocol.index(step_id), items_of(step_id)


def _attempt(view: JobView, step_id: str, attempt: Attempt, kept: Quarantined | None) -> contract.AttemptView:
    return contract.AttemptView(
        stepId=step_id,
        attempt_no=attempt.attempt_no,
        lease_id=attempt.lease_id,
        run_no=attempt.run_no,
        outcome=attempt.outcome,
        created_at=timestamp(attempt.created_at),
        handed_over_at=timestamp_or_none(attempt.handed_over_at),
        ack_deadline=timestamp_or_none(attempt.ack_deadline),
        acked_at=timestamp_or_none(attempt.acked_at),
        lease_expires_at=timestamp_or_none(attempt.lease_expires_at),
        ended_at=timestamp_or_none(attempt.ended_at),
        progress=attempt.progress,
        failure_class=attempt.failure_class,
        error=error_view(attempt.error),
        idempotency_key=attempt.idempotency_key or view.steps[step_id].idempotency_key,
        visit=attempt.visit,
        adopted_from=attempt.adopted_from,
        **_routing_fields(attempt.routing),
        quarantined=contract.StepInput(kept.result, kept.artifact_refs) if kept else None,
    )


def event_view(event: Event) -> contract.EventView:
    return contract.EventView(
        jobId=event.job_id,
        seq=event.seq,
        type=event.type,
        at=timestamp(event.at),
        stepId=event.step_id,
        attempt_no=event.attempt_no,
        data=event.data,
        hash=event.hash,
    )


def error_view(error: ErrorInfo | None) -> contract.Error | None:
    return contract.Error(error.code, error.message) if error else None
