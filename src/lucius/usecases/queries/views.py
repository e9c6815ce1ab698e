"""Converts the core's records to their API representation."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from lucius import contract
from lucius.core.decide.derived_state import is_result_valid
from lucius.core.decide.explain import explain
from lucius.core.decide.transitions import NOT_STARTED
from lucius.core.model.decision import EndedAttempt, Env, JobSnapshot
from lucius.core.model.records import (
    Attempt,
    Compensation,
    ErrorInfo,
    Event,
    Instant,
    Job,
    JobPause,
    ProgressCounts,
    Quarantined,
    Routing,
    Run,
    Scope,
    Step,
)
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, StepStatus
from lucius.core.protocol.definition import StepSpec, items_of, spec_id
from lucius.core.protocol.redaction import redact_payload
from lucius.core.steps.new_step import step_idempotency_key
from lucius.usecases.queries.dispatch_windows import ALL_OPEN, DispatchWindows
from lucius.usecases.timestamps import timestamp, timestamp_or_none

MAX_ITEM_STEPS = 200
MAX_REF_CHARS = 4096


class ServiceNotes(Struct, frozen=True):
    """Notes about a service for the steps that wait for it."""

    absence: str | None = None
    oldest: tuple[Instant, str] | None = None
    """Since when its oldest step waits, and the note for steps that have waited for less long."""

    def notes_since(self, since: Instant) -> list[str]:
        """Return the notes for a step that has waited since then."""
        oldest = self.oldest[1] if self.oldest is not None and self.oldest[0] < since else None
        return [note for note in (self.absence, oldest) if note is not None]


class Explainer:
    """Explains why a job waits, given the dispatch windows and notes about services.

    On a push bus an absent service shows only by directives that it does not acknowledge.
    """

    def __init__(
        self,
        env: Env,
        windows: DispatchWindows = ALL_OPEN,
        notes: Mapping[str, ServiceNotes] | None = None,
        *,
        is_push_bus: bool = False,
    ) -> None:
        self._env = env
        self._windows = windows
        self._notes = notes or {}
        self._is_push_bus = is_push_bus

    def blocked_on(self, view: JobSnapshot) -> contract.BlockedOn | None:
        blocked = view.job.blocked
        if blocked is None:
            return None
        reason = blocked.reason
        step = view.steps.get(blocked.step_id) if blocked.step_id else None
        if (
            reason is BlockedReason.HANDOVER
            and step is not None
            and self._windows.is_closed(step.service, view.job.tenant_id)
        ):
            reason = BlockedReason.DISPATCH_WINDOW
        notes = self._notes_for(step, reason, blocked.since) if step is not None else []
        return contract.BlockedOn(
            reason=reason,
            message="; ".join((explain(view, reason, self._env), *notes)),
            since=timestamp(blocked.since),
            until=timestamp_or_none(blocked.until),
        )

    def _notes_for(self, step: Step, reason: BlockedReason, since: Instant) -> list[str]:
        known = self._notes.get(step.service)
        if known is None:
            return []
        if reason in (BlockedReason.HANDOVER, BlockedReason.DISPATCH_WINDOW):
            return known.notes_since(since)
        was_not_acknowledged = reason is BlockedReason.RETRY and step.attempt.outcome is AttemptOutcome.ACK_TIMEOUT
        if self._is_push_bus and known.absence and (reason is BlockedReason.ACK or was_not_acknowledged):
            return [known.absence]
        return []


def job_summary(view: JobSnapshot, explainer: Explainer) -> contract.JobSummary:
    return contract.JobSummary(**_summary_fields(view, explainer))


def job_view(view: JobSnapshot, explainer: Explainer, workflows_url: str = "") -> contract.JobView:
    command = view.job.command
    target = contract.Target(**command.target) if command.target else None
    current = view.job.current_step_id
    shown, omitted = _bounded(step_views(view))
    payload = redact_payload(command.payload, view.protocol.redact)
    return contract.JobView(
        **_summary_fields(view, explainer),
        steps=shown,
        steps_omitted=omitted,
        output=_output(view),
        reported_output_ref=reported_output_ref(view),
        payload=payload,
        current_step_index=view.protocol.index(current) if current is not None else None,
        # a hash over the unredacted command would confirm guesses of a masked value
        idempotency_hash=command.idempotency_hash if payload == command.payload else "",
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


def _summary_fields(view: JobSnapshot, explainer: Explainer) -> dict[str, Any]:
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
    """Return the steps with at most MAX_ITEM_STEPS of maps' items, and the number of omitted steps."""
    shown, of_items = [], 0
    for step in steps:
        of_items += "." in step.stepId
        if "." not in step.stepId or of_items <= MAX_ITEM_STEPS:
            shown.append(step)
    return shown, len(steps) - len(shown)


def _output(view: JobSnapshot) -> Any:
    last = view.steps.get(view.job.output_step_id) if view.job.output_step_id else None
    return last.result if last else None


def reported_output_ref(view: JobSnapshot) -> str | None:
    """Return the output location that the output step's service reported; None if it reported none.

    That is `output_ref` in its result, else an artifact at or below the job's `output_ref`.
    """
    last = view.steps.get(view.job.output_step_id) if view.job.output_step_id else None
    if last is None:
        return None
    named = last.result.get("output_ref") if isinstance(last.result, dict) else None
    if isinstance(named, str) and named:
        return named
    wanted = view.job.command.output_ref
    folder = wanted.rstrip("/") + "/"
    return next((ref for ref in last.artifact_refs if ref == wanted or ref.startswith(folder)), None)


def _run(run: Run) -> contract.RunView:
    return contract.RunView(
        run_no=run.run_no,
        status=run.status,
        started_at=timestamp(run.started_at),
        completed_at=timestamp(run.completed_at),
        error=error_view(run.error),
    )


def _pause(pause: JobPause | None) -> contract.PauseView | None:
    return contract.PauseView(by=pause.by, at=timestamp(pause.at), reason=pause.reason) if pause else None


def _compensation(done: Compensation | None) -> contract.CompensationView | None:
    if done is None:
        return None
    status = "COMPLETED" if done.completed_at is not None else "HALTED" if done.failed is not None else "RUNNING"
    return contract.CompensationView(
        status=status, by=done.by, todo=list(done.todo), done=list(done.done), failed=done.failed
    )


def step_views(view: JobSnapshot) -> list[contract.StepView]:
    """Return every step of the protocol, in its order, including those that have not started.

    A map's inner steps appear once for each item that was started, compensation handlers only once started.
    """
    job = view.job
    started = {step.step_id: step for step in view.steps.values() if is_result_valid(job, step)}
    begun = {spec_id(step_id) for step_id in started}
    absent = [
        _not_started(job, place.spec, place.index, view.steps.get(name))
        for name, place in view.protocol.plan.places.items()
        if name not in begun and place.handler_of is None
    ]
    scopes = {scope.container: scope for scope in job.scopes}
    shown = [_started(view, step, scopes.get(step.step_id)) for step in started.values()]
    return sorted((*shown, *absent), key=lambda step: (step.index, items_of(step.stepId)))


def _started(view: JobSnapshot, step: Step, scope: Scope | None) -> contract.StepView:
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
        progress_counts=_progress_counts(attempt.counts),
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
    """Return a step that has not started; `before` is the one of an earlier run, whose attempt numbers continue."""
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
    view: JobSnapshot, ended: Iterable[EndedAttempt], quarantined: Iterable[Quarantined]
) -> list[contract.AttemptView]:
    """Return the ended attempts and, for steps in progress, the current one."""
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


def _progress_counts(counts: ProgressCounts | None) -> contract.ProgressCounts | None:
    return contract.ProgressCounts(counts.done, counts.total, counts.unit) if counts is not None else None


def _attempt(view: JobSnapshot, step_id: str, attempt: Attempt, kept: Quarantined | None) -> contract.AttemptView:
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
        progress_counts=_progress_counts(attempt.counts),
        failure_class=attempt.failure_class,
        error=error_view(attempt.error),
        idempotency_key=attempt.idempotency_key or view.steps[step_id].idempotency_key,
        visit=attempt.visit,
        adopted_from=attempt.adopted_from,
        logs_ref=_logs_ref(attempt),
        **_routing_fields(attempt.routing),
        quarantined=contract.StepInput(kept.result, kept.artifact_refs) if kept else None,
    )


def _logs_ref(attempt: Attempt) -> str | None:
    ref = attempt.extra.get("logs_ref") if attempt.extra else None
    return ref if isinstance(ref, str) and len(ref) <= MAX_REF_CHARS else None


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
