"""Services to run the kit on, and the kit with the tests' options."""

import sys
from typing import Any

from lucius.conformance.model import CaseReport, Options, Pace
from lucius.conformance.run import choose, run

RIGHT = [sys.executable, "-m", "lucius.conformance.faulty_service"]
SLOW_POLLER = [
    sys.executable,
    "-c",
    "import time; from lucius.conformance.faulty_service import Service\n"
    "class Slow(Service):\n"
    "    def _room(self): time.sleep(0.2); return min(1, super()._room())\n"
    "raise SystemExit(Slow('plain', '').run())\n",
]
"""A correct, slow service: one directive at a time, and a pause before each."""
DIES = [
    sys.executable,
    "-c",
    "import os; from lucius.conformance.faulty_service import Service\n"
    "class Dying(Service):\n"
    "    def _attempt(self, *given): os._exit(7)\n"
    "raise SystemExit(Dying('plain', '').run())\n",
]
PACE = Pace(service="plain", work_seconds=0.1)


def wrong(fault: str) -> list[str]:
    return [*RIGHT, "--fault", fault]


def options(command: list[str], **more: Any) -> Options:
    """Return options with shorter timeouts than for authors: a few seconds without an answer count as no answer."""
    given = {"patience": 4.0, "ack_seconds": 2.0, "away_seconds": 7.0, "bad_payload": {"seconds": "many"}, **more}
    return Options(command=command, **given)


async def report_of(command: list[str], case_id: str, **more: Any) -> CaseReport:
    """Run one case without the rehearsal before it; return its report."""
    (report,) = (await run(options(command, **more), choose([case_id]), pace=PACE)).cases
    return report
