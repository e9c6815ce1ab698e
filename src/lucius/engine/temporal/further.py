"""Further decisions in a task that is open: what services answer at once is decided by the activity that waits for it.

Each way through the SDK, from the end of an activity to the start of the next, costs more than what Lucius does in
between. So the activity feeds the core with what it hears, as the workflow would, writes the decision down and goes on
listening. The workflow is then told of all these turns together; it decides the same by itself, or else the run ends.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from lucius.core.decide import decide_all
from lucius.core.decision import Decision, Defaults, Env, JobView, MissingSteps
from lucius.core.inputs import Input
from lucius.core.model import Instant, Job
from lucius.core.protocol import HTTP_SERVICE, OF_THE_ENGINE
from lucius.core.tools import Tools
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.mail import MOST_AT_ONCE
from lucius.engine.temporal.wire import (
    Happened,
    Projected,
    Projection,
    Turn,
    advanced,
    is_due,
    projection,
    unpack,
)
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import Ledger

log = structlog.get_logger(__name__)

MOST_LOADS = 4


def id_of(run_id: str, job: Job, number: int) -> str:
    """Of all decisions about one version only one is ever committed, so no two attempts share an id. A random
    generator begins anew with each replay, and would give the same twice."""
    said = f"{run_id} {job.version} {job.event_hash} {number}"
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def env_of(run_id: str, job: Job, defaults: Defaults, tools: Tools) -> Env:
    """For one further decision, the same wherever it is taken."""
    chance: random.Random | None = None
    made = 0

    def new_id() -> str:
        nonlocal made
        made += 1
        return id_of(run_id, job, made)

    def jitter() -> float:
        nonlocal chance
        chance = chance or random.Random(f"{run_id} {job.version} {job.event_hash}")  # few ask, and it takes a while
        return chance.random()

    return Env(new_id=new_id, jitter=jitter, defaults=defaults, tools=tools)


def asked_in(projection: Projection) -> set[str]:
    """The services that may answer it at once."""
    return {row.service for row in projection.outbox if row.is_ready} - OF_THE_ENGINE


class Further:
    """`project` writes a decision down."""

    def __init__(
        self,
        ledger: Ledger,
        ahead: Ahead,
        tools: Tools,
        project: Callable[[Projection], Awaitable[Projected]],
    ) -> None:
        self._ledger = ledger
        self._ahead = ahead
        self._tools = tools
        self._project = project

    async def listen(self, run_id: str, done: Projection) -> tuple[list[Turn], list[Happened]]:
        """The turns that came of what services answered; and what else was heard, which is for the workflow."""
        turns, leases, heard = list[Turn](), set[str](), list[Happened]()
        view, now = None, _counted_from(done.job.updated_at)
        while (services := asked_in(done)) and not _is_urgent(done, now()):
            leases |= {row.lease_id for row in done.outbox}
            heard = await self._ahead.listen(done.job.job_id, services)
            taken = await self._take(run_id, done, view, heard, now()) if _is_about(heard, leases) else None
            if taken is None:
                break
            (turn, done, view), heard = taken, []
            turns.append(turn)
        self._ahead.close(done.job.job_id)
        return turns, heard

    async def _take(
        self, run_id: str, done: Projection, view: JobView | None, heard: list[Happened], now: Instant
    ) -> tuple[Turn, Projection, JobView] | None:
        """One turn, unless something stands in its way that only the workflow can deal with."""
        if done.defaults is None or not heard:
            return None
        letters = tuple(dict.fromkeys(one.letter for one in heard))
        self._ahead.open(done.job.job_id, run_id, letters)
        try:
            view = view or await self._load(done.job)
            at = max(now, done.job.updated_at)
            env = partial(env_of, run_id, done.job, done.defaults, self._tools)
            found = view and await self._decide(view, [unpack(one) for one in heard], at, env)
            if not found or not found[0].changes:
                return None
            decision, view = found
            rows = tuple(row for row in decision.outbox if row.service != HTTP_SERVICE)
            hurries = len(rows) < len(decision.outbox)  # to make a call, which is for the workflow
            further = replace(projection(decision, rows, letters), defaults=done.defaults, hurries=hurries)
            written = await self._project(further)
        except LedgerError as error:
            log.info("what was heard is left to the workflow", job_id=done.job.job_id, reason=str(error))
            return None
        if not written.decided:
            return None
        return Turn(heard, at, written.decided), further, advanced(view, decision)

    async def _decide(
        self, view: JobView, happened: Sequence[Input], at: Instant, env: Callable[[], Env]
    ) -> tuple[Decision, JobView] | None:
        """With the steps that it takes."""
        for _ in range(MOST_LOADS):
            try:
                return decide_all(view, happened, at, env()), view
            except MissingSteps as missing:
                known = view.asked or frozenset()
                loaded = await self._load(view.job, known | missing.step_ids)
                if loaded is None:
                    return None
                view = loaded
        return None

    async def _load(self, job: Job, step_ids: Collection[str] = ()) -> JobView | None:
        """Unless somebody moved it, which the workflow will find out."""
        view = await self._ledger.load(job.job_id, step_ids)
        same = view is not None and (view.job.version, view.job.event_hash) == (job.version, job.event_hash)
        return view if same else None


def _counted_from(begun: Instant) -> Callable[[], Instant]:
    """The job's own time, which is Temporal's: ours may be another."""
    time = asyncio.get_running_loop().time
    began = time()
    return lambda: begun + round((time() - began) * 1000)


def _is_urgent(done: Projection, now: Instant) -> bool:
    """Whether the workflow has more to do than to wait for services."""
    return done.hurries or is_due(done.job, now)


def _is_about(heard: Sequence[Happened], leases: Collection[str]) -> bool:
    """Whether these attempts are all that it is about: nobody can have heard of those before."""
    ours = all(one.letter and getattr(unpack(one), "lease_id", "") in leases for one in heard)
    return ours and len(heard) <= MOST_AT_ONCE
