"""Loads what a directive needs from the ledger once its hand-over is decided, and writes it."""

from typing import Protocol

from lucius.contract import Directive
from lucius.core.model.decision import Decision
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.rendering import DirectiveWriter, seen_from


class AttemptRef(Protocol):
    """Identifies an attempt."""

    @property
    def job_id(self) -> str: ...
    @property
    def step_id(self) -> str: ...
    @property
    def lease_id(self) -> str: ...


class DirectiveLoader:
    """Loads the state of a job and writes the directive of one of its attempts."""

    def __init__(self, ledger: Ledger, writer: DirectiveWriter) -> None:
        self._ledger = ledger
        self._writer = writer

    async def load(self, attempt: AttemptRef, decision: Decision) -> Directive | None:
        """Return the directive with the attempt as the hand-over decision left it.

        Returns None if the attempt was fenced since then.
        """
        view = await self._ledger.load(attempt.job_id, seen_from(decision.protocol, attempt.step_id))
        if view is None or attempt.step_id not in view.steps:
            return None
        decided = {step.step_id: step for step in decision.steps}
        step = decided.get(attempt.step_id, view.steps[attempt.step_id])
        if {step.attempt.lease_id, view.steps[attempt.step_id].attempt.lease_id} != {attempt.lease_id}:
            return None
        return self._writer.write(view, step)
