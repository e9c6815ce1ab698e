"""Services to try the kit on, and the kit as the tests run it."""

import sys
from typing import Any

from lucius.conformance.model import CaseReport, Options, Pace
from lucius.conformance.run import choose, run

RIGHT = [sys.executable, "-m", "lucius.conformance.broken"]
SLOW_POLLER = [
    sys.executable,
    "-c",
    "import time; from lucius.conformance.broken import Service\n"
    "class Slow(Service):\n"
    "    def _room(self): time.sleep(0.2); return min(1, super()._room())\n"
    "raise SystemExit(Slow('plain', '').run())\n",
]
"""Right, and in no hurry: one directive at a time, and a pause before each."""
PACE = Pace(service="plain", work_seconds=0.1)


def wrong(fault: str) -> list[str]:
    return [*RIGHT, "--fault", fault]


def options(command: list[str], **more: Any) -> Options:
    """Less patient than for an author: what does not come in a few seconds does not come."""
    given = {"patience": 4.0, "ack_seconds": 2.0, "away_seconds": 7.0, "bad_payload": {"seconds": "many"}, **more}
    return Options(command=command, **given)


async def played(command: list[str], case_id: str, **more: Any) -> CaseReport:
    """One case, without the rehearsal before it."""
    (report,) = (await run(options(command, **more), choose([case_id]), pace=PACE)).cases
    return report
