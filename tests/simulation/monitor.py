"""Monitor that checks every commit and message, and stops the simulation at the first violation."""

import asyncio
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from lucius.adapters.ledger.memory.tables import JobEntry
from lucius.contract import Directive
from lucius.core.model.decision import Decision, Defaults
from lucius.core.model.records import Step, message_id
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import spec_id
from lucius.ports.errors import LedgerFull
from lucius.ports.http import Outgoing
from lucius.usecases.errors import RejectCode, Rejected
from tests.simulation.act_rules import ACT_RULES
from tests.simulation.disk import Before, Connection, Disk
from tests.simulation.faults import Faults
from tests.simulation.flow_rules import FLOW_RULES, beside, stands
from tests.simulation.invariants import RULES, Change, Known
from tests.simulation.line_rules import LINE_RULES
from tests.simulation.scenery import RETRY_INTERVAL
from tests.simulation.trace import Broken, Trace

KEY_LENGTH = 64  # of a SHA-256 in hex


class Monitor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        faults: Faults,
        defaults: Defaults,
        limits: tuple[int, int],
        *,
        varied: bool,
    ) -> None:
        self.trace = Trace(loop)
        self.known = Known(defaults, *limits, ledger_totals=disk.totals, reviews=disk.review_items)
        self.broken: Broken | None = None
        self.deaf = False
        self._loop = loop
        self._disk = disk
        self._faults = faults
        self._varied = varied
        self._rules = (*RULES, *FLOW_RULES, *ACT_RULES) if varied else (*RULES, *LINE_RULES)
        self._handed_by: dict[str, str] = {}
        self._tried_at: dict[str, tuple[float, str]] = {}
        disk.on_write = self.committed
        loop.set_exception_handler(self._unhandled)

    def fail(self, rule: str, job_id: str, what: str) -> None:
        if self.broken is None and not self.deaf:
            self.broken = Broken(f"{rule.replace('_', ' ')}: {what}\njob {job_id or '-'}\n{self.trace.about(job_id)}")
            self._loop.stop()

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Report a failure of this world task as a violation, and return the task."""
        task.add_done_callback(self._watched)
        return task

    def _watched(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self.require(error is None, "nobody is told what has no name", "", repr(error))

    def require(self, holds: bool, rule: str, job_id: str, what: str) -> None:
        if not holds:
            self.fail(rule, job_id, what)

    def committed(self, by: Connection, before: Before | None, record: JobEntry, decision: Decision) -> None:
        job = record.job
        self.trace.note(by.name, job.job_id, f"v{job.version}", job.status.value, *_told(decision))
        for event in decision.events:
            disposition = event.data.get("disposition")
            self._faults.saw(f"{event.type}_{disposition}" if disposition else event.type)
            if event.type == "STEP_RETRY_SCHEDULED":
                self._faults.saw(f"retry_after_{event.data['cause']}")
        self._hand_over(by.name, decision)
        change = Change(before, record, decision)
        for rule in self._rules:
            for what in rule(change, self.known):
                self.fail(rule.__name__, job.job_id, what)

    def publishes(self, directive: Directive) -> None:
        """Check a publish that begins: it is recorded, and an attempt that may have left is never published again."""
        job_id, lease = directive.jobId, directive.lease_id
        self.require(lease not in self.known.left, "an attempt leaves once", job_id, f"{directive.message_id} again")
        self.known.left.add(lease)
        self._check_recorded(directive)

    def did_not_leave(self, directive: Directive, by: str) -> None:
        self.known.left.discard(directive.lease_id)
        now, (last, last_by) = self._loop.time(), self._tried_at.get(directive.lease_id, (-9.0, ""))
        paused = last_by != by or now - last >= RETRY_INTERVAL * 0.9
        self.require(paused, "a bus that is down stops the relay", directive.jobId, f"tried again after {now - last}")
        self._tried_at[directive.lease_id] = (now, by)

    def _hand_over(self, by: str, decision: Decision) -> None:
        """Check that an attempt handed over was published by its claimer, unless a fault struck that process."""
        refusals = self._faults.counts["commit_refused_full"]
        for step in decision.steps:
            lease, attempt, job_id = step.attempt.lease_id, step.attempt, step.job_id
            if step.status is StepStatus.DISPATCHING and attempt.claimed_at is not None:
                self.known.claims[lease] = (by, attempt.claimed_at, refusals)
            if step.status is not StepStatus.INITIATED or lease in self._handed_by:
                continue
            self._handed_by[lease] = by
            claimed_by, claimed_at, refused_before = self.known.claims.get(lease, ("", 0, 0))
            # A starting process takes over the claims of dead ones.
            could_tell = claimed_by in self.known.steady and refused_before == refusals
            could_tell = could_tell and self.known.started[by] <= claimed_at
            forgot = could_tell and lease not in self.known.left and job_id not in self.known.drifted
            self.require(not forgot, "what is handed over has left", job_id, f"{lease} was only claimed")

    def pull_ended(self, by: str, service: str) -> None:
        """Check, with no pull of the service under way, that everything this process handed over to it was answered."""
        for job_id, record in self._disk.records.items():
            for step_id in record.job.active:
                step = record.steps[step_id]
                mine = step.service == service and self._handed_by.get(step.attempt.lease_id) == by
                if mine and step.status is StepStatus.INITIATED and step.attempt.lease_id not in self.known.left:
                    self.fail("a pull answers all it handed over", job_id, f"{step_id} was handed over to nobody")

    def _check_recorded(self, directive: Directive) -> None:
        """Check that a published attempt is recorded in the ledger and carries the results before it."""
        rule, job_id = "what is sent was recorded first", directive.jobId
        where = (job_id, directive.stepId, directive.attempt_no)
        self.require(self.known.leases.get(directive.lease_id) == where, rule, job_id, f"{where} is not recorded")
        record = self._disk.records[job_id]
        row = next((r for r in record.outbox.values() if r.lease_id == directive.lease_id), None)
        step = record.steps[directive.stepId]
        if step.attempt.lease_id == directive.lease_id and step.status is StepStatus.DISPATCHING:
            claimed = row is not None and row.claimed_at is not None
            lost = job_id in self.known.drifted
            self.require(claimed or lost, rule, job_id, f"{directive.message_id} goes out without a claim")
        self._check_inputs(directive, record, step)
        right_id = directive.message_id == message_id(*where)
        self.require(right_id, rule, job_id, f"{directive.message_id} is the message id of {where}")

    def _check_inputs(self, directive: Directive, record: JobEntry, step: Step) -> None:
        """Check the results in a directive; with several flows, only those of the step's own flow are stable."""
        earlier = {s.step_id: s for s in record.steps.values() if s.index < step.index}
        if self._varied:
            if step.attempt.lease_id != directive.lease_id:
                return
            earlier = {
                s.step_id: s for s in beside(record, step) if s.index < step.index and stands(self.known, record.job, s)
            }
        given = {spec_id(step_id): directive.inputs.get(spec_id(step_id)) for step_id in earlier}
        for step_id, other in earlier.items():
            told = given[spec_id(step_id)]
            right = told is not None and told.result == other.result
            self.require(right, "directives carry earlier results", directive.jobId, f"{told}, not {other.result}")
        more = set() if self._varied else directive.inputs.keys() - given.keys()
        self.require(not more, "directives carry earlier results", directive.jobId, f"{sorted(more)} are too many")

    def executes(self, directive: Directive) -> None:
        """Check, when a service starts work, that a NOT_SAFE step is executed once per run and visit."""
        turn = self.known.once.get(directive.lease_id)
        if turn is not None:
            leases = self.known.executed.setdefault(turn, set())
            leases.add(directive.lease_id)
            once = len(leases) == 1
            self.require(
                once, "NOT_SAFE steps are done once", directive.jobId, f"{turn} was done under {len(leases)} leases"
            )

    def calls_out(self, call: Outgoing, what: str) -> None:
        """Check a request of the engine: one per handed-over attempt, repeated only after the guard was asked."""
        calls, key = self.known.calls, call.idempotency_key[:KEY_LENGTH]  # a guard's request has a longer key
        calls[key, what] += 1
        made, asked = calls[key, "make"] + calls[key, "hook"], calls[key, "guard"]
        self.trace.note("outside", "", what, key[:8], made)
        self.require(made <= self.known.handed[key], "calls are attempts", "", f"{call.url} was called {made} times")
        careful = key not in self.known.guarded or made <= asked + 1
        self.require(careful, "guards are asked first", "", f"{call.url}: {made} and {asked}")

    def log(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Report logged exceptions that no fault caused; a structlog processor that drops every event."""
        error = sys.exc_info()[1]
        if method == "exception" and error is not None and not _injected(error):
            self.fail("no loop fails by surprise", "", f"{event.get('event')}: {error!r}")
        elif event.get("event") == "an outbox row has no job":
            self.fail("every row has its job", "", repr(event))
        raise structlog.DropEvent

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not _injected(error):
            self.fail("nothing fails unseen", "", f"{context['message']}: {error!r}")


def _injected(error: BaseException) -> bool:
    """Return True for the only injected errors that may leave the use cases: LedgerFull and LEDGER_CONTENDED."""
    contended = isinstance(error, Rejected) and error.code is RejectCode.LEDGER_CONTENDED
    return contended or isinstance(error, LedgerFull)


def _told(decision: Decision) -> list[str]:
    told = [f"{e.type}{':' + e.data['disposition'] if 'disposition' in e.data else ''}" for e in decision.events]
    steps = [f"{s.step_id}#{s.attempt.attempt_no}={s.status.value}" for s in decision.steps]
    return [*told, *steps]
