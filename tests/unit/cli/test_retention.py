"""`lucius retention`: what people type, see, and are refused."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.sqlite.store import Store
from lucius.service.retention import Order, Retention, Summary
from tests.support.clock import ManualClock
from tests.support.finished import make_finished
from tests.unit.cli.support import lucius

DAY_MS = 86_400_000


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Two jobs that ended forty days ago."""
    clock = ManualClock(time.time_ns() // 1_000_000 - 40 * DAY_MS)
    return asyncio.run(make_finished(tmp_path / ".lucius", 2, clock))


def archive(tmp_path: Path) -> Path:
    return tmp_path / ".lucius" / "workspace" / "lucius" / "_archive"


def run(*arguments: str) -> Any:
    answer = lucius("retention", "run", "--json", *arguments)
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_old_jobs_go_to_the_workspace(ids: list[str], tmp_path: Path) -> None:
    answer = lucius("retention", "run")
    assert answer.exit_code == 0, answer.stderr
    assert re.match(r"2 jobs archived: [0-9.]+ kB in 1 file under ", answer.stdout)
    (file,) = archive(tmp_path).glob("20*/*.jsonl")
    assert [json.loads(line)["jobId"] for line in file.read_text().splitlines()] == ids
    assert lucius("retention", "run").stdout.startswith("0 jobs archived")


def test_how_old_is_a_matter_of_choice(ids: list[str]) -> None:
    assert run("--older-than", "41d", "--dry-run")["archived"] == 0
    assert run("--older-than", "39d", "--dry-run")["archived"] == 2
    assert run("--older-than", "0", "--dry-run")["archived"] == 2
    answer = run("--older-than", "39d", "--limit", "1")
    assert (answer["archived"], answer["dry_run"], len(answer["files"])) == (1, False, 1)


def test_others_are_left_alone(ids: list[str]) -> None:
    assert run("--tenant", "bolt")["archived"] == 0
    assert run("--status", "cancelled")["archived"] == 0
    assert run("--status", "succeeded", "--tenant", "ACME ", "--dry-run")["archived"] == 2


@pytest.mark.parametrize(
    ("ledger", "arguments", "paused"),
    [("sqlite:///x", [], 0), ("postgresql://h/d", [], 0.5), ("postgresql://h/d", ["--pause", "2"], 2)],
)
def test_a_run_beside_servers_takes_its_time(
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
    monkeypatch.setattr("lucius.wiring.adapters.open_finished_jobs", no_jobs)
    answer = lucius("retention", "run", *arguments, env={"LUCIUS_LEDGER_URL": ledger})
    assert answer.exit_code == 0, answer.stderr
    assert [order.pause for order in orders] == [paused]


def test_an_archived_job_can_be_shown(ids: list[str]) -> None:
    assert [Path(name).suffix for name in run("--gzip")["files"]] == [".gz"]
    answer = lucius("retention", "show", ids[1])
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["job"]["command"]["idempotency_key"] == "key-1"
    assert "all as they were written" in answer.stderr
    missing = lucius("retention", "show", "nobody")
    assert missing.exit_code == 1
    assert "there is no job nobody in" in missing.stderr


def test_a_history_that_was_edited_is_refused(ids: list[str], tmp_path: Path) -> None:
    run()
    (file,) = archive(tmp_path).glob("20*/*.jsonl")
    file.write_text(file.read_text().replace('"type":"STEP_SUCCEEDED"', '"type":"STEP_SKIPPED"'))
    answer = lucius("retention", "show", ids[0])
    assert answer.exit_code == 1
    assert "was edited" in answer.stderr
    assert "was tampered with" in answer.stderr


def test_the_archive_may_be_elsewhere(ids: list[str], tmp_path: Path) -> None:
    assert run("--archive", str(tmp_path / "attic"))["archive"] == str(tmp_path / "attic")
    assert lucius("retention", "show", ids[0], "--archive", str(tmp_path / "attic")).exit_code == 0
    assert lucius("retention", "show", ids[0]).exit_code == 1


def test_a_server_that_has_the_ledger_open_must_be_stopped_first(ids: list[str], tmp_path: Path) -> None:
    store = Store.open(tmp_path / ".lucius" / "ledger.db", None)
    answer = lucius("retention", "run")
    store.close()
    assert answer.exit_code == 1
    assert "only while no server has it open" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_folder_without_a_ledger_is_told_and_stays_without(tmp_path: Path) -> None:
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
def test_what_makes_no_sense_is_refused(
    arguments: list[str], env: dict[str, str], said: str, ids: list[str], tmp_path: Path
) -> None:
    answer = lucius("retention", "run", *arguments, env=env)
    assert answer.exit_code == 2
    assert said in answer.stderr
