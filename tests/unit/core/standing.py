"""Invariants of a job after every decision, computed from the records without the core's helpers."""

from typing import NamedTuple

from lucius.core.decide.explain import explain
from lucius.core.model.counters import counted
from lucius.core.model.decision import Env, JobSnapshot
from lucius.core.model.records import NEVER, Job, OutboxRow, ReviewItem, Step
from lucius.core.model.statuses import TERMINAL_STEP, BlockedReason, JobStatus, ReviewStatus, StepStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE, ProtocolDefinition, item_step_id, items_of, spec_id

CONTAINERS = frozenset({"parallel", "map"})
WAITS_FOR = {
    StepStatus.DISPATCHING: {BlockedReason.HANDOVER},
    StepStatus.INITIATED: {BlockedReason.ACK},
    StepStatus.PROCESSING: {BlockedReason.RESULT},
    StepStatus.FAILED_RETRY: {BlockedReason.RETRY},
    StepStatus.WAITING: {BlockedReason.TIMER, BlockedReason.SIGNAL},
    StepStatus.AWAITING_APPROVAL: {BlockedReason.APPROVAL},
}
STATES_OF_A_LIVE_JOB = {JobStatus.DISPATCHING, JobStatus.IN_PROGRESS, JobStatus.WAITING_APPROVAL}


class Standing(NamedTuple):
    job: Job
    protocol: ProtocolDefinition
    steps: dict[str, Step]
    alive: dict[str, Step]
    pending: dict[str, OutboxRow]
    reviews: dict[str, ReviewItem]
    counters: dict[str, int]
    changed: list[Step]


def check_standing(at: Standing, env: Env) -> None:
    _check_job(at)
    for step in at.changed:
        _check_step(at, step, env)
    _check_rows(at)
    _check_flows(at)
    _check_scopes(at)
    _check_status(at)
    _check_review(at)
    _check_counters(at)
    _check_clock(at)
    _check_blocked(at, env)


def _check_job(at: Standing) -> None:
    job = at.job
    active = {step_id for step_id, step in at.alive.items() if step.kind not in CONTAINERS}
    assert set(job.active) == active
    assert len(job.active) == len(active)
    assert job.live is (job.completed_at is None)
    if not job.live:
        assert not at.alive, "the job has ended and a step has not"
        assert not job.ready
        assert not job.scopes
        assert job.paused is None
    assert (job.error is not None) or job.status is not JobStatus.FAILED_FINAL
    assert (job.error is None) or not job.live
    if job.status is JobStatus.SUCCEEDED:
        assert job.error is None
    if len(at.steps) < 50:
        assert job.attempts_total == sum(step.attempt.attempt_no for step in at.steps.values())


def _check_step(at: Standing, step: Step, env: Env) -> None:
    ended = step.status in TERMINAL_STEP
    assert (step.completed_at is not None) is ended
    assert (step.retry_at is not None) is (step.status is StepStatus.FAILED_RETRY)
    assert step.attempt.claimed_at is None or step.status is StepStatus.DISPATCHING
    assert step.attempt.idempotency_key == step.idempotency_key
    assert step.visit in (1, step.attempt.visit), "a run resets the visit count, also of results it keeps"
    if step.wake_at is not None:
        assert step.status in (StepStatus.WAITING, StepStatus.AWAITING_APPROVAL)
    spec = at.protocol.plan.places[spec_id(step.step_id)].spec
    assert 1 <= step.tries <= (spec.retry_policy.max_attempts or env.defaults.max_attempts), "the budget is overdrawn"
    too_often = step.last_error is not None and step.last_error.code == "VISIT_LIMIT"
    given = step.status is StepStatus.SKIPPED or step.attempt.adopted_from is not None
    assert step.visit <= spec.max_visits or too_often or given


def _check_rows(at: Standing) -> None:
    """Check that each step that waits for hand-over has one PENDING row, and that there is no other row."""
    of_steps = [row for row in at.pending.values() if row.service != WEBHOOK_SERVICE]
    rows = {row.step_id: row for row in of_steps}
    assert len(rows) == len(of_steps), "a step has two PENDING rows"
    waiting = {step_id for step_id, step in at.alive.items() if _waits_in_the_outbox(step)}
    assert set(rows) == waiting
    for step_id, row in rows.items():
        step = at.alive[step_id]
        assert row.outbox_id == step.attempt.outbox_id
        assert (row.attempt_no, row.lease_id) == (step.attempt.attempt_no, step.attempt.lease_id)
        assert row.claimed_at == step.attempt.claimed_at
        assert row.next_attempt_at == (NEVER if step.attempt.held else step.retry_at)


def _waits_in_the_outbox(step: Step) -> bool:
    refused = step.status is StepStatus.FAILED_RETRY and step.attempt.handed_over_at is None
    return step.status is StepStatus.DISPATCHING or refused


Flow = tuple[str | None, object]


def _flow_of(protocol: ProtocolDefinition, step_id: str) -> Flow:
    """Return the container step around this one with its item or branch: within these, steps run one at a time."""
    place, items = protocol.plan.places[spec_id(step_id)], items_of(step_id)
    if place.container is None:
        return None, None
    if protocol.plan.places[place.container].spec.map is not None:
        return item_step_id(place.container, items[:-1]), items[-1]
    return item_step_id(place.container, items), place.branch


def _flows(at: Standing) -> dict[Flow, list[str]]:
    flows: dict[Flow, list[str]] = {}
    for step_id in at.alive:
        if at.protocol.plan.places[spec_id(step_id)].handler_of is None:
            flows.setdefault(_flow_of(at.protocol, step_id), []).append(step_id)
    return flows


def _check_flows(at: Standing) -> None:
    """Check that steps run one at a time except for branches and items in parallel, and that handlers run alone."""
    for flow, live in _flows(at).items():
        assert len(live) == 1, f"{live} are active at once"
        assert flow[0] is None or flow[0] in at.alive, f"{live} outlived {flow[0]}"
    handlers = [s for s in at.alive if at.protocol.plan.places[spec_id(s)].handler_of is not None]
    if handlers:
        assert len(at.alive) == 1, "something runs beside a compensation handler"
        assert at.job.compensation is not None or at.job.status is JobStatus.CANCELLING


def _check_scopes(at: Standing) -> None:
    job = at.job
    containers = {step_id for step_id, step in at.alive.items() if step.kind in CONTAINERS}
    assert {scope.container for scope in job.scopes} == containers
    flows = _flows(at)
    cut_short = job.status is JobStatus.CANCELLING or job.compensation is not None or job.stopping is not None
    to_undo = any(token.target == "UNDO" for token in job.ready)
    on_review = job.paused is not None and job.paused.on_review
    goes_on = not cut_short and not to_undo and not on_review
    for scope in job.scopes:
        spec = at.protocol.plan.places[spec_id(scope.container)].spec
        room = spec.map.max_parallel if spec.map else len(spec.parallel.branches if spec.parallel else ())
        live = sum(flow[0] == scope.container for flow in flows)
        ready = sum(token.container == scope.container for token in job.ready)
        assert live <= scope.live <= room
        assert scope.next == scope.live + scope.succeeded + scope.failed <= scope.total
        if goes_on and not any(other.failing for other in job.scopes):
            assert scope.live == live + ready, "a branch was lost"
            assert scope.live > 0
            assert scope.live == min(room, scope.total - scope.succeeded - scope.failed), "room is left unused"


def _check_status(at: Standing) -> None:
    job = at.job
    if job.paused is not None:
        assert job.status is JobStatus.PAUSED or (job.status is JobStatus.CANCELLING and job.paused.on_review)
    elif job.live and job.status not in (JobStatus.QUEUED, JobStatus.CANCELLING):
        assert job.status in STATES_OF_A_LIVE_JOB
        states = {at.steps[step_id].status for step_id in job.active}
        idle = {StepStatus.WAITING, StepStatus.AWAITING_APPROVAL}
        someone_must = StepStatus.AWAITING_APPROVAL in states and states <= idle and not job.ready
        assert (job.status is JobStatus.WAITING_APPROVAL) is someone_must
    if job.status is JobStatus.CANCELLING:
        assert job.cancel is not None


def _check_review(at: Standing) -> None:
    job = at.job
    if job.paused is not None and job.paused.on_review:
        assert job.review is not None, "held without an open review item"
    if job.review is not None:
        assert job.review.status is ReviewStatus.OPEN
        assert at.reviews[job.review.review_id] == job.review


def _check_counters(at: Standing) -> None:
    job = at.job
    truth: dict[str, int] = {}
    if job.live:
        truth = {"jobs": 1, f"jobs/tenant/{job.tenant_id}": 1, f"jobs/protocol/{job.protocol_id}": 1}
        truth[f"jobs/mode/{job.routing.resolved_mode}"] = 1
    for step in at.alive.values():
        being_published = step.status is StepStatus.DISPATCHING and step.attempt.claimed_at is not None
        if step.status is StepStatus.INITIATED or being_published:
            own = f"/{job.tenant_id}" if step.attempt.tenant_bound else ""
            counter = f"unacked/{step.service}{own}"
            truth[counter] = truth.get(counter, 0) + 1
    for row in at.pending.values():
        free_to_go = row.claimed_at is None and row.next_attempt_at is None
        if free_to_go and not row.service.startswith("lucius."):
            counter = f"pending/{row.service}/{row.lane}"
            truth[counter] = truth.get(counter, 0) + 1
    assert {counter: n for counter, n in at.counters.items() if n} == truth
    assert counted(job, at.alive.values()) == truth, "a recount comes to something else"


def _check_clock(at: Standing) -> None:
    job = at.job
    if not job.live:
        assert job.due_at is None
        return
    if job.status is JobStatus.QUEUED:
        assert job.due_at == job.created_at
        return
    held = job.paused is not None
    if _is_left_over(at):
        assert job.due_at == job.updated_at, "what is left over is due at once"
        return
    clocks = [clock for step in at.alive.values() for clock in _clocks_of(step, held)]
    clocks += [job.deadline] if job.deadline is not None and not held else []
    if clocks:
        assert job.due_at == min(clocks)
    elif any(step.status is StepStatus.DISPATCHING for step in at.alive.values()):
        assert job.due_at is None
        assert at.pending, "nothing will ever look at this job again"
    else:
        assert job.due_at == NEVER
        waits = {StepStatus.WAITING, StepStatus.AWAITING_APPROVAL}
        assert held or {step.status for step in at.alive.values()} & waits, "it waits for nothing"


def _is_left_over(at: Standing) -> bool:
    """Return True if there was more to do than one decision may change."""
    job = at.job
    active = [at.steps[step_id] for step_id in job.active]
    if job.stopping is not None:
        return True
    if job.status is JobStatus.CANCELLING and job.compensation is None:
        with_services = {StepStatus.INITIATED, StepStatus.PROCESSING}
        return not active or any(s.status not in with_services and s.attempt.claimed_at is None for s in active)
    in_the_outbox = [s for s in active if s.status is StepStatus.DISPATCHING and s.attempt.claimed_at is None]
    if job.paused is not None:
        return any(not s.attempt.held for s in in_the_outbox)
    cleared = job.compensation is None or job.compensation.cleared
    failing = any(scope.failing for scope in job.scopes)
    return bool(job.ready) or failing or not cleared or job.catching_up or any(s.attempt.held for s in in_the_outbox)


def _clocks_of(step: Step, paused: bool = False) -> list[int]:
    attempt = step.attempt
    match step.status:
        case StepStatus.INITIATED:
            clocks = [attempt.ack_deadline]
            assert attempt.ack_deadline is not None
        case StepStatus.PROCESSING if step.kind not in CONTAINERS:
            clocks = [attempt.lease_expires_at, attempt.hard_deadline]
            assert attempt.lease_expires_at is not None
        case StepStatus.FAILED_RETRY:
            clocks = [] if paused else [step.retry_at]
        case StepStatus.WAITING | StepStatus.AWAITING_APPROVAL:
            clocks = [] if paused else [step.wake_at]
        case _:
            clocks = []
    return [clock for clock in clocks if clock is not None]


def _check_blocked(at: Standing, env: Env) -> None:
    job = at.job
    assert (job.blocked is not None) is job.live
    if job.blocked is None:
        return
    reason = job.blocked.reason
    if job.paused is not None:
        assert reason is (BlockedReason.REVIEW if job.paused.on_review else BlockedReason.PAUSED)
    elif not job.active:
        assert reason is BlockedReason.ENGINE
    else:
        assert job.blocked.step_id in job.active
        step = at.steps[job.blocked.step_id]
        assert reason in WAITS_FOR[step.status]
        assert job.blocked.until == min(_clocks_of(step), default=None)
        if len(job.active) == 1:
            assert job.current_step_id == step.step_id
    if job.status is JobStatus.WAITING_APPROVAL:
        assert reason is BlockedReason.APPROVAL
    assert explain(JobSnapshot(job, at.protocol, at.steps), reason, env)
