"""Checks a PostgreSQL ledger against the histories of clients and services, once every job has ended.

Like `checker`, it shares no code with the engine and imports nothing of it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.checker import Job, Json, Ledger, Step


@dataclass
class Histories:
    """Records of clients, services, kills and the outside server."""

    orders: list[Json]
    """Orders of clients: `number`, `tenant_id`, `key` or null, `input_ref`, `answers`, `cancel` and `status`.

    `answers` has every jobId returned to the client, `cancel` is whether the client cancelled the job, and `status` is
    the final status that it saw.
    """
    began: list[Json]
    """Executions started by services: `jobId`, `stepId`, `attempt_no`, `lease_id`, `pid`, `at`, own `token`."""
    finished: list[Json]
    """Executions that came to a result; with `used`, the tokens of the earlier steps' results in its inputs."""
    killed: dict[int, float]
    """Time at which each process was first killed or frozen, by pid."""
    filed: dict[str, tuple[str, str]]
    """Job and receipt of each external call, by idempotency key."""
    told: set[str]
    """Ids of the jobs that the outside server was notified of."""


def lines(paths: Iterable[Path]) -> list[Json]:
    """Return the parsed lines; one cut off by a kill is skipped."""
    found: list[Json] = []
    for path in paths:
        if path.exists():
            whole = path.read_text().rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
    return found


def at_rest(ledger: Ledger, said: Histories) -> list[str]:
    """Return the violations, given that every client has seen its jobs end and nothing runs any more."""
    found = [f"{name} is {value} although all have ended" for name, value in ledger.counters.items() if value]
    found += [f"{job.job_id}: it is {job.status}, and nobody works on it" for job in ledger.jobs.values() if job.live]
    found += [f"{job.job_id}: waits in the outbox for ever" for job in ledger.jobs.values() if job.outbox]
    found += _orders(ledger, said.orders)
    found += _executions(said)
    executed = {_attempt(entry): entry for entry in said.finished}
    tokens = {entry["token"]: entry for entry in said.finished}
    for job in ledger.jobs.values():
        found += [f"{job.job_id}: {what}" for what in _made_by(job, executed, tokens)]
        outside = (*_calls(job, said.filed), *_notices(job, said.told))
        found += [f"{job.job_id}: {what}" for what in (*_maps(job), *_ways(job), *outside)]
    called = {key: job.job_id for job in ledger.jobs.values() for key in _keys_of_calls(job)}
    strays = [(key, job_id) for key, (job_id, _) in said.filed.items() if called.get(key) != job_id]
    found += [f"{job_id}: {key} was filed for it, which is no call of it" for key, job_id in strays]
    return found


def _orders(ledger: Ledger, orders: list[Json]) -> Iterator[str]:
    """Check that each command is one job, the one its client knows, and ended as the client saw it."""
    told: Counter[str] = Counter()
    for order in orders:
        ids = set(order["answers"])
        if len(ids) != 1:
            yield f"order {order['number']} was answered with {sorted(ids)}"
            continue
        (job_id,) = ids
        told[job_id] += 1
        job = ledger.jobs.get(job_id)
        if job is None:
            yield f"order {order['number']}: {job_id} was accepted, and is lost"
            continue
        if (job.tenant_id, job.command["input_ref"]) != (order["tenant_id"], order["input_ref"]):
            yield f"order {order['number']}: {job_id} is somebody else's"
        if order["key"] is not None and job.key != f"key:{order['key']}":
            yield f"order {order['number']}: its key {order['key']} is kept as {job.key}"
        if job.status != order["status"]:
            yield f"order {order['number']}: its client saw it end {order['status']}, and it is {job.status}"
        if job.status not in (("SUCCEEDED", "CANCELLED") if order["cancel"] else ("SUCCEEDED",)):
            yield f"order {order['number']}: {job_id} ended {job.status}: {job.error}"
    for job_id, times in told.items():
        if times > 1:
            yield f"{job_id} is the answer to {times} orders"
    for job_id in ledger.jobs.keys() - told.keys():
        yield f"{job_id}: nobody asked for it"


def _executions(said: Histories) -> Iterator[str]:
    """Check that an attempt starts again only in another process, after a forced stop of the first."""
    by_attempt: dict[tuple[Any, ...], list[Json]] = defaultdict(list)
    for entry in said.began:
        by_attempt[_attempt(entry)].append(entry)
    for attempt, entries in by_attempt.items():
        entries.sort(key=lambda entry: float(entry["at"]))
        for earlier, later in pairwise(entries):
            if said.killed.get(earlier["pid"], float("inf")) > later["at"]:
                yield f"{attempt} was begun by {later['pid']} while {earlier['pid']} was at it"
    begun = {entry["token"] for entry in said.began}
    for entry in said.finished:
        if entry["token"] not in begun:
            yield f"{_attempt(entry)} was finished and never begun"


def _made_by(job: Job, executed: dict[tuple[Any, ...], Json], tokens: dict[str, Json]) -> Iterator[str]:
    """Check that the winning attempt made each result, from the results of winners before it."""
    for name, step in job.steps.items():
        if step.status != "SUCCEEDED" or step.kind != "task":
            continue
        current = step.current
        attempt = (job.job_id, name, current["attempt_no"], current["lease_id"])
        result = step.body.get("result") or {}
        made = tokens.get(result.get("token", ""))
        if made is None:
            yield f"step {name}: no service made its result {result}"
        elif _attempt(made) != attempt:
            yield f"step {name}: its result was made by {_attempt(made)}, and attempt {attempt} won"
        elif missing := {name for name in _maps_before(job, step) if name not in made["used"]}:
            yield f"step {name}: it was not given the results of {sorted(missing)}"
        elif {other: _signed(job.steps[other]) for other in made["used"]} != made["used"]:
            yield f"step {name}: it was made from results that did not count"
        if attempt not in executed:
            yield f"step {name}: no service finished attempt {attempt}"


def _signed(step: Step) -> Any:
    """Return the token of a result, or those of a map's items; None if no service made it."""
    result = step.body.get("result") or {}
    return [item["result"]["token"] for item in result["items"]] if step.kind == "map" else result.get("token")


def _maps_before(job: Job, step: Step) -> list[str]:
    if "." in step.body["step_id"]:
        return []  # an item of a map
    return [
        name for name, other in job.steps.items() if other.kind == "map" and other.body["index"] < step.body["index"]
    ]


def _maps(job: Job) -> Iterator[str]:
    """Check that a map ran one step `page.N` per page and has their results in that order."""
    for name, step in job.steps.items():
        if step.kind == "map" and step.status == "SUCCEEDED":
            wanted = [f"page.{number}" for number in range(len(job.command["payload"]["pages"]))]
            ran = {name for name, item in job.steps.items() if "." in name and item.status == "SUCCEEDED"}
            if ran != set(wanted):
                yield f"step {name}: its items are {wanted}, and these succeeded: {sorted(ran)}"
            elif [job.steps[item].body["result"] for item in wanted] != [
                item["result"] for item in step.body["result"]["items"]
            ]:
                yield f"step {name}: its result is not that of its items"


def _keys_of_calls(job: Job) -> list[str]:
    return [step.body["idempotency_key"] for step in job.steps.values() if step.kind == "external_call"]


def _calls(job: Job, filed: dict[str, tuple[str, str]]) -> Iterator[str]:
    for name, step in job.steps.items():
        if step.kind == "external_call" and step.status == "SUCCEEDED":
            told = (job.job_id, step.body["result"]["receipt"])
            if filed.get(step.body["idempotency_key"]) != told:
                yield f"step {name}: nobody gave it the receipt {told[1]}"


def _notices(job: Job, told: set[str]) -> Iterator[str]:
    for name, step in job.steps.items():
        if step.kind == "notify" and step.status == "SUCCEEDED" and job.job_id not in told:
            yield f"step {name}: nobody was told"


def _ways(job: Job) -> Iterator[str]:
    """Check that approval was required exactly with two or more pages, after both branches."""
    if "thick" not in job.steps or job.status != "SUCCEEDED":
        return
    asked = "agree" in job.steps and job.steps["agree"].status == "SUCCEEDED"
    if asked != (len(job.command["payload"]["pages"]) >= 2):
        yield f"it took the wrong way: asked somebody {asked}"
    for name in ("vectors", "breath", "both"):
        if name not in job.steps or job.steps[name].status != "SUCCEEDED":
            yield f"step {name} did not succeed, and the job did"


def _attempt(entry: Json) -> tuple[Any, ...]:
    return entry["jobId"], entry["stepId"], entry["attempt_no"], entry["lease_id"]
