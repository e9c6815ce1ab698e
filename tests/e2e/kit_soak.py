"""Every case of the conformance kit against an SDK service over its own Redis: too long for each commit.

Run with `python -m tests.e2e.kit_soak`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from lucius.conformance.model import CaseOutcome, Pace
from lucius.conformance.run import choose, run
from tests.integration.conformance_kit.support import options
from tests.support.redis import RedisServer

SDK = [sys.executable, "-m", "lucius.cli", "service", "ocr"]


async def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            given = options(SDK, bus=server.url, service="ocr", bad_payload=None, patience=15.0, ack_seconds=6.0)
            report = await run(given, choose([]), pace=Pace(service="ocr"))
        finally:
            server.stop()
    for case in report.cases:
        print(f"{case.outcome!s:8} {case.id}  {case.seen if case.outcome is CaseOutcome.FAIL else ''}")
    return int(any(case.outcome is CaseOutcome.FAIL for case in report.cases))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
