"""What `decide` answers: the next value of everything that changed, and what the caller is told."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from lucius.core.inputs import Cap
from lucius.core.model import (
    Attempt,
    Disposition,
    Event,
    Instant,
    Job,
    Millis,
    OutboxRow,
    Quarantined,
    ReviewItem,
    Step,
)
from lucius.core.protocol import Protocol
from lucius.core.tools import ToolError, Tools


class Defaults(Struct, frozen=True, kw_only=True):
    """The deployment's defaults for what a protocol leaves open."""

    ack_timeout_ms: Millis = 30_000
    lease_ms: Millis = 900_000
    max_attempts: int = 3
    backoff_scale: float = 1.0
    topic_layout: str = "shared"


class NoTools:
    """For protocols without expressions."""

    def names(self, expression: str) -> frozenset[str]:
        raise ToolError("this deployment evaluates no expressions")

    def evaluate(self, expression: str, values: Any) -> Any:
        raise ToolError("this deployment evaluates no expressions")

    names_in = names
    render = evaluate

    def faults(self, schema: Any, value: Any) -> list[str]:
        raise ToolError("this deployment checks no schemas")


class Env(Struct, frozen=True):
    """What a decision must be given: deployment defaults, fresh ids, jitter in [0, 1), and tools out of libraries."""

    new_id: Callable[[], str]
    jitter: Callable[[], float]
    defaults: Defaults = Defaults()
    tools: Tools = NoTools()


class JobView(Struct, frozen=True):
    """A job's head, its pinned protocol, and the steps that a decision may touch.

    `asked` names the steps that were looked for; one of them that is not in `steps` has not started. None means that
    all were. Active steps are always there. A `cached` view is what this process saw last; others may have moved on.
    """

    job: Job
    protocol: Protocol
    steps: dict[str, Step]
    asked: frozenset[str] | None = None
    cached: bool = False


class MissingSteps(Exception):
    """The decision touches steps that it was not given: load them too and decide anew."""

    def __init__(self, step_ids: frozenset[str]) -> None:
        super().__init__(f"a decision needs {', '.join(sorted(step_ids))}")
        self.step_ids = step_ids


class Applied(Struct, frozen=True):
    """The input changed the job."""


class Ignored(Struct, frozen=True):
    """The input says nothing new in this state."""

    why: str


class Refused(Struct, frozen=True):
    """The input is not allowed in this state; nothing changes."""

    code: str
    message: str


class CallbackReply(Struct, frozen=True):
    disposition: Disposition
    lease_expires_at: Instant | None = None
    cancel_requested: bool = False


Reply = Applied | Ignored | Refused | CallbackReply


class EndedAttempt(Struct, frozen=True):
    """An attempt that will never change again, for the history."""

    step_id: str
    attempt: Attempt


class Decision(Struct, frozen=True, kw_only=True):
    """The next value of what changed, and one reply for each input.

    `job.version` is one more than the version it was decided on. Without `changes` there is nothing to commit.
    """

    job: Job
    replies: tuple[Reply, ...]
    protocol: Protocol
    creates: bool = False
    steps: tuple[Step, ...] = ()
    attempts: tuple[EndedAttempt, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    events: tuple[Event, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    reviews: tuple[ReviewItem, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    caps: tuple[Cap, ...] = ()
    given: tuple[OutboxRow, ...] = ()
    """Rows that were made and handed over at once, to services that waited for them."""
    changes: bool = True

    @property
    def reply(self) -> Reply:
        """What the last input's sender is told."""
        return self.replies[-1]

    @property
    def expected_version(self) -> int:
        """The version the ledger must still hold; 0 for a job that does not exist yet."""
        return self.job.version - 1


def unchanged(view: JobView, reply: Reply) -> Decision:
    """There is nothing to commit."""
    return Decision(job=view.job, replies=(reply,), protocol=view.protocol, changes=False)
