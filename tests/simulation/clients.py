"""Simulated clients: they submit until accepted, repeat requests, reuse keys, cancel, and wait for the end."""

import asyncio
import random

import msgspec

from lucius.contract import Accepted, JobView
from lucius.core.model.statuses import TERMINAL_JOB
from lucius.ports.errors import LedgerFull
from lucius.usecases.access.auth import ALL_SCOPES, Principal
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.queries.jobs import WaitOptions
from tests.simulation.clock import LoopClock
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.monitor import Monitor
from tests.simulation.process import Network, Process, Unanswered

WHO = Principal("simulation", frozenset(ALL_SCOPES), frozenset({"*"}))
BUSY = frozenset(
    {RejectCode.TENANT_LIMIT, RejectCode.GLOBAL_LIMIT, RejectCode.PROTOCOL_LIMIT, RejectCode.LEDGER_CONTENDED}
)


class Client:
    """Client of one command, from submission to the end of its job."""

    def __init__(
        self,
        number: int,
        request_type: str,
        rng: random.Random,
        disk: Disk,
        faults: Faults,
        monitor: Monitor,
        network: Network,
        clock: LoopClock,
        payload: dict[str, object],
    ) -> None:
        self.name = f"client-{number}"
        self._rng, self._disk, self._faults, self._monitor, self._network = rng, disk, faults, monitor, network
        self.job_id = ""
        self.told_after_ms = 0
        self._clock = clock
        self._command: dict[str, object] = {
            "tenant_id": rng.choice(("acme", "globex")),
            "request_type": request_type,
            "input_ref": f"blob://in/{number}.pdf",
            "output_ref": f"blob://out/{number}.json",
            "payload": payload,
            "schema_version": "v1",
        }
        if rng.random() < 0.7:
            self._command["idempotency_key"] = f"key-{number}"
        if rng.random() < 0.3:
            self._command |= {"mode": "BURST", "doc_id": f"doc-{number}"}

    async def live(self, start: float, window: float) -> None:
        await asyncio.sleep(start)
        await self._submit()
        if self._faults.hit("client_repeated"):
            await asyncio.sleep(self._rng.uniform(0, window))
            await self._submit()
        if "idempotency_key" in self._command and self._faults.hit("client_reused_key"):
            await self._reuse_key()
        if self._faults.hit("client_cancelled"):
            await asyncio.sleep(self._rng.uniform(0, window / 2))
            await self._cancel()
        await self._wait_for_end()

    async def _submit(self) -> None:
        """Submit until accepted, and check that repeats return the same job and that it exists from then on."""
        body = msgspec.json.encode(self._command)
        while True:
            try:
                accepted: Accepted = await self._network.call(lambda p: p.runtime.intake.submit(body, WHO))
                break
            except Rejected as rejected:
                self._require(rejected.code in BUSY, "a good command is accepted", str(rejected))
                self._faults.saw(f"refused_{rejected.code}")
            except (Unanswered, LedgerFull):
                pass
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
        self._monitor.trace.note(self.name, accepted.jobId, "was accepted", f"duplicate={accepted.duplicate}")
        first, self.job_id = not self.job_id, self.job_id or accepted.jobId
        self._require(accepted.jobId == self.job_id, "a key makes one job", f"{accepted.jobId} and {self.job_id}")
        self._require(first or accepted.duplicate, "a key makes one job", f"{accepted.jobId} was accepted twice")
        self._require(self.job_id in self._disk.records, "an accepted job exists", accepted.jobId)

    async def _reuse_key(self) -> None:
        body = msgspec.json.encode(self._command | {"output_ref": "blob://out/other.json"})
        try:
            await self._network.call(lambda p: p.runtime.intake.submit(body, WHO))
        except Rejected as refused:
            reused = refused.code is RejectCode.IDEMPOTENCY_KEY_REUSED and refused.job_id == self.job_id
            self._require(reused, "a key stands for one command", str(refused))
            return
        except (Unanswered, LedgerFull):
            return
        self._require(False, "a key stands for one command", "another command was accepted under it")

    async def _cancel(self) -> None:
        self._monitor.known.cancels_asked.add(self.job_id)
        while True:
            try:
                await self._network.call(lambda p: p.runtime.operations.cancel(self.job_id, WHO, "changed my mind"))
                break
            except Rejected as rejected:
                if rejected.code in (RejectCode.JOB_TERMINAL, RejectCode.COMPENSATING):
                    return
                self._require(rejected.code in BUSY, "a cancel is taken", str(rejected))
            except (Unanswered, LedgerFull):
                pass
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
        job = self._disk.records[self.job_id].job
        gone = job.cancel is not None or not job.live or job.run_no > 1
        self._require(gone, "a cancel is kept", f"the job is {job.status}")

    async def _wait_for_end(self) -> None:
        """Long-poll until the job ends, and check that the reported end matches the ledger."""
        while True:
            try:
                view = await self._network.call(self._look, patience=6.0)
            except (Unanswered, LedgerFull):
                await asyncio.sleep(0.5)
                continue
            job = self._disk.records[self.job_id].job
            if view.status in TERMINAL_JOB:
                ends = {run.run_no: run.status for run in job.runs} | {job.run_no: job.status}
                told = view.status == ends[view.run_no]
                self._require(told, "an end is the end", f"{view.status} became {ends[view.run_no]}")
                self.told_after_ms = self._clock.now() - (job.completed_at or 0) if view.run_no == job.run_no else 0
                return
            explained = view.blocked_on is not None and bool(view.blocked_on.message)
            self._require(explained, "a waiting job says why", view.status)

    async def _look(self, process: Process) -> JobView:
        return await process.runtime.queries.job(self.job_id, WHO, WaitOptions(4.0))

    def _require(self, holds: bool, rule: str, what: str) -> None:
        self._monitor.require(holds, rule, self.job_id, f"{self.name}: {what}")
