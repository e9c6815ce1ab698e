"""The engine's own way with calls, over a caller that makes none: it answers what a script says."""

import asyncio
from types import TracebackType
from typing import Any, Self, cast

from lucius.authoring.players import Heard
from lucius.authoring.script import Answers
from lucius.core.decision import Decision, Env, JobView
from lucius.core.model import Instant, Step
from lucius.core.tools import Tools
from lucius.engine.exchange import Exchange, may_have_run
from lucius.ports.calls import Answer, Caller, Outgoing
from lucius.ports.clock import Clock
from lucius.ports.ledger import Ledger


class RehearsedCalls:
    """Implements `lucius.authoring.simulate.Calls`."""

    def __init__(self, tools: Tools) -> None:
        self._world = _World()
        env = Env(str, float, tools=tools)  # neither an id nor jitter is asked for here
        self._exchange = Exchange(
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

    def hear(self, view: JobView, step: Step, answer: Answers, guard: Answers) -> Heard:
        asks = step.guard_request is not None and may_have_run(step)
        self._world.view = view
        self._world.answers = [_answer(told) for told in ([guard, answer] if asks else [answer])]
        decision = Decision(job=view.job, replies=(), protocol=view.protocol, changes=False)
        outcome = self._runner.run(self._exchange.outcome(decision, step))
        return Heard(outcome, asks, made=not self._world.answers)


class _World:
    """The one job there is, and what those who are called say."""

    view: JobView
    answers: list[Answer]

    async def send(self, call: Outgoing) -> Answer:
        return self.answers.pop(0)

    async def load(self, job_id: str, step_ids: Any = ()) -> JobView:
        return self.view

    def now(self) -> Instant:
        return self.view.job.updated_at


def _answer(told: Answers) -> Answer:
    """An error that has something to say is a problem document, as those of most APIs are."""
    problem = told.status >= 400 and isinstance(told.body, dict)
    headers = {"content-type": "application/problem+json" if problem else "application/json"}
    return Answer(status=told.status, headers=headers, body=told.body)
