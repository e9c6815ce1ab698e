"""Write docs/states.md from the transition tables that the core enforces; with --check, report whether it is stale."""

import sys
from enum import StrEnum

from lucius.core.decide.transitions import JOB_TRANSITIONS, OUTBOX_TRANSITIONS, STEP_TRANSITIONS, Transition
from lucius.core.model.statuses import TERMINAL_JOB, TERMINAL_STEP, JobStatus, OutboxStatus, StepStatus
from scripts.pages import keep

NOWHERE = "[*]"

INTRODUCTION = """\
<!-- Written by scripts/state_diagram.py from src/lucius/core/decide/transitions.py. Do not edit: run the script. -->

# States

Every transition a job, a step and an outbox row may make, and why. The core makes no other; terminal states are
left only by a new run, and those of a step also when a flow visits it again. What a callback or an operator's act does
in each state is in `tests/unit/core/every_pair.txt`.
"""


def page() -> str:
    terminal_rows = frozenset(OutboxStatus) - {OutboxStatus.PENDING}
    return "\n".join(
        (
            INTRODUCTION,
            section("Job", "One accepted command.", JOB_TRANSITIONS, JobStatus.QUEUED, TERMINAL_JOB),
            section(
                "Step",
                "One unit of a protocol inside a job. A step whose turn has not come is PENDING and has no record.",
                STEP_TRANSITIONS,
                StepStatus.PENDING,
                TERMINAL_STEP,
            ),
            section(
                "Outbox row",
                "The durable intent to hand one attempt over. A row of a failed hand-over stays PENDING for the retry.",
                OUTBOX_TRANSITIONS,
                OutboxStatus.PENDING,
                terminal_rows,
            ),
        )
    )


def section(
    title: str, about: str, table: tuple[Transition, ...], first: StrEnum, terminal: frozenset[StrEnum] | frozenset[str]
) -> str:
    return "\n".join((f"## {title}", "", about, "", *diagram(table, first, terminal), "", *sentences(table), ""))


def diagram(table: tuple[Transition, ...], first: StrEnum, terminal: frozenset[StrEnum] | frozenset[str]) -> list[str]:
    arrows = [f"    {NOWHERE} --> {first}"]
    arrows += [f"    {t.before} --> {t.after}" for t in table if t.before is not None]
    reached = dict.fromkeys(str(t.after) for t in table if t.after in terminal)
    arrows += [f"    {state} --> {NOWHERE}" for state in reached]
    return ["```mermaid", "stateDiagram-v2", *arrows, "```"]


def sentences(table: tuple[Transition, ...]) -> list[str]:
    rows = [f"| {t.before or 'new'} | {t.after} | {t.why} |" for t in table]
    return ["| from | to | because |", "|---|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(keep("states.md", "state_diagram", page))
