"""The rows of the transition tables, each with a story that takes them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from lucius.core.model.statuses import FailureClass, JobStatus, OutboxStatus, StepStatus
from lucius.core.protocol.definition import RetryPolicy
from tests.unit.core.builders import MINUTE, Story, three_steps

J, S, O = JobStatus, StepStatus, OutboxStatus  # noqa: E741
Arrow = tuple[Any, Any]


class Case(NamedTuple):
    """One row: from story `given`, `when` takes these transitions; `then` is the state of job and first step."""

    name: str
    given: Callable[[], Story]
    when: Callable[[Story], object]
    job: tuple[Arrow, ...] = ()
    step: tuple[Arrow, ...] = ()
    row: tuple[Arrow, ...] = ()
    then: tuple[JobStatus, StepStatus] | None = None


def one_attempt() -> Story:
    return Story(three_steps(retry=RetryPolicy(max_attempts=1)))


def short_job() -> Story:
    return Story(three_steps(job_timeout_ms=10 * MINUTE))


def queued(story: Story) -> Story:
    story.submit()
    return story


def waiting_for_retry() -> Story:
    story = Story().initiated()
    story.tick_when_due()
    return story


def hand_over_refused(story: Story) -> Story:
    story.refuse_hand_over()
    return story


def cancelling(story: Story) -> Story:
    story.cancel()
    return story


def before_last_success() -> Story:
    story = Story().dispatched().finish_step().finish_step()
    story.hand_over()
    story.ack()
    return story


def past_the_job_timeout(story: Story) -> None:
    story.wait(10 * MINUTE).tick()


# transitions in the ordinary life of a job
MAIN_CASES = [
    Case(
        "job QUEUED to DISPATCHING: first step's outbox row created",
        lambda: queued(Story()),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING),),
        step=((S.PENDING, S.DISPATCHING),),
        row=((None, O.PENDING),),
        then=(J.DISPATCHING, S.DISPATCHING),
    ),
    Case(
        "job DISPATCHING to IN_PROGRESS: first directive handed over (outbox SENT, step INITIATED)",
        lambda: Story().dispatched(),
        Story.hand_over,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED),),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.INITIATED),
    ),
    Case(
        "job DISPATCHING to IN_PROGRESS: ACK of the first step, before its hand-over was reported",
        lambda: Story().dispatched(),
        Story.ack,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED), (S.INITIATED, S.PROCESSING)),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.PROCESSING),
    ),
    Case(
        "job stays IN_PROGRESS: step N succeeded, step N+1 activated",
        lambda: Story().processing(),
        Story.succeed,
        step=((S.PROCESSING, S.SUCCEEDED), (S.PENDING, S.DISPATCHING)),
        row=((None, O.PENDING),),
        then=(J.IN_PROGRESS, S.SUCCEEDED),
    ),
    Case(
        "job IN_PROGRESS to SUCCEEDED: final step succeeded",
        before_last_success,
        Story.succeed,
        job=((J.IN_PROGRESS, J.SUCCEEDED),),
        step=((S.PROCESSING, S.SUCCEEDED),),
        then=(J.SUCCEEDED, S.SUCCEEDED),
    ),
    Case(
        "job IN_PROGRESS to FAILED_FINAL: a step failed for good",
        lambda: Story().processing(),
        Story.fail_for_good,
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.PROCESSING, S.FAILED_FINAL), (S.PENDING, S.SKIPPED)),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "job QUEUED to CANCELLING: cancel asked",
        lambda: queued(Story()),
        Story.cancel,
        job=((J.QUEUED, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.PENDING, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "job DISPATCHING to CANCELLING: cancel asked",
        lambda: Story().dispatched(),
        Story.cancel,
        job=((J.DISPATCHING, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "job IN_PROGRESS to CANCELLING: cancel asked",
        lambda: Story().processing(),
        Story.cancel,
        job=((J.IN_PROGRESS, J.CANCELLING),),
        then=(J.CANCELLING, S.PROCESSING),
    ),
    Case(
        "job CANCELLING to CANCELLED: active step terminal",
        lambda: cancelling(Story().processing()),
        Story.succeed,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.PROCESSING, S.SUCCEEDED),),
        then=(J.CANCELLED, S.SUCCEEDED),
    ),
    Case(
        "step PENDING to DISPATCHING: outbox row created",
        lambda: queued(Story()),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING),),
        step=((S.PENDING, S.DISPATCHING),),
        row=((None, O.PENDING),),
    ),
    Case(
        "step DISPATCHING to INITIATED: outbox SENT",
        lambda: Story().claimed(),
        Story.hand_over,
        job=((J.DISPATCHING, J.IN_PROGRESS),),
        step=((S.DISPATCHING, S.INITIATED),),
        row=((O.PENDING, O.SENT),),
        then=(J.IN_PROGRESS, S.INITIATED),
    ),
    Case(
        "step INITIATED to PROCESSING: ACK callback",
        lambda: Story().initiated(),
        Story.ack,
        step=((S.INITIATED, S.PROCESSING),),
        then=(J.IN_PROGRESS, S.PROCESSING),
    ),
    Case(
        "step PROCESSING to FAILED_RETRY: RESULT retryable",
        lambda: Story().processing(),
        Story.fail,
        step=((S.PROCESSING, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step PROCESSING to FAILED_RETRY: lease expired",
        lambda: Story().processing(),
        Story.tick_when_due,
        step=((S.PROCESSING, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step INITIATED to FAILED_RETRY: ACK timeout",
        lambda: Story().initiated(),
        Story.tick_when_due,
        step=((S.INITIATED, S.FAILED_RETRY),),
        then=(J.IN_PROGRESS, S.FAILED_RETRY),
    ),
    Case(
        "step FAILED_RETRY to DISPATCHING: retry dispatch",
        waiting_for_retry,
        Story.tick_when_due,
        step=((S.FAILED_RETRY, S.DISPATCHING),),
        row=((None, O.PENDING),),
        then=(J.IN_PROGRESS, S.DISPATCHING),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancel while FAILED_RETRY",
        waiting_for_retry,
        Story.cancel,
        job=((J.IN_PROGRESS, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.FAILED_RETRY, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancelled INITIATED step gets no ACK",
        lambda: cancelling(Story().initiated()),
        Story.tick_when_due,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.INITIATED, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "any non-terminal step to CANCELLED: cancelled PROCESSING step fails retryably",
        lambda: cancelling(Story().processing()),
        Story.fail,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.PROCESSING, S.CANCELLED),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "outbox PENDING to FAILED_FINAL: publish failed, no attempt left (step and job too)",
        lambda: one_attempt().dispatched(),
        Story.refuse_hand_over,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL), (S.PENDING, S.SKIPPED)),
        row=((O.PENDING, O.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "outbox stays PENDING: publish failed, attempts left",
        lambda: Story().dispatched(),
        Story.refuse_hand_over,
        step=((S.DISPATCHING, S.FAILED_RETRY),),
        then=(J.DISPATCHING, S.FAILED_RETRY),
    ),
]

# less common transitions: timeouts, lost rows, hand-overs while a job is being cancelled, …
OTHER_CASES = [
    Case("a command is accepted", Story, Story.submit, job=((None, J.QUEUED),)),
    Case(
        "a queued job's time is up",
        lambda: queued(short_job()),
        past_the_job_timeout,
        job=((J.QUEUED, J.FAILED_FINAL),),
        step=((S.PENDING, S.SKIPPED),),
        then=(J.FAILED_FINAL, S.SKIPPED),
    ),
    Case(
        "a job's time is up while it waits for hand-over",
        lambda: short_job().dispatched(),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a job's time is up while a publish is under way: it may have left us",
        lambda: short_job().claimed(),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.DISPATCHING, S.FAILED_FINAL),),
        row=((O.PENDING, O.SENT),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "no ACK and no attempt left",
        lambda: one_attempt().initiated(),
        Story.tick_when_due,
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.INITIATED, S.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a job's time is up while a step waits for its retry",
        lambda: hand_over_refused(short_job().dispatched()),
        past_the_job_timeout,
        job=((J.DISPATCHING, J.FAILED_FINAL),),
        step=((S.FAILED_RETRY, S.FAILED_FINAL),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
    Case(
        "a timed-out attempt succeeds before its retry",
        waiting_for_retry,
        Story.succeed,
        step=((S.FAILED_RETRY, S.SUCCEEDED), (S.PENDING, S.DISPATCHING)),
        then=(J.IN_PROGRESS, S.SUCCEEDED),
    ),
    Case(
        "a lost outbox row is recorded anew",
        lambda: Story().dispatched(),
        lambda story: story.repair("ocr"),
        step=((S.DISPATCHING, S.DISPATCHING),),
        row=((O.PENDING, O.WITHDRAWN), (None, O.PENDING)),
        then=(J.DISPATCHING, S.DISPATCHING),
    ),
    Case(
        "a failed hand-over while being cancelled",
        lambda: cancelling(Story().claimed()),
        Story.refuse_hand_over,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "a hand-over given back while being cancelled",
        lambda: cancelling(Story().claimed()),
        Story.release,
        job=((J.CANCELLING, J.CANCELLED),),
        step=((S.DISPATCHING, S.CANCELLED),),
        row=((O.PENDING, O.WITHDRAWN),),
        then=(J.CANCELLED, S.CANCELLED),
    ),
    Case(
        "a step's last attempt fails retryably",
        lambda: one_attempt().processing(),
        lambda story: story.fail(failure_class=FailureClass.TRANSIENT),
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.PROCESSING, S.FAILED_FINAL),),
        then=(J.FAILED_FINAL, S.FAILED_FINAL),
    ),
]
CASES = [*MAIN_CASES, *OTHER_CASES]
