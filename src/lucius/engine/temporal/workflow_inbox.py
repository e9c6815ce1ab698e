"""Queue of inputs that a workflow has yet to decide about, without duplicates.

The same message may arrive by a signal, and again from a process that redelivers the ledger's inbox. Besides, a lost
workflow task may have committed more than the workflow remembers.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence

from lucius.core.model.decision import CallbackReply, Decision
from lucius.core.model.inputs import Input
from lucius.core.model.statuses import Disposition
from lucius.engine.temporal.messages import ActResult, JobMessage, decode_input, original_id

MAX_BATCH_INPUTS = 10
"""Inputs per decision, so that one touches a few dozen rows at most."""
MAX_RECORDED_IDS = 200


class PendingInput:
    """Input to decide about. `answer` is resolved with the result if an update waits for it."""

    def __init__(
        self, value: Input, message_id: str = "", answer: "asyncio.Future[ActResult] | None" = None, act_id: str = ""
    ) -> None:
        self.value = value
        self.message_id = message_id
        self.answer = answer
        self.act_id = act_id
        self.may_be_applied = False
        """Already decided by a task that was lost, so its effect may be in the ledger."""


class WorkflowInbox:
    """Queue of inputs, with the ids of the messages that are known already."""

    def __init__(self) -> None:
        self._inputs: deque[PendingInput] = deque()
        self._pending_ids: set[str] = set()
        """Ids of messages that wait for a decision."""
        self._recorded_ids: dict[str, None] = {}
        """Ids of the latest messages that are recorded in the job's history."""
        self._stored_ids: dict[str, None] = {}
        """Ids of recorded messages that the ledger's inbox still holds."""
        self._own_duplicate_ids: set[str] = set()
        """Ids of messages that a lost task committed, and that were decided again."""
        self._reconciled = False

    @property
    def has_work(self) -> bool:
        return bool(self._inputs or self._stored_ids)

    @property
    def has_inputs(self) -> bool:
        return bool(self._inputs)

    @property
    def is_uncertain(self) -> bool:
        """Return whether a lost task committed something; it may have decided about messages that arrive later."""
        return self._reconciled

    # Receiving

    def receive(self, messages: Sequence[JobMessage], *, redelivered: bool = False) -> None:
        """Queue messages of a signal, except known ones; `redelivered` ones come from the ledger's inbox.

        A repeat by the service has an id of its own. It is queued and recorded as a duplicate, unless redelivered when
        its original is known.
        """
        if redelivered:
            recorded = set(map(original_id, self._recorded_ids))
            known = recorded.union(map(original_id, self._pending_ids))
            self._stored_ids |= dict.fromkeys(
                message.message_id for message in messages if original_id(message.message_id) in recorded
            )
            self.enqueue([message for message in messages if original_id(message.message_id) not in known])
        else:
            self.enqueue([message for message in messages if not self.is_known(message.message_id)])

    def add(self, pending: PendingInput, *, first: bool = False) -> None:
        if first:
            self._inputs.appendleft(pending)
        else:
            self._inputs.append(pending)

    def enqueue(self, new: Sequence[JobMessage]) -> None:
        self._pending_ids.update(message.message_id for message in new if message.message_id)
        self._inputs.extend(PendingInput(decode_input(message), message.message_id) for message in new)

    def is_pending(self, message_id: str) -> bool:
        """Return whether the message waits for a decision."""
        return message_id in self._pending_ids

    def is_known(self, message_id: str) -> bool:
        """Return whether the message waits for a decision or is recorded in the job's history."""
        return message_id in self._pending_ids or message_id in self._recorded_ids

    def remove(self, message_ids: Collection[str]) -> None:
        """Remove the inputs of messages that have been decided elsewhere."""
        self._inputs = deque(pending for pending in self._inputs if pending.message_id not in message_ids)

    # Deciding

    def take(self) -> list[PendingInput]:
        """Take the inputs of the next decision. An update is decided alone, so that a limit refuses nothing else."""
        if not self._inputs:
            return []
        batch = [self._inputs.popleft()]
        alone = batch[0].answer is not None or batch[0].may_be_applied or self._reconciled
        while not alone and self._inputs and len(batch) < MAX_BATCH_INPUTS and self._inputs[0].answer is None:
            batch.append(self._inputs.popleft())
        return batch

    def put_back(self, batch: Sequence[PendingInput]) -> None:
        self._inputs.extendleft(reversed(batch))

    def take_all(self) -> list[PendingInput]:
        batch, self._inputs = list(self._inputs), deque()
        return batch

    def take_stored_ids(self) -> tuple[str, ...]:
        message_ids, self._stored_ids = tuple(self._stored_ids), {}
        return message_ids

    def mark_recorded(self, message_ids: Sequence[str]) -> None:
        self._recorded_ids |= dict.fromkeys(message_ids)
        self.forget(message_ids)
        while len(self._recorded_ids) > MAX_RECORDED_IDS:
            del self._recorded_ids[next(iter(self._recorded_ids))]

    def forget(self, message_ids: Sequence[str]) -> None:
        """Forget messages that have been handled, recorded or not."""
        self._pending_ids.difference_update(message_ids)

    # After a lost task

    def mark_uncertain(self) -> None:
        """Mark all inputs as possibly decided: the ledger is ahead of the workflow."""
        self._reconciled = True
        for pending in self._inputs:
            pending.may_be_applied = True

    def is_own_duplicate(self, pending: PendingInput, decision: Decision) -> bool:
        """Return whether the input is a duplicate only of itself, committed by a lost task.

        True once per message: a second one is a duplicate indeed.
        """
        reply = decision.replies[0]
        if not isinstance(reply, CallbackReply) or reply.disposition is not Disposition.DUPLICATE:
            return False
        if not pending.may_be_applied or original_id(pending.message_id) != pending.message_id:
            return False
        first = not pending.message_id or pending.message_id not in self._own_duplicate_ids
        self._own_duplicate_ids.add(pending.message_id)
        return first
