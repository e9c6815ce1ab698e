"""A job's history: changes of its rows outside Lucius are detected and located."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Api

Tamper = Callable[[sqlite3.Connection], object]


async def audit(api: Api, job_id: str) -> Any:
    return (await api.get(f"/v1/jobs/{job_id}/audit")).ok()


async def test_unmodified_history_is_valid(api: Api) -> None:
    job_id = await api.submit()
    live = await audit(api, job_id)
    assert (live["jobId"], live["valid"], live["breaks"], live["unsealed"]) == (job_id, True, [], 0)
    await api.finish(job_id)
    ended = await audit(api, job_id)
    assert (ended["valid"], ended["events"]) == (True, len(await api.event_types(job_id)))
    hashes = [event["hash"] for event in (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]]
    assert len(set(hashes)) == len(hashes)


async def test_long_history_is_verified_to_its_end(api: Api) -> None:
    job_id = await api.submit()
    for _ in range(300):
        (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
        (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)
    found = await audit(api, job_id)
    assert (found["valid"], found["events"] > 600) == (True, True)


async def test_job_archived_during_the_audit_is_not_found(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await api.submit()

    async def gone(job_id: str) -> None:
        return None

    monkeypatch.setattr(api.runtime.store.jobs, "job", gone)
    (await api.get(f"/v1/jobs/{job_id}/audit")).problem(404, "JOB_NOT_FOUND")


def edit(seq: int, old: str, new: str) -> Tamper:
    return lambda db: db.execute("UPDATE events SET body = replace(body, ?, ?) WHERE seq = ?", (old, new, seq))


def swap(one: int, other: int) -> Tamper:
    def tamper(db: sqlite3.Connection) -> None:
        for before, after in ((one, -1), (other, one), (-1, other)):
            db.execute("UPDATE events SET seq = ? WHERE seq = ?", (after, before))

    return tamper


def exchange_bodies(one: int, other: int) -> Tamper:
    def tamper(db: sqlite3.Connection) -> None:
        bodies = dict(db.execute("SELECT seq, body FROM events WHERE seq IN (?, ?)", (one, other)).fetchall())
        db.execute("UPDATE events SET body = ? WHERE seq = ?", (bodies[one], other))
        db.execute("UPDATE events SET body = ? WHERE seq = ?", (bodies[other], one))

    return tamper


def head(old: str, new: str) -> Tamper:
    return lambda db: db.execute("UPDATE jobs SET body = replace(body, ?, ?)", (old, new))


def add(row: str) -> Tamper:
    return lambda db: db.execute(f"INSERT INTO events SELECT job, {row} FROM events WHERE seq = 3")


def attempt(change: str) -> Tamper:
    return lambda db: db.execute(f"UPDATE attempts SET {change}")


def unseal(db: sqlite3.Connection) -> None:
    db.execute("UPDATE events SET body = json_remove(body, '$.hash')")
    db.execute("UPDATE jobs SET body = json_remove(body, '$.event_hash')")


# The events are JOB_ACCEPTED, STEP_DISPATCHED, STEP_HANDED_OVER, CALLBACK_RESULT, STEP_SUCCEEDED, JOB_SUCCEEDED.
TAMPERED: list[Any] = [
    pytest.param(
        head('"event_hash":"', '"event_hash":"0'),
        [6],
        "differs from the last event of the job's head",
        id="head edited",
    ),
    pytest.param(edit(1, '"by":"dev"', '"by":"eve"'), [1], "was edited", id="actor edited"),
    pytest.param(edit(3, "STEP_HANDED_OVER", "STEP_HANDED_0VER"), [3], "was edited", id="type edited"),
    pytest.param(edit(5, '"at":18', '"at":17'), [5], "was edited", id="time edited"),
    pytest.param(lambda db: db.execute("DELETE FROM events WHERE seq = 4"), [4], "is missing", id="event deleted"),
    pytest.param(lambda db: db.execute("DELETE FROM events WHERE seq < 3"), [1], "up to 2", id="first events deleted"),
    pytest.param(lambda db: db.execute("DELETE FROM events WHERE seq > 4"), [5], "up to 6", id="last events deleted"),
    pytest.param(lambda db: db.execute("DELETE FROM events"), [1], "up to 6", id="all events deleted"),
    pytest.param(swap(3, 4), [3, 4], "stands where event 4 belongs", id="events swapped"),
    pytest.param(exchange_bodies(2, 5), [2, 5], "stands where event 5 belongs", id="bodies exchanged"),
    pytest.param(edit(3, "{", "?"), [3], "can't be read", id="unreadable event"),
    pytest.param(add("0, body"), [0], "no event belongs", id="event number 0"),
    pytest.param(add("-5, '?'"), [-5], "no event belongs", id="negative event number"),
    pytest.param(add("'x', body"), [6], "no event belongs", id="event number is text"),
    pytest.param(add("2000000006, '?'"), [7, 7, 2000000006], "is missing", id="unreadable event far away"),
    pytest.param(add("2000000006, body"), [3, 7, 7], "stands where", id="copied event far away"),
    pytest.param(unseal, [6], "has no hash", id="all hashes removed"),
    pytest.param(lambda db: db.execute("DELETE FROM attempts"), [6], "is missing", id="attempt deleted"),
    pytest.param(attempt("body = replace(body, 'lease', 'lea5e')"), [6], "was edited", id="attempt edited"),
    pytest.param(attempt("body = '?'"), [6], "was edited", id="unreadable attempt"),
    pytest.param(attempt("attempt_no = 2"), [6, 6], "is in no event", id="attempt renumbered"),
    pytest.param(
        lambda db: db.execute(
            "INSERT INTO events SELECT job, 7, replace(body, '\"seq\":6', '\"seq\":7') FROM events WHERE seq = 6"
        ),
        [7, 7],
        "was edited",
        id="event appended",
    ),
]


@pytest.mark.parametrize(("tamper", "seqs", "says"), TAMPERED)
async def test_tampering_is_detected_and_located(
    start: Start, tmp_path: Path, tamper: Tamper, seqs: list[int], says: str
) -> None:
    path = tmp_path / "ledger.db"
    api = await start(ledger_url=f"sqlite:///{path}")
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.succeed(directive)).ok()
    assert len(await api.event_types(job_id)) == 6
    with sqlite3.connect(path) as db:
        tamper(db)
    found = await audit(api, job_id)
    assert found["valid"] is False
    assert [item["seq"] for item in found["breaks"]] == seqs
    assert says in found["breaks"][0]["what"]


async def test_damage_in_one_job_does_not_invalidate_another(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    api = await start(ledger_url=f"sqlite:///{path}")
    touched, untouched = await api.submit(), await api.submit(idempotency_key="2")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM events WHERE seq = 1 AND job = (SELECT id FROM jobs WHERE job_id = ?)", (touched,))
    assert not (await audit(api, touched))["valid"]
    assert (await audit(api, untouched))["valid"]


async def test_audit_needs_the_read_scope_and_the_tenant(start: Start) -> None:
    keys = [key_entry("theirs", "read", tenants=("globex",)), key_entry("acts", "operate", tenants=("acme",))]
    api = await start({"api_keys": keys})
    job_id = await api.submit()
    (await api.get(f"/v1/jobs/{job_id}/audit", key="theirs")).problem(404, "JOB_NOT_FOUND")
    (await api.get(f"/v1/jobs/{job_id}/audit", key="acts")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/jobs/never/audit")).problem(404, "JOB_NOT_FOUND")
