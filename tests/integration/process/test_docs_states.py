"""docs/states.md agrees with what the core enforces."""

import subprocess
import sys
from pathlib import Path

from lucius.core.decide.transitions import JOB_TRANSITIONS, OUTBOX_TRANSITIONS, STEP_TRANSITIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "states.md"


def state_diagram(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.state_diagram", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_states_page_is_current() -> None:
    checked = state_diagram("--check")
    assert checked.returncode == 0, checked.stderr


def test_stale_or_missing_states_page_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "docs" / "states.md"
    assert state_diagram("--check", "--page", str(other)).returncode == 1
    assert state_diagram("--page", str(other)).returncode == 0
    assert other.read_text() == PAGE.read_text()
    other.write_text(other.read_text() + "and so on\n")
    checked = state_diagram("--check", "--page", str(other))
    assert checked.returncode == 1
    assert "is stale: run python -m scripts.state_diagram" in checked.stderr


def test_every_transition_and_its_reason_are_on_the_page() -> None:
    written = PAGE.read_text(encoding="utf-8")
    for arrow in (*JOB_TRANSITIONS, *STEP_TRANSITIONS, *OUTBOX_TRANSITIONS):
        assert f"| {arrow.before or 'new'} | {arrow.after} | {arrow.why} |" in written
        if arrow.before is not None:
            assert f"    {arrow.before} --> {arrow.after}\n" in written
    assert written.count("stateDiagram-v2") == 3
