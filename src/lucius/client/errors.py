"""Errors of the client, in one tree. A message says what happened, where, and the stable code to look up.

LuciusError
├── Misconfigured        an invalid address or key, or a number that JSON lacks; a ValueError too
├── Unreachable          no answer; `maybe_done` if the server may have acted all the same
├── NotLucius            an answer that is not from Lucius: a proxy, or a wrong address
├── TimedOut             the job has not ended within the `timeout` of `wait`; a TimeoutError too
├── JobFailed            the job has ended, and not SUCCEEDED
└── RequestRefused       Lucius refused the request: `code` is stable, docs/errors.md lists all codes
    ├── Invalid          400, 413, 422, …   the request is wrong: `errors` has a pointer for each fault
    ├── Unauthenticated  401                no key, or one that the server does not know
    ├── Forbidden        403                the key does not permit this
    ├── NotFound         404                no such job, step, protocol or item, or not visible to the key
    ├── Conflict         409                the state of the job, or of the idempotency key's job, forbids it
    ├── TooMany          429                a limit is reached: `retry_after`
    └── Unavailable      5xx                the server can't answer now
"""

from typing import Literal

from lucius.contract import Fault, JobView, Problem

Failure = Literal["no_connection", "no_proxy", "no_answer", "lost", "untrusted"]


class LuciusError(Exception):
    """Base of the client's errors.

    `tries` counts the attempts to send the request. With `maybe_done`, one of them went unanswered and may have been
    carried out.
    """

    tries = 1
    maybe_done = False

    def _after(self) -> str:
        tried = f" (after {self.tries} tries)" if self.tries > 1 else ""
        return tried + ("; a try that was not answered may have been carried out" if self.maybe_done else "")


class Misconfigured(LuciusError, ValueError):
    pass


class Unreachable(LuciusError):
    def __init__(self, url: str, failure: Failure, reason: str) -> None:
        super().__init__(url, failure, reason)
        self.url = url
        self.failure = failure
        self.reason = reason

    def __str__(self) -> str:
        match self.failure:
            case "no_connection":
                text = f"no server answers at {self.url}: {self.reason}"
            case "no_proxy":
                text = f"the proxy before {self.url} does not answer: {self.reason}"
            case "no_answer":
                text = f"{self.url} did not answer in time: {self.reason}"
            case "lost":
                text = f"the connection to {self.url} was lost: {self.reason}"
            case "untrusted":
                text = f"{self.url} can't be trusted: {self.reason}"
        return text + self._after()


class NotLucius(LuciusError):
    """Answer that is not from Lucius. `status` is its HTTP status; None if it looked right but can't be decoded."""

    def __init__(self, url: str, reason: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(url, reason, status, retry_after)
        self.url = url
        self.reason = reason
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.url} {self.reason}{self._after()}"


class TimedOut(LuciusError, TimeoutError):
    """The job has not ended in time. `job` is its last known state; None if the server never answered."""

    def __init__(self, job_id: str, seconds: float, job: JobView | None) -> None:
        super().__init__(job_id, seconds, job)
        self.job_id = job_id
        self.seconds = seconds
        self.job = job

    def __str__(self) -> str:
        if self.job is None:
            return f"job {self.job_id}: the server did not answer within {self.seconds:g} s"
        why = f": {self.job.blocked_on.message}" if self.job.blocked_on else ""
        return f"job {self.job_id} has not ended within {self.seconds:g} s; it is {self.job.status}{why}"


class JobFailed(LuciusError):
    """The job ended without success. `job` has the steps with their last errors, and `review_id` of a review item."""

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self.job = job

    @property
    def code(self) -> str:
        """Code of the error, set by the service that failed or by the engine; without an error, the job's status."""
        return self.job.error.code if self.job.error else self.job.status

    def __str__(self) -> str:
        job = self.job
        why = f": {job.error.message} [{job.error.code}]" if job.error else ""
        review = f"; review item {job.review_id}" if job.review_id else ""
        return f"job {job.jobId} ended {job.status}{why}{review}"


class RequestRefused(LuciusError):
    def __init__(self, problem: Problem, request: str, retry_after: float | None = None) -> None:
        super().__init__(problem, request, retry_after)
        self.problem = problem
        self.request = request
        self.retry_after = problem.retry_after_seconds if retry_after is None else retry_after

    @property
    def code(self) -> str:
        return self.problem.code

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def title(self) -> str:
        return self.problem.title

    @property
    def detail(self) -> str:
        return self.problem.detail

    @property
    def errors(self) -> list[Fault]:
        return self.problem.errors

    @property
    def job_id(self) -> str | None:
        return self.problem.jobId

    def __str__(self) -> str:
        problem = self.problem
        faults = "; ".join(f"{fault.pointer}: {fault.message}" for fault in problem.errors)
        text = faults or problem.detail or problem.title
        job = f" (job {problem.jobId})" if problem.jobId and problem.jobId not in text else ""
        return f"{text}{job} [{problem.code}, {problem.status} to {self.request}]{self._after()}"


class Invalid(RequestRefused):
    pass


class Unauthenticated(RequestRefused):
    pass


class Forbidden(RequestRefused):
    pass


class NotFound(RequestRefused):
    pass


class Conflict(RequestRefused):
    pass


class TooMany(RequestRefused):
    pass


class Unavailable(RequestRefused):
    pass


_KINDS: dict[int, type[RequestRefused]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: TooMany,
}


def refused(problem: Problem, request: str, retry_after: float | None = None) -> RequestRefused:
    """Return the RequestRefused subclass for the problem's status."""
    kind = _KINDS.get(problem.status, Unavailable if problem.status >= 500 else Invalid)
    return kind(problem, request, retry_after)
