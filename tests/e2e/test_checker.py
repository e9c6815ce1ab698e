"""The checker finds every violation in a good ledger that is corrupted in one way after the other."""

import asyncio
import copy
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e import checker, checker_at_rest
from tests.e2e.replicas import Clients, Cluster, running
from tests.e2e.support import Json, Zygote, until
from tests.support.postgres import PostgresServer

SCHEMA = "checker"
ORDERS = 30

Tables = dict[str, list[Json]]


@dataclass
class Good:
    """Good ledger: `amid` read with all processes killed during work, `end` after all jobs had ended."""

    amid: Tables
    end: Tables
    said: checker_at_rest.Histories

    def found_amid(self) -> list[str]:
        return checker.always(checker.assemble(self.amid))

    def found_at_the_end(self) -> list[str]:
        ledger = checker.assemble(self.end)
        return checker.always(ledger) + checker_at_rest.at_rest(ledger, self.said)


async def a_run(zygote: Zygote, postgres: PostgresServer, folder: Path) -> Good:
    cluster = Cluster(zygote, folder / "cluster", postgres.url(SCHEMA), "local:", apis=2, reconcilers=1, workers=2)
    clients = Clients(cluster.urls, random.Random(1))
    async with running(cluster), asyncio.TaskGroup() as group:
        group.create_task(clients.run(clients=8, orders=ORDERS))
        await clients.progress(12)
        amid = await asyncio.to_thread(_stop_amid, cluster, postgres)
        await asyncio.to_thread(cluster.start_all)
    return Good(amid, checker.read(postgres.query, SCHEMA), cluster.histories(clients.orders))


def _stop_amid(cluster: Cluster, postgres: PostgresServer) -> Tables:
    """Kill the services, wait for an outbox row, kill the rest and return the tables.

    The row must be a second old: a pull that is still under way could take a newer one.
    """
    for name in cluster.workers:
        cluster.kill(name)
    since: dict[str, float] = {}

    def waits() -> bool:
        for row in postgres.query(f"SELECT outbox_id FROM {SCHEMA}.outbox WHERE claimed_at IS NULL"):
            since.setdefault(row["outbox_id"], time.monotonic())
            if time.monotonic() - since[row["outbox_id"]] > 1:
                return True
        return False

    until(waits, "something waits in the outbox")
    cluster.kill_all()
    return checker.read(postgres.query, SCHEMA)


@pytest.fixture(scope="module")
def made(forks: Zygote, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Good]:
    yield asyncio.run(a_run(forks, postgres, tmp_path_factory.mktemp("checker")))
    postgres.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def good(made: Good) -> Good:
    return copy.deepcopy(made)


def test_good_ledger_has_no_findings(good: Good) -> None:
    assert good.found_amid() == []
    assert good.found_at_the_end() == []
    assert len(good.end["jobs"]) == ORDERS
    kinds = {"task", "map", "parallel", "decision", "human_approval", "external_call", "wait", "notify"}
    assert {json.loads(row["body"])["kind"] for row in good.end["steps"]} == kinds
    assert {row["name"].partition("/")[0] for row in good.amid["counters"] if row["value"]} >= {"jobs", "pending"}


@pytest.mark.parametrize("module", [checker, checker_at_rest])
def test_checker_imports_no_code_of_lucius(module: ModuleType) -> None:
    source = Path(module.__file__ or "").read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import", "from"))}
    assert {name for name in imported if name.partition(".")[0] in ("lucius", "tests")} <= {"tests.e2e.checker"}


# Each corrupts one thing.


def lose_a_job(good: Good) -> None:
    lost = good.end["jobs"][3]["id"]
    for name, rows in good.end.items():
        good.end[name] = [row for row in rows if row.get("job", row.get("id")) != lost]


def lose_a_head(good: Good) -> None:
    good.end["done"].pop()


def have_a_job_live_and_done(good: Good) -> None:
    good.end["live"].append(good.end["done"][0])


def add_a_job_that_was_never_submitted(good: Good) -> None:
    good.said.orders.pop()


def answer_a_client_with_two_jobs(good: Good) -> None:
    good.said.orders[0]["answers"].append(good.said.orders[1]["answers"][0])


def give_two_orders_one_job(good: Good) -> None:
    good.said.orders[1]["answers"] = good.said.orders[0]["answers"]


def end_otherwise_than_the_client_saw(good: Good) -> None:
    good.said.orders[2]["status"] = "FAILED_FINAL"


def use_a_key_twice(good: Good) -> None:
    good.end["jobs"][1] |= {name: good.end["jobs"][0][name] for name in ("tenant_id", "key")}


def count_one_too_many(good: Good) -> None:
    next(row for row in good.amid["counters"] if row["name"] == "jobs")["value"] += 1


def count_one_too_few_of_a_lane(good: Good) -> None:
    next(row for row in good.amid["counters"] if row["name"].startswith("pending/") and row["value"])["value"] -= 1


def leave_a_counter_behind(good: Good) -> None:
    good.end["counters"].append({"name": "unacked/ocr", "value": 1})


def lose_an_outbox_row(good: Good) -> None:
    good.amid["outbox"].pop()


def leave_an_outbox_row_of_an_old_attempt(good: Good) -> None:
    good.amid["outbox"][0]["attempt_no"] += 1


def lose_an_event(good: Good) -> None:
    """Remove the last event of a job's first commit, so that others follow it."""
    row = good.end["events"][0]
    row["body"] = json.dumps(json.loads(row["body"])[:-1])


def edit_an_event(good: Good) -> None:
    def edit(events: list[Json]) -> None:
        events[1]["at"] += 1

    _events_of_a_job(good, edit, sealed=False)


def apply_a_result_twice(good: Good) -> None:
    def double(events: list[Json]) -> None:
        place = next(n for n, event in enumerate(events) if _applied_result(event))
        events.insert(place + 1, copy.deepcopy(events[place]) | {"attempts": {}})

    _events_of_a_job(good, double)


def apply_a_result_after_the_end(good: Good) -> None:
    def late(events: list[Json]) -> None:
        again = copy.deepcopy(next(event for event in events if _applied_result(event)))
        events.append(again | {"attempts": {}, "at": events[-1]["at"]})

    _events_of_a_job(good, late)


def end_a_job_twice(good: Good) -> None:
    def again(events: list[Json]) -> None:
        events.append(copy.deepcopy(next(event for event in events if event["type"] == "JOB_SUCCEEDED")))
        events[-1] |= {"attempts": {}, "at": events[-2]["at"]}

    _events_of_a_job(good, again)


def dispatch_an_attempt_number_again(good: Good) -> None:
    def again(events: list[Json]) -> None:
        events.insert(2, copy.deepcopy(next(event for event in events if event["type"] == "STEP_DISPATCHED")))
        events[2] |= {"attempts": {}, "at": events[1]["at"]}

    _events_of_a_job(good, again)


def lose_an_attempt(good: Good) -> None:
    good.end["attempts"].pop()


def edit_an_attempt(good: Good) -> None:
    row = good.end["attempts"][0]
    body = json.loads(row["body"])
    body["attempt"]["created_at"] -= 1
    row["body"] = json.dumps(body, separators=(",", ":"))


def keep_a_late_success_that_no_service_reported(good: Good) -> None:
    row = good.end["attempts"][0]
    place = {name: row[name] for name in ("job", "step_id", "attempt_no")}
    good.end["quarantine"].append({**place, "lease_id": "another", "body": "{}"})


def leave_a_step_at_work(good: Good) -> None:
    row = good.end["steps"][0]
    row["status"] = "PROCESSING"
    row["body"] = json.dumps(json.loads(row["body"]) | {"status": "PROCESSING"})


def take_the_result_of_another_step(good: Good) -> None:
    one, other = [row for row in good.end["steps"] if _succeeded(row, "task")][:2]
    one["body"] = json.dumps(json.loads(one["body"]) | {"result": json.loads(other["body"])["result"]})


def execute_an_attempt_twice_at_once(good: Good) -> None:
    good.said.began.append(good.said.began[0] | {"pid": -1, "token": "other", "at": good.said.began[0]["at"] + 0.001})


def make_a_result_of_one_that_did_not_count(good: Good) -> None:
    for entry in good.said.finished:
        if entry["used"]:
            entry["used"] = dict.fromkeys(entry["used"], "never")


def repair_something(good: Good) -> None:
    _events_of_a_job(good, lambda events: events.insert(1, events[0] | {"type": "DRIFT_REPAIRED", "attempts": {}}))


def mix_up_the_items_of_a_map(good: Good) -> None:
    row = next(row for row in good.end["steps"] if _succeeded(row, "map") and json.loads(row["body"])["items"][1:])
    body = json.loads(row["body"])
    body["result"]["items"].reverse()
    row["body"] = json.dumps(body)


def lose_an_item_of_a_map(good: Good) -> None:
    place = next(n for n, row in enumerate(good.end["steps"]) if row["step_id"] == "page.1")
    del good.end["steps"][place]


def leave_a_map_at_work(good: Good) -> None:
    live = {row["id"] for row in good.amid["live"]}
    row = copy.deepcopy(next(row for row in good.amid["steps"] if row["job"] in live))
    body = json.loads(row["body"]) | {"step_id": "left", "kind": "map", "status": "PROCESSING"}
    good.amid["steps"].append(row | {"step_id": "left", "status": "PROCESSING", "body": json.dumps(body)})


def lose_an_input(good: Good) -> None:
    for entry in good.said.finished:
        entry["used"].pop("pages", None)


def begin_a_step_again(good: Good) -> None:
    row = next(row for row in good.end["steps"] if _succeeded(row, "wait"))
    body = json.loads(row["body"])
    body["attempt"]["attempt_no"] = 2
    row["body"] = json.dumps(body)


def succeed_again(good: Good) -> None:
    def again(events: list[Json]) -> None:
        place = next(n for n, event in enumerate(events) if event["type"] == "STEP_SUCCEEDED")
        events.insert(place + 1, copy.deepcopy(events[place]) | {"attempts": {}})

    _events_of_a_job(good, again)


def lose_a_vote(good: Good) -> None:
    row = next(row for row in good.end["steps"] if _succeeded(row, "human_approval"))
    row["body"] = json.dumps(json.loads(row["body"]) | {"votes": []})


def lose_an_outgoing_call(good: Good) -> None:
    good.said.filed.clear()


def lose_a_webhook(good: Good) -> None:
    good.said.told.clear()


def take_the_wrong_way(good: Good) -> None:
    """Reduce the pages of a dossier that needed approval."""
    ended = {row["id"] for row in good.end["done"] if row["status"] == "SUCCEEDED"}
    row = next(row for row in good.end["steps"] if _succeeded(row, "human_approval") and row["job"] in ended)
    job = next(job for job in good.end["jobs"] if job["id"] == row["job"])
    job["command"] = json.dumps(json.loads(job["command"]) | {"payload": {"pages": [0]}})


def leave_out_a_branch(good: Good) -> None:
    ended = {row["id"] for row in good.end["done"] if row["status"] == "SUCCEEDED"}
    row = next(row for row in good.end["steps"] if row["step_id"] == "breath" and row["job"] in ended)
    row["status"] = "SKIPPED"


def decide_twice(good: Good) -> None:
    row = next(row for row in good.end["steps"] if _succeeded(row, "decision"))
    body = json.loads(row["body"])
    body["attempt"]["attempt_no"] = 2
    row["body"] = json.dumps(body)


def file_for_a_step_that_is_not_there(good: Good) -> None:
    good.said.filed["of-nobody"] = ("j", "receipt")


def _succeeded(row: Json, kind: str) -> bool:
    return (row["status"], json.loads(row["body"])["kind"]) == ("SUCCEEDED", kind)


def _applied_result(event: Json) -> bool:
    return (event["type"], event.get("data", {}).get("disposition")) == ("CALLBACK_RESULT", "APPLIED")


def _events_of_a_job(good: Good, spoil: Callable[[list[Json]], None], *, sealed: bool = True) -> None:
    """Corrupt a finished job's events; if `sealed`, with valid hashes, so that nothing else is wrong."""
    head = next(row for row in good.end["done"] if row["status"] == "SUCCEEDED")
    job_id = next(row["job_id"] for row in good.end["jobs"] if row["id"] == head["id"])
    rows = [row for row in good.end["events"] if row["job"] == head["id"]]
    events = [event for row in rows for event in json.loads(row["body"])]
    spoil(events)
    before = ""
    for seq, event in enumerate(events, 1):
        event["seq"] = seq
        if sealed:
            before = event["hash"] = checker.hash_event(before, job_id, event)
    body = json.loads(head["body"])
    if sealed:
        head["body"] = json.dumps(body | {"event_seq": len(events), "event_hash": before})
    good.end["events"] = [row for row in good.end["events"] if row["job"] != head["id"]]
    good.end["events"].append({"job": head["id"], "seq": 1, "body": json.dumps(events)})


SPOILT: list[tuple[Callable[[Good], None], str]] = [
    (lose_a_job, "was accepted, and is lost"),
    (lose_a_head, "0 times among the live and the done"),
    (have_a_job_live_and_done, "2 times among the live and the done"),
    (add_a_job_that_was_never_submitted, "nobody asked for it"),
    (answer_a_client_with_two_jobs, "was answered with"),
    (give_two_orders_one_job, "is the answer to 2 orders"),
    (end_otherwise_than_the_client_saw, "its client saw it end FAILED_FINAL"),
    (use_a_key_twice, "2 jobs have the key"),
    (count_one_too_many, "the counter jobs is"),
    (count_one_too_few_of_a_lane, "the counter pending/"),
    (leave_a_counter_behind, "unacked/ocr is 1 although all have ended"),
    (lose_an_outbox_row, "is DISPATCHING, and not in the outbox"),
    (leave_an_outbox_row_of_an_old_attempt, "waits in the outbox, and is not the current one"),
    (lose_an_event, "are missing"),
    (edit_an_event, "was edited, or what came before it was"),
    (apply_a_result_twice, "2 results of attempt"),
    (apply_a_result_after_the_end, "was applied after its end"),
    (repair_something, "something of it was missing"),
    (end_a_job_twice, "2 ends in 1 runs"),
    (dispatch_an_attempt_number_again, "attempts were dispatched as [1, 1"),
    (lose_an_attempt, "has ended, and is not there"),
    (edit_an_attempt, "is not as it ended"),
    (keep_a_late_success_that_no_service_reported, "kept and not told of"),
    (leave_a_step_at_work, "are at work"),
    (take_the_result_of_another_step, "its result was made by"),
    (execute_an_attempt_twice_at_once, "was begun by -1 while"),
    (make_a_result_of_one_that_did_not_count, "made from results that did not count"),
    (mix_up_the_items_of_a_map, "its result is not that of its items"),
    (begin_a_step_again, "began 1 times, and is in attempt 2"),
    (succeed_again, "succeeded 2 times"),
    (lose_a_vote, "1 votes were heard, 0 are kept"),
    (lose_an_outgoing_call, "nobody gave it the receipt"),
    (lose_a_webhook, "nobody was told"),
    (take_the_wrong_way, "it took the wrong way"),
    (leave_out_a_branch, "step breath did not succeed, and the job did"),
    (decide_twice, "step thick began 1 times, and is in attempt 2"),
    (file_for_a_step_that_is_not_there, "which is no call of it"),
    (lose_an_item_of_a_map, "and these succeeded"),
    (leave_a_map_at_work, "as at work, its steps"),
    (lose_an_input, "it was not given the results of ['pages']"),
]


def test_tenant_above_its_job_limit_is_found(good: Good) -> None:
    ledger = checker.assemble(good.amid)
    live = [job.tenant_id for job in ledger.jobs.values() if job.live]
    most = max(live.count(tenant) for tenant in live)
    assert checker.above(ledger, most) == []
    assert checker.above(ledger, most - 1)


@pytest.mark.parametrize(("spoil", "expected"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
def test_each_corruption_of_the_ledger_is_found(good: Good, spoil: Callable[[Good], None], expected: str) -> None:
    spoil(good)
    found = good.found_amid() + good.found_at_the_end()
    assert any(expected in what for what in found), found
