"""What can go wrong, in one tree. A message says what happened, where, and the stable code to look up.

LuciusError
├── Misconfigured        an address or a key that can't be one; a ValueError too
├── Unreachable          nobody answered; `maybe_done` if the server may have acted all the same
├── NotLucius            somebody answered, and not as Lucius does: a proxy, or a wrong address
├── TimedOut             the job has not ended in the time that `wait` was given; a TimeoutError too
├── JobFailed            the job has ended, and not SUCCEEDED
└── RequestRefused       Lucius said no, and why: `code` is stable, docs/errors.md has all of them
    ├── Invalid          400, 413, 422, …   the request is wrong: `errors` has a pointer for each fault
    ├── Unauthenticated  401                no key, or one that the server does not know
    ├── Forbidden        403                the key is not good for this
    ├── NotFound         404                no such job, step, protocol or item, or not one that the key may see
    ├── Conflict         409                the state of the job, or of the key's job, does not allow it
    ├── TooMany          429                a limit is reached: `retry_after`
    └── Unavailable      5xx                the server can't, now
"""

from typing import Literal

from lucius.contract import Fault, JobView, Problem

Failure = Literal["no_connection", "no_proxy", "no_answer", "lost", "untrusted"]


class LuciusError(Exception):
    """`tries` is how often the request was sent or should have been. With `maybe_done`, one of these went unanswered
    and may have been carried out."""

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
                said = f"no server answers at {self.url}: {self.reason}"
            case "no_proxy":
                said = f"the proxy before {self.url} does not answer: {self.reason}"
            case "no_answer":
                said = f"{self.url} did not answer in time: {self.reason}"
            case "lost":
                said = f"the connection to {self.url} was lost: {self.reason}"
            case "untrusted":
                said = f"{self.url} can't be trusted: {self.reason}"
        return said + self._after()


class NotLucius(LuciusError):
    """`status` is what was answered; None if the answer looked right but can't be read."""

    def __init__(self, url: str, reason: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(url, reason, status, retry_after)
        self.url = url
        self.reason = reason
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.url} {self.reason}{self._after()}"


class TimedOut(LuciusError, TimeoutError):
    """`job` is how it was when last seen; None if nobody answered at all."""

    def __init__(self, job_id: str, seconds: float, job: JobView | None) -> None:
        super().__init__(job_id, seconds, job)
        self.job_id = job_id
        self.seconds = seconds
        self.job = job

    def __str__(self) -> str:
        if self.job is None:
            return f"job {self.job_id}: the server said nothing about it within {self.seconds:g} s"
        why = f": {self.job.blocked_on.message}" if self.job.blocked_on else ""
        return f"job {self.job_id} has not ended within {self.seconds:g} s; it is {self.job.status}{why}"


class JobFailed(LuciusError):
    """`job` has the steps with their last errors, and `review_id` if a person must look at it."""

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self.job = job

    @property
    def code(self) -> str:
        """The error's code, which the service that failed or the engine gave it."""
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
        said = faults or problem.detail or problem.title
        job = f" (job {problem.jobId})" if problem.jobId and problem.jobId not in said else ""
        return f"{said}{job} [{problem.code}, {problem.status} to {self.request}]{self._after()}"


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
    """The kind that fits the problem's status."""
    kind = _KINDS.get(problem.status, Unavailable if problem.status >= 500 else Invalid)
    return kind(problem, request, retry_after)
