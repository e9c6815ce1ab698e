"""Archiving finished jobs: the archive is readable, nothing is lost, and nothing is stored twice."""

import asyncio
import gzip
import json
import os
import secrets
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from lucius.adapters.archive import folder as archive_folder
from lucius.adapters.archive.folder import ArchiveFolder
from lucius.adapters.ledger.sqlite import file as sqlite_file
from lucius.adapters.ledger.sqlite.archive import SqliteFinishedJobs
from lucius.core.protocol.definition import ProtocolDefinition, digest
from lucius.ports.archive import FinishedFilter
from lucius.ports.errors import ArchiveError, LedgerBusy
from lucius.usecases.retention import retention
from lucius.usecases.retention.retention import Order, Retention, Summary, find, read, verify
from tests.support.clock import EPOCH_MS
from tests.support.finished import make_finished, make_finished_scan

JOBS = 5
NOW = EPOCH_MS + 86_400_000
ALL = Order(where=FinishedFilter(before=NOW), batch=2)


class Place(Struct, frozen=True):
    """A ledger file and the archive beside it."""

    root: Path

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.db"

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    def run(self, order: Order = ALL) -> Summary:
        return asyncio.run(self.run_async(order))

    async def run_async(self, order: Order = ALL) -> Summary:
        with SqliteFinishedJobs.open(self.ledger) as jobs, ArchiveFolder.for_writing(self.archive) as files:
            return await Retention(jobs, files, NOW, secrets.token_hex(4)).run(order)

    def files(self, below: str = "20*") -> list[Path]:
        return sorted(self.archive.glob(f"{below}/*"))

    def archived(self) -> list[str]:
        return [json.loads(line)["jobId"] for path in self.files() for line in _lines(path)]

    def in_ledger(self) -> list[str]:
        with closing(sqlite3.connect(self.ledger)) as connection:
            return [job_id for (job_id,) in connection.execute("SELECT job_id FROM jobs ORDER BY id")]

    def found(self, job_id: str) -> tuple[str, bytes] | None:
        return asyncio.run(find(ArchiveFolder(self.archive), job_id))


def _lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("made")
    return folder, asyncio.run(make_finished(folder, JOBS))


@pytest.fixture
def ids(made: tuple[Path, list[str]]) -> list[str]:
    return made[1]


@pytest.fixture
def place(made: tuple[Path, list[str]], tmp_path: Path) -> Place:
    shutil.copytree(made[0], tmp_path / "place")
    return Place(tmp_path / "place")


def test_finished_jobs_become_lines_and_leave_the_ledger(place: Place, ids: list[str]) -> None:
    summary = place.run()
    assert place.archived() == ids
    assert place.in_ledger() == []
    assert (summary.archived, len(summary.files), summary.resumed) == (JOBS, 3, 0)
    assert summary.files == [path.relative_to(place.archive).as_posix() for path in place.files()]
    assert summary.bytes == sum(path.stat().st_size for path in place.files())
    assert place.files("pending") == []
    assert {path.parent.name for path in place.files()} == {"2027-01-16"}


def test_archived_job_is_found_with_an_intact_history(place: Place, ids: list[str]) -> None:
    place.run()
    found = place.found(ids[3])
    assert found is not None
    record = read(*found)
    assert (record.jobId, record.job.command.idempotency_key) == (ids[3], "key-3")
    assert [step.result for step in record.steps] == [{"pages": 3}]
    assert len(record.attempts) == 2
    chain = verify(record)
    assert (chain.events, chain.breaks) == (record.job.event_seq, [])
    assert place.found("nobody") is None


def test_protocol_of_an_archived_job_is_kept_beside_it(place: Place, ids: list[str]) -> None:
    place.run()
    found = place.found(ids[0])
    assert found is not None
    named = read(*found).job.protocol_digest
    (kept,) = place.files("protocols")
    assert kept.name == f"{named}.json"
    assert digest(_decoded(kept)) == named


def _decoded(path: Path) -> ProtocolDefinition:
    return msgspec.json.decode(path.read_bytes(), type=ProtocolDefinition)


@pytest.mark.parametrize("edit", ["event", "attempt", "lost event", "lost attempt", "added attempt"])
def test_edited_archive_is_detected(place: Place, ids: list[str], edit: str) -> None:
    place.run()
    found = place.found(ids[0])
    assert found is not None
    name, line = found
    record = json.loads(line)
    match edit:
        case "event":
            record["events"][2]["at"] += 1
        case "attempt":
            record["attempts"][0]["attempt"]["lease_id"] = "another"
        case "lost event":
            record["events"].pop()
        case "lost attempt":
            record["attempts"].pop()
        case _:
            record["attempts"][1]["attempt"]["attempt_no"] = 7
    assert verify(read(name, json.dumps(record).encode())).breaks


def test_archive_files_can_be_compressed(place: Place, ids: list[str]) -> None:
    place.run(replace(ALL, gzip=True))
    assert {path.suffix for path in place.files()} == {".gz"}
    assert place.archived() == ids
    found = place.found(ids[4])
    assert found is not None
    assert read(*found).jobId == ids[4]


def test_a_dry_run_counts_and_changes_nothing(place: Place, ids: list[str]) -> None:
    summary = place.run(replace(ALL, dry_run=True))
    assert (summary.archived, summary.files) == (JOBS, [])
    assert summary.bytes > 1_000
    assert place.in_ledger() == ids
    assert place.files("*") == []


def test_limit_holds_across_batches(place: Place, ids: list[str]) -> None:
    assert place.run(replace(ALL, limit=3)).archived == 3
    assert place.archived() == ids[:3]
    assert place.in_ledger() == ids[3:]


def test_unreadable_job_stays_in_the_ledger_and_is_named(place: Place, ids: list[str]) -> None:
    _write(place, "UPDATE events SET body = 'x' WHERE seq = 2 AND job = (SELECT id FROM jobs WHERE job_id = ?)", ids[1])
    _write(place, "UPDATE jobs SET body = x'ff' WHERE job_id = ?", ids[2])
    summary = place.run()
    assert (summary.archived, summary.unreadable, summary.unreadable_jobs) == (3, 2, [ids[1], ids[2]])
    assert place.archived() == [ids[0], ids[3], ids[4]]


def test_indented_row_becomes_one_line(place: Place, ids: list[str]) -> None:
    pretty = json.dumps({"job_id": ids[0], "seq": 1, "type": "X", "at": 1}, indent=2)
    _write(place, "UPDATE events SET body = ? WHERE seq = 1", pretty)
    assert place.run().archived == JOBS
    assert place.archived() == ids


def _write(place: Place, sql: str, *values: Any) -> None:
    store = sqlite_file.SqliteFile.open(place.ledger, None)
    store.write([(sql, [values])])
    store.close()


def test_ledger_opened_by_a_server_is_left_alone(place: Place) -> None:
    store = sqlite_file.SqliteFile.open(place.ledger, None)
    with pytest.raises(LedgerBusy):
        place.run()
    store.close()


def test_second_run_on_one_archive_is_refused(place: Place) -> None:
    with ArchiveFolder.for_writing(place.archive), pytest.raises(ArchiveError, match="another run"):
        place.run()


def test_unwritable_archive_drops_no_job(place: Place, ids: list[str]) -> None:
    place.archive.mkdir()
    (place.archive / "pending").write_text("in the way")
    with pytest.raises(ArchiveError):
        place.run()
    assert place.in_ledger() == ids


# Killed processes

WHERE_IT_MATTERS = frozenset(
    {"put", "move", "remove", "_archive", "_drop", "write", "_make_durable", "_finish_what_is_pending"}
)
OURS = frozenset(module.__file__ for module in (archive_folder, retention, sqlite_file))


def _is_killed_before(line: int, act: Callable[[], Any]) -> bool:
    """Run `act` in another process that dies before the nth relevant line; return False if it reached its end."""
    child = os.fork()
    if child == 0:
        _die_before(line)
        act()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def _die_before(line: int) -> None:
    left = line

    def each_line(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal left
        left -= what == "line"
        if not left:
            os._exit(9)
        return each_line

    def each_call(frame: FrameType, _: str, __: Any) -> Any:
        code = frame.f_code
        return each_line if code.co_filename in OURS and code.co_name in WHERE_IT_MATTERS else None

    sys.settrace(each_call)


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if there is one: kills do not depend on what is on the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def test_process_killed_twice_at_any_line_keeps_every_job_once(
    made: tuple[Path, list[str]], ids: list[str], quick_folder: Path
) -> None:
    place, order, line = Place(quick_folder / "place"), replace(ALL, batch=3), 1
    shutil.copytree(made[0], place.root)
    while _is_killed_before(line, lambda: place.run(order)):
        _require_all(place, ids)
        _is_killed_before(line, lambda: place.run(order))  # it resumes what the first one left
        _require_all(place, ids)
        place.run(order)
        assert (sorted(place.archived()), place.in_ledger(), place.files("pending")) == (sorted(ids), [], []), line
        shutil.rmtree(place.root)
        shutil.copytree(made[0], place.root)
        line += 1
    assert line > 50


def _require_all(place: Place, ids: list[str]) -> None:
    """Check that each job is somewhere, and that archived jobs are nowhere else."""
    archived, in_ledger = place.archived(), place.in_ledger()
    pending = [json.loads(line)["jobId"] for path in place.files("pending") for line in _lines(path)]
    assert {*archived, *in_ledger, *pending} == set(ids)
    assert len(archived) == len(set(archived))
    assert not set(archived) & {*in_ledger, *pending}


def test_redacted_payload_is_masked_in_the_archive(tmp_path: Path) -> None:
    payload = {"scan": {"password": "hunter2hunter2", "page": 3, "pins": ["hunter2-1"]}}
    pointers = ["/scan/password", "/scan/pins"]
    job_id = asyncio.run(make_finished_scan(tmp_path, redact=pointers, payload=payload))
    place = Place(tmp_path)
    assert place.run().archived == 1
    found = place.found(job_id)
    assert found is not None
    assert b"hunter2" not in found[1]
    record = read(*found)
    assert record.job.command.payload["scan"] == {"password": "[redacted]", "page": 3, "pins": "[redacted]"}
    assert record.steps[1].items == ["[redacted]"]
    assert record.job.command.idempotency_hash == ""
    assert not verify(record).breaks


def test_prompts_in_maps_of_a_redacted_job_are_masked_in_the_archive(tmp_path: Path) -> None:
    """As in jobs of an earlier version, whose prompts showed the items."""
    payload = {"scan": {"page": 3, "pins": ["hunter2-1"]}}
    job_id = asyncio.run(make_finished_scan(tmp_path, redact=["/scan/pins"], payload=payload))
    place = Place(tmp_path)
    approved = {"prompt": "is it hunter2-1?", "approvals": []}
    result = "UPDATE steps SET body = json_set(body, '$.result', json(?)) WHERE step_id = ?"
    _write(place, result, json.dumps(approved), "page.0")
    _write(place, result, json.dumps({"items": [{"result": approved}], "total": 1}), "each")
    _write(place, "UPDATE steps SET body = json_set(body, '$.kind', ?) WHERE step_id = 'page.0'", "human_approval")
    place.run()
    found = place.found(job_id)
    assert found is not None
    assert b"hunter2" not in found[1]
    inner = {step.step_id: step for step in read(*found).steps}
    assert inner["page.0"].result == {**approved, "prompt": "[redacted]"}
    assert inner["each"].result["total"] == 1
