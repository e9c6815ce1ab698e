"""Drives one job of a case to its end, one act at a time, each once everything before it is in the ledger.

Two engines that decide alike thus reach the same points in the same order, however fast they are. Timeouts
go first: nothing else is done while one is about to expire.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import takewhile
from typing import Any

from aiohttp import web
from msgspec import Struct

from lucius.contract import CallbackAnswer, Directive
from lucius.core.decide.derived_state import next_step_deadline
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import ReviewItem, Step
from lucius.core.model.statuses import JobStatus, StepStatus
from lucius.core.protocol.definition import HTTP_SERVICE, spec_id
from lucius.ports.readers import ReviewFilter
from lucius.usecases.access.auth import ALL_SCOPES, Principal
from lucius.usecases.errors import Rejected
from lucius.usecases.operations.reviews import RequestedAct
from tests.simulation.protocols import FINANCE, PEOPLE
from tests.temporal.twin_cases import Case
from tests.temporal.twin_plane import Plane

SOON_MS = 60_000
"""The driver waits for timeouts that expire sooner."""
STUCK_SECONDS = 40.0
MAX_RUNS, MAX_ACTS = 3, 4
STRANGER, CARETAKER = "eve", "caretaker"
MARKS = ("settle", "rescue", "fenced", "gone")
AT_WORK = (StepStatus.DISPATCHING, StepStatus.INITIATED, StepStatus.PROCESSING)

Doing = Callable[[], Coroutine[Any, Any, object]]


class StandsStill(AssertionError):
    """Nothing is on offer, no timeout is running, and the job has not ended."""


class Offer(Struct, frozen=True):
    """Act that is possible now. Its name says where and what, and is the same on every engine."""

    name: str
    step_id: str
    do: Doing


class Held:
    """Attempt held by a service, with what it has yet to send about it."""

    def __init__(self, directive: Directive, plan: tuple[str, ...]) -> None:
        self.directive = directive
        self.plan = list(plan)
        self.recorded = 0


class Call:
    """Request that waits for its answer."""

    def __init__(self, step_id: str, attempt_no: int, lease_id: str, answer: "asyncio.Future[web.Response]") -> None:
        self.step_id, self.attempt_no, self.lease_id = step_id, attempt_no, lease_id
        self.answer = answer


class Driver:
    def __init__(self, plane: Plane, case: Case) -> None:
        self.log: list[tuple[str, object]] = []
        self.job_id = ""
        self._plane, self._case = plane, case
        self._held: dict[str, Held] = {}
        self._calls: dict[tuple[str, str], Call] = {}
        self._acts = 0
        self._resume_in: int | None = None
        self._done_once: set[str] = set()

    async def drive(self) -> None:
        self.job_id = await self._plane.submit(self._case)
        while True:
            view, offers = await self._settled()
            if not view.job.live and not offers:
                if not await self._after_the_end(view):
                    return
            elif self._case.stalls and self._stall(view):
                self.log.append(("stall", ""))
                await self._until(lambda view: not self._stall(view))
            elif view.job.paused is not None and (not offers or not self._resume_in):
                await self._end_pause(view)
            else:
                await self._go_on(view, min(offers, key=self._turn))

    def _turn(self, offer: Offer) -> tuple[bool, float]:
        return offer.step_id != "", self._case.rng("turn", offer.name).random()

    async def _go_on(self, view: JobSnapshot, offer: Offer) -> None:
        point = f"{view.job.run_no} {offer.name}"
        if act := self._act_at(point, view):
            await self._note(f"{act} at {point}", lambda: self._act(act, view))
            return
        if self._resume_in:
            self._resume_in -= 1
        await self._note(offer.name, offer.do)

    def _act_at(self, point: str, view: JobSnapshot) -> str:
        if self._acts >= MAX_ACTS or point in self._done_once or not view.job.live:
            return ""
        self._done_once.add(point)
        act = self._case.act(point)
        self._acts += bool(act)
        return act

    async def _note(self, name: str, do: Doing) -> None:
        try:
            answer = await do()
        except Rejected as refused:
            answer = str(refused.disposition or refused.code)
        self.log.append((name, answer))

    # When an act is possible

    async def _settled(self) -> tuple[JobSnapshot, list[Offer]]:
        """Wait until the job no longer moves by itself; return it, and the acts that could move it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STUCK_SECONDS
        while True:
            with self._plane.runtime.notifier.watch(self.job_id) as moved:
                view = await self._plane.view(self.job_id)
                self._note_calls(view)
                offers = self._offers(view)
                if not await self._is_moving(view, offers):
                    return view, offers
                if loop.time() > deadline:
                    raise StandsStill(f"{self._plane.name}: {_where(view)}, last {self.log[-3:]}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await moved.wait()

    async def _until(self, there: Callable[[JobSnapshot], bool]) -> None:
        async with asyncio.timeout(STUCK_SECONDS + (self._case.protocol.policies.timeout_ms or 0) / 1000):
            while not there(await self._plane.view(self.job_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _is_moving(self, view: JobSnapshot, offers: list[Offer]) -> bool:
        job, now = view.job, self._plane.runtime.clock.now()
        if job.status is JobStatus.QUEUED or (job.live and job.due_at is not None and job.due_at <= now):
            return True
        if await self._plane.has_messages(self.job_id):
            return True
        if not job.live:
            return False
        offering = {offer.step_id for offer in offers}
        late = "" in offering  # callbacks of ended attempts need not wait for anything
        steps = [view.steps[step_id] for step_id in job.active]
        if any(self._is_under_way(step, view) for step in steps):
            return True
        paused = job.paused is not None
        clocks = [next_step_deadline(step, paused) for step in steps if step.step_id not in offering]
        if not late and any(clock is not None and clock < now + SOON_MS for clock in clocks):
            return True
        return not offers and not paused and not self._case.stalls

    def _is_under_way(self, step: Step, view: JobSnapshot) -> bool:
        """Return True if the engine is about to send a call or to receive its answer."""
        if step.service != HTTP_SERVICE:
            return False
        if step.status is StepStatus.DISPATCHING:
            return view.job.paused is None
        return step.status is StepStatus.PROCESSING and (step.step_id, step.attempt.lease_id) not in self._calls

    def _stall(self, view: JobSnapshot) -> bool:
        """Return whether the job is to run into its timeout here: it then ends, compensates, or waits for review."""
        job = view.job
        held_up = job.paused is not None or job.compensation is not None
        return job.live and not held_up and job.run_no == 1 and len(self.log) >= 2

    # Which acts are possible

    def _offers(self, view: JobSnapshot) -> list[Offer]:
        offers = [offer for held in self._held.values() if (offer := self._of_service(held, view)) is not None]
        offers += [offer for call in self._calls.values() if (offer := self._of_call(call, view)) is not None]
        if view.job.live:
            steps = (view.steps[step_id] for step_id in view.job.active)
            offers += [offer for step in steps if (offer := self._of_step(step, view)) is not None]
        return offers

    def _of_step(self, step: Step, view: JobSnapshot) -> Offer | None:
        case, name = self._case, step.step_id
        key = f"{name}/{step.attempt.attempt_no}/{step.visit}/{step.run_no}"
        match step.status:
            case StepStatus.DISPATCHING if step.service != HTTP_SERVICE and view.job.paused is None:
                return Offer(f"pull {key}", name, lambda: self._pull(step))
            case StepStatus.WAITING if step.awaits is not None:
                if step.wake_at is not None and case.lets_time_out(spec_id(name)):
                    return None
                signal = step.awaits
                return Offer(f"signal {key}", name, lambda: self._signal(signal))
            case StepStatus.AWAITING_APPROVAL:
                if step.wake_at is not None and case.lets_time_out(spec_id(name)):
                    return None
                left = _may_vote(step, view)  # empty if all have voted while the job is paused
                return Offer(f"vote {key} {left[0]}", name, lambda: self._vote(step, left[0])) if left else None
            case _:
                return None

    def _of_service(self, held: Held, view: JobSnapshot) -> Offer | None:
        directive, plan = held.directive, held.plan
        step = view.steps[directive.stepId]
        current = step.attempt.lease_id == directive.lease_id
        marks = list(takewhile(MARKS.__contains__, plan))
        at_work = current and step.status in AT_WORK
        given_up = not current or step.completed_at is not None or not view.job.live
        if not plan or "gone" in marks or ("rescue" in marks and at_work) or ("fenced" in marks and not given_up):
            return None
        name = f"{directive.stepId}/{directive.attempt_no} says {' '.join(plan)}"
        return Offer(name, directive.stepId if current else "", lambda: self._speak(held))

    def _of_call(self, call: Call, view: JobSnapshot) -> Offer | None:
        if call.answer.done():
            return None
        step = view.steps[call.step_id]
        mine = step.attempt.lease_id == call.lease_id
        current = mine and step.status is StepStatus.PROCESSING
        status = self._case.response(call.step_id, spec_id(call.step_id), call.attempt_no)
        patient = mine and step.completed_at is None and self._case.is_patient(call.step_id, call.attempt_no)
        if status == "hang" and (current or patient) and view.job.live:
            return None
        name = f"{call.step_id}/{call.attempt_no} is answered {status}"
        return Offer(name, call.step_id if current else "", lambda: self._respond(call, step, status))

    def _note_calls(self, view: JobSnapshot) -> None:
        """Record new requests, each for the attempt that was current when it came."""
        for step in view.steps.values():
            place = (step.step_id, step.attempt.lease_id)
            if step.service != HTTP_SERVICE or step.status is not StepStatus.PROCESSING or place in self._calls:
                continue
            asked = self._plane.outside.asked.get(step.idempotency_key, [])
            known = {id(call.answer) for call in self._calls.values()}
            new = [answer for answer in asked if id(answer) not in known]
            if new:
                self._calls[place] = Call(step.step_id, step.attempt.attempt_no, step.attempt.lease_id, new[-1])

    # Carrying out an act

    async def _pull(self, step: Step) -> object:
        directives = await self._plane.runtime.directive_pulls.pull(step.service, 50, 2.0)
        directives = [directive for directive in directives if directive.jobId == self.job_id]
        for directive in directives:
            name = directive.stepId
            self._held[directive.lease_id] = Held(directive, self._case.work(name, spec_id(name), directive.attempt_no))
        return sorted(f"{directive.stepId}/{directive.attempt_no}" for directive in directives)

    async def _speak(self, held: Held) -> object:
        """Send callbacks up to the plan's next mark, where it waits; return the answers."""
        answers: list[object] = []
        before = ""
        while held.plan and held.plan[0] in MARKS:
            held.plan.pop(0)
        while held.plan and held.plan[0] not in MARKS:
            what = held.plan.pop(0)
            answer = await self._say(held.directive, what)
            # An engine that answers before it decides can recognise a repeat, but not report its outcome.
            repeated = what == before and answer[0] in ("DUPLICATE", "STALE")
            answers.append("REPEATED" if repeated else answer)
            held.recorded += what != "beat" or answer[0] != "APPLIED"
            before = what
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while await self._callbacks(held.directive) < held.recorded:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        return answers

    async def _callbacks(self, directive: Directive) -> int:
        """Return how many callbacks of an attempt are recorded; two equal ones share one message in the inbox."""
        events = await self._plane.runtime.store.history.events(self.job_id, 0, 10_000)
        about = [event for event in events if (event.step_id, event.attempt_no) == _of(directive)]
        return sum(event.type.startswith("CALLBACK_") for event in about)

    async def _say(self, directive: Directive, what: str) -> tuple[str, bool]:
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        body: dict[str, Any] = {name: getattr(directive, name) for name in names}
        result = self._case.result(directive.stepId, directive.attempt_no)
        word, _, cause = what.partition(" ")
        match word:
            case "ack":
                kind = "ack"
            case "beat":
                kind, body = "heartbeat", {**body, "progress": 0.5}
            case "ok":
                kind, body = "result", {**body, "status": "SUCCEEDED", "result": result}
            case "other":
                kind, body = "result", {**body, "status": "SUCCEEDED", "result": {**result, "other": True}}
            case _:
                kind, body = "result", {**body, "status": "FAILED", "failure_class": cause, "error": {"code": "NO"}}
                if cause == "RATE_LIMITED":
                    body["retry_after_seconds"] = 0.4
        callbacks = self._plane.runtime.callbacks
        verified = await callbacks.parse(kind, body, callbacks.verify(directive.callback_token))
        (heard,) = await callbacks.apply(verified.job_id, [verified.callback])
        if isinstance(heard, CallbackAnswer):
            return heard.disposition, heard.cancel_requested
        return str(heard.disposition or heard.code), False

    async def _respond(self, call: Call, step: Step, status: str) -> object:
        body: dict[str, Any] = {}
        code = 200 if status == "hang" else int(status)
        if code == 200:
            body = self._plane.outside.made.setdefault(
                step.idempotency_key, self._case.result(call.step_id, call.attempt_no)
            )
        before = (await self._plane.view(self.job_id)).job.event_seq
        if call.answer.cancelled():
            return "hung up"
        call.answer.set_result(web.json_response(body, status=code))
        try:
            async with asyncio.timeout(5):
                while (await self._plane.view(self.job_id)).job.event_seq == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return "nothing came of it"
        return "heard"

    async def _signal(self, name: str) -> object:
        return await self._ask("signal", self.job_id, _person(CARETAKER), name, {"n": 1}, "")

    async def _vote(self, step: Step, voter: str) -> object:
        approves = self._case.rng("vote", step.step_id, step.visit, step.run_no, voter).random() < 0.8
        return await self._ask("vote", self.job_id, step.step_id, _person(voter), approves, "as I see it")

    async def _ask(self, act: str, *how: Any) -> str:
        await getattr(self._plane.runtime.operations, act)(*how)
        return "GRANTED"

    async def _act(self, act: str, view: JobSnapshot) -> object:
        who, job_id = _person("ann"), self.job_id
        waits = [place.spec.wait for place in view.protocol.plan.places.values()]
        signals = sorted({wait.signal for wait in waits if wait is not None and wait.signal is not None})
        match act:
            case "pause":
                if view.job.paused is None:
                    self._resume_in = self._case.rng("pause", len(self.log)).randint(0, 2)
                return await self._ask("pause", job_id, who, "let me see")
            case "cancel":
                return await self._ask("cancel", job_id, who, "changed my mind")
            case "signal":
                return await self._ask("signal", job_id, who, (signals or ["go"])[0], {"n": 2}, "")
            case "bad signal":
                return await self._ask("signal", job_id, who, "nobody-waits-for-this", None, "")
            case "retry":
                return await self._ask("retry", job_id, who, "again", None)
            case "resume":
                return await self._ask("resume", job_id, who, "go on")
            case _:
                asked = [step.step_id for step in view.steps.values() if step.kind == "human_approval"]
                step_id = sorted(asked)[0] if asked else view.protocol.steps[0].step_id
                return await self._ask("vote", job_id, step_id, _person(STRANGER), True, "")

    async def _end_pause(self, view: JobSnapshot) -> None:
        paused = view.job.paused
        assert paused is not None
        self._resume_in = None
        if not paused.on_review:
            await self._note("resume", lambda: self._ask("resume", self.job_id, _person("bob"), "go on"))
            return
        item = view.job.review
        assert item is not None
        act = "discard"
        if view.job.run_no < MAX_RUNS:
            rng = self._case.rng("resolve", view.job.run_no, len(self.log))
            act = rng.choice(("compensate", "retry", "skip", "discard"))
        if ("review discard", "GRANTED") in self.log[-1:]:
            raise StandsStill(f"{self._plane.name}: discarded, and yet {_where(view)}")
        await self._review(act, item)
        if len(self.log) > 200:
            raise StandsStill(f"{self._plane.name}: goes round and round, {self.log[-6:]}")

    async def _review(self, act: str, item: ReviewItem) -> None:
        result = {"n": 5, "items": [2]} if act == "skip" else None
        requested = RequestedAct(act=act, reason="as I see it", result=result)

        async def do() -> object:
            outcome = await self._plane.runtime.reviews.act(item.review_id, requested, _person(CARETAKER))
            if isinstance(outcome, Exception):
                raise outcome
            return "GRANTED"

        await self._note(f"review {act}", do)
        if self.log[-1][1] != "GRANTED" and act != "discard":
            await self._review("discard", item)

    async def _after_the_end(self, view: JobSnapshot) -> bool:
        """Return True if an operator acts on the ended job."""
        job = view.job
        rng = self._case.rng("after", job.run_no, len(self._done_once))
        point = f"after {job.run_no}"
        if job.run_no >= MAX_RUNS or point in self._done_once or rng.random() > 0.5:
            return False
        self._done_once.add(point)
        items = await self._open_items()
        acts = ["retry", "retry from", "cancel"] + ["item"] * (2 * len(items))
        match rng.choice(acts):
            case "retry":
                await self._note("retry", lambda: self._ask("retry", self.job_id, _person("ann"), "again", None))
            case "retry from":
                start = rng.choice(view.protocol.steps).step_id
                await self._note(
                    f"retry from {start}",
                    lambda: self._ask("retry", self.job_id, _person("ann"), "from here", start),
                )
            case "cancel":
                await self._note("cancel late", lambda: self._ask("cancel", self.job_id, _person("ann"), "stop"))
            case _:
                item = rng.choice(items)
                act = rng.choice(("retry", "skip", "compensate", "adopt", "adopt"))
                await self._review(act, item)
        return True

    async def _open_items(self) -> list[ReviewItem]:
        page = await self._plane.runtime.store.reviews.reviews(ReviewFilter(job_id=self.job_id), 50, None)
        return sorted(page.items, key=lambda item: (item.kind, item.step_id or "", item.attempt_no or 0, item.run_no))


def _person(name: str) -> Principal:
    groups = frozenset({FINANCE}) if name in PEOPLE else frozenset[str]()
    return Principal(name, frozenset(ALL_SCOPES), frozenset({"*"}), groups=groups)


def _may_vote(step: Step, view: JobSnapshot) -> list[str]:
    spec = view.protocol.step(step.step_id)
    assert spec is not None
    assert spec.human_approval is not None
    named = spec.human_approval.approvers
    voted = {vote.by for vote in step.votes}
    return [name for name in PEOPLE if (FINANCE in named or name in named) and name not in voted]


def _of(directive: Directive) -> tuple[str, int]:
    return directive.stepId, directive.attempt_no


def _where(view: JobSnapshot) -> str:
    active = {step_id: str(view.steps[step_id].status) for step_id in view.job.active}
    return f"{view.job.job_id} is {view.job.status} at {active}"
