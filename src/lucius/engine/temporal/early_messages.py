"""Messages, and decisions about them, that activities return before the messages' signals arrive.

The shortcuts of `fastpath/` make activities wait for callbacks, and decide about them. On the plain route there are
none of these, and everything here leaves the workflow as it is. Histories may have them whatever the setting is now, so
workflow code always understands both routes and reads no setting.
"""

from collections.abc import Sequence

from msgspec.structs import replace
from temporalio import workflow

from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision, Defaults, JobSnapshot
from lucius.engine.temporal.deterministic_env import make_env
from lucius.engine.temporal.messages import (
    InlineDecision,
    JobMessage,
    Projection,
    decode_input,
    digest_decision,
)
from lucius.engine.temporal.workflow_inbox import WorkflowInbox
from lucius.engine.temporal.workflow_tools import workflow_tools

MAX_EARLY_MESSAGES = 40
"""Messages that one task receives before their signals. The signals, at most one per message, wait for the task to end
while others arrive, and Temporal fails a task with 100 pending signals."""


class EarlyMessages:
    """Adds early messages to a workflow's inbox, and recognises them when their signals arrive."""

    def __init__(self, inbox: WorkflowInbox, defaults: Defaults) -> None:
        self._inbox = inbox
        self._defaults = defaults
        self._ids: set[str] = set()
        """Ids of messages whose signals have yet to arrive."""
        self._update_at_length = 0
        """Length of the history at the task in which an update waits for its answer."""

    @property
    def awaits_signals(self) -> bool:
        """Return whether signals with early messages have yet to arrive."""
        return bool(self._ids)

    # Before a projection

    def note_update(self) -> None:
        self._update_at_length = workflow.info().get_current_history_length()

    def allow(self, projection: Projection, job: JobSnapshot, *, is_urgent: bool) -> Projection:
        """Tell the activity whether it may wait for callbacks, and by which defaults it may decide about them."""
        defaults = self._defaults if job.asked is None else None  # else steps may be missing that the workflow had
        return replace(projection, is_urgent=is_urgent or self._is_urgent(), defaults=defaults)

    def _is_urgent(self) -> bool:
        """Return whether the activity must not wait for callbacks, which keeps the workflow task open.

        Only when the task ends are updates answered, signals of early messages delivered and new runs begun. And while
        inputs are queued, there is no need to wait for more.
        """
        about = workflow.info()
        has_update = self._update_at_length == about.get_current_history_length()
        awaits_many_signals = len(self._ids) > MAX_EARLY_MESSAGES
        return has_update or self._inbox.has_inputs or awaits_many_signals or about.is_continue_as_new_suggested()

    # After a projection

    def repeat(self, inline: InlineDecision, job: JobSnapshot) -> Decision:
        """Repeat an inline decision of the activity. Raises NondeterminismError if it differs."""
        env = make_env(workflow.info().run_id, job.job, self._defaults, workflow_tools.tools)
        decision = decide_all(job, [decode_input(message) for message in inline.messages], inline.at, env)
        if digest_decision(decision) != inline.digest:
            raise workflow.NondeterminismError("another version of the rules decided otherwise")
        self.mark_decided(inline)
        return decision

    def mark_decided(self, inline: InlineDecision) -> None:
        """Record the messages of an inline decision. Their signals may have arrived already."""
        message_ids = [message.message_id for message in inline.messages]
        self._ids.update(message_id for message_id in message_ids if not self._inbox.is_pending(message_id))
        self._inbox.remove(message_ids)
        self._inbox.mark_recorded(message_ids)

    def receive(self, messages: Sequence[JobMessage]) -> None:
        """Queue messages ahead of their signals, except those whose signals were faster."""
        new = [message for message in messages if not self._inbox.is_known(message.message_id)]
        self._inbox.enqueue(new)
        self._ids.update(message.message_id for message in new)

    # When the signals arrive

    def without_early(self, messages: Sequence[JobMessage]) -> Sequence[JobMessage]:
        """Return the messages of a signal without early ones, which are awaited no longer."""
        new = [message for message in messages if message.message_id not in self._ids]
        self._ids.difference_update(message.message_id for message in messages)
        return new

    def forget(self) -> None:
        """Stop waiting for signals: one that never arrives would block the workflow."""
        self._ids.clear()
