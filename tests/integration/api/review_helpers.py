"""Review acts of operators, and jobs that get into the review queue."""

from typing import Any

from tests.integration.api.protocols import complete_step, fail_step, protocol, task
from tests.support.api import Answer, Api

WHY = {"reason": "seen and decided"}
BOOKED = protocol(
    "BOOKED",
    task("car", compensation=task("uncar")),
    task("hotel", compensation=task("unhotel")),
    task("pay", retry_safety="NOT_SAFE_TO_RETRY"),
    task("mail"),
)
MAPPED = protocol(
    "MAPPED",
    task("split"),
    {"step_id": "each", "kind": "map", "map": {"items": "input.pages", "steps": [task("scan"), task("read")]}},
    task("file"),
    input_schema={"type": "object", "properties": {"pages": {"type": "array"}}},
)
FORKED = protocol(
    "FORKED",
    task("scan"),
    {
        "step_id": "big",
        "kind": "decision",
        "decision": {"choices": [{"when": "steps.scan.result.pages > 9", "then": "split"}], "otherwise": "read"},
    },
    task("split", on_success="file"),
    task("read", on_success="file"),
    task("file", on_success="SUCCEED", on_failure="tell"),
    task("tell"),
)


async def items(api: Api, query: str = "", **options: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await api.get(f"/v1/review?{query}", **options)).ok()["items"]
    return listed


async def item(api: Api, query: str = "") -> dict[str, Any]:
    (found,) = await items(api, query)
    return found


async def show(api: Api, review_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await api.get(f"/v1/review/{review_id}")).ok()
    return shown


async def act(api: Api, review_id: str, name: str, **said: Any) -> Answer:
    return await api.post(f"/v1/review/{review_id}:{name}", {**WHY, **said})


def option(shown: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in shown["acts"] if entry["act"] == name)
    return found


async def failed_chain(api: Api, **command: Any) -> str:
    """Return a job that failed at its second step; its review item's id is the job id with the run."""
    job_id = await api.submit(request_type="CHAIN", **command)
    await complete_step(api, "scan")
    await fail_step(api, "read")
    return job_id


async def stale_ocr(api: Api, *, ended: bool) -> tuple[str, dict[str, Any]]:
    """Return a job whose fenced first attempt succeeded; the second still runs, or failed permanently with `ended`."""
    job_id = await api.submit()
    first = await api.pull_one()
    await api.sweep(after=31)
    await api.sweep(after=61)
    (await api.succeed(first, result={"pages": 7}, artifact_refs=["blob://w/text"])).problem(409, "STALE_CALLBACK")
    second = await api.pull_one()
    if ended:
        (await api.fail(second, failure_class="NON_RETRYABLE")).ok()
    return job_id, second


async def held_booking(api: Api) -> str:
    job_id = await api.submit(request_type="BOOKED")
    await complete_step(api, "car")
    await complete_step(api, "hotel")
    await fail_step(api, "pay")
    return job_id
