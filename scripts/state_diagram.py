"""Write docs/states.md from the transition tables that the core enforces; with --check, only say if it is stale."""

import argparse
import sys
from enum import StrEnum
from pathlib import Path

from lucius.core.model import TERMINAL_JOB, TERMINAL_STEP, JobStatus, OutboxStatus, StepStatus
from lucius.core.transitions import JOB_TRANSITIONS, OUTBOX_TRANSITIONS, STEP_TRANSITIONS, Transition

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
NOWHERE = "[*]"

INTRODUCTION = """\
<!-- Written by scripts/state_diagram.py from src/lucius/core/transitions.py. Do not edit: run the script. -->

# States

Every transition a job, a step and an outbox row may make, and why. The core makes no other; terminal states are
never left. What a callback or an operator's act does in each state is in `tests/unit/core/every_pair.txt`.
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is (default: docs/states.md)")
    options = parser.parse_args(arguments)
    fresh = page()
    if not options.check:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(fresh, encoding="utf-8")
        return 0
    if options.page.exists() and options.page.read_text(encoding="utf-8") == fresh:
        return 0
    print(f"{options.page} is stale: run python scripts/state_diagram.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
