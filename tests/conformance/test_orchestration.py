"""The contract of orchestration engines, over every ledger; the cost of a step does not grow with the job's length."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest
import yaml

from lucius.bootstrap.settings import Settings
from tests.support.api import Api, serving, settings_for

CHAIN, MAPPED = 200, 1_000

task = {"step_type": "OCR", "service": "ocr"}


def protocol(request_type: str, *steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    named = {"protocol_id": request_type.lower(), "version": 1, "request_type": request_type}
    return {**named, "steps": list(steps), **members}


PROTOCOLS = [
    protocol("RETRIED", {"step_id": "ocr", **task, "retry_policy": {"max_attempts": 2, "backoff_strategy": "fixed"}}),
    protocol(
        "PAYMENT",
        {"step_id": "reserve", **task, "compensation": {"step_id": "release", **task}},
        {"step_id": "pay", **task, "retry_safety": "NOT_SAFE_TO_RETRY"},
    ),
    protocol("CHAIN", *({"step_id": f"s{n}", **task} for n in range(CHAIN))),
    protocol(
        "MAPPED",
        {
            "step_id": "pages",
            "kind": "map",
            "map": {"items": "input.pages", "max_parallel": 32, "steps": [{"step_id": "ocr", **task}]},
        },
        input_schema={"type": "object", "properties": {"pages": {"type": "array"}}},
    ),
]


def settings_with_protocols(tmp_path: Path, ledger_url: str, **changes: Any) -> Settings:
    folder = tmp_path / "protocols"
    folder.mkdir()
    for number, document in enumerate(PROTOCOLS):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(document))
    return settings_for(tmp_path, ledger_url=ledger_url, protocols_dir=folder, **changes)


@pytest.fixture
async def api(ledger_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_with_protocols(tmp_path, ledger_url)) as api:
        yield api


async def statuses(api: Api, job_id: str) -> dict[str, str]:
    return {step["stepId"]: step["status"] for step in (await api.job(job_id))["steps"]}


async def open_items(api: Api, job_id: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await api.get(f"/v1/review?jobId={job_id}")).ok()["items"]
    return items


async def test_repeated_command_is_one_job(api: Api) -> None:
    command = api.command(request_type="RETRIED", idempotency_key="once")
    answers = await asyncio.gather(*(api.post("/v1/commands", command) for _ in range(5)))
    told = [answer.ok(202) for answer in answers]
    assert len({answer["jobId"] for answer in told}) == 1
    assert [answer["duplicate"] for answer in told].count(False) == 1
    assert len(await api.pull(max=10)) == 1


async def test_attempts_of_a_step_share_an_idempotency_key(api: Api) -> None:
    job_id = await api.submit(request_type="RETRIED")
    first = await api.pull_one()
    (await api.fail(first)).ok()
    await api.sweep(after=600)
    second = await api.pull_one()
    assert first["attempt_no"] < second["attempt_no"]
    assert first["idempotency_key"] == second["idempotency_key"]
    again = (await api.succeed(second)).ok(), (await api.succeed(second)).ok()
    assert [answer["disposition"] for answer in again] == ["APPLIED", "DUPLICATE"]
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("failure_class", "step", "kind"),
    [
        ("TRANSIENT", "FAILED_RETRY", None),
        ("RETRYABLE", "FAILED_RETRY", None),
        ("RATE_LIMITED", "FAILED_RETRY", None),
        ("DEPENDENCY_FAILED", "FAILED_RETRY", None),
        ("NON_RETRYABLE", "FAILED_FINAL", "JOB_FAILED"),
        ("COMPENSATION_REQUIRED", "FAILED_FINAL", "COMPENSATION"),
    ],
)
async def test_failure_class_leads_to_the_documented_status_and_review_item(
    api: Api, failure_class: str, step: str, kind: str | None
) -> None:
    job_id = await api.submit(request_type="RETRIED")
    (await api.fail(await api.pull_one(), failure_class=failure_class)).ok()
    assert await statuses(api, job_id) == {"ocr": step}
    assert [item["kind"] for item in await open_items(api, job_id)] == ([kind] if kind else [])


async def test_exhausted_retries_open_a_review_item(api: Api) -> None:
    job_id = await api.submit(request_type="RETRIED")
    for _ in range(2):
        (await api.fail(await api.pull_one(), failure_class="TRANSIENT")).ok()
        await api.sweep(after=600)
    assert (await api.job(job_id))["status"] == "FAILED_FINAL"
    (item,) = await open_items(api, job_id)
    assert (item["kind"], item["status"], item["stepId"]) == ("JOB_FAILED", "OPEN", "ocr")
    acted = await api.post(f"/v1/review/{item['review_id']}:retry", {"reason": "the service is mended"})
    acted.ok()
    (await api.succeed(await api.pull_one())).ok()
    job = await api.job(job_id)
    assert (job["status"], job["run_no"], job["runs"][0]["status"]) == ("SUCCEEDED", 2, "FAILED_FINAL")
    assert await open_items(api, job_id) == []


async def test_heartbeat_counts_are_shown_in_the_job(api: Api) -> None:
    job_id = await api.submit(request_type="RETRIED")
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    counts = {"done": 7, "total": 20, "unit": "page"}
    (await api.callback("heartbeat", directive, progress=counts)).ok()
    async with asyncio.timeout(20):
        while (step := await api.step(job_id))["progress_counts"] is None:  # noqa: ASYNC110 - heartbeats leave no event
            await asyncio.sleep(0.01)
    assert (step["progress"], step["progress_counts"]) == (0.35, counts)
    assert "page 7 of 20" in (await api.job(job_id))["blocked_on"]["message"]
    (await api.succeed(directive)).ok()


async def test_two_workers_never_get_the_same_attempt(api: Api) -> None:
    jobs = {await api.submit(request_type="RETRIED", idempotency_key=str(n)) for n in range(20)}
    given: list[tuple[str, int]] = []
    while pulls := [pulled for pulled in await asyncio.gather(*(api.pull(max=3) for _ in range(20))) if pulled]:
        given += [(directive["jobId"], directive["attempt_no"]) for pulled in pulls for directive in pulled]
    assert sorted(given) == sorted((job_id, 1) for job_id in jobs)


async def test_required_compensation_holds_the_job_until_an_operator_acts(api: Api) -> None:
    job_id = await api.submit(request_type="PAYMENT")
    (await api.succeed(await api.pull_one())).ok()
    (await api.fail(await api.pull_one(), failure_class="TRANSIENT")).ok()
    job = await api.job(job_id)
    assert (job["status"], job["blocked_on"]["reason"]) == ("PAUSED", "REVIEW")
    assert await api.pull(max=5) == []
    (item,) = await open_items(api, job_id)
    (await api.post(f"/v1/jobs/{job_id}:resume", {"reason": "go on"})).problem(409, "REVIEW_OPEN")
    (await api.post(f"/v1/review/{item['review_id']}:compensate", {"reason": "give it back"})).ok()
    undo = await api.pull_one()
    assert (undo["stepId"], undo["compensates"]) == ("release", "reserve")
    (await api.succeed(undo)).ok()
    job = await api.job(job_id)
    assert (job["status"], job["compensation"]["status"]) == ("FAILED_FINAL", "COMPLETED")
    assert await open_items(api, job_id) == []


class Costs:
    """Completes steps as they are dispatched and records the CPU time of each: its share of the pull, and its result.

    Two jobs alternate, so that a busy machine slows both alike. The cost of a ledger with many jobs is not measured
    here: the benchmarks do that.
    """

    def __init__(self, api: Api, at_once: int) -> None:
        self.api = api
        self.at_once = at_once
        self.spent: dict[str, list[float]] = defaultdict(list)
        self.most_of_a_job = 0
        self.given: list[dict[str, Any]] = []

    async def settle(self, job_id: str, until: int) -> None:
        """Complete steps until `until` steps of the job are done, including steps of the other job pulled meanwhile."""
        while len(self.spent[job_id]) < until:
            started = process_time()
            directives = await self.api.pull(max=self.at_once)
            assert directives
            share = (process_time() - started) / len(directives)
            jobs = [directive["jobId"] for directive in directives]
            self.most_of_a_job = max(self.most_of_a_job, *map(jobs.count, jobs))
            self.given += directives
            for directive in directives:
                started = process_time()
                (await self.api.succeed(directive, result={"item": directive.get("item")})).ok()
                self.spent[directive["jobId"]].append(share + process_time() - started)

    async def growth(self, job_id: str, until: int, young: str) -> float:
        """Return the ratio of the cost of a step at the end of the first job to that at the start of the second."""
        before = len(self.spent[job_id])
        await self.settle(job_id, until)
        late, early = self.spent[job_id][before:], self.spent[young]
        assert min(len(late), len(early)) > 30
        return median(late) / median(early)


async def test_cost_per_step_of_a_protocol_of_200_steps_does_not_grow(api: Api) -> None:
    costs = Costs(api, at_once=1)
    job_id = await api.submit(request_type="CHAIN", idempotency_key="old")
    await costs.settle(job_id, until=CHAIN - 60)
    young = await api.submit(request_type="CHAIN", idempotency_key="young")
    grown = await costs.growth(job_id, CHAIN, young)
    assert (await api.job(job_id))["status"] == "SUCCEEDED"
    assert grown < 2.5, grown  # a directive names the results of all earlier steps, so that part grows


async def test_cost_per_item_of_a_map_over_1000_items_does_not_grow(api: Api) -> None:
    costs, pages = Costs(api, at_once=64), list(range(MAPPED))
    job_id = await api.submit(request_type="MAPPED", payload={"pages": pages}, idempotency_key="old")
    await costs.settle(job_id, until=MAPPED - 250)
    young = await api.submit(request_type="MAPPED", payload={"pages": pages}, idempotency_key="young")
    grown = await costs.growth(job_id, MAPPED, young)
    job = await api.job(job_id)
    assert job["status"] == "SUCCEEDED"
    assert 16 <= costs.most_of_a_job <= 32
    items = [(d["stepId"], d["item_index"]) for d in costs.given if d["jobId"] == job_id]
    assert sorted(items) == sorted((f"ocr.{page}", page) for page in pages)
    assert [item["result"]["item"] for item in job["output"]["items"]] == pages
    assert grown < 1.6, grown
