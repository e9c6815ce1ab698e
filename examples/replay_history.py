"""Replay histories that `temporal workflow show --output json` printed with the installed version of Lucius.

Prints one line for each file and exits with 1 if a workflow would not fit. Reads LUCIUS_TEMPORAL_KEYS, if what Temporal
keeps is encrypted.
"""

import asyncio
import os
import sys
from pathlib import Path

from temporalio.client import WorkflowHistory

from lucius.adapters.expressions.expressions import CelTools
from lucius.bootstrap.settings import load_settings
from lucius.engine.temporal.replay import replay_history


async def main(histories: list[WorkflowHistory]) -> int:
    keys = load_settings().temporal_keys
    failed = False
    for history in histories:
        failure = await replay_history(history, keys, CelTools())
        failed |= failure is not None
        print(f"{history.workflow_id}: {failure or 'replays'}")
    return int(failed)


if __name__ == "__main__":
    code = asyncio.run(main([WorkflowHistory.from_json(path, Path(path).read_text()) for path in sys.argv[1:]]))
    sys.stdout.flush()
    os._exit(code)  # the SDK's threads may abort an interpreter that ends in order
