"""Further invariants of worlds with sequential steps and no operators."""

from collections.abc import Iterator

from lucius.core.model.statuses import TERMINAL_JOB, TERMINAL_STEP, AttemptOutcome, JobStatus, StepStatus
from tests.simulation.invariants import Change, Known, Rule


def terminal_states_never_change(change: Change, _: Known) -> Iterator[str]:
    before, job = change.before, change.record.job
    if before is None:
        return
    was = before.job
    if was.status in TERMINAL_JOB and (was.status, was.error, was.completed_at, was.run_no) != (
        job.status,
        job.error,
        job.completed_at,
        job.run_no,
    ):
        yield f"the job was {was.status} and became {job.status}"
    for step_id, step in before.steps.items():
        if step.status in TERMINAL_STEP and change.record.steps[step_id] != step:
            yield f"step {step_id} was {step.status} and changed to {change.record.steps[step_id].status}"


def attempts_stay_within_the_budget(change: Change, known: Known) -> Iterator[str]:
    for ended in change.decision.attempts:
        if ended.attempt.outcome is AttemptOutcome.REPAIRED:
            known.repairs[change.job_id, ended.step_id] += 1
    for _, step in change.steps():
        limit = change.spec(step).retry_policy.max_attempts or known.defaults.max_attempts
        repairs = known.repairs[change.job_id, step.step_id]
        if step.tries > limit:
            yield f"step {step.step_id} is at try {step.tries} of {limit}"
        if step.attempt.attempt_no != step.tries + repairs:
            yield f"attempt {step.attempt.attempt_no} after {step.tries} tries and {repairs} repairs"


def one_step_is_active(change: Change, _: Known) -> Iterator[str]:
    record, job = change.record, change.record.job
    running = tuple(step.step_id for step in record.steps.values() if step.status not in TERMINAL_STEP)
    if len(running) > 1 or tuple(job.active) != running:
        yield f"active is {job.active}, running is {running}"
    if job.live and not running and job.status is not JobStatus.QUEUED:
        yield f"the job is {job.status} and nothing of it runs"


def steps_follow_the_protocol(change: Change, _: Known) -> Iterator[str]:
    record, job = change.record, change.record.job
    for was, step in change.steps():
        earlier = [record.steps.get(spec.step_id) for spec in record.protocol.steps[: step.index]]
        if was is None and not all(e and e.status is StepStatus.SUCCEEDED for e in earlier):
            yield f"step {step.step_id} started before its turn"
        began = was is None or was.attempt.attempt_no != step.attempt.attempt_no
        stopping = change.before is not None and change.before.job.status is JobStatus.CANCELLING
        if began and stopping:
            yield f"step {step.step_id} started an attempt while the job was being cancelled"
    done = [record.steps.get(spec.step_id) for spec in record.protocol.steps]
    if job.status is JobStatus.SUCCEEDED and not all(s and s.status is StepStatus.SUCCEEDED for s in done):
        yield "the job succeeded without all of its steps"
    overdue = job.error is not None and job.error.code == "JOB_TIMEOUT"
    last = record.steps.get(job.current_step_id or "")
    if (
        job.status is JobStatus.FAILED_FINAL
        and not overdue
        and (not last or last.status is not StepStatus.FAILED_FINAL)
    ):
        yield "the job failed and its step did not"


LINE_RULES: tuple[Rule, ...] = (
    terminal_states_never_change,
    attempts_stay_within_the_budget,
    one_step_is_active,
    steps_follow_the_protocol,
)
