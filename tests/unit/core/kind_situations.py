"""Situations that other kinds of steps, pauses, reviews and new runs add. Their inputs are about step `ocr`.

If it is a task, it is in its second attempt, as in `situations.py`, so that an old lease exists.
"""

from collections.abc import Callable
from typing import Any

from lucius.core.protocol.definition import StepSpec
from tests.unit.core import situations as tasks
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, decision, parallel, pause_for, protocol, risky, task, undone_by, wait_for
from tests.unit.core.situations import JOB_TIMEOUT

Make = Callable[[], Story]


def begun(*steps: StepSpec, **policies: Any) -> Story:
    return Story(protocol(*steps, task("sis"), timeout_ms=JOB_TIMEOUT, **policies)).dispatched()


def then(make: Make, *acts: Callable[[Story], object]) -> Make:
    def composed() -> Story:
        story = make()
        for act in acts:
            act(story)
        return story

    return composed


def second_attempt(story: Story) -> Story:
    """Let the first attempt end without an ACK and begin the second."""
    story.hand_over(story.lease_of("ocr"))
    story.tick_when_due()
    return story.next_attempt()


def timer() -> Story:
    return begun(pause_for("ocr", MINUTE))


def signal() -> Story:
    return begun(wait_for("ocr", "go", timeout_ms=MINUTE))


def signal_without_end() -> Story:
    return begun(wait_for("ocr", "go"))


def asked() -> Story:
    return begun(approval("ocr", timeout_ms=MINUTE))


def asked_for_two() -> Story:
    story = begun(approval("ocr", quorum=2))
    story.approve("ocr", "bob")
    return story


def two_branches() -> Story:
    return second_attempt(begun(parallel("both", task("ocr"), wait_for("other", "go"))))


def branches_joined() -> Story:
    return two_branches().do("ocr")


def booked(compensation: str = "manual", **policies: Any) -> Story:
    """Complete `ocr`, which can be undone, before `pay`, which is unsafe to retry."""
    steps = (undone_by("ocr"), risky("pay"))
    return second_attempt(begun(*steps, compensation=compensation, **policies)).do("ocr")


def held() -> Story:
    return booked().botch("pay")


def held_beside_work() -> Story:
    story = second_attempt(begun(parallel("both", task("ocr"), risky("pay"))))
    return story.botch("pay")


def undoing() -> Story:
    return booked("auto").botch("pay")


def undoing_and_paused() -> Story:
    story = undoing()
    story.pause()
    return story


def half_undone() -> Story:
    return undoing().botch("undo-ocr")


def undone() -> Story:
    return undoing().do("undo-ocr")


def cancelled_and_undoing() -> Story:
    story = booked(compensate_on_cancel=True)
    story.cancel()
    return story


def cancelled_and_half_undone() -> Story:
    return cancelled_and_undoing().botch("undo-ocr")


def cancelled_with_half_an_effect() -> Story:
    story = booked()
    story.ack()
    story.cancel()
    story.fail()
    return story


def rejected() -> Story:
    story = asked()
    story.reject("ocr")
    return story


def decided_to_fail() -> Story:
    return begun(decision("ocr", {"False": "sis"}))


def retried(make: Make) -> Make:
    return then(make, lambda story: story.retry())


KIND_SITUATIONS: dict[str, Make] = {
    "WAITING for a time": timer,
    "WAITING for a signal": signal,
    "WAITING for a signal, without end": signal_without_end,
    "WAITING_APPROVAL": asked,
    "WAITING_APPROVAL, one of two votes given": asked_for_two,
    "one of two branches": two_branches,
    "a branch SUCCEEDED, another waits": branches_joined,
    "PAUSED/QUEUED": then(tasks.queued, Story.pause),
    "PAUSED/DISPATCHING": then(tasks.dispatching, Story.pause),
    "PAUSED/DISPATCHING, claimed": then(tasks.claimed, Story.pause),
    "PAUSED/INITIATED": then(tasks.initiated, Story.pause),
    "PAUSED/PROCESSING": then(tasks.processing, Story.pause),
    "PAUSED/FAILED_RETRY after refused hand-over": then(tasks.retry_after_refusal, Story.pause),
    "PAUSED/FAILED_RETRY after no ACK": then(tasks.retry_after_no_ack, Story.pause),
    "PAUSED, step SUCCEEDED": then(tasks.processing, Story.pause, lambda story: story.succeed()),
    "PAUSED, step failed for good": then(tasks.processing, Story.pause, lambda story: story.fail_for_good()),
    "PAUSED/WAITING for a signal": then(signal, Story.pause),
    "PAUSED/AWAITING_APPROVAL": then(asked, Story.pause),
    "PAUSED/AWAITING_APPROVAL, decided": then(asked, Story.pause, lambda story: story.approve("ocr", "bob")),
    "held on a review": held,
    "held on a review, beside work": held_beside_work,
    "undoing": undoing,
    "undoing, PAUSED": undoing_and_paused,
    "half undone, held on a review": half_undone,
    "FAILED_FINAL and undone": undone,
    "CANCELLING, undoing": cancelled_and_undoing,
    "CANCELLING, half undone, held on a review": cancelled_and_half_undone,
    "CANCELLED with half an effect": cancelled_with_half_an_effect,
    "CANCELLED while WAITING": then(signal, Story.cancel),
    "CANCELLED while AWAITING_APPROVAL": then(asked, Story.cancel),
    "FAILED_FINAL by rejection": rejected,
    "FAILED_FINAL by decision": decided_to_fail,
    "a second run": retried(tasks.failed_for_good),
    "a second run after a cancel": retried(tasks.cancelled_after_success),
    "a second run with the step SKIPPED": then(tasks.failed_for_good, lambda story: story.skip({"pages": 1})),
}
WITHOUT_A_SERVICE = frozenset(
    name for name in KIND_SITUATIONS if any(word in name for word in ("WAITING", "AWAITING", "rejection", "decision"))
)
"""Situations in which no service works on the step, so no callback can be about it."""
