"""Every situation of a job's first step. Where possible it is in its second attempt, so that an old lease exists.

The job's timeout is far away, so that each situation's own deadline comes first.
"""

from collections.abc import Callable

from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import RetryPolicy
from tests.unit.core.builders import MINUTE, Story, three_steps

JOB_TIMEOUT = 6 * 60 * MINUTE


def new_story(step_timeout_ms: int | None = None) -> Story:
    retry = RetryPolicy(backoff_strategy="exponential")
    return Story(three_steps(job_timeout_ms=JOB_TIMEOUT, retry=retry, first={"timeout_ms": step_timeout_ms}))


def queued() -> Story:
    story = new_story()
    story.submit()
    return story


def dispatching() -> Story:
    """Return a job that is DISPATCHING too, because nothing was ever handed over."""
    story = new_story().dispatched()
    story.refuse_hand_over()
    return story.next_attempt()


def claimed() -> Story:
    story = dispatching()
    story.claim()
    return story


def dispatching_again(step_timeout_ms: int | None = None) -> Story:
    story = new_story(step_timeout_ms).initiated()
    story.tick_when_due()
    return story.next_attempt()


def claimed_again() -> Story:
    story = dispatching_again()
    story.claim()
    return story


def initiated() -> Story:
    story = dispatching_again()
    story.hand_over()
    return story


def processing(step_timeout_ms: int | None = None) -> Story:
    story = dispatching_again(step_timeout_ms)
    story.hand_over()
    story.ack()
    return story


def processing_without_ack() -> Story:
    story = initiated()
    story.heartbeat()
    return story


def retry_after_refusal() -> Story:
    story = dispatching()
    story.refuse_hand_over()
    return story


def retry_after_no_ack() -> Story:
    story = initiated()
    story.tick_when_due()
    return story


def retry_after_lost_lease() -> Story:
    story = processing()
    story.tick_when_due()
    return story


def retry_after_step_timeout() -> Story:
    story = processing(step_timeout_ms=MINUTE)
    story.tick_when_due()
    return story


def retry_after_failure() -> Story:
    story = processing()
    story.fail()
    return story


def cancelled_while(make: Callable[[], Story]) -> Callable[[], Story]:
    def cancelled() -> Story:
        story = make()
        story.cancel()
        return story

    return cancelled


def next_step_waits() -> Story:
    story = processing()
    story.succeed()
    return story


def succeeded() -> Story:
    return next_step_waits().finish_step().finish_step()


def failed_for_good() -> Story:
    story = processing()
    story.fail(failure_class=FailureClass.NON_RETRYABLE)
    return story


def failed_by_last_timeout() -> Story:
    story = retry_after_no_ack().next_attempt()
    story.hand_over()
    story.tick_when_due()
    return story


def failed_by_last_refusal() -> Story:
    story = retry_after_refusal().next_attempt()
    story.refuse_hand_over()
    return story


def failed_by_job_timeout() -> Story:
    story = processing()
    story.wait_until(story.job.deadline).tick()
    return story


def failed_before_start() -> Story:
    story = queued()
    story.wait_until(story.job.deadline).tick()
    return story


def cancelled_after_failure() -> Story:
    story = processing()
    story.cancel()
    story.fail()
    return story


def cancelled_after_success() -> Story:
    story = processing()
    story.cancel()
    story.succeed()
    return story


SITUATIONS: dict[str, Callable[[], Story]] = {
    "QUEUED": queued,
    "DISPATCHING": dispatching,
    "DISPATCHING, claimed": claimed,
    "IN_PROGRESS/DISPATCHING": dispatching_again,
    "IN_PROGRESS/DISPATCHING, claimed": claimed_again,
    "INITIATED": initiated,
    "PROCESSING": processing,
    "PROCESSING, no ACK": processing_without_ack,
    "FAILED_RETRY after refused hand-over": retry_after_refusal,
    "FAILED_RETRY after no ACK": retry_after_no_ack,
    "FAILED_RETRY after lost lease": retry_after_lost_lease,
    "FAILED_RETRY after step timeout": retry_after_step_timeout,
    "FAILED_RETRY after failure": retry_after_failure,
    "CANCELLING/DISPATCHING, claimed": cancelled_while(claimed),
    "CANCELLING/INITIATED": cancelled_while(initiated),
    "CANCELLING/PROCESSING": cancelled_while(processing),
    "CANCELLING/PROCESSING, no ACK": cancelled_while(processing_without_ack),
    "step SUCCEEDED, next one waits": next_step_waits,
    "SUCCEEDED": succeeded,
    "FAILED_FINAL by failure": failed_for_good,
    "FAILED_FINAL by last missing ACK": failed_by_last_timeout,
    "FAILED_FINAL by last refused hand-over": failed_by_last_refusal,
    "FAILED_FINAL by job timeout": failed_by_job_timeout,
    "FAILED_FINAL before it started": failed_before_start,
    "CANCELLED before it started": cancelled_while(queued),
    "CANCELLED before hand-over": cancelled_while(dispatching),
    "CANCELLED while waiting for a retry": cancelled_while(retry_after_no_ack),
    "CANCELLED after failure": cancelled_after_failure,
    "CANCELLED after success": cancelled_after_success,
}
