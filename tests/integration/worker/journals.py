"""Helpers for journal tests, and processes that share a journal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lucius.worker.idempotency import AttemptKey, attempt_key
from lucius.worker.journal import Journal
from tests.integration.worker.support import directive

REPOSITORY = Path(__file__).parents[3]
RESULT = b'{"status":"SUCCEEDED"}'

Opener = Callable[..., Journal]


def key(number: int = 1) -> AttemptKey:
    return attempt_key(directive(number=number))


def finished(journal: Journal, *numbers: int) -> None:
    journal.begin([directive(number=number) for number in numbers])
    for number in numbers:
        journal.finish(directive(number=number), RESULT)


def adopt_results(journal: Journal) -> dict[str, bytes | None]:
    return {left.directive.jobId: left.result for left in journal.adopt_orphans()}


def peers(what: str, folder: Path, *numbers: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.integration.worker.journal_peers", what, str(folder), *map(str, numbers)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return dict[str, int](json.loads(ended.stdout.splitlines()[-1]))  # earlier lines are logs
