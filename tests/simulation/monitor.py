"""Watches every commit and every message. The first broken rule stops the simulation."""

import asyncio
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from lucius.adapters.ledger_memory import _Record
from lucius.contract import Directive
from lucius.core.decision import Decision, Defaults
from lucius.core.model import StepStatus, message_id
from lucius.ports.errors import LedgerFull
from lucius.service.errors import RejectCode, Rejected
from tests.simulation.disk import Before, Connection, Disk
from tests.simulation.faults import Faults
from tests.simulation.invariants import RULES, Change, Known
from tests.simulation.scenery import RETRY_INTERVAL
from tests.simulation.trace import Broken, Trace


class Monitor:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, disk: Disk, faults: Faults, defaults: Defaults, max_unacked: int
    ) -> None:
        self.trace = Trace(loop)
        self.known = Known(defaults, max_unacked, ledger_totals=disk.totals)
        self.broken: Broken | None = None
        self.deaf = False
        self._loop = loop
        self._disk = disk
        self._faults = faults
        self._handed_by: dict[str, str] = {}
        self._tried_at: dict[str, tuple[float, str]] = {}
        disk.on_write = self.committed
        loop.set_exception_handler(self._unhandled)

    def fail(self, rule: str, job_id: str, what: str) -> None:
        if self.broken is None and not self.deaf:
            self.broken = Broken(f"{rule.replace('_', ' ')}: {what}\njob {job_id or '-'}\n{self.trace.about(job_id)}")
            self._loop.stop()

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task of the world that must not fail."""
        task.add_done_callback(self._watched)
        return task

    def _watched(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self.require(error is None, "nobody is told what has no name", "", repr(error))

    def require(self, holds: bool, rule: str, job_id: str, what: str) -> None:
        if not holds:
            self.fail(rule, job_id, what)

    def committed(self, by: Connection, before: Before | None, record: _Record, decision: Decision) -> None:
        job = record.job
        self.trace.note(by.name, job.job_id, f"v{job.version}", job.status.value, *_told(decision))
        for event in decision.events:
            disposition = event.data.get("disposition")
            self._faults.saw(f"{event.type}_{disposition}" if disposition else event.type)
            if event.type == "STEP_RETRY_SCHEDULED":
                self._faults.saw(f"retry_after_{event.data['cause']}")
        for step in decision.steps:
            if step.status is StepStatus.INITIATED:
                self._handed_by.setdefault(step.attempt.lease_id, by.name)
                self._check_left(step.attempt.lease_id, job.job_id, by.name)
        change = Change(before, record, decision)
        for rule in RULES:
            for what in rule(change, self.known):
                self.fail(rule.__name__, job.job_id, what)

    def publishes(self, directive: Directive) -> None:
        """A publish of this attempt begins. One that may have left us is never published again."""
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
        self.known.kept_back[directive.lease_id] = (by, self._faults.counts["commit_refused_full"])

    def _check_left(self, lease: str, job_id: str, by: str) -> None:
        """Handed over means that it may have left us. If the bus surely did not take it, only a crash may forget."""
        kept_by, refused_before = self.known.kept_back.get(lease, ("", 0))
        could_tell = kept_by == by and refused_before == self._faults.counts["commit_refused_full"]
        forgot = could_tell and lease not in self.known.left and job_id not in self.known.drifted
        self.require(not forgot, "what the bus did not take is not handed over", job_id, lease)

    def pull_ended(self, by: str, service: str) -> None:
        """With no pull of a service under way, all that this process handed over to it must have been answered."""
        for job_id, record in self._disk.records.items():
            for step_id in record.job.active:
                step = record.steps[step_id]
                mine = step.service == service and self._handed_by.get(step.attempt.lease_id) == by
                if mine and step.status is StepStatus.INITIATED and step.attempt.lease_id not in self.known.left:
                    self.fail("a pull answers all it handed over", job_id, f"{step_id} was handed over to nobody")

    def _check_recorded(self, directive: Directive) -> None:
        """Record, then publish: what goes out is an attempt that the ledger knows, with the results before it."""
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
        earlier = {s.step_id: s.attempt.lease_id for s in record.steps.values() if s.index < step.index}
        given = {step_id: given.result["lease"] for step_id, given in directive.inputs.items()}
        self.require(given == earlier, "directives carry earlier results", job_id, f"{given}, not {earlier}")
        right_id = directive.message_id == message_id(*where)
        self.require(right_id, rule, job_id, f"{directive.message_id} is the message id of {where}")

    def log(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Errors in the log are surprises, unless we made them."""
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
    """Was it us? Nothing but a full disk and a job that changes too fast may be heard outside the service layer."""
    contended = isinstance(error, Rejected) and error.code is RejectCode.LEDGER_CONTENDED
    return contended or isinstance(error, LedgerFull)


def _told(decision: Decision) -> list[str]:
    told = [f"{e.type}{':' + e.data['disposition'] if 'disposition' in e.data else ''}" for e in decision.events]
    steps = [f"{s.step_id}#{s.attempt.attempt_no}={s.status.value}" for s in decision.steps]
    return [*told, *steps]
