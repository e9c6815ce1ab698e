"""Invariants of operator acts: pauses, runs, votes, signals, compensation and review items."""

from collections.abc import Iterator

from lucius.core.model.records import Job, Step
from lucius.core.model.statuses import (
    TERMINAL_JOB,
    TERMINAL_STEP,
    AttemptOutcome,
    JobStatus,
    ReviewKind,
    ReviewStatus,
    StepStatus,
)
from lucius.core.protocol.definition import spec_id
from tests.simulation.flow_rules import FROM_HERE, goes_on, stands
from tests.simulation.invariants import DISPATCHED, Change, Known, Rule, surely_stayed
from tests.simulation.protocols import FINANCE

OUTSIDE_ACTS = ("CANCEL_REQUESTED", "REVIEW_CLOSED", "RUN_STARTED", "COMPENSATION_RESUMED", "COMPENSATION_REQUESTED")
WAITS = frozenset({StepStatus.WAITING, StepStatus.AWAITING_APPROVAL})


def a_pause_holds(change: Change, _: Known) -> Iterator[str]:
    """Yield each attempt, hand-over, wait or job that moves on while the job is paused."""
    before, job = change.before, change.record.job
    if before is None or before.job.paused is None:
        return
    if before.job.paused.on_review and change.has("JOB_RESUMED"):
        yield "a job that waits for a review was resumed"
    if not job.live and not change.has("JOB_RESUMED", *OUTSIDE_ACTS):
        yield f"a paused job became {job.status}"
    if job.paused is None or job.paused != before.job.paused:
        if not change.has("JOB_RESUMED", *OUTSIDE_ACTS):
            yield "a pause ended by itself"
        return
    if job.status is not JobStatus.PAUSED and not (job.paused.on_review and job.status is JobStatus.CANCELLING):
        yield f"the job is paused and {job.status}"
    acted = change.has("DRIFT_REPAIRED", "RESULT_ADOPTED")
    for was, step in change.steps():
        yield from _moved_while_paused(was, step, acted=acted)


def _moved_while_paused(was: Step | None, step: Step, *, acted: bool) -> Iterator[str]:
    if was is None or was.attempt.attempt_no != step.attempt.attempt_no:
        if not acted:
            yield f"step {step.step_id} started an attempt while the job was paused"
        return
    if step.attempt.claimed_at is not None and was.attempt.claimed_at is None:
        yield f"step {step.step_id} was claimed while the job was paused"
    waited = was.attempt.handed_over_at is None and was.attempt.claimed_at is None
    if waited and step.attempt.handed_over_at is not None:
        yield f"step {step.step_id} was handed over while the job was paused"
    if was.status in WAITS and step.status is not was.status:
        yield f"step {step.step_id} went from {was.status} to {step.status} while the job was paused"


def a_pause_costs_no_time(change: Change, _: Known) -> Iterator[str]:
    before, job = change.before, change.record.job
    if before is None or before.job.paused is None or not change.has("JOB_RESUMED") or not job.live:
        return
    was, now = before.job.deadline, job.updated_at
    if was is not None and job.deadline is not None and job.deadline - now != was - before.job.paused.at:
        yield f"the job had {was - before.job.paused.at} ms left and has {job.deadline - now}"


def the_end_of_a_run_never_changes(change: Change, _: Known) -> Iterator[str]:
    before, job = change.before, change.record.job
    if before is None:
        return
    was = before.job
    if job.runs[: len(was.runs)] != was.runs:
        yield "the story of earlier runs was changed"
    if job.run_no == was.run_no:
        if was.status in TERMINAL_JOB and _end(was) != _end(job):
            yield f"the job was {was.status} and became {job.status}"
    elif job.run_no != was.run_no + 1 or not change.has("RUN_STARTED"):
        yield f"run {was.run_no} became run {job.run_no}"
    else:
        yield from _closed_as_it_ended(was, job)
    for step_id, step in before.steps.items():
        now = change.record.steps[step_id]
        if step.status in TERMINAL_STEP and now != step and not _again(change, step, now):
            yield f"step {step_id} was {step.status} and changed to {now.status}"


def a_run_starts_where_the_last_one_stopped(change: Change, _: Known) -> Iterator[str]:
    """Yield a retry that starts beyond where the job stopped, or before it although no operator named the step."""
    before, plan = change.before, change.record.protocol.plan
    started = next((event for event in change.decision.events if event.type == "RUN_STARTED"), None)
    if before is None or started is None or started.data["act"] != "retry":
        return
    if started.data["from_step"] not in plan.places:
        return
    was, start = before.job, plan.places[started.data["from_step"]]
    stopped = {was.failure.step_id if was.failure and was.failure.step_id else was.current_step_id}
    stopped |= {name for name, step in before.steps.items() if step.undone}
    stopped |= {token.before for token in was.ready if token.target == "UNDO"}
    places = [plan.places[plan.outermost(name)] for name in stopped if name is not None]
    places = [plan.places[place.handler_of] if place.handler_of else place for place in places]
    if was.resume_from is not None and was.resume_from.target in plan.places:
        places.append(plan.places[was.resume_from.target])
    if start.index > max(place.index for place in places):
        yield f"the run starts from {start.spec.step_id}, which was not reached"
    if started.data["reason"] != FROM_HERE and start not in places:
        yield f"the run starts from {start.spec.step_id}, and it stopped at {[place.spec.step_id for place in places]}"


def _end(job: Job) -> tuple[object, ...]:
    return job.status, job.error, job.completed_at


def _closed_as_it_ended(was: Job, job: Job) -> Iterator[str]:
    run = job.runs[-1]
    if run.run_no != was.run_no or run.status not in TERMINAL_JOB:
        yield f"run {was.run_no} was closed as {run}"
    elif was.status in TERMINAL_JOB and _end(was) != (run.status, run.error, run.completed_at):
        yield f"run {was.run_no} ended {_end(was)} and is told as {run}"


def _again(change: Change, was: Step, now: Step) -> bool:
    """Return True if the change is a new visit, run or operator retry, or an unchanged step kept for a new run."""
    if now.attempt.attempt_no > was.attempt.attempt_no:
        return (now.run_no, now.visit) > (was.run_no, was.visit) or change.has(*OUTSIDE_ACTS, "COMPENSATION_STARTED")
    kept = now.run_no == change.record.job.run_no > was.run_no
    undone = now.undone and not was.undone and change.has("STEP_COMPENSATED", "STEP_SKIPPED", "RESULT_ADOPTED")
    return (kept or undone) and (now.status, now.result, now.attempt) == (was.status, was.result, was.attempt)


def not_safe_steps_leave_once(change: Change, known: Known) -> Iterator[str]:
    """Yield a NOT_SAFE step handed over twice in one run and visit, unless an operator had its handler retried."""
    halted = change.before is not None and change.before.job.compensation is not None
    known.resumed[change.job_id] += change.has("COMPENSATION_RESUMED") or (halted and change.has("CANCEL_REQUESTED"))
    for was, step in change.steps():
        attempt = step.attempt
        if change.spec(step).retry_safety != "NOT_SAFE_TO_RETRY":
            continue
        now = (change.job_id, step.step_id, attempt.run_no, attempt.visit, known.resumed[change.job_id])
        turn = known.once.setdefault(attempt.lease_id, now)
        out = known.out.setdefault(turn, set())
        if surely_stayed(attempt):
            out.discard(attempt.lease_id)
        elif _went_out(was, step):
            out.add(attempt.lease_id)
        if len(out) > 1:
            yield f"step {step.step_id} must not be repeated and went out {len(out)} times in run {attempt.run_no}"


def _went_out(was: Step | None, step: Step) -> bool:
    new = was is None or was.attempt.lease_id != step.attempt.lease_id or was.attempt.handed_over_at is None
    return new and step.attempt.handed_over_at is not None


def a_key_is_done_once(change: Change, known: Known) -> Iterator[str]:
    for was, step in change.steps():
        if step.kind not in DISPATCHED:
            continue
        key, attempt = step.idempotency_key, step.attempt
        known.handed[key] += _went_out(was, step)
        if step.guard_request is not None:
            known.guarded.add(key)
        if attempt.idempotency_key != key:
            yield f"attempt {attempt.attempt_no} of step {step.step_id} goes by another key than its step"
        same_turn = was is not None and (was.run_no, was.visit) == (step.run_no, step.visit)
        if was is not None and same_turn and was.idempotency_key != key:
            yield f"step {step.step_id} changed its key within a visit"
        if (
            step.status is StepStatus.SUCCEEDED
            and known.succeeded.setdefault(key, attempt.lease_id) != attempt.lease_id
        ):
            yield f"the key of step {step.step_id} was done by {known.succeeded[key]} and {attempt.lease_id}"


def adopted_results_were_kept(change: Change, _: Known) -> Iterator[str]:
    for was, step in change.steps():
        adopted = step.attempt.adopted_from
        if adopted is None or (was is not None and was.attempt.attempt_no == step.attempt.attempt_no):
            continue
        kept = [
            q.result for q in change.record.quarantined.values() if (q.step_id, q.attempt_no) == (step.step_id, adopted)
        ]
        if step.result not in kept:
            yield f"step {step.step_id} has a result that attempt {adopted} never gave"


def votes_decide(change: Change, _: Known) -> Iterator[str]:
    for was, step in change.steps():
        approval = change.spec(step).human_approval
        if approval is None or (was is not None and was.attempt.attempt_no == step.attempt.attempt_no and was == step):
            continue
        voters = [vote.by for vote in step.votes]
        if len(set(voters)) != len(voters):
            yield f"somebody voted twice on {step.step_id}: {voters}"
        if not set(voters) <= set(approval.approvers) and FINANCE not in approval.approvers:
            yield f"{voters} voted on {step.step_id}, and only {approval.approvers} may"
        against = [vote.by for vote in step.votes if not vote.approves]
        enough = not against and len(voters) >= approval.quorum
        by_a_person = step.attempt.adopted_from is not None
        if step.status is StepStatus.SUCCEEDED and not enough and not by_a_person:
            yield f"{step.step_id} is approved by {voters}, {approval.quorum} must, {against} are against"
        if step.attempt.outcome is AttemptOutcome.REJECTED and not against:
            yield f"{step.step_id} is rejected and nobody did"
        open_ = step.status is StepStatus.AWAITING_APPROVAL and goes_on(change.record.job)
        if open_ and (against or enough):
            yield f"{step.step_id} has its votes and is not decided"


def timers_are_kept(change: Change, _: Known) -> Iterator[str]:
    for was, step in change.steps():
        if was is None or was.status not in WAITS or step.status in WAITS or was.visit != step.visit:
            continue
        timed_out = step.attempt.outcome is AttemptOutcome.STEP_TIMEOUT
        slept = step.status is StepStatus.SUCCEEDED and was.kind == "wait" and was.awaits is None
        if (timed_out or slept) and (was.wake_at is None or change.record.job.updated_at < was.wake_at):
            yield f"step {step.step_id} was over at {change.record.job.updated_at}, its timer says {was.wake_at}"


def no_signal_is_lost(change: Change, known: Known) -> Iterator[str]:
    """Yield signals whose kept number is not received minus consumed, and kept ones that a step still awaits."""
    job = change.record.job
    for event in change.decision.events:
        if event.type == "SIGNAL_RECEIVED":
            known.signals[change.job_id, event.data["name"]] += 1
        elif event.type == "STEP_SUCCEEDED" and (name := _signal_of(change, event.step_id or "")):
            known.signals[change.job_id, name] -= 1
    kept = [signal.name for signal in job.signals]
    for (job_id, name), count in known.signals.items():
        if job_id == change.job_id and kept.count(name) != count:
            yield f"of signal {name} {count} should be kept, and {kept.count(name)} are"
    awaited = [change.record.steps[step_id].awaits for step_id in job.active]
    if goes_on(job) and any(name in kept for name in awaited if name):
        yield f"{kept} were given, and steps go on waiting for {awaited}"


def _signal_of(change: Change, step_id: str) -> str | None:
    wait = change.place(step_id).spec.wait
    return wait.signal if wait is not None else None


def undoing_runs_backwards(change: Change, known: Known) -> Iterator[str]:
    """Yield undo steps out of order: the last step is undone first, each once, and every effect that stands."""
    order, record, job = known.done.setdefault(change.job_id, []), change.record, change.record.job
    for event in change.decision.events:
        place = change.place(event.step_id) if event.step_id else None
        done = event.type in ("STEP_SUCCEEDED", "RESULT_ADOPTED", "STEP_SKIPPED")
        if place is not None and done and place.spec.compensation is not None and event.step_id:
            order[:] = [name for name in order if name != event.step_id] + [event.step_id]
        if event.type == "COMPENSATION_STARTED":
            known.undoing[change.job_id] = event.data["steps"]
            yield from _in_reverse(change, known, event.data["steps"], order)
    under_way = job.compensation
    if under_way is None:
        return
    running = [s for s in job.active if change.place(s).handler_of is not None]
    if running and (not under_way.todo or change.place(running[0]).handler_of != spec_id(under_way.todo[0])):
        yield f"{running} runs, and {under_way.todo} are to be undone"
    left = {*known.undoing[change.job_id], *under_way.todo} - {*under_way.done}
    if under_way.completed_at is not None and left:
        yield f"undoing is complete, and {left} are left"
    asked = under_way.by != "engine" or record.protocol.policies.compensation == "auto"
    policies = record.protocol.policies
    by_policy = policies.compensate_on_failure or (job.cancel is not None and policies.compensate_on_cancel)
    if not asked and not by_policy:
        yield "undoing started without a person, and the policy wants one"


def _in_reverse(change: Change, known: Known, todo: list[str], order: list[str]) -> Iterator[str]:
    record, job = change.record, change.record.job
    failed = {name for name in todo if record.steps[name].status is not StepStatus.SUCCEEDED}  # their effect is unknown
    places = [order.index(name) for name in todo if name not in failed]
    if places != sorted(places, reverse=True):
        yield f"{todo} is the order of undoing, {order} that of doing"
    if len(set(todo)) != len(todo):
        yield f"{todo} has something twice"
    for name in order:
        step, handler = record.steps[name], change.spec(record.steps[name]).compensation
        undo = record.steps.get(handler.step_id) if handler else None
        undone = undo is not None and undo.status is StepStatus.SUCCEEDED and undo.created_at >= step.created_at
        done = step.status is StepStatus.SUCCEEDED and stands(known, job, step)  # a skipped step left no effect
        if done and not undone and name not in todo:
            yield f"{name} stands and is not among what is undone: {todo}"


def effects_are_shown_to_a_person(change: Change, known: Known) -> Iterator[str]:
    """Yield a possible side effect for which no review item was opened, nor will be once the job continues."""
    job = change.record.job
    for was, step in change.ended():
        spec = change.spec(step)
        if step.kind not in DISPATCHED or change.place(step.step_id).handler_of is not None:
            continue
        out = step.attempt.handed_over_at is not None or was.claimed_at is not None
        failed = step.status is not StepStatus.SUCCEEDED and not surely_stayed(step.attempt)
        unsure = spec.retry_safety == "NOT_SAFE_TO_RETRY" and out and failed
        if step.attempt.failure_class != "COMPENSATION_REQUIRED" and not unsure:
            continue
        waits = any(token.target == "UNDO" and token.before == step.step_id for token in job.ready)
        items = [item for item in known.reviews.values() if item.job_id == job.job_id]
        shown = any(step.step_id == item.step_id for item in items if item.kind is ReviewKind.COMPENSATION)
        added = any(item.updated_at == job.updated_at for item in items)  # one item stands for several steps
        if not waits and not shown and not added:
            yield f"step {step.step_id} ended {step.attempt.outcome} {step.attempt.failure_class}, and nobody is asked"


def reviews_follow_their_jobs(change: Change, known: Known) -> Iterator[str]:
    before, job = change.before, change.record.job
    for event in change.decision.events:
        if event.type == "REVIEW_CLOSED" and known.reviews[event.data["review_id"]].status is ReviewStatus.OPEN:
            yield f"{event.data['review_id']} was closed and is open"
    for item in change.decision.reviews:
        kept = known.reviews[item.review_id]
        if kept.status is not ReviewStatus.OPEN:
            if known.closed.setdefault(item.review_id, kept) != kept:
                yield f"{item.review_id} was closed and changed"
            if not kept.act or not kept.resolved_by:
                yield f"{item.review_id} is {kept.status} and nobody did it"
    for review_id in known.closed:
        if known.reviews[review_id].status is ReviewStatus.OPEN:
            yield f"{review_id} was closed and is open again"
    if job.review is not None and known.reviews[job.review.review_id] != job.review:
        yield f"the job's head has {job.review}, the queue has {known.reviews[job.review.review_id]}"
    if job.paused is not None and job.paused.on_review and job.review is None:
        yield "the job waits for a review that is not there"
    failed = job.status is JobStatus.FAILED_FINAL and before is not None and before.job.live
    if failed and job.review is None and not job.dismissed and not change.has("REVIEW_CLOSED"):
        yield "the job failed and nobody is asked to look"


ACT_RULES: tuple[Rule, ...] = (
    a_pause_holds,
    a_pause_costs_no_time,
    the_end_of_a_run_never_changes,
    a_run_starts_where_the_last_one_stopped,
    not_safe_steps_leave_once,
    a_key_is_done_once,
    adopted_results_were_kept,
    votes_decide,
    timers_are_kept,
    no_signal_is_lost,
    undoing_runs_backwards,
    effects_are_shown_to_a_person,
    reviews_follow_their_jobs,
)
