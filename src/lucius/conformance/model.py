"""What the kit is told, and what it says: options in, a report out.

Verdict                 a case ends early by raising one of these
├── Failed              the service did something else than the contract asks for
├── NotShown            the service gave no occasion to see it; never counts as passed
└── Skipped             something optional was not given
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

SCHEMA = "lucius.conformance/1"
DOCS = "docs/how-to/conformance.md"


class Outcome(StrEnum):
    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_SHOWN = "NOT_SHOWN"
    SKIPPED = "SKIPPED"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


class Verdict(Exception):
    outcome: Outcome


class Failed(Verdict):
    outcome = Outcome.FAIL

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}; {came}")


class NotShown(Verdict):
    outcome = Outcome.NOT_SHOWN


class Skipped(Verdict):
    outcome = Outcome.SKIPPED


class Misuse(ValueError):
    """The kit was asked for something that makes no sense."""


class Options(Struct, frozen=True, kw_only=True):
    """What a service's author tells the kit."""

    command: list[str]
    service: str | None = None
    """None: the one that the command first pulls for."""
    step_type: str | None = None
    """None: the service's name in capitals."""
    payload: dict[str, Any] = field(default_factory=dict)
    slow_payload: dict[str, Any] | None = None
    bad_payload: dict[str, Any] | None = None
    input_file: Path | None = None
    bus: str = "local:"
    env: dict[str, str] = field(default_factory=dict)
    ack_seconds: float = 3.0
    start_seconds: float = 30.0
    """For the first pull after a start."""
    patience: float = 15.0
    """How much longer than it should take the kit waits for what must come."""
    away_seconds: float = 27.0
    """How long the orchestrator stays away in the case that is about that."""
    side_by_side: int = 4
    strict: bool = False
    keep: Path | None = None


class Pace(Struct, frozen=True, kw_only=True):
    """How fast this service is when nothing is in its way, measured before the cases."""

    service: str
    work_seconds: float = 0.3
    slow_seconds: float | None = None
    """How long `slow_payload` takes; None if none was given."""


class CaseReport(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    outcome: Outcome
    seconds: float
    seen: str
    """What was expected and what came; for a passed case, what was seen."""
    warnings: list[str]
    read: str
    """Where the demand is explained."""
    log_tail: list[str]
    """The service's last words; empty for what passed."""


class ServiceReport(Struct, frozen=True, kw_only=True):
    name: str | None
    step_type: str | None
    command: list[str]


class Report(Struct, frozen=True, kw_only=True):
    """`schema` changes its number when a member changes its meaning or goes; members may be added without."""

    schema: str
    kit_version: str
    started_at: str
    seconds: float
    service: ServiceReport
    strict: bool
    passed: bool
    counts: dict[str, int]
    cases: list[CaseReport]


def has_passed(outcome: Outcome, strict: bool) -> bool:
    return outcome in (Outcome.PASS, Outcome.SKIPPED) or (outcome is Outcome.WARN and not strict)
