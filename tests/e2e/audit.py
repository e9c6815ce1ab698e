"""Audit of a ledger whose jobs have all ended, read from the SQLite file and through the API."""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.e2e.load import Order
from tests.e2e.support import Api, Json

AFTER_THE_END = frozenset({"CALLBACK_ACK", "CALLBACK_HEARTBEAT", "CALLBACK_RESULT"})
NOT_APPLIED = frozenset({"DUPLICATE", "LATE", "STALE"})
Rows = list[tuple[Any, ...]]


class JobRecord:
    """Everything in the file about one job."""

    def __init__(self, job_id: str, status: str, head: Json) -> None:
        self.job_id = job_id
        self.status = status
        self.head = head
        self.steps: dict[str, Json] = {}
        self.attempts: dict[str, list[Json]] = defaultdict(list)
        self.events: list[Json] = []
        self.quarantine: list[Json] = []


class LedgerFile:
    """Ledger of a stopped server."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            self.integrity = self.rows("PRAGMA integrity_check")
            self.counters: dict[str, int] = dict(self.rows("SELECT name, value FROM counters"))
            self.outbox = {status for (status,) in self.rows("SELECT DISTINCT status FROM outbox")}
            self.keys = {(t, k): j for t, k, j in self.rows("SELECT tenant_id, key, job_id FROM idempotency")}
            self.jobs = self._read_jobs()
        finally:
            self._connection.close()

    def rows(self, sql: str) -> Rows:
        return self._connection.execute(sql).fetchall()

    def _read_jobs(self) -> dict[str, JobRecord]:
        jobs = {
            id_: JobRecord(job_id, status, json.loads(body))
            for id_, job_id, status, body in self.rows("SELECT id, job_id, status, body FROM jobs")
        }
        for id_, step_id, body in self.rows("SELECT job, step_id, body FROM steps"):
            jobs[id_].steps[step_id] = json.loads(body)
        for id_, step_id, body in self.rows("SELECT job, step_id, body FROM attempts ORDER BY attempt_no"):
            jobs[id_].attempts[step_id].append(json.loads(body)["attempt"])
        for id_, body in self.rows("SELECT job, body FROM events ORDER BY job, seq"):
            jobs[id_].events.append(json.loads(body))
        for id_, body in self.rows("SELECT job, body FROM quarantine"):
            jobs[id_].quarantine.append(json.loads(body))
        return {job.job_id: job for job in jobs.values()}


class Counts:
    """Counts of what happened, which show that faults did occur."""

    def __init__(self, ledger: LedgerFile) -> None:
        jobs = ledger.jobs.values()
        callbacks = Counter(event.get("data", {}).get("disposition") for job in jobs for event in job.events)
        self.jobs = len(ledger.jobs)
        self.steps = sum(len(job.steps) for job in jobs)
        self.attempts = sum(len(attempts) for job in jobs for attempts in job.attempts.values())
        self.retried = self.attempts - self.steps
        self.stale, self.late, self.duplicate = (callbacks[name] for name in ("STALE", "LATE", "DUPLICATE"))
        self.quarantined = sum(len(job.quarantine) for job in jobs)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in vars(self).items())


def audit_file(path: Path, orders: list[Order], diaries: Iterable[Path]) -> Counts:
    ledger = LedgerFile(path)
    assert ledger.integrity == [("ok",)]
    assert ledger.counters == {}, "every job has ended, so nothing is in flight"
    assert ledger.outbox <= {"SENT", "WITHDRAWN"}, "nothing waits to be handed over"
    _check_orders(ledger, orders)
    for job in ledger.jobs.values():
        _check_events(job)
        for step_id in job.steps:
            _check_attempts(job, step_id)
            _check_result(job, step_id)
    _check_diaries(ledger, diaries)
    return Counts(ledger)


def _check_orders(ledger: LedgerFile, orders: list[Order]) -> None:
    """Assert that each command is one job, known to its client, which succeeded and left its output."""
    assert all(len(set(order.job_ids)) == 1 for order in orders)
    assert sorted(ledger.jobs) == sorted(order.job_id for order in orders)
    assert sorted(ledger.keys.values()) == sorted(ledger.jobs), "one key for each job"
    for order in orders:
        job = ledger.jobs[order.job_id]
        assert job.status == job.head["status"] == "SUCCEEDED", job.head
        key = order.command.get("idempotency_key")
        assert key is None or ledger.keys[order.command["tenant_id"], f"key:{key}"] == order.job_id
        assert order.output.stat().st_size > 0


def _check_events(job: JobRecord) -> None:
    """Assert that events have no gaps and one end, after which nothing changed."""
    assert [event["seq"] for event in job.events] == list(range(1, job.head["event_seq"] + 1))
    types = [event["type"] for event in job.events]
    assert types[0] == "JOB_ACCEPTED"
    assert types.count("JOB_SUCCEEDED") == 1
    for event in job.events[types.index("JOB_SUCCEEDED") + 1 :]:
        assert event["type"] in AFTER_THE_END, event
        assert event["data"]["disposition"] in NOT_APPLIED, event
    times = [event["at"] for event in job.events]
    assert times == sorted(times)


def _check_attempts(job: JobRecord, step_id: str) -> None:
    """Assert that attempts count up from 1, each with its own lease, and only the last succeeded."""
    attempts = job.attempts[step_id]
    assert [attempt["attempt_no"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    assert len({attempt["lease_id"] for attempt in attempts}) == len(attempts)
    outcomes = [attempt["outcome"] for attempt in attempts]
    assert outcomes[-1] == "SUCCEEDED", outcomes
    assert "SUCCEEDED" not in outcomes[:-1], outcomes
    dispatched = [e for e in job.events if e["type"] == "STEP_DISPATCHED" and e["step_id"] == step_id]
    assert [e["attempt_no"] for e in dispatched] == [attempt["attempt_no"] for attempt in attempts]


def _check_result(job: JobRecord, step_id: str) -> None:
    """Assert that the winning attempt made the result, from winners' results, and no other success was applied."""
    step = job.steps[step_id]
    winner = (step["attempt"]["attempt_no"], step["attempt"]["lease_id"])
    assert step["status"] == "SUCCEEDED"
    assert (step["result"]["attempt_no"], step["result"]["lease_id"]) == winner
    assert winner == (job.attempts[step_id][-1]["attempt_no"], job.attempts[step_id][-1]["lease_id"])
    for earlier, lease_id in step["result"]["used"].items():
        assert lease_id == job.steps[earlier]["attempt"]["lease_id"]
    for ref in step["artifact_refs"]:
        assert f"/{job.job_id}/{step_id}/{winner[0]}/" in ref
        assert Path(unquote(urlsplit(ref).path)).is_file()
    successes = [
        (e["attempt_no"], e["data"]["lease_id"])
        for e in job.events
        if e["type"] == "CALLBACK_RESULT" and e["step_id"] == step_id and _applied_success(e["data"])
    ]
    assert successes == [winner]
    for kept in job.quarantine:
        if kept["step_id"] == step_id:
            assert kept["lease_id"] == kept["result"]["lease_id"] != winner[1]


def _applied_success(data: Json) -> bool:
    return data["disposition"] == "APPLIED" and "failure_class" not in data


def _check_diaries(ledger: LedgerFile, diaries: Iterable[Path]) -> None:
    """Assert by the services' records that no attempt was handed out twice and that each winner was executed."""
    executed = Counter(
        (entry["jobId"], entry["stepId"], entry["attempt_no"], entry["lease_id"])
        for diary in diaries
        for entry in map(json.loads, diary.read_text().splitlines())
    )
    assert [attempt for attempt, times in executed.items() if times > 1] == []
    for job in ledger.jobs.values():
        for step_id, step in job.steps.items():
            assert (job.job_id, step_id, step["attempt"]["attempt_no"], step["attempt"]["lease_id"]) in executed


def audit_api(api: Api, orders: list[Order]) -> None:
    """Assert that the API agrees with the orders and the ledger."""
    listed = _listed(api)
    assert sorted(listed) == sorted(order.job_id for order in orders)
    assert set(listed.values()) == {"SUCCEEDED"}
    for order in orders:
        job = api.get(f"/v1/jobs/{order.job_id}")
        asked = order.command
        assert (job["tenant_id"], job["request_type"]) == (asked["tenant_id"], asked["request_type"])
        assert job["mode"] == asked.get("mode", "DEFAULT")
        assert job["blocked_on"] is None
        assert {step["status"] for step in job["steps"]} == {"SUCCEEDED"}
        attempts = api.get(f"/v1/jobs/{order.job_id}/attempts")["attempts"]
        assert len(attempts) == job["attempts_total"]
        assert sum(attempt["outcome"] == "SUCCEEDED" for attempt in attempts) == len(job["steps"])


def _listed(api: Api) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(f"/v1/jobs?limit=200{cursor and '&cursor=' + cursor}")
        assert not found.keys() & {job["jobId"] for job in page["jobs"]}
        found |= {job["jobId"]: job["status"] for job in page["jobs"]}
        cursor = page["next_cursor"]
    return found
