"""A Temporal worker that ends at once, as by kill -9, when it has committed so many times: what is in the ledger then,
Temporal has not heard of. Arguments: how many, and the settings as environment."""

import asyncio
import os
import sys

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.core.decision import Decision
from lucius.observability.readiness import Role
from lucius.settings import load_settings
from lucius.wiring import open_runtime

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
