"""`lucius retention`: input, output and refusals."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.usecases.retention.retention import Order, Retention, Summary
from tests.integration.cli.support import lucius
from tests.support.clock import ManualClock
from tests.support.finished import make_finished

DAY_MS = 86_400_000


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Create two jobs that ended forty days ago; return their ids."""
    clock = ManualClock(time.time_ns() // 1_000_000 - 40 * DAY_MS)
    return asyncio.run(make_finished(tmp_path / ".lucius", 2, clock))


def archive_folder(tmp_path: Path) -> Path:
    return tmp_path / ".lucius" / "workspace" / "lucius" / "_archive"


def run_retention(*arguments: str) -> Any:
    answer = lucius("retention", "run", "--json", *arguments)
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_old_jobs_are_archived_to_the_workspace(ids: list[str], tmp_path: Path) -> None:
    answer = lucius("retention", "run")
    assert answer.exit_code == 0, answer.stderr
    assert re.match(r"2 jobs archived: [0-9.]+ kB in 1 file under ", answer.stdout)
    (file,) = archive_folder(tmp_path).glob("20*/*.jsonl")
    assert [json.loads(line)["jobId"] for line in file.read_text().splitlines()] == ids
    assert lucius("retention", "run").stdout.startswith("0 jobs archived")


def test_minimum_age_and_limit_can_be_set(ids: list[str]) -> None:
    assert run_retention("--older-than", "41d", "--dry-run")["archived"] == 0
    assert run_retention("--older-than", "39d", "--dry-run")["archived"] == 2
    assert run_retention("--older-than", "0", "--dry-run")["archived"] == 2
    answer = run_retention("--older-than", "39d", "--limit", "1")
    assert (answer["archived"], answer["dry_run"], len(answer["files"])) == (1, False, 1)


def test_jobs_outside_the_filter_are_not_archived(ids: list[str]) -> None:
    assert run_retention("--tenant", "bolt")["archived"] == 0
    assert run_retention("--status", "cancelled")["archived"] == 0
    assert run_retention("--status", "succeeded", "--tenant", "ACME ", "--dry-run")["archived"] == 2


@pytest.mark.parametrize(
    ("ledger", "arguments", "paused"),
    [("sqlite:///x", [], 0), ("postgresql://h/d", [], 0.5), ("postgresql://h/d", ["--pause", "2"], 2)],
)
def test_archiving_a_shared_ledger_pauses_between_batches(
    ledger: str, arguments: list[str], paused: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []

    async def note(self: Retention, order: Order) -> Summary:
        orders.append(order)
        return Summary()

    @asynccontextmanager
    async def no_jobs(settings: object) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(Retention, "run", note)
    monkeypatch.setattr("lucius.bootstrap.adapters.open_finished_jobs", no_jobs)
    answer = lucius("retention", "run", *arguments, env={"LUCIUS_LEDGER_URL": ledger})
    assert answer.exit_code == 0, answer.stderr
    assert [order.pause for order in orders] == [paused]


def test_archived_job_can_be_shown(ids: list[str]) -> None:
    assert [Path(name).suffix for name in run_retention("--gzip")["files"]] == [".gz"]
    answer = lucius("retention", "show", ids[1])
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["job"]["command"]["idempotency_key"] == "key-1"
    assert "all unchanged" in answer.stderr
    missing = lucius("retention", "show", "nobody")
    assert missing.exit_code == 1
    assert "job nobody is not in" in missing.stderr


def test_archived_job_is_found_by_a_prefix_of_its_id(ids: list[str]) -> None:
    run_retention()
    answer = lucius("retention", "show", ids[1][:-1])
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["jobId"] == ids[1]
    none = lucius("retention", "show", "ffffffff")
    assert (none.exit_code, "no job id begins" in none.stderr) == (2, True)


def test_edited_archive_is_refused(ids: list[str], tmp_path: Path) -> None:
    run_retention()
    (file,) = archive_folder(tmp_path).glob("20*/*.jsonl")
    file.write_text(file.read_text().replace('"type":"STEP_SUCCEEDED"', '"type":"STEP_SKIPPED"'))
    answer = lucius("retention", "show", ids[0])
    assert answer.exit_code == 1
    assert "was edited" in answer.stderr
    assert "was tampered with" in answer.stderr


def test_archive_folder_can_be_chosen(ids: list[str], tmp_path: Path) -> None:
    assert run_retention("--archive", str(tmp_path / "attic"))["archive"] == str(tmp_path / "attic")
    assert lucius("retention", "show", ids[0], "--archive", str(tmp_path / "attic")).exit_code == 0
    assert lucius("retention", "show", ids[0]).exit_code == 1


def test_ledger_opened_by_a_server_is_refused(ids: list[str], tmp_path: Path) -> None:
    store = SqliteFile.open(tmp_path / ".lucius" / "ledger.db", None)
    answer = lucius("retention", "run")
    store.close()
    assert answer.exit_code == 1
    assert "only while no server has it open" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_folder_without_a_ledger_is_refused_and_not_created(tmp_path: Path) -> None:
    answer = lucius("retention", "run", "--data-dir", str(tmp_path / "elsewhere"))
    assert answer.exit_code == 1
    assert "there is no ledger" in answer.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--older-than", "soon"], {}, "--older-than must be a number with s, m, h, d or w"),
        (["--status", "IN_PROGRESS"], {}, "'IN_PROGRESS' is not one of"),
        ([], {"LUCIUS_LEDGER_URL": "memory:"}, "nothing to archive in 'memory'"),
        ([], {"LUCIUS_WORKSPACE_ROOT": "blob://container"}, "--archive DIR"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], env: dict[str, str], said: str, ids: list[str], tmp_path: Path
) -> None:
    answer = lucius("retention", "run", *arguments, env=env)
    assert answer.exit_code == 2
    assert said in answer.stderr
