"""Makes calls the way the engine does, with a caller that sends nothing and answers what a script says."""

import asyncio
from types import TracebackType
from typing import Any, Self, cast

from lucius.authoring.actors import CallResult
from lucius.authoring.script import ScriptedAnswer
from lucius.core.model.decision import Decision, Env, JobSnapshot
from lucius.core.model.records import Instant, Step
from lucius.core.model.tools import Tools
from lucius.engine.outbound.http_attempt import HttpAttempt, may_have_run
from lucius.ports.clock import Clock
from lucius.ports.http import Caller, HttpResponse, Outgoing
from lucius.ports.ledger import Ledger


class RehearsedCalls:
    """Implements `lucius.authoring.simulate.CallSimulator`."""

    def __init__(self, tools: Tools) -> None:
        self._world = _World()
        env = Env(str, float, tools=tools)  # neither ids nor jitter are needed here
        self._http_attempt = HttpAttempt(
            caller=cast(Caller, self._world),
            ledger=cast(Ledger, self._world),
            clock=cast(Clock, self._world),
            env=env,
        )
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.close()

    def simulate_call(self, view: JobSnapshot, step: Step, answer: ScriptedAnswer, guard: ScriptedAnswer) -> CallResult:
        asks = step.guard_request is not None and may_have_run(step)
        self._world.view = view
        self._world.answers = [_answer(told) for told in ([guard, answer] if asks else [answer])]
        decision = Decision(job=view.job, replies=(), protocol=view.protocol, changes=False)
        outcome = self._runner.run(self._http_attempt.outcome(decision, step))
        return CallResult(outcome, asks, made=not self._world.answers)


class _World:
    """The one job there is, and the answers to its calls."""

    view: JobSnapshot
    answers: list[HttpResponse]

    async def send(self, call: Outgoing) -> HttpResponse:
        return self.answers.pop(0)

    async def load(self, job_id: str, step_ids: Any = ()) -> JobSnapshot:
        return self.view

    def now(self) -> Instant:
        return self.view.job.updated_at


def _answer(told: ScriptedAnswer) -> HttpResponse:
    """Return an answer; one with an error status and an object is a problem document, as most APIs send."""
    problem = told.status >= 400 and isinstance(told.body, dict)
    headers = {"content-type": "application/problem+json" if problem else "application/json"}
    return HttpResponse(status=told.status, headers=headers, body=told.body)
