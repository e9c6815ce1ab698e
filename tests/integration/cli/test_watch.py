"""`jobs watch` shows the progress that services report, and no other."""

from typing import Any

import msgspec
import pytest
from rich.console import Console

from lucius.cli.watch import done_part, render_job
from lucius.contract import JobView, StepView
from tests.integration.cli.support import job, step


def view(status: str, **fields: Any) -> StepView:
    return msgspec.convert(step(status=status, **fields), StepView)


@pytest.mark.parametrize(
    ("status", "progress", "part"),
    [
        ("PENDING", None, 0.0),
        ("INITIATED", None, 0.0),
        ("PROCESSING", None, None),
        ("PROCESSING", 0.0, 0.0),
        ("PROCESSING", 0.02, 0.02),
        ("FAILED_RETRY", 0.7, 0.0),
        ("SUCCEEDED", 0.7, 1.0),
    ],
)
def test_progress_is_shown_only_as_reported(status: str, progress: float | None, part: float | None) -> None:
    assert done_part(view(status, progress=progress)) == part


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"progress": 0.35, "progress_counts": {"done": 7, "total": 20, "unit": "page"}}, "attempt 1, page 7 of 20"),
        ({"progress_counts": {"done": 7, "unit": "page"}}, "attempt 1, page 7"),
        ({"progress": 0.35}, "attempt 1, 35% done"),
        ({}, "attempt 1"),
    ],
)
def test_watch_shows_the_counts_of_a_running_step(fields: dict[str, Any], shown: str) -> None:
    watched = msgspec.convert(job("j-1", "IN_PROGRESS", steps=[step(status="PROCESSING", **fields)]), JobView)
    console = Console(width=120, record=True, file=None)
    with console.capture() as captured:
        console.print(render_job(watched, []))
    assert any(line.rstrip().endswith(shown) for line in captured.get().splitlines())
