"""A message that an activity returns before its signal is decided once, and its signal is awaited and ignored."""

from collections.abc import Sequence

import pytest

from lucius.core.model.decision import Defaults
from lucius.core.model.inputs import Ack, Pause
from lucius.engine.temporal.early_messages import EarlyMessages
from lucius.engine.temporal.messages import InlineDecision, JobMessage, encode_input, make_inbox_message, make_repeat
from lucius.engine.temporal.workflow_inbox import PendingInput, WorkflowInbox

SAID = Ack(step_id="ocr", attempt_no=1, lease_id="lease")
FIRST = make_inbox_message("j1", [SAID], 1)
A, B = encode_input(SAID, FIRST.message_id), encode_input(SAID, make_repeat(FIRST).message_id)


@pytest.fixture
def inbox() -> WorkflowInbox:
    return WorkflowInbox()


@pytest.fixture
def early(inbox: WorkflowInbox) -> EarlyMessages:
    return EarlyMessages(inbox, Defaults())


def signal(inbox: WorkflowInbox, early: EarlyMessages, messages: Sequence[JobMessage]) -> None:
    inbox.receive(early.without_early(messages))


def message_ids(inbox: WorkflowInbox) -> list[str]:
    return [waiting.message_id for waiting in inbox.take_all()]


def test_signal_of_an_early_message_is_ignored(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    early.receive([A])
    signal(inbox, early, [A])
    assert not early.awaits_signals
    assert message_ids(inbox) == [A.message_id]


def test_second_signal_is_ignored_and_another_message_is_not(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    early.receive([A])
    signal(inbox, early, [A])
    signal(inbox, early, [A])
    signal(inbox, early, [B])
    assert message_ids(inbox) == [A.message_id, B.message_id]


def test_message_whose_signal_came_first_is_not_early(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    signal(inbox, early, [A])
    early.receive([A])
    assert not early.awaits_signals
    assert message_ids(inbox) == [A.message_id]


def test_forgotten_early_message_blocks_nothing(early: EarlyMessages) -> None:
    early.receive([A])
    early.forget()
    assert not early.awaits_signals


def test_signal_of_a_forgotten_early_message_is_ignored(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    early.mark_decided(InlineDecision([A], 1, "digest"))
    early.forget()
    signal(inbox, early, [A])
    assert not inbox.has_work


def test_signals_of_inline_decisions_are_awaited_and_ignored(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    early.mark_decided(InlineDecision([A], 1, "digest"))
    assert (inbox.has_work, early.awaits_signals) == (False, True)
    signal(inbox, early, [A])
    assert (inbox.has_work, early.awaits_signals) == (False, False)


def test_inline_decision_removes_a_message_whose_signal_came_first(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    act = PendingInput(Pause("now"), act_id="act-1")
    signal(inbox, early, [A])
    inbox.add(act)
    early.mark_decided(InlineDecision([A], 1, "digest"))
    assert not early.awaits_signals
    assert inbox.take_all() == [act]


def test_signal_of_an_early_message_that_a_limit_refused_is_ignored(inbox: WorkflowInbox, early: EarlyMessages) -> None:
    early.receive([A])
    inbox.take()
    inbox.forget([A.message_id])
    signal(inbox, early, [A])
    assert not inbox.has_work
