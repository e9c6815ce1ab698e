"""docs/retries.md agrees with the core."""

import subprocess
import sys
from pathlib import Path

from lucius.core.policies.failure_classes import CODES, STATUSES
from lucius.core.policies.retry import MATRIX

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "retries.md"


def retry_matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.retry_matrix", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_retries_page_is_current() -> None:
    checked = retry_matrix("--check")
    assert checked.returncode == 0, checked.stderr


def test_stale_or_missing_retries_page_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "retries.md"
    assert retry_matrix("--check", "--page", str(other)).returncode == 1
    assert retry_matrix("--page", str(other)).returncode == 0
    assert other.read_text() == PAGE.read_text()
    other.write_text(other.read_text().replace("| yes |", "| no |"))
    assert "is stale: run python -m scripts.retry_matrix" in retry_matrix("--check", "--page", str(other)).stderr


def test_every_class_code_and_status_is_on_the_page() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for cause, rule in MATRIX.items():
        (row,) = [line for line in lines if line.startswith(f"| `{cause}` | ") and f"| `{rule.review}` |" in line]
        assert f"| {'yes' if rule.retried else 'no'} |" in row
    for code, cause in CODES.items():
        assert any(line.startswith(f"| `{cause}` | `") and f"`{code}`" in line for line in lines), code
    for status, cause in STATUSES.items():
        assert f"| {status} | `{cause}` |" in lines
