"""Checks a PostgreSQL ledger and reports violations.

Shares no code with the engine and imports nothing of it: it has tables, JSON and arithmetic. `always` holds at any
instant between two commits, even with every process killed in the middle of work; `checker_at_rest` has the checks
once every job has ended.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Json = dict[str, Any]
Rows = list[Json]
Query = Callable[[str], Rows]

TABLES = {
    "jobs": "SELECT id, job_id, tenant_id, key, command FROM {}.jobs",
    "live": "SELECT id, version, status, tenant_id, body FROM {}.live",
    "done": "SELECT id, version, status, tenant_id, body FROM {}.done",
    "steps": "SELECT job, step_id, status, outbox_id, body FROM {}.steps",
    "attempts": "SELECT job, step_id, attempt_no, body FROM {}.attempts",
    "events": "SELECT job, seq, body FROM {}.events ORDER BY job, seq",
    "outbox": "SELECT job, outbox_id, step_id, attempt_no, lease_id, service, lane, next_attempt_at, claimed_at"
    " FROM {}.outbox",
    "counters": "SELECT name, value FROM {}.counters",
    "quarantine": "SELECT job, step_id, attempt_no, lease_id, body FROM {}.quarantine",
}
ENDED = {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}
AT_WORK = {"DISPATCHING", "INITIATED", "PROCESSING", "FAILED_RETRY", "WAITING", "AWAITING_APPROVAL"}
ENDS = {f"JOB_{status}" for status in ENDED}
CLOCKS_AGREE_MS = 250
"""Largest difference between two processes' estimates of the database's time."""
SERVED = {"task", "external_call", "notify"}
"""Kinds of steps that are handed over, and whose outcome is reported back."""
BEGINS = {"STEP_STARTED", "APPROVAL_REQUESTED", "STEP_WAITING"}
"""Events that start maps, branches, approvals and waits. A decision is made as soon as it starts."""
CALLBACKS = {"CALLBACK_ACK", "CALLBACK_HEARTBEAT", "CALLBACK_RESULT"}


@dataclass
class Step:
    status: str
    body: Json
    attempts: dict[int, tuple[str, Json]] = field(default_factory=dict)
    """Ended attempts by number: the row as text, and the attempt in it."""

    @property
    def current(self) -> Json:
        return dict(self.body["attempt"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])


@dataclass
class Job:
    job_id: str
    tenant_id: str
    key: str
    command: Json
    heads: list[tuple[str, Json]] = field(default_factory=list)
    """Pairs of table name (live or done) and row."""
    steps: dict[str, Step] = field(default_factory=dict)
    event_rows: list[tuple[int, list[Json]]] = field(default_factory=list)
    outbox: Rows = field(default_factory=list)
    quarantine: Rows = field(default_factory=list)

    @property
    def served(self) -> dict[str, Step]:
        return {name: step for name, step in self.steps.items() if step.kind in SERVED}

    @property
    def live(self) -> bool:
        return bool(self.heads) and self.heads[0][0] == "live"

    @property
    def status(self) -> str:
        return str(self.heads[0][1]["status"]) if self.heads else "nowhere"

    @property
    def head(self) -> Json:
        return dict(json.loads(self.heads[0][1]["body"]))

    @property
    def error(self) -> str:
        return str(self.head.get("error") if self.heads else None)

    @property
    def events(self) -> list[Json]:
        return [event for _, events in self.event_rows for event in events]


@dataclass
class Ledger:
    jobs: dict[str, Job]
    counters: dict[str, int]
    strays: list[str]
    """Rows of jobs that do not exist."""


def read(query: Query, schema: str) -> dict[str, Rows]:
    """Return every table as it is; mutable, so that tests can corrupt it."""
    return {name: query(statement.format(schema)) for name, statement in TABLES.items()}


def assemble(tables: dict[str, Rows]) -> Ledger:
    jobs = {
        row["id"]: Job(row["job_id"], row["tenant_id"], row["key"], json.loads(row["command"]))
        for row in tables["jobs"]
    }
    strays = [
        f"{name}: a row of job {row.get('job', row.get('id'))}, which is not there"
        for name, rows in tables.items()
        if name not in ("jobs", "counters")
        for row in rows
        if row.get("job", row.get("id")) not in jobs
    ]
    known = {
        name: [row for row in rows if name == "counters" or row.get("job", row.get("id")) in jobs]
        for name, rows in tables.items()
    }
    for name in ("live", "done"):
        for row in known[name]:
            jobs[row["id"]].heads.append((name, row))
    for row in known["steps"]:
        jobs[row["job"]].steps[row["step_id"]] = Step(row["status"], json.loads(row["body"]))
    for row in known["attempts"]:
        step = jobs[row["job"]].steps.get(row["step_id"])
        if step is None:
            strays.append(f"attempts: of step {row['step_id']}, which is not there")
        else:
            step.attempts[row["attempt_no"]] = (row["body"], json.loads(row["body"])["attempt"])
    for row in known["events"]:
        jobs[row["job"]].event_rows.append((row["seq"], json.loads(row["body"])))
    for row in known["outbox"]:
        jobs[row["job"]].outbox.append(row)
    for row in known["quarantine"]:
        jobs[row["job"]].quarantine.append(row)
    counters = {row["name"]: int(row["value"]) for row in known["counters"]}
    return Ledger({job.job_id: job for job in jobs.values()}, counters, strays)


# At any instant


def always(ledger: Ledger) -> list[str]:
    """Return the violations in a ledger that nothing writes to at this moment."""
    found = list(ledger.strays)
    found += _one_key_one_job(ledger)
    for job in ledger.jobs.values():
        if len(job.heads) != 1:
            found.append(f"{job.job_id}: it is {len(job.heads)} times among the live and the done")
            continue
        for check in (
            _head,
            _chain,
            _seals,
            _story,
            _steps,
            _attempts,
            _ended_attempts,
            _results,
            _own_steps,
            _outbox,
            _late,
        ):
            found += [f"{job.job_id}: {what}" for what in check(job)]
    whole = [job for job in ledger.jobs.values() if len(job.heads) == 1]
    found += _counters(ledger, whole)
    return found


def _one_key_one_job(ledger: Ledger) -> Iterator[str]:
    for (tenant, key), times in Counter((job.tenant_id, job.key) for job in ledger.jobs.values()).items():
        if times > 1:
            yield f"{times} jobs have the key {key} of {tenant}"


def _head(job: Job) -> Iterator[str]:
    table, row = job.heads[0]
    head = job.head
    if (table == "done") != (row["status"] in ENDED):
        yield f"{row['status']} among the {table}"
    if (head["status"], head["version"]) != (row["status"], row["version"]):
        yield "its row and its body differ in status or version"
    if head["version"] < len(job.event_rows):
        yield f"{len(job.event_rows)} commits have events, and it was committed {head['version']} times"


def _chain(job: Job) -> Iterator[str]:
    """Check that event numbers have no gap, each hash covers the one before, and the head has the last."""
    before, seq = "", 0
    for first, events in job.event_rows:
        if first != seq + 1:
            yield f"events {seq + 1} to {first - 1} are missing" if first > seq + 1 else f"event {first} is there twice"
            return
        for event in events:
            seq += 1
            if event["seq"] != seq:
                yield f"event {event['seq']} stands where {seq} belongs"
                return
            if event["hash"] != hash_event(before, job.job_id, event):
                yield f"event {seq} was edited, or what came before it was"
                return
            before = event["hash"]
    if (seq, before) != (job.head["event_seq"], job.head["event_hash"]):
        yield f"its head knows {job.head['event_seq']} events, {seq} are there"


def hash_event(before: str, job_id: str, event: Json) -> str:
    named = (event.get(name) for name in ("seq", "type", "at", "step_id", "attempt_no"))
    said: list[Any] = [job_id, *named, event.get("data", {})]
    if event.get("attempts"):
        said.append(event["attempts"])
    return hashlib.sha256(before.encode() + _canonical(said)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _seals(job: Job) -> Iterator[str]:
    """Check that each ended attempt matches the hash in the last event that recorded its end."""
    sealed: dict[str, str] = {}
    for event in job.events:
        sealed |= event.get("attempts", {})
    kept = {f"{name}#{no}": text for name, step in job.steps.items() for no, (text, _) in step.attempts.items()}
    for name in sealed.keys() - kept.keys():
        yield f"attempt {name} has ended, and is not there"
    for name in kept.keys() - sealed.keys():
        yield f"attempt {name} is there, and no event says that it ended"
    for name in kept.keys() & sealed.keys():
        if hashlib.sha256(_inner_sorted(kept[name])).hexdigest() != sealed[name]:
            yield f"attempt {name} is not as it ended"


def _inner_sorted(text: str) -> bytes:
    """Return the row with the services' `extra` sorted; records keep the order of their fields."""
    row = json.loads(text)
    if row["attempt"].get("extra"):
        row["attempt"]["extra"] = json.loads(_canonical(row["attempt"]["extra"]))
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()


def _story(job: Job) -> Iterator[str]:
    """Check that a job was accepted once, ended once per run, applied no later callback, and was never repaired."""
    types = [event["type"] for event in job.events]
    if "DRIFT_REPAIRED" in types:
        yield "something of it was missing, and was made anew"
    if types[:1] != ["JOB_ACCEPTED"] or types.count("JOB_ACCEPTED") != 1:
        yield "it was not accepted once, and first of all"
    ends = [index for index, name in enumerate(types) if name in ENDS]
    runs = 1 + types.count("RUN_STARTED")
    if len(ends) != runs - job.live:
        yield f"{len(ends)} ends in {runs} runs, and it is {job.status}"
    if not job.live and ends:
        if types[ends[-1]] != f"JOB_{job.status}":
            yield f"it ended {types[ends[-1]]}, and is {job.status}"
        for event in job.events[ends[-1] + 1 :]:
            if event["type"] in CALLBACKS and event["data"]["disposition"] == "APPLIED":
                yield f"event {event['seq']} was applied after its end"
    for earlier, later in pairwise(job.events):
        if later["at"] < earlier["at"] - CLOCKS_AGREE_MS:
            yield f"event {later['seq']} is {earlier['at'] - later['at']} ms before the one before it"


def _steps(job: Job) -> Iterator[str]:
    active = set(job.head.get("active", ()))
    at_work = {name for name, step in job.steps.items() if step.status in AT_WORK}
    active |= {scope["container"] for scope in job.head.get("scopes", ())}  # containers are active by what is in them
    if job.live and active != at_work:
        yield f"its head names {sorted(active)} as at work, its steps {sorted(at_work)}"
    if not job.live and at_work:
        yield f"it has ended, and {sorted(at_work)} are at work"
    for name, step in job.steps.items():
        if step.status != step.body["status"]:
            yield f"step {name}: its row and its body differ in status"


def _attempts(job: Job) -> Iterator[str]:
    """Check that attempts count up from 1, each with its own lease, and that the current one was dispatched last."""
    dispatched: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in job.events:
        if event["type"] == "STEP_DISPATCHED":
            dispatched[event["step_id"]].append((event["attempt_no"], event["data"]["lease_id"]))
    for name, step in job.served.items():
        numbers = [number for number, _ in dispatched[name]]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"step {name}: attempts were dispatched as {numbers}"
        if len({lease for _, lease in dispatched[name]}) != len(numbers):
            yield f"step {name}: two attempts have the same lease"
        last = step.current["attempt_no"]
        if (last, step.current["lease_id"]) not in dispatched[name][-1:]:
            yield f"step {name}: its current attempt {last} is not the one dispatched last"
        for number, (_, attempt) in step.attempts.items():
            if (number, attempt["lease_id"]) not in dispatched[name]:
                yield f"step {name}: attempt {number} was never dispatched"


def _ended_attempts(job: Job) -> Iterator[str]:
    for name, step in job.steps.items():
        last, ended = step.current["attempt_no"], sorted(step.attempts)
        if ended != list(range(1, last + (step.status not in AT_WORK))) and ended != list(range(1, last + 1)):
            yield f"step {name}: of {last} attempts {ended} have ended, and it is {step.status}"


def _results(job: Job) -> Iterator[str]:
    """Check that no attempt has two applied results, and a step succeeded exactly if its current attempt did."""
    applied: dict[str, list[Json]] = defaultdict(list)
    for event in job.events:
        if event["type"] == "CALLBACK_RESULT" and event["data"]["disposition"] == "APPLIED":
            applied[event["step_id"]].append(event)
    for name in applied.keys() - job.served.keys():
        yield f"a result of step {name} was applied, which is not there"
    for name, step in job.served.items():
        for number, times in Counter(event["attempt_no"] for event in applied[name]).items():
            if times > 1:
                yield f"step {name}: {times} results of attempt {number} were applied"
        won = [(e["attempt_no"], e["data"]["lease_id"]) for e in applied[name] if "failure_class" not in e["data"]]
        current = (step.current["attempt_no"], step.current["lease_id"])
        if won != ([current] if step.status == "SUCCEEDED" else []):
            yield f"step {name} is {step.status} in attempt {current}, and these successes were applied: {won}"
        outcomes = [number for number, (_, attempt) in step.attempts.items() if attempt.get("outcome") == "SUCCEEDED"]
        if outcomes != [number for number, _ in won]:
            yield f"step {name}: attempts {outcomes} say that they succeeded, applied were {won}"


def _own_steps(job: Job) -> Iterator[str]:
    """Check that steps without a service start once per attempt, and that each success of a step is its only one."""
    events: dict[str, Counter[str]] = defaultdict(Counter)
    for event in job.events:
        if event.get("step_id"):
            events[event["step_id"]][event["type"]] += 1
    for name, step in job.steps.items():
        told = events[name]
        begun = told["STEP_SUCCEEDED"] if step.kind == "decision" else sum(told[begins] for begins in BEGINS)
        if step.kind not in SERVED and begun != step.current["attempt_no"]:
            yield f"step {name} began {begun} times, and is in attempt {step.current['attempt_no']}"
        if told["STEP_SUCCEEDED"] != (step.status == "SUCCEEDED"):
            yield f"step {name} succeeded {told['STEP_SUCCEEDED']} times, and is {step.status}"
        heard, kept = told["STEP_APPROVED"] + told["STEP_REJECTED"], len(step.body.get("votes", ()))
        if heard != kept:
            yield f"step {name}: {heard} votes were heard, {kept} are kept"


def _outbox(job: Job) -> Iterator[str]:
    """Check that exactly the attempts that wait for their hand-over have a row."""
    rows = {row["step_id"]: row for row in job.outbox}
    if len(rows) != len(job.outbox):
        yield "two rows of the outbox are for the same step"
    for name, row in rows.items():
        step = job.steps.get(name)
        if step is None or step.status not in ("DISPATCHING", "FAILED_RETRY"):
            yield f"step {name} waits in the outbox, and is {step.status if step else 'not there'}"
        elif (row["attempt_no"], row["lease_id"]) != (step.current["attempt_no"], step.current["lease_id"]):
            yield f"step {name}: attempt {row['attempt_no']} waits in the outbox, and is not the current one"
    for name, step in job.steps.items():
        if step.status == "DISPATCHING" and name not in rows:
            yield f"step {name} is DISPATCHING, and not in the outbox"


def _late(job: Job) -> Iterator[str]:
    """Check that every success of a fenced attempt is quarantined, and none of them is the one that counted."""
    told = {
        (event["step_id"], event["attempt_no"], event["data"]["lease_id"])
        for event in job.events
        if event["type"] == "CALLBACK_RESULT" and event["data"].get("quarantined")
    }
    kept = {(row["step_id"], row["attempt_no"], row["lease_id"]) for row in job.quarantine}
    for one in told ^ kept:
        yield f"late success {one} is {'told of and not kept' if one in told else 'kept and not told of'}"
    for name, _, lease in kept:
        if name in job.steps and job.steps[name].status == "SUCCEEDED" and job.steps[name].current["lease_id"] == lease:
            yield f"step {name}: the success that counted is in quarantine"


def _counters(ledger: Ledger, jobs: list[Job]) -> Iterator[str]:
    """Check the counters against the rows: live jobs, rows in the outbox, and unacknowledged hand-overs."""
    truth: Counter[str] = Counter()
    for job in jobs:
        if job.live:
            head = job.head
            truth.update(
                (
                    "jobs",
                    f"jobs/tenant/{job.tenant_id}",
                    f"jobs/mode/{head['routing']['resolved_mode']}",
                    f"jobs/protocol/{head['protocol_id']}",
                )
            )
        for row in job.outbox:
            if row["claimed_at"] is not None:
                truth[f"unacked/{row['service']}"] += 1
            elif row["next_attempt_at"] is None and not row["service"].startswith("lucius."):  # the engine's own calls
                truth[f"pending/{row['service']}/{row['lane']}"] += 1
        for step in job.steps.values():
            if step.status == "INITIATED":
                truth[f"unacked/{step.body['service']}"] += 1
    for name in sorted(truth.keys() | ledger.counters.keys()):
        if truth[name] != ledger.counters.get(name, 0):
            yield f"the counter {name} is {ledger.counters.get(name, 0)}, the truth is {truth[name]}"


def above(ledger: Ledger, most_per_tenant: int) -> list[str]:
    """Return the tenants with more live jobs than allowed."""
    live = Counter(job.tenant_id for job in ledger.jobs.values() if job.live)
    return [f"{tenant} has {jobs} jobs at once" for tenant, jobs in live.items() if jobs > most_per_tenant]
