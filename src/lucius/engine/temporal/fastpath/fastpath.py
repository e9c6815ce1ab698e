"""Implements the hooks of `shortcuts.py` with all shortcuts of this package."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from lucius.core.model.decision import JobSnapshot
from lucius.core.model.inputs import HandedOver
from lucius.core.model.tools import Tools
from lucius.engine.temporal.fastpath.coalesced_handovers import CoalescedHandovers
from lucius.engine.temporal.fastpath.inline_decisions import InlineDecisions, find_awaited_services
from lucius.engine.temporal.fastpath.open_tasks import OpenTasks
from lucius.engine.temporal.fastpath.peer_signals import PeerSignals
from lucius.engine.temporal.messages import JobMessage, LoadedJob, Projection, ProjectionResult
from lucius.engine.temporal.paged_state import first_part
from lucius.engine.temporal.shortcuts import Project, SendSignal
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger


class Fastpath:
    """Takes every shortcut there is; implements `SignalShortcuts` and `TaskShortcuts`."""

    def __init__(self, ledger: Ledger, inbox: Inbox, tools: Tools) -> None:
        self._inbox = inbox
        self._open_tasks = OpenTasks()
        self._peer_signals = PeerSignals(inbox, self._open_tasks)
        self._inline_decisions = InlineDecisions(ledger, self._open_tasks, tools)
        self._handovers = CoalescedHandovers()

    async def close(self) -> None:
        """Send hand-overs that wait for a callback, and read no more announced messages."""
        self._handovers.close()
        await self._peer_signals.close()

    def on_announcement(self, message_ids: Sequence[str]) -> None:
        """Pass messages that another process has signalled to the tasks that are open here."""
        self._peer_signals.on_announcement(message_ids)

    # The API

    def preload(self, snapshot: JobSnapshot) -> LoadedJob | None:
        return first_part(snapshot)

    def callback_in_flight(self, job_id: str) -> AbstractContextManager[None]:
        return self._open_tasks.callback_in_flight(job_id)

    async def send_handovers(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        return await self._handovers.send_later(job_id, messages, send)

    async def send_callback(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        return await self._handovers.send_together(job_id, messages, send)

    def run_to_signal(self, job_id: str) -> str:
        """Return the run of the open task: this spares Temporal the search for the run that is open."""
        task = self._open_tasks.get(job_id)
        return task.run_id if task is not None else ""

    def on_signalled(self, job_id: str, messages: Sequence[JobMessage]) -> None:
        """Pass the messages to the open task, here or in another process. Hand-overs alone need no answer.

        Only after the signal: the workflow that gets these messages does not end before their signal has arrived.
        """
        if any(message.kind != HandedOver.__name__ for message in messages):
            self._open_tasks.add_messages(job_id, messages)
            self._inbox.announce(list(dict.fromkeys(message.message_id for message in messages)))

    def on_update(self, job_id: str) -> None:
        self._open_tasks.wake(job_id)

    # The activities

    def before_projection(self, job_id: str) -> None:
        self._open_tasks.close(job_id)

    def before_attempts(self, run_id: str, projection: Projection) -> None:
        """Open the task before the commit: services that pull may answer as soon as it has happened."""
        if _can_wait(projection):
            self._open_tasks.open(projection.job.job_id, run_id, projection.message_ids)

    async def after_attempts(
        self, run_id: str, projection: Projection, result: ProjectionResult, project: Project
    ) -> ProjectionResult:
        """Wait for callbacks about the attempts, and decide about them here; return these with `result`."""
        if not _can_wait(projection) or not result.digest:
            self._open_tasks.close(projection.job.job_id)
            return result
        decisions, messages = await self._inline_decisions.run(run_id, projection, project)
        return replace(result, inline_decisions=decisions, early_messages=messages)


def _can_wait(projection: Projection) -> bool:
    return bool(find_awaited_services(projection)) and not projection.is_urgent
