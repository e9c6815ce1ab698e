"""Journals for tests: what several tests do with them, and processes that share one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lucius.worker.idempotency import Key, key_of
from lucius.worker.journal import Journal
from tests.unit.worker.support import directive

REPOSITORY = Path(__file__).parents[3]
RESULT = b'{"status":"SUCCEEDED"}'

Opener = Callable[..., Journal]


def key(number: int = 1) -> Key:
    return key_of(directive(number=number))


def finished(journal: Journal, *numbers: int) -> None:
    journal.begin([directive(number=number) for number in numbers])
    for number in numbers:
        journal.finish(directive(number=number), RESULT)


def left_in(journal: Journal) -> dict[str, bytes | None]:
    return {left.directive.jobId: left.result for left in journal.left_over()}


def peers(what: str, folder: Path, *numbers: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.unit.worker.journal_peers", what, str(folder), *map(str, numbers)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return dict[str, int](json.loads(ended.stdout.splitlines()[-1]))  # what comes before are logs
