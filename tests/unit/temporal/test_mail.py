"""What a workflow is told is decided about once, by whichever way it comes, and a duplicate is recorded as one."""

import asyncio

import pytest

from lucius.core.decision import Applied, CallbackReply, Decision, Reply
from lucius.core.inputs import Ack, Pause
from lucius.core.model import Disposition
from lucius.engine.temporal.mail import MOST_AT_ONCE, MOST_REMEMBERED, Mail, Waiting
from lucius.engine.temporal.wire import Happened, Turn, letter_of, pack, repeated
from tests.conformance.builders import accept

SAID = Ack(step_id="ocr", attempt_no=1, lease_id="lease")
FIRST = letter_of("j1", [SAID], 1)
AGAIN = repeated(FIRST)
A, B = pack(SAID, FIRST.letter_id), pack(SAID, AGAIN.letter_id)


def replied(reply: Reply) -> Decision:
    decision = accept("j1")
    return Decision(job=decision.job, replies=(reply,), protocol=decision.protocol)


DUPLICATE = replied(CallbackReply(Disposition.DUPLICATE))


def letters(mail: Mail) -> list[str]:
    return [waiting.letter for waiting in mail.take_all()]


@pytest.fixture
def mail() -> Mail:
    return Mail()


def test_what_is_told_is_taken_in_turn_and_remembered(mail: Mail) -> None:
    said = [pack(SAID, f"j1/{n}") for n in range(MOST_AT_ONCE + 2)]
    mail.hear(said)
    assert mail.has_work
    assert [one.letter for one in mail.take()] == [one.letter for one in said[:MOST_AT_ONCE]]
    batch = mail.take()
    mail.put_back(batch)
    assert mail.take() == batch
    assert not mail.has_work


async def test_people_wait_for_nobody_and_nobody_for_them(mail: Mail) -> None:
    mail.hear([A])
    mail.add(Waiting(Pause("now"), answer=asyncio.get_running_loop().create_future(), act_id="act-1"))
    mail.hear([B])
    assert [len(mail.take()) for _ in range(3)] == [1, 1, 1]


# Ahead of its signal


def test_the_signal_of_what_was_heard_ahead_says_nothing_new(mail: Mail) -> None:
    mail.hear_ahead([A])
    mail.hear([A])
    assert not mail.is_ahead
    assert letters(mail) == [A.letter]


def test_nor_does_a_second_one_but_another_letter_does(mail: Mail) -> None:
    mail.hear_ahead([A])
    mail.hear([A])
    mail.hear([A])
    mail.hear([B])
    assert letters(mail) == [A.letter, B.letter]


def test_all_that_a_letter_says_is_heard(mail: Mail) -> None:
    mail.hear([A, A])
    assert letters(mail) == [A.letter, A.letter]


def test_what_its_signal_said_before_is_not_heard_ahead(mail: Mail) -> None:
    mail.hear([A])
    mail.hear_ahead([A])
    assert not mail.is_ahead
    assert letters(mail) == [A.letter]


def test_one_that_never_comes_keeps_nobody_waiting(mail: Mail) -> None:
    mail.hear_ahead([A])
    mail.expect_no_more()
    assert not mail.is_ahead


def test_and_if_it_comes_after_all_it_says_nothing_new(mail: Mail) -> None:
    mail.was_decided(Turn([A], 1, "digest"))
    mail.expect_no_more()
    mail.hear([A])
    assert not mail.has_work


def test_what_was_decided_in_our_name_is_expected_and_no_more(mail: Mail) -> None:
    mail.was_decided(Turn([A], 1, "digest"))
    assert (mail.has_work, mail.is_ahead) == (False, True)
    mail.hear([A])
    assert (mail.has_work, mail.is_ahead) == (False, False)


def test_also_if_its_signal_was_faster(mail: Mail) -> None:
    act = Waiting(Pause("now"), act_id="act-1")
    mail.hear([A])
    mail.add(act)
    mail.was_decided(Turn([A], 1, "digest"))
    assert not mail.is_ahead
    assert mail.take_all() == [act]


# Once more, out of the inbox


@pytest.mark.parametrize("found", [A, B])
@pytest.mark.parametrize("known", [A, B])
def test_what_is_found_in_the_inbox_and_in_the_history_is_only_thrown_away(
    mail: Mail, known: Happened, found: Happened
) -> None:
    """What is said again, as it was not answered, is not recorded again."""
    mail.is_recorded([known.letter])
    mail.hear([found], again=True)
    assert mail.has_work
    assert mail.take_still_there() == (found.letter,)
    assert not mail.has_work


def test_what_waits_for_a_decision_is_no_news(mail: Mail) -> None:
    mail.hear([A])
    mail.hear([A, B], again=True)
    assert letters(mail) == [A.letter]
    assert mail.take_still_there() == ()


def test_what_nobody_has_heard_is(mail: Mail) -> None:
    mail.hear([B], again=True)
    assert letters(mail) == [B.letter]


def test_only_so_much_is_remembered(mail: Mail) -> None:
    mail.is_recorded([A.letter])
    mail.is_recorded([f"j1/{n}" for n in range(MOST_REMEMBERED)])
    mail.hear([A], again=True)
    assert letters(mail) == [A.letter]


# After a task was lost


def test_what_a_lost_task_may_have_decided_is_decided_one_by_one(mail: Mail) -> None:
    mail.hear([A, B])
    mail.doubt()
    mail.hear([pack(SAID, "j1/another")])
    assert [len(mail.take()) for _ in range(3)] == [1, 1, 1]
    assert mail.is_doubtful


def test_a_duplicate_of_itself_is_old_news_and_the_second_is_not(mail: Mail) -> None:
    mail.hear([A, A, B])
    mail.doubt()
    assert [mail.is_old_news(waiting, DUPLICATE) for waiting in mail.take_all()] == [True, False, False]


def test_what_is_in_no_letter_is_old_news_each_time(mail: Mail) -> None:
    """Two calls, made and decided about by a task that was lost."""
    mail.hear([pack(SAID), pack(SAID)])
    mail.doubt()
    assert [mail.is_old_news(waiting, DUPLICATE) for waiting in mail.take_all()] == [True, True]


def test_so_is_none_that_no_task_was_lost_with(mail: Mail) -> None:
    mail.doubt()
    mail.hear([A])
    (waiting,) = mail.take()
    assert not mail.is_old_news(waiting, DUPLICATE)


@pytest.mark.parametrize("reply", [Applied(), CallbackReply(Disposition.APPLIED), CallbackReply(Disposition.LATE)])
def test_nor_what_is_no_duplicate(mail: Mail, reply: Reply) -> None:
    mail.hear([A])
    mail.doubt()
    (waiting,) = mail.take()
    assert not mail.is_old_news(waiting, replied(reply))
