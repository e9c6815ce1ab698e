"""Temporal worker that exits at once, as by kill -9, after a given number of commits.

Temporal does not know of the last of them. Takes the number as argument and the settings from the environment.
"""

import asyncio
import os
import sys

from lucius.adapters.ledger.postgres.ledger import PostgresLedger
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.core.model.decision import Decision
from lucius.observability.readiness import Role

CUT = 9


def cut_after(commits: int) -> None:
    commit, left = PostgresLedger.commit, commits

    async def cut(ledger: PostgresLedger, decision: Decision) -> None:
        nonlocal left
        await commit(ledger, decision)
        left -= 1
        if left == 0:
            os._exit(CUT)

    PostgresLedger.commit = cut  # type: ignore[method-assign, assignment]


async def main(commits: int) -> None:
    cut_after(commits)
    async with open_runtime(load_settings(), role=Role.WORKER):
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
