"""Engine: what changes jobs. Use cases hand it what happened and get the decision that followed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import Input
from lucius.core.model.records import Instant
from lucius.ports.errors import LedgerFull

Inputs = Sequence[Input] | Callable[[JobSnapshot], Awaitable[Sequence[Input]]]
"""Inputs for a job, or a function that derives them from the loaded job, so that they match the state decided on."""


@dataclass(frozen=True)
class EngineHealth:
    """Health of the engine in this process."""

    write_refusal: LedgerFull | None = None
    """Error of the last write, if the ledger refused it a short while ago because it is full."""
    outage: str | None = None
    """Why the engine's server can't be reached; empty if it can, None for an engine without a server."""
    is_worker_running: bool = False
    """Whether a worker for the engine's server runs in this process."""
    worker_troubles: Mapping[str, str] = field(default_factory=dict)
    """Parts of that worker that make no progress, each with the reason."""


class Engine(Protocol):
    """Changes jobs: directly in the ledger, or through the workflow that drives the job."""

    @property
    def outbox_retry_notice(self) -> str:
        """Message to an operator who retries hand-overs, if the engine retries some by itself; else empty."""

    async def create(self, inputs: Sequence[Input]) -> Decision:
        """Commit the first decision of a job and return it.

        Raises AlreadyAccepted, LimitReached, or LedgerAway if the job can't be accepted now.
        """

    async def apply(self, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
        """Make the decision that the inputs lead to durable and return it; one without changes is not committed.

        Raises Rejected for an unknown job or too many conflicts, LimitReached for a cap, and LedgerAway.
        """

    async def evaluate(
        self,
        job_id: str,
        inputs: Inputs,
        step_id: str | None = None,
        fresh: bool = False,
        at: Instant | None = None,
        only_answers: bool = False,
    ) -> Decision:
        """Return the decision that the inputs lead to, now or at the instant `at`, without making it.

        With `only_answers`, replies and changed steps are all that is known of it. Raises Rejected for an unknown job.
        """

    async def start(self) -> None:
        """Start the engine's own background work in this process. `engine/loops.py` has what every engine needs."""

    async def stop(self, grace: float) -> None:
        """Stop what `start` began; work under way has `grace` seconds."""

    def health(self) -> EngineHealth:
        """Return the health as known now, without asking the ledger or the engine's server."""
