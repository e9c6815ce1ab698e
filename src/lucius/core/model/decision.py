"""Results of `decide`: the next value of everything that changed, and a reply to the caller."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from lucius.core.model.inputs import Cap
from lucius.core.model.records import Attempt, Event, Instant, Job, Millis, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import Disposition
from lucius.core.model.tools import ToolError, Tools
from lucius.core.protocol.definition import ProtocolDefinition


class Defaults(Struct, frozen=True, kw_only=True):
    """The deployment's defaults for what a protocol leaves open."""

    ack_timeout_ms: Millis = 30_000
    lease_ms: Millis = 900_000
    max_attempts: int = 3
    backoff_scale: float = 1.0
    topic_layout: str = "shared"


class NoTools:
    """Tools for protocols without expressions: all methods raise ToolError."""

    def names(self, expression: str) -> frozenset[str]:
        raise ToolError("this deployment evaluates no expressions")

    def evaluate(self, expression: str, values: Any) -> Any:
        raise ToolError("this deployment evaluates no expressions")

    def paths(self, expression: str) -> frozenset[tuple[str, ...]]:
        raise ToolError("this deployment evaluates no expressions")

    def expressions_in(self, template: Any) -> tuple[str, ...]:
        raise ToolError("this deployment evaluates no expressions")

    names_in = names
    tested = paths
    render = render_url = evaluate

    def url_fault(self, template: str) -> str | None:
        raise ToolError("this deployment evaluates no expressions")

    def faults(self, schema: Any, value: Any) -> list[str]:
        raise ToolError("this deployment checks no schemas")


class Env(Struct, frozen=True):
    """Environment of a decision: deployment defaults, fresh ids, jitter in [0, 1), and library tools."""

    new_id: Callable[[], str]
    jitter: Callable[[], float]
    defaults: Defaults = Defaults()
    tools: Tools = NoTools()


class JobSnapshot(Struct, frozen=True):
    """A job's head, its pinned protocol, and the steps that a decision may touch.

    `asked` names the steps that were loaded; one of them that is not in `steps` has not started. None means that all
    steps were loaded. Active steps are always included. A `cached` snapshot is the last one this process saw; another
    process may have changed the job since.
    """

    job: Job
    protocol: ProtocolDefinition
    steps: dict[str, Step]
    asked: frozenset[str] | None = None
    cached: bool = False


class MissingSteps(Exception):
    """Raised when a decision touches steps that were not loaded: load them too and decide again."""

    def __init__(self, step_ids: frozenset[str]) -> None:
        super().__init__(f"a decision needs {', '.join(sorted(step_ids))}")
        self.step_ids = step_ids


class Applied(Struct, frozen=True):
    """The input changed the job."""


class Ignored(Struct, frozen=True):
    """The input changes nothing in this state."""

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
    """An attempt that will not change any more, for the history."""

    step_id: str
    attempt: Attempt


class Decision(Struct, frozen=True, kw_only=True):
    """The next value of what changed, and one reply for each input.

    `job.version` is one more than the version it was decided on. If `changes` is False there is nothing to commit.
    """

    job: Job
    replies: tuple[Reply, ...]
    protocol: ProtocolDefinition
    creates: bool = False
    steps: tuple[Step, ...] = ()
    attempts: tuple[EndedAttempt, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    events: tuple[Event, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    reviews: tuple[ReviewItem, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    caps: tuple[Cap, ...] = ()
    handed_over: tuple[OutboxRow, ...] = ()
    """Rows created and handed over in the same decision, to services that were waiting for them."""
    changes: bool = True

    @property
    def reply(self) -> Reply:
        """Reply to the last input."""
        return self.replies[-1]

    @property
    def expected_version(self) -> int:
        """Version the ledger must still hold; 0 for a job that does not exist yet."""
        return self.job.version - 1


def unchanged(view: JobSnapshot, reply: Reply) -> Decision:
    """Return a decision with a reply and nothing to commit."""
    return Decision(job=view.job, replies=(reply,), protocol=view.protocol, changes=False)
