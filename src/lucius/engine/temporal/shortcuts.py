"""Places at which a shortcut may step in on the way from a callback to the ledger.

The API and the activities call these hooks, the workflow none. `NoShortcuts` leaves the plain route as it is;
`fastpath/` has the implementation for `LUCIUS_TEMPORAL_FASTPATH=on`. Either leads to the same decisions.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from lucius.core.model.decision import JobSnapshot
from lucius.engine.temporal.messages import JobMessage, LoadedJob, Projection, ProjectionResult

SendSignal = Callable[[str, Sequence[JobMessage]], Awaitable[bool]]
"""Signals messages to a job's workflow; returns False if the job has ended."""
Project = Callable[[Projection], Awaitable[ProjectionResult]]
"""Commits a projection to the ledger."""


class SignalShortcuts(Protocol):
    """Hooks of the API, on the way of a message to its workflow."""

    def preload(self, snapshot: JobSnapshot) -> LoadedJob | None:
        """Return what a new workflow needs of its job; None if it is to read the ledger."""

    def callback_in_flight(self, job_id: str) -> AbstractContextManager[None]:
        """Mark that a callback is being signalled within this context."""

    async def send_handovers(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        """Send hand-overs by `send`, perhaps later and together with other messages."""

    async def send_callback(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        """Send a callback by `send`, perhaps together with hand-overs that wait for a signal."""

    def run_to_signal(self, job_id: str) -> str:
        """Return the id of the job's current run if it is known; else an empty string."""

    def on_signalled(self, job_id: str, messages: Sequence[JobMessage]) -> None:
        """Note that Temporal has stored a signal with these messages."""

    def on_update(self, job_id: str) -> None:
        """Note that an update is about to be sent, which waits for the workflow task that is open now."""

    async def close(self) -> None:
        """Send at once what waits to be sent."""


class TaskShortcuts(Protocol):
    """Hooks of the activities, around the commit of a projection."""

    def on_announcement(self, message_ids: Sequence[str]) -> None:
        """Note messages that another process has signalled to workflows; they arrive by their signals all the same."""

    def before_projection(self, job_id: str) -> None:
        """Note that a projection without attempts is about to be committed."""

    def before_attempts(self, run_id: str, projection: Projection) -> None:
        """Note that a projection with attempts to hand over is about to be committed."""

    async def after_attempts(
        self, run_id: str, projection: Projection, result: ProjectionResult, project: Project
    ) -> ProjectionResult:
        """Return `result`, perhaps with callbacks that arrived since, and decisions about them."""


class NoShortcuts:
    """Implements both by the plain route: callbacks and hand-overs by pulls arrive as signals; the workflow decides.

    Updates, and what the workflow's own activities return, reach it without a signal on either route.
    """

    def preload(self, snapshot: JobSnapshot) -> LoadedJob | None:
        return None

    def callback_in_flight(self, job_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def send_handovers(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        return await send(job_id, messages)

    async def send_callback(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        return await send(job_id, messages)

    def run_to_signal(self, job_id: str) -> str:
        return ""

    def on_signalled(self, job_id: str, messages: Sequence[JobMessage]) -> None:
        """Do nothing: the workflow reads the signal in its next task."""

    def on_update(self, job_id: str) -> None:
        """Do nothing: no task is kept open."""

    async def close(self) -> None:
        """Do nothing: nothing waits to be sent."""

    def on_announcement(self, message_ids: Sequence[str]) -> None:
        """Do nothing: the workflows get these messages by their signals."""

    def before_projection(self, job_id: str) -> None:
        """Do nothing."""

    def before_attempts(self, run_id: str, projection: Projection) -> None:
        """Do nothing."""

    async def after_attempts(
        self, run_id: str, projection: Projection, result: ProjectionResult, project: Project
    ) -> ProjectionResult:
        return result
