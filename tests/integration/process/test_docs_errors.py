"""docs/errors.md lists every refusal, and every refusal in it really happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from lucius.api.problems import STATUS
from lucius.usecases.errors import TITLES, RejectCode
from tests.integration.refusals import TABLE, Provoke, server

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "errors.md"


def error_codes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.error_codes", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_errors_page_is_current() -> None:
    checked = error_codes("--check")
    assert checked.returncode == 0, checked.stderr


def test_stale_errors_page_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "errors.md"
    other.write_text(PAGE.read_text(encoding="utf-8").replace("INVALID_CURSOR", "WRONG_CURSOR"), encoding="utf-8")
    checked = error_codes("--check", "--page", str(other))
    assert checked.returncode == 1
    assert "is stale: run python -m scripts.error_codes" in checked.stderr


def test_every_code_has_title_status_and_line_on_the_page() -> None:
    assert set(TITLES) == set(STATUS) == set(RejectCode)
    written = PAGE.read_text(encoding="utf-8")
    for code in RejectCode:
        assert f"| `{code}` | {STATUS[code]} | {TITLES[code]} | " in written


@pytest.mark.parametrize(("code", "pointer", "provoke"), TABLE, ids=[code for code, _, _ in TABLE])
async def test_every_refusal_happens_as_the_page_says(
    tmp_path: Path, code: RejectCode, pointer: str | None, provoke: Provoke
) -> None:
    async with server(tmp_path) as api:
        with structlog.testing.capture_logs():
            answer = await provoke(api)
    problem = answer.problem(STATUS[code], code)
    assert problem["title"] == TITLES[code]
    if pointer is not None:
        assert problem["errors"][0]["pointer"] == pointer
        assert problem["errors"][0]["message"]
    assert ("retry-after" in answer.headers) is (STATUS[code] in (429, 503))
    assert ("www-authenticate" in answer.headers) is (STATUS[code] == 401)


def test_every_code_is_provoked_by_the_table() -> None:
    assert {code for code, _, _ in TABLE} == set(RejectCode)


def test_every_refusal_of_the_core_has_a_code() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/lucius/core").rglob("*.py"))
    said = set(re.findall(r'Refused\(\s*"([A-Z_]+)"', source))
    assert said <= set(RejectCode)
    assert len(said) > 10
