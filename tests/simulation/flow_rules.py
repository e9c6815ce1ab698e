"""Invariants of branching protocols: no flow is lost, each follows the protocol, and each is counted once."""

from collections import Counter
from collections.abc import Iterator

from lucius.adapters.ledger.memory.tables import JobEntry
from lucius.core.model.records import Job, Scope, Step, Token
from lucius.core.model.statuses import TERMINAL_STEP, TIMED_OUT, AttemptOutcome, JobStatus, StepStatus
from lucius.core.protocol.definition import CONTAINERS, FAIL, SUCCEED, Place, item_step_id, items_of, spec_id
from tests.simulation.invariants import Change, Known, Rule

FROM_HERE = "from here on"  # reason of a run started from a step that an operator named
DONE = frozenset({StepStatus.SUCCEEDED, StepStatus.SKIPPED})
UNDO = frozenset({"UNDO", "UNDONE", "NOT_UNDONE"})


def around(record: JobEntry, step_id: str) -> str | None:
    """Return the id of the container around this step in the job, or None at the top level."""
    plan, items = record.protocol.plan, items_of(step_id)
    container = plan.places[spec_id(step_id)].container
    return item_step_id(container, items[: plan.places[container].maps]) if container is not None else None


def _flow_of(record: JobEntry, token: Token) -> str | None:
    """Return the container in which a token stands."""
    return around(record, token.before) if token.target in UNDO and token.before else token.container


def is_stopping(job: Job) -> bool:
    """Return True if an end exceeded one decision and the next one continues it."""
    uncleared = job.compensation is not None and not job.compensation.cleared
    return uncleared or job.stopping is not None or any(scope.failing is not None for scope in job.scopes)


def goes_on(job: Job) -> bool:
    """Return True if the job is live and is not paused, cancelling, catching up or stopping."""
    held = job.paused is not None or job.catching_up or job.status is JobStatus.CANCELLING
    return job.live and not held and not is_stopping(job)


def no_flow_is_lost_or_doubled(change: Change, _: Known) -> Iterator[str]:
    """Yield a miscount of flows (running steps or tokens): one for the job, one per started branch or item."""
    record, job = change.record, change.record.job
    held = job.paused is not None and job.paused.on_review
    if not job.live or held or job.status is JobStatus.QUEUED or is_stopping(job):
        return
    running = [step.step_id for step in record.steps.values() if step.status not in TERMINAL_STEP]
    if job.compensation is not None:
        if len(running) + len(job.ready) != 1:
            yield f"while undoing, {running} run and {[token.target for token in job.ready]} are next"
        return
    flows = Counter([*(around(record, step_id) for step_id in running), *(_flow_of(record, t) for t in job.ready)])
    stopping = job.status is JobStatus.CANCELLING
    if flows[None] > 1 or (not flows[None] and not stopping):
        yield f"the job itself is at {flows[None]} places: {running} run, {[t.target for t in job.ready]} are next"
    for scope in () if stopping else job.scopes:
        yield from _counted(record, scope, flows[scope.container])


def _counted(record: JobEntry, scope: Scope, live: int) -> Iterator[str]:
    spec = record.protocol.plan.places[spec_id(scope.container)].spec
    if scope.live != live:
        yield f"{scope.container} counts {scope.live} flows, and {live} are there"
    if scope.live + scope.succeeded + scope.failed != scope.next or scope.next > scope.total:
        yield f"{scope.container} has lost count: {scope}"
    if spec.map is not None and live > spec.map.max_parallel:
        yield f"{live} items of {scope.container} live, and {spec.map.max_parallel} may"
    room = spec.map.max_parallel if spec.map is not None else scope.total
    if live < room and scope.next < scope.total:
        yield f"{scope.container} has room for another and does not use it: {scope}"


def scopes_are_open_containers(change: Change, _: Known) -> Iterator[str]:
    record = change.record
    open_ = {s.step_id for s in record.steps.values() if s.kind in CONTAINERS and s.status not in TERMINAL_STEP}
    if {scope.container for scope in record.job.scopes} != open_:
        yield f"open are {sorted(open_)}, the job's head has {[scope.container for scope in record.job.scopes]}"
    for step in record.steps.values():
        if step.status not in TERMINAL_STEP and (container := around(record, step.step_id)) is not None:
            handler = record.protocol.plan.places[spec_id(step.step_id)].handler_of is not None
            if container not in open_ and not handler:
                yield f"step {step.step_id} runs inside {container}, which has ended"


def joins_count_right(change: Change, _: Known) -> Iterator[str]:
    for was, step in change.steps():
        kept = was is not None and was.attempt.attempt_no == step.attempt.attempt_no and was.status is step.status
        if step.kind in CONTAINERS and step.status is StepStatus.SUCCEEDED and not kept:
            yield from _joined(change, step)


def _joined(change: Change, step: Step) -> Iterator[str]:
    spec, result, around_it = change.spec(step), step.result, items_of(step.step_id)
    if spec.map is not None:
        outcomes, join = result["items"], spec.map.join
        first = spec.map.steps[0].step_id
        firsts = [item_step_id(first, (*around_it, n)) for n in range(len(step.items or ()))]
    else:
        assert spec.parallel is not None, "a container is one or the other"
        outcomes, join = [*result["branches"].values()], spec.parallel.join
        firsts = [item_step_id(branch[0].step_id, around_it) for branch in spec.parallel.branches.values()]
    said = Counter(outcome["status"] for outcome in outcomes)
    if (len(outcomes), result["total"]) != (len(firsts), len(firsts)):
        yield f"{step.step_id} joined {len(outcomes)} of {len(firsts)}"
    if (said["SUCCEEDED"], said["FAILED_FINAL"]) != (result["succeeded"], result["failed"]):
        yield f"{step.step_id} says {result}, its outcomes are {dict(said)}"
    if join == "fail_fast" and result["failed"]:
        yield f"{step.step_id} joined though {result['failed']} failed"
    for name in firsts:
        if name not in change.record.steps:
            yield f"{step.step_id} joined, and {name} never started"


def runs_are_remembered(change: Change, known: Known) -> Iterator[str]:
    """Record where each run starts and from which step on it repeats everything."""
    for event in change.decision.events:
        if event.type == "RUN_STARTED":
            start, job_id = event.data["from_step"], change.job_id
            known.starts[job_id] = start
            if event.data["reason"] == FROM_HERE:
                index = change.record.protocol.plan.places[start].index
                known.redone.setdefault(job_id, []).append((event.data["run_no"], index))
    yield from ()


def steps_start_where_a_flow_leads(change: Change, known: Known) -> Iterator[str]:
    record, plan = change.record, change.record.protocol.plan
    for was, step in change.steps():
        place = plan.places[spec_id(step.step_id)]
        began = was is None or (was.run_no, was.visit) != (step.run_no, step.visit)
        kept = was is not None and was.attempt.attempt_no == step.attempt.attempt_no
        if not began or kept or place.handler_of is not None or change.has("STEP_SKIPPED", "RESULT_ADOPTED"):
            continue
        if not _is_first(change, known, place) and not any(
            _leads(change, other, step) for other in beside(record, step)
        ):
            yield f"step {step.step_id} started, and nothing leads to it"
    job = record.job
    if job.status is JobStatus.SUCCEEDED and change.before is not None and change.before.job.live:
        tops = [step for step in record.steps.values() if plan.places[spec_id(step.step_id)].container is None]
        if not any(SUCCEED in leads_to(plan.places[spec_id(step.step_id)], step) for step in tops):
            yield "the job succeeded, and no step leads there"


def _is_first(change: Change, known: Known, place: Place) -> bool:
    if place.container is None and place.spec.step_id == known.starts.get(change.job_id):
        return True  # the start of the run
    container = change.record.protocol.plan.places[place.container].spec if place.container else None
    if container is None:
        return place.index == 0
    if container.map is not None:
        return container.map.steps[0].step_id == place.spec.step_id
    branches = container.parallel.branches.values() if container.parallel else ()
    return any(branch[0].step_id == place.spec.step_id for branch in branches)


def beside(record: JobEntry, step: Step) -> Iterator[Step]:
    """Yield the steps that have started in the same list of steps."""
    plan, items = record.protocol.plan, items_of(step.step_id)
    here = plan.places[spec_id(step.step_id)]
    for other in record.steps.values():
        place = plan.places[spec_id(other.step_id)]
        if (place.container, place.branch, items_of(other.step_id)) == (here.container, here.branch, items):
            yield other


def _leads(change: Change, other: Step, step: Step) -> bool:
    """Return True if `other` led to `step` when it ended.

    It may have ended and started again in one commit; then only its last visit is known, and any of its targets counts.
    """
    place, target = change.place(other.step_id), spec_id(step.step_id)
    was = change.before.steps.get(other.step_id) if change.before else None
    ended = [e.attempt.attempt_no for e in change.decision.attempts if e.step_id == other.step_id]
    again = any(number < other.attempt.attempt_no for number in ended)
    if again and place.spec.decision is not None:
        return target in {place.spec.decision.otherwise, *(choice.then for choice in place.spec.decision.choices)}
    if again and target in (place.spec.on_success or place.following, place.spec.on_failure, place.spec.on_timeout):
        return True
    return target in leads_to(place, other) or (was is not None and target in leads_to(place, was))


def stands(known: Known, job: Job, step: Step) -> bool:
    """Return True if the step's effect counts in this run: not undone, and not repeated by a later run."""
    if step.status not in DONE or (step.undone and step.run_no != job.run_no):
        return False
    redone = known.redone.get(job.job_id, ())
    return not any(step.run_no < run_no and step.index >= index for run_no, index in redone)


def leads_to(place: Place, step: Step) -> set[str]:
    """Return the targets that follow a step with this end."""
    spec = place.spec
    if step.status in DONE:
        decided = step.result.get("then") if step.kind == "decision" and isinstance(step.result, dict) else None
        return {decided or spec.on_success or place.following}
    if step.status is not StepStatus.FAILED_FINAL:
        return set()
    late = step.attempt.outcome in TIMED_OUT and spec.on_timeout is not None
    return {(spec.on_timeout if late else spec.on_failure) or FAIL}


def visits_stay_within_their_limit(change: Change, known: Known) -> Iterator[str]:
    for was, step in change.steps():
        spec = change.spec(step)
        over = step.last_error is not None and step.last_error.code == "VISIT_LIMIT"
        if step.visit > spec.max_visits and not over and step.run_no == change.record.job.run_no:
            yield f"step {step.step_id} is at visit {step.visit} of {spec.max_visits}"
        limit = spec.retry_policy.max_attempts or known.defaults.max_attempts
        if step.tries > limit:
            yield f"step {step.step_id} is at try {step.tries} of {limit}"
        counted = was is not None and (was.run_no, was.visit) == (step.run_no, step.visit) and step.tries > 1
        repaired = any(e.attempt.outcome is AttemptOutcome.REPAIRED for e in change.decision.attempts)
        supplied = step.status is StepStatus.SKIPPED or step.attempt.adopted_from is not None
        if counted and was is not None and not supplied:
            more = step.attempt.attempt_no - was.attempt.attempt_no
            if not repaired and step.tries - was.tries != more:
                yield f"step {step.step_id} took {more} attempts and counts {step.tries - was.tries}"


def a_cancelled_job_goes_nowhere(change: Change, _: Known) -> Iterator[str]:
    before, job = change.before, change.record.job
    if before is None or before.job.status is not JobStatus.CANCELLING or job.run_no != before.job.run_no:
        return
    for was, step in change.steps():
        began = was is None or was.attempt.attempt_no != step.attempt.attempt_no
        handler = change.place(step.step_id).handler_of is not None
        adopted = step.attempt.adopted_from is not None
        if began and not adopted and not (handler and job.compensation is not None):
            yield f"step {step.step_id} started an attempt while the job was being cancelled"


FLOW_RULES: tuple[Rule, ...] = (
    runs_are_remembered,
    no_flow_is_lost_or_doubled,
    scopes_are_open_containers,
    joins_count_right,
    steps_start_where_a_flow_leads,
    visits_stay_within_their_limit,
    a_cancelled_job_goes_nowhere,
)
