"""Write the SDK's failure classes from the core's table; with --check, report whether they are stale."""

import sys
from pathlib import Path

from lucius.core.model.statuses import FailureClass
from lucius.core.policies.failure_classes import STATUSES
from scripts.pages import keep

WORKER = Path(__file__).resolve().parent.parent / "src" / "lucius" / "worker"

HEAD = """\
\"\"\"Failure classes of the orchestrator, for the SDK, which does not import the core.

Written by scripts/sdk_failure_classes.py from core/policies/failure_classes.py. It has classes and statuses only:
the core alone maps error codes. Run the script to change it.
\"\"\"

from enum import StrEnum


class FailureClass(StrEnum):
"""


def module() -> str:
    members = [f'    {cause.name} = "{cause.value}"' for cause in FailureClass]
    rows = [f"    {status}: FailureClass.{cause.name}," for status, cause in STATUSES.items()]
    return "\n".join([HEAD + members[0], *members[1:], "", "", "BY_STATUS = {", *rows, "}", ""])


if __name__ == "__main__":
    sys.exit(keep("failure_classes.py", "sdk_failure_classes", module, WORKER))
