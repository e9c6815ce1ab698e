"""A dry run predicts what happens if all goes well."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.api.protocols import CHAIN, Document, Serve, complete_step, fail_step, protocol, task
from tests.integration.api.review_helpers import BOOKED, FORKED, MAPPED, act, failed_chain, held_booking, item
from tests.support.api import Api

SLOW_MAP = protocol(
    "SLOW_MAP",
    task("split"),
    {
        "step_id": "each",
        "kind": "map",
        "map": {"items": "input.pages", "max_parallel": 2, "steps": [task("scan"), task("read")]},
    },
    task("file"),
    input_schema={"type": "object", "properties": {"pages": {"type": "array"}}},
)
BRANCHES = protocol(
    "BRANCHES",
    task("split"),
    {
        "step_id": "both",
        "kind": "parallel",
        "parallel": {"branches": {"left": [task("scan"), task("read")], "right": [task("ocr")]}, "join": "collect"},
    },
    task("file"),
)
PROMISED = protocol("PROMISED", task("scan"), task("read"), output_schema={"type": "object", "required": ["text"]})
UNDOING = protocol(
    "UNDOING",
    task("car", compensation=task("uncar")),
    task("pay", retry_safety="NOT_SAFE_TO_RETRY"),
    task("mail"),
    policies={"compensation": "auto"},
)
LOOPED = protocol(
    "LOOPED",
    task("scan"),
    task("read", on_failure="mend"),
    task("file", on_success="SUCCEED"),
    task("mend", on_success="scan"),
)
SIDE_BY_SIDE = protocol(
    "SIDE_BY_SIDE",
    {
        "step_id": "both",
        "kind": "parallel",
        "parallel": {
            "branches": {
                "left": [task("car", compensation=task("uncar")), task("hotel")],
                "right": [task("pay", retry_safety="NOT_SAFE_TO_RETRY")],
            }
        },
    },
    task("mail"),
    policies={"compensation": "auto"},
)
SERVICES = ("split", "scan", "read", "ocr", "file", "car", "hotel", "pay", "mail", "mend", "tell")

Story = Callable[[Api], Awaitable[str]]


async def run_to_the_end(api: Api, job_id: str, **results: Any) -> None:
    """Let every service succeed until the job has ended."""
    for _ in range(50):
        for service in SERVICES:
            for directive in await api.pull(service, max=100):
                (await api.succeed(directive, result=results.get(service, {"pages": 3, "text": "x"}))).ok()
        await api.sweep()
        if (await api.job(job_id))["completed_at"]:
            return
    raise AssertionError("the job does not end")


async def executed_steps(api: Api, job_id: str, run_no: int) -> tuple[set[str], set[str]]:
    """Return the steps that this run repeated and those it did for the first time, according to its attempts."""
    attempts = (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"]
    made = [a for a in attempts if a["handed_over_at"] is not None]
    again = {a["stepId"] for a in made if a["run_no"] < run_no}
    now = {a["stepId"] for a in made if a["run_no"] == run_no}
    return now & again, now - again


async def chain(api: Api) -> str:
    return await failed_chain(api)


async def pages(api: Api, request_type: str, *names: str) -> str:
    """Return a job over pages whose first one can't be read."""
    job_id = await api.submit(request_type=request_type, payload={"pages": list(names)})
    await complete_step(api, "split")
    for directive in await api.pull("scan", max=10):
        (await api.succeed(directive)).ok()
    for directive in await api.pull("read", max=10):
        if directive["item"] == names[0]:
            (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
    await api.sweep()
    return job_id


async def mapped(api: Api) -> str:
    return await pages(api, "MAPPED", "a", "b", "c")


async def slow_map(api: Api) -> str:
    return await pages(api, "SLOW_MAP", "a", "b", "c", "d", "e")


async def started_over(api: Api) -> str:
    """Return a job whose first run did all pages; started over by an operator, it fails before redoing all of them."""
    job_id = await api.submit(request_type="SLOW_MAP", payload={"pages": ["a", "b", "c", "d"]})
    await complete_step(api, "split")
    for service in ("scan", "read", "scan", "read"):
        for directive in await api.pull(service, max=10):
            (await api.succeed(directive)).ok()
    await fail_step(api, "file")
    (await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "split"})).ok(202)
    await complete_step(api, "split")
    first, second = await api.pull("scan", max=10)
    (await api.succeed(first)).ok()
    (await api.fail(second, failure_class="NON_RETRYABLE")).ok()
    await api.sweep()
    return job_id


async def branches(api: Api) -> str:
    """Return a job with one failed branch, which was collected; the step after the branches fails."""
    job_id = await api.submit(request_type="BRANCHES")
    await complete_step(api, "split")
    await complete_step(api, "scan")
    await fail_step(api, "ocr")
    await complete_step(api, "read")
    await fail_step(api, "file")
    return job_id


async def forked(api: Api) -> str:
    job_id = await api.submit(request_type="FORKED")
    await complete_step(api, "scan", result={"pages": 3})
    await fail_step(api, "read")
    return job_id


async def promised(api: Api) -> str:
    """Return a job whose steps all succeeded, with a result that does not match the protocol's promise."""
    job_id = await api.submit(request_type="PROMISED")
    await complete_step(api, "scan")
    await complete_step(api, "read", result={"pages": 3})
    return job_id


async def undone(api: Api) -> str:
    job_id = await api.submit(request_type="UNDOING")
    await complete_step(api, "car")
    await fail_step(api, "pay")
    await complete_step(api, "uncar")
    return job_id


async def undone_inside(api: Api) -> str:
    job_id = await api.submit(request_type="SIDE_BY_SIDE")
    await complete_step(api, "car")
    await complete_step(api, "hotel")
    await fail_step(api, "pay")
    await complete_step(api, "uncar")
    return job_id


async def looped(api: Api) -> str:
    """Return a job whose second round fails."""
    job_id = await api.submit(request_type="LOOPED")
    await complete_step(api, "scan")
    await fail_step(api, "read")
    await fail_step(api, "mend")
    return job_id


async def booked(api: Api) -> str:
    return await held_booking(api)


CASES: list[Any] = [
    pytest.param(CHAIN, chain, {}, id="chain"),
    pytest.param(CHAIN, chain, {"from_step": "scan"}, id="chain from its start"),
    pytest.param(MAPPED, mapped, {}, id="map"),
    pytest.param(MAPPED, mapped, {"from_step": "split"}, id="map from the step before it"),
    pytest.param(MAPPED, mapped, {"from_step": "each"}, id="whole map again"),
    pytest.param(SLOW_MAP, slow_map, {}, id="map with unbegun items"),
    pytest.param(SLOW_MAP, started_over, {}, id="restarted run"),
    pytest.param(BRANCHES, branches, {}, id="after branches"),
    pytest.param(BRANCHES, branches, {"from_step": "both"}, id="branches again"),
    pytest.param(FORKED, forked, {}, id="after a decision"),
    pytest.param(PROMISED, promised, {}, id="result that breaks the output schema"),
    pytest.param(UNDOING, undone, {}, id="compensated job"),
    pytest.param(SIDE_BY_SIDE, undone_inside, {}, id="compensated branch"),
    pytest.param(BOOKED, booked, {}, id="held job"),
    pytest.param(LOOPED, looped, {}, id="loop"),
]


async def act_as_predicted(api: Api, job_id: str, name: str, **asked: Any) -> dict[str, Any]:
    """Return the dry run's response, after checking that the act does the same."""
    review_id = (await item(api))["review_id"]
    would: dict[str, Any] = (await act(api, review_id, name, dry_run=True, **asked)).ok()
    outcome = (await act(api, review_id, name, **asked)).ok()
    assert {**would, "outcome": "APPLIED"} == outcome
    await run_to_the_end(api, job_id)
    again, first = await executed_steps(api, job_id, outcome["run_no"])
    assert again == set(would["re_executes"])
    assert {name.partition(".")[0] for name in first} == {name for name in would["runs"] if name in SERVICES}
    assert not (again | first) & set(would["keeps"])
    assert (await api.job(job_id))["status"] == "SUCCEEDED"
    return would


@pytest.mark.parametrize(("document", "story", "asked"), CASES)
async def test_retry_does_what_its_dry_run_predicted(
    serve: Serve, document: Document, story: Story, asked: dict[str, str]
) -> None:
    api = await serve(document)
    assert (await act_as_predicted(api, await story(api), "retry", **asked))["re_executes"]


@pytest.mark.parametrize(
    ("document", "story"),
    [
        pytest.param(CHAIN, chain, id="chain"),
        pytest.param(MAPPED, mapped, id="map item"),
        pytest.param(SLOW_MAP, slow_map, id="item of a map with unbegun items"),
        pytest.param(BRANCHES, branches, id="after branches"),
        pytest.param(PROMISED, promised, id="result that breaks the output schema"),
        pytest.param(BOOKED, booked, id="held job"),
        pytest.param(LOOPED, looped, id="loop"),
    ],
)
async def test_skip_does_what_its_dry_run_predicted(serve: Serve, document: Document, story: Story) -> None:
    api = await serve(document)
    job_id = await story(api)
    skipped = (await item(api))["stepId"]
    assert skipped in (await act_as_predicted(api, job_id, "skip", result={"text": "typed"}))["keeps"]
