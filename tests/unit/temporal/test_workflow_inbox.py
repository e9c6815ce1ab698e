"""A message to a workflow is decided once, whichever route it takes, and a duplicate is recorded as one."""

import asyncio

import pytest

from lucius.core.model.decision import Applied, CallbackReply, Decision, Reply
from lucius.core.model.inputs import Ack, Pause
from lucius.core.model.statuses import Disposition
from lucius.engine.temporal.messages import JobMessage, encode_input, make_inbox_message, make_repeat
from lucius.engine.temporal.workflow_inbox import MAX_BATCH_INPUTS, MAX_RECORDED_IDS, PendingInput, WorkflowInbox
from tests.conformance.builders import accept

SAID = Ack(step_id="ocr", attempt_no=1, lease_id="lease")
FIRST = make_inbox_message("j1", [SAID], 1)
AGAIN = make_repeat(FIRST)
A, B = encode_input(SAID, FIRST.message_id), encode_input(SAID, AGAIN.message_id)


def replied(reply: Reply) -> Decision:
    decision = accept("j1")
    return Decision(job=decision.job, replies=(reply,), protocol=decision.protocol)


DUPLICATE = replied(CallbackReply(Disposition.DUPLICATE))


def message_ids(inbox: WorkflowInbox) -> list[str]:
    return [waiting.message_id for waiting in inbox.take_all()]


@pytest.fixture
def inbox() -> WorkflowInbox:
    return WorkflowInbox()


def test_messages_are_taken_in_order_and_put_back(inbox: WorkflowInbox) -> None:
    said = [encode_input(SAID, f"j1/{n}") for n in range(MAX_BATCH_INPUTS + 2)]
    inbox.receive(said)
    assert inbox.has_work
    assert [one.message_id for one in inbox.take()] == [one.message_id for one in said[:MAX_BATCH_INPUTS]]
    batch = inbox.take()
    inbox.put_back(batch)
    assert inbox.take() == batch
    assert not inbox.has_work


async def test_update_is_decided_alone(inbox: WorkflowInbox) -> None:
    inbox.receive([A])
    inbox.add(PendingInput(Pause("now"), answer=asyncio.get_running_loop().create_future(), act_id="act-1"))
    inbox.receive([B])
    assert [len(inbox.take()) for _ in range(3)] == [1, 1, 1]


def test_all_inputs_of_one_message_are_queued(inbox: WorkflowInbox) -> None:
    inbox.receive([A, A])
    assert message_ids(inbox) == [A.message_id, A.message_id]


# Again from the inbox


@pytest.mark.parametrize("found", [A, B])
@pytest.mark.parametrize("known", [A, B])
def test_redelivered_message_in_the_history_is_only_deleted(
    inbox: WorkflowInbox, known: JobMessage, found: JobMessage
) -> None:
    """A repeated message that was not answered is not recorded again."""
    inbox.mark_recorded([known.message_id])
    inbox.receive([found], redelivered=True)
    assert inbox.has_work
    assert inbox.take_stored_ids() == (found.message_id,)
    assert not inbox.has_work


def test_redelivered_message_that_is_pending_is_ignored(inbox: WorkflowInbox) -> None:
    inbox.receive([A])
    inbox.receive([A, B], redelivered=True)
    assert message_ids(inbox) == [A.message_id]
    assert inbox.take_stored_ids() == ()


def test_redelivered_unknown_message_is_queued(inbox: WorkflowInbox) -> None:
    inbox.receive([B], redelivered=True)
    assert message_ids(inbox) == [B.message_id]


def test_recorded_ids_are_limited(inbox: WorkflowInbox) -> None:
    inbox.mark_recorded([A.message_id])
    inbox.mark_recorded([f"j1/{n}" for n in range(MAX_RECORDED_IDS)])
    inbox.receive([A], redelivered=True)
    assert message_ids(inbox) == [A.message_id]


# After a task was lost


def test_uncertain_inputs_are_decided_one_by_one(inbox: WorkflowInbox) -> None:
    inbox.receive([A, B])
    inbox.mark_uncertain()
    inbox.receive([encode_input(SAID, "j1/another")])
    assert [len(inbox.take()) for _ in range(3)] == [1, 1, 1]
    assert inbox.is_uncertain


def test_own_duplicate_counts_once(inbox: WorkflowInbox) -> None:
    inbox.receive([A, A, B])
    inbox.mark_uncertain()
    assert [inbox.is_own_duplicate(pending, DUPLICATE) for pending in inbox.take_all()] == [True, False, False]


def test_own_duplicate_without_message_id_counts_each_time(inbox: WorkflowInbox) -> None:
    """Two calls, decided by a task that was lost."""
    inbox.receive([encode_input(SAID), encode_input(SAID)])
    inbox.mark_uncertain()
    assert [inbox.is_own_duplicate(pending, DUPLICATE) for pending in inbox.take_all()] == [True, True]


def test_duplicate_without_a_lost_task_is_no_own_duplicate(inbox: WorkflowInbox) -> None:
    inbox.mark_uncertain()
    inbox.receive([A])
    (pending,) = inbox.take()
    assert not inbox.is_own_duplicate(pending, DUPLICATE)


@pytest.mark.parametrize("reply", [Applied(), CallbackReply(Disposition.APPLIED), CallbackReply(Disposition.LATE)])
def test_other_reply_is_no_own_duplicate(inbox: WorkflowInbox, reply: Reply) -> None:
    inbox.receive([A])
    inbox.mark_uncertain()
    (pending,) = inbox.take()
    assert not inbox.is_own_duplicate(pending, replied(reply))
