"""Options, verdicts and report of the kit.

Verdict                 a case ends early by raising one of these
├── CaseFailed          the service violated the contract
├── NotShown            the behaviour could not be observed; never counts as passed
└── Skipped             an optional setting was not given
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

SCHEMA = "lucius.conformance/1"
DOCS = "docs/how-to/conformance.md"


class CaseOutcome(StrEnum):
    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_SHOWN = "NOT_SHOWN"
    SKIPPED = "SKIPPED"

    @property
    def label(self) -> str:
        return self.value.replace("_", " ")


class Verdict(Exception):
    outcome: CaseOutcome


class CaseFailed(Verdict):
    outcome = CaseOutcome.FAIL

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}; {came}")


class NotShown(Verdict):
    outcome = CaseOutcome.NOT_SHOWN


class Skipped(Verdict):
    outcome = CaseOutcome.SKIPPED


class Misuse(ValueError):
    """Invalid options for the kit."""


class Options(Struct, frozen=True, kw_only=True):
    """Settings of a run, given by the service's author."""

    command: list[str]
    service: str | None = None
    """None: the service that the command first pulls for."""
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
    """Limit from a start to the first pull."""
    patience: float = 15.0
    """Extra seconds that the kit waits for an expected event."""
    away_seconds: float = 27.0
    """Seconds that the orchestrator is unreachable in the case `orchestrator-away`."""
    side_by_side: int = 4
    strict: bool = False
    keep: Path | None = None


class Pace(Struct, frozen=True, kw_only=True):
    """Speed of the service when undisturbed, measured before the cases."""

    service: str
    work_seconds: float = 0.3
    slow_seconds: float | None = None
    """Seconds that `slow_payload` takes; None if none was given."""


class CaseReport(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    outcome: CaseOutcome
    seconds: float
    seen: str
    """Expected and actual behaviour; for a passed case, what was observed."""
    warnings: list[str]
    read: str
    """Link to the documentation of the case."""
    log_tail: list[str]
    """Last lines of the service's output; only for FAIL and NOT_SHOWN."""


class ServiceReport(Struct, frozen=True, kw_only=True):
    name: str | None
    step_type: str | None
    command: list[str]


class Report(Struct, frozen=True, kw_only=True):
    """Report of a run. `schema` gets a new number if a member is removed or changes meaning, not if one is added."""

    schema: str
    kit_version: str
    started_at: str
    seconds: float
    service: ServiceReport
    strict: bool
    passed: bool
    counts: dict[str, int]
    cases: list[CaseReport]


def has_passed(outcome: CaseOutcome, strict: bool) -> bool:
    return outcome in (CaseOutcome.PASS, CaseOutcome.SKIPPED) or (outcome is CaseOutcome.WARN and not strict)
