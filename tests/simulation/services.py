"""Simulated platform services: they take directives, acknowledge, work, repeat results until answered, and fail."""

import asyncio
import random
from functools import partial
from typing import Any

from lucius.contract import CallbackAnswer, Directive
from lucius.core.model.records import Job
from lucius.core.model.statuses import AttemptOutcome, JobStatus, StepStatus
from lucius.ports.errors import BusDown, LedgerFull
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.timestamps import parse_timestamp
from tests.simulation.broker import Broker
from tests.simulation.clock import LoopClock, VirtualLoop
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.invariants import RETRY_AFTER_MS
from tests.simulation.monitor import Monitor
from tests.simulation.process import Fleet, Network, Process, Unanswered

UNDERSTOOD = frozenset({RejectCode.STALE_CALLBACK, RejectCode.LEDGER_CONTENDED})
Answer = CallbackAnswer | Rejected


class Service:
    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        rng: random.Random,
        disk: Disk,
        faults: Faults,
        monitor: Monitor,
        fleet: Fleet,
        network: Network,
        *,
        varied: bool,
    ) -> None:
        self.name = name
        self._varied = varied
        self._loop, self._rng, self._disk, self._faults = loop, rng, disk, faults
        self._monitor, self._fleet, self._network = monitor, fleet, network
        self._clock = LoopClock(loop)
        self._knows_its_attempts = rng.random() < 0.5
        self._seen: set[str] = set()

    async def listen(self, broker: Broker) -> None:
        """Consume from the push bus, for ever."""
        consumer = broker.bus.consumer(self.name)
        while True:
            try:
                directives = await consumer.pull(self._rng.randint(1, 3), 5.0)
            except BusDown:
                await asyncio.sleep(0.5)
                continue
            self._begin(directives)

    async def ask(self) -> None:
        """Pull from the orchestrator, for ever."""
        while True:
            limit, wait = self._rng.randint(1, 3), self._rng.choice((0.0, 1.0, 3.0))
            pull = partial(self._pull, limit=limit, wait=wait)
            try:
                directives = await self._network.call(pull, wait + 4)
            except (Unanswered, LedgerFull, Rejected) as refused:
                busy = not isinstance(refused, Rejected) or _contended(refused)
                self._monitor.require(busy, "a pull is answered", "", str(refused))
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))
                continue
            self._begin(directives)
            await asyncio.sleep(0.05)

    async def _pull(self, process: Process, limit: int, wait: float) -> list[Directive]:
        process.pulling[self.name] += 1
        try:
            directives = await process.runtime.directive_pulls.pull(self.name, limit, wait)
            for directive in directives:
                self._monitor.publishes(directive)
        finally:
            process.pulling[self.name] -= 1
            if not process.dead and not process.pulling[self.name]:
                self._monitor.pull_ended(process.name, self.name)
        return directives

    def _begin(self, directives: list[Directive]) -> None:
        for directive in directives:
            self._monitor.trace.note(self.name, directive.jobId, "gets", directive.message_id)
            if directive.lease_id in self._seen:
                self._faults.saw("delivered_twice")
                if self._knows_its_attempts:
                    continue
            self._seen.add(directive.lease_id)
            self._monitor.executes(directive)
            self._monitor.watch(self._loop.create_task(self._attempt(directive)))

    async def _attempt(self, directive: Directive) -> None:
        rng, faults = self._rng, self._faults
        dies_at = rng.choice(("before ack", "after ack", "at work")) if faults.hit("service_crashed") else ""
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))
        if dies_at == "before ack":
            return
        if not faults.hit("service_did_not_ack"):
            await self._say("ack", directive, patience=2.0)
        if dies_at == "after ack":
            return
        if not await self._work(directive, dies=bool(dies_at)):
            return
        await self._answer(directive, self._result(directive))
        if faults.hit("service_contradicted"):
            await self._answer(directive, self._result(directive))

    async def _work(self, directive: Directive, *, dies: bool) -> bool:
        """Work and send heartbeats; return False if the service died or stopped at a refused heartbeat."""
        rng, lease = self._rng, directive.lease_seconds
        silent = self._faults.hit("service_silent")
        remaining = lease * rng.uniform(1.1, 2.0) if silent else rng.choice((0.0, 0.2, 1.0, lease * 1.5)) * rng.random()
        while remaining > 0:
            nap = remaining if silent else min(remaining, lease / 3)
            await asyncio.sleep(nap)
            remaining -= nap
            if dies:
                return False
            if remaining > 0:
                heard = await self._say("heartbeat", directive, patience=1.0, progress=0.5)
                if isinstance(heard, Rejected) and rng.random() < 0.5:
                    return False
        return True

    def _result(self, directive: Directive) -> dict[str, Any]:
        faults = self._faults
        if faults.hit("service_failed_retryable"):
            return {"status": "FAILED", "failure_class": "RETRYABLE", "error": {"code": "NOT_TODAY"}}
        if faults.hit("service_rate_limited"):
            return {"status": "FAILED", "failure_class": "RATE_LIMITED", "retry_after_seconds": RETRY_AFTER_MS / 1000}
        if faults.hit("service_failed_for_good"):
            return {"status": "FAILED_FINAL", "failure_class": "NON_RETRYABLE", "error": {"code": "NO_SUCH_PAGE"}}
        if directive.compensates is not None and faults.hit("undo_failed"):
            return {"status": "FAILED_FINAL", "failure_class": "NON_RETRYABLE", "error": {"code": "IT_STAYS"}}
        if self._varied and faults.hit("service_half_done"):
            return {"status": "FAILED", "failure_class": "COMPENSATION_REQUIRED", "error": {"code": "HALF_DONE"}}
        if self._varied and faults.hit("service_dependency_failed"):
            return {"status": "FAILED", "failure_class": "DEPENDENCY_FAILED", "error": {"code": "NO_MODEL"}}
        result: dict[str, Any] = {"lease": directive.lease_id, "n": self._rng.randint(1, 9)}
        if self._varied:
            result["items"] = [self._rng.randint(1, 9) for _ in range(self._rng.randint(0, 4))]
        return {"status": "SUCCEEDED", "result": result}

    async def _answer(self, directive: Directive, result: dict[str, Any]) -> None:
        """Repeat the result until it is answered: an orchestrator that is down must not cost the work."""
        waited_out = self._fleet.away
        while True:
            heard = await self._say("result", directive, patience=2.0, **result)
            waited_out = waited_out or self._fleet.away
            if heard is not None and not _contended(heard):
                break
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
        if waited_out:
            self._faults.saw(f"downtime_result_{_disposition(heard)}")

    async def _say(self, kind: str, directive: Directive, patience: float, **more: object) -> Answer | None:
        """Send one callback and return its answer, or None if none came."""
        body = {
            "jobId": directive.jobId,
            "stepId": directive.stepId,
            "tenant_id": directive.tenant_id,
            "attempt_no": directive.attempt_no,
            "lease_id": directive.lease_id,
            **more,
        }
        sent_at, job = self._clock.now(), self._disk.records[directive.jobId].job
        cancelling = job.run_no if _is_stopped(job) else None
        try:
            heard = await self._network.call(lambda process: _call_back(process, kind, body, directive), patience)
        except Unanswered:
            return None
        except Rejected as rejected:
            heard = rejected
        except LedgerFull:
            return None
        self._monitor.trace.note(self.name, directive.jobId, kind, directive.message_id, _disposition(heard))
        self._check(kind, directive, body, heard, sent_at, cancelling)
        return heard

    def _check(
        self, kind: str, directive: Directive, body: dict[str, Any], heard: Answer, sent_at: int, cancelling: int | None
    ) -> None:
        """Check that the answer to a callback agrees with the disk."""
        require, job_id = self._monitor.require, directive.jobId
        if isinstance(heard, Rejected):
            require(heard.code in UNDERSTOOD, "a directive's bearer is heard", job_id, str(heard))
            return
        told = heard.disposition
        if kind == "heartbeat" and told == "APPLIED":
            until = parse_timestamp(heard.lease_expires_at or "1970-01-01T00:00:00Z")
            extended = until >= sent_at + directive.lease_seconds * 1000
            require(extended, "heartbeats extend the lease", job_id, f"{directive.message_id} until {until}")
        record = self._disk.records[job_id]
        if cancelling == record.job.run_no and record.job.compensation is None:
            require(heard.cancel_requested, "services hear of a cancel", job_id, directive.message_id)
        if kind == "result" and told == "APPLIED" and body["status"] == "SUCCEEDED":
            ended = record.attempts.get((directive.stepId, directive.attempt_no))
            kept = ended is not None and ended.attempt.outcome is AttemptOutcome.SUCCEEDED
            step = record.steps[directive.stepId]
            if step.attempt.lease_id == directive.lease_id:
                kept = kept and step.status is StepStatus.SUCCEEDED and step.result == body["result"]
            require(kept, "what was applied is kept", job_id, f"{directive.message_id}: {step.status}")
        if kind == "result" and told == "LATE" and "result" in body:
            said_before = record.steps[directive.stepId].result == body["result"]
            require(not said_before, "a repeated result is a duplicate", job_id, directive.message_id)


async def _call_back(process: Process, kind: str, body: dict[str, Any], directive: Directive) -> Answer:
    callbacks = process.runtime.callbacks
    verified = await callbacks.parse(kind, body, callbacks.verify(directive.callback_token))
    return (await callbacks.apply(verified.job_id, [verified.callback]))[0]


def _is_stopped(job: Job) -> bool:
    """Return True if services should stop; a job that compensates lets them finish."""
    return job.status is JobStatus.CANCELLING and job.compensation is None


def _contended(heard: Answer) -> bool:
    return isinstance(heard, Rejected) and heard.code is RejectCode.LEDGER_CONTENDED


def _disposition(heard: Answer) -> str:
    return str(heard.disposition or heard.code) if isinstance(heard, Rejected) else heard.disposition
