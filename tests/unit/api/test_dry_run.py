"""What a dry run says is what then happens, when all goes well."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.api import Api
from tests.unit.api.kinds import CHAIN, Document, Serve, break_, do, protocol, task
from tests.unit.api.reviewing import BOOKED, FORKED, MAPPED, act, failed_chain, held_booking, item

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


async def play(api: Api, job_id: str, **results: Any) -> None:
    """Every service succeeds at whatever it gets, until the job has ended."""
    for _ in range(50):
        for service in SERVICES:
            for directive in await api.pull(service, max=100):
                (await api.succeed(directive, result=results.get(service, {"pages": 3, "text": "x"}))).ok()
        await api.sweep()
        if (await api.job(job_id))["completed_at"]:
            return
    raise AssertionError("the job does not end")


async def executed(api: Api, job_id: str, run_no: int) -> tuple[set[str], set[str]]:
    """Steps that this run did again, and those that it did for the first time, by the attempts that were made."""
    attempts = (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"]
    made = [a for a in attempts if a["handed_over_at"] is not None]
    again = {a["stepId"] for a in made if a["run_no"] < run_no}
    now = {a["stepId"] for a in made if a["run_no"] == run_no}
    return now & again, now - again


async def chain(api: Api) -> str:
    return await failed_chain(api)


async def pages(api: Api, request_type: str, *names: str) -> str:
    """A job over pages whose first one can't be read."""
    job_id = await api.submit(request_type=request_type, payload={"pages": list(names)})
    await do(api, "split")
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
    """Done once, then started over by a person; it fails before it has come to what the first run did."""
    job_id = await api.submit(request_type="SLOW_MAP", payload={"pages": ["a", "b", "c", "d"]})
    await do(api, "split")
    for service in ("scan", "read", "scan", "read"):
        for directive in await api.pull(service, max=10):
            (await api.succeed(directive)).ok()
    await break_(api, "file")
    (await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "split"})).ok(202)
    await do(api, "split")
    first, second = await api.pull("scan", max=10)
    (await api.succeed(first)).ok()
    (await api.fail(second, failure_class="NON_RETRYABLE")).ok()
    await api.sweep()
    return job_id


async def branches(api: Api) -> str:
    """One branch has failed and was collected; what comes after them fails."""
    job_id = await api.submit(request_type="BRANCHES")
    await do(api, "split")
    await do(api, "scan")
    await break_(api, "ocr")
    await do(api, "read")
    await break_(api, "file")
    return job_id


async def forked(api: Api) -> str:
    job_id = await api.submit(request_type="FORKED")
    await do(api, "scan", result={"pages": 3})
    await break_(api, "read")
    return job_id


async def promised(api: Api) -> str:
    """Every step succeeded, and what came of it is not what the protocol promises."""
    job_id = await api.submit(request_type="PROMISED")
    await do(api, "scan")
    await do(api, "read", result={"pages": 3})
    return job_id


async def undone(api: Api) -> str:
    job_id = await api.submit(request_type="UNDOING")
    await do(api, "car")
    await break_(api, "pay")
    await do(api, "uncar")
    return job_id


async def undone_inside(api: Api) -> str:
    job_id = await api.submit(request_type="SIDE_BY_SIDE")
    await do(api, "car")
    await do(api, "hotel")
    await break_(api, "pay")
    await do(api, "uncar")
    return job_id


async def looped(api: Api) -> str:
    """Its second round fails."""
    job_id = await api.submit(request_type="LOOPED")
    await do(api, "scan")
    await break_(api, "read")
    await break_(api, "mend")
    return job_id


async def booked(api: Api) -> str:
    return await held_booking(api)


CASES: list[Any] = [
    pytest.param(CHAIN, chain, {}, id="a chain"),
    pytest.param(CHAIN, chain, {"from_step": "scan"}, id="a chain from its start"),
    pytest.param(MAPPED, mapped, {}, id="a map"),
    pytest.param(MAPPED, mapped, {"from_step": "split"}, id="a map from before it"),
    pytest.param(MAPPED, mapped, {"from_step": "each"}, id="a map anew"),
    pytest.param(SLOW_MAP, slow_map, {}, id="a map with items not begun"),
    pytest.param(SLOW_MAP, started_over, {}, id="a run that was started over"),
    pytest.param(BRANCHES, branches, {}, id="after branches"),
    pytest.param(BRANCHES, branches, {"from_step": "both"}, id="branches anew"),
    pytest.param(FORKED, forked, {}, id="after a decision"),
    pytest.param(PROMISED, promised, {}, id="a result that was not as promised"),
    pytest.param(UNDOING, undone, {}, id="what was undone"),
    pytest.param(SIDE_BY_SIDE, undone_inside, {}, id="what was undone inside a branch"),
    pytest.param(BOOKED, booked, {}, id="a job that was held"),
    pytest.param(LOOPED, looped, {}, id="a loop"),
]


async def acted(api: Api, job_id: str, name: str, **asked: Any) -> dict[str, Any]:
    """The dry run's words, once the act is shown to have done just that."""
    review_id = (await item(api))["review_id"]
    would: dict[str, Any] = (await act(api, review_id, name, dry_run=True, **asked)).ok()
    outcome = (await act(api, review_id, name, **asked)).ok()
    assert {**would, "outcome": "APPLIED"} == outcome
    await play(api, job_id)
    again, first = await executed(api, job_id, outcome["run_no"])
    assert again == set(would["re_executes"])
    assert {name.partition(".")[0] for name in first} == {name for name in would["runs"] if name in SERVICES}
    assert not (again | first) & set(would["keeps"])
    assert (await api.job(job_id))["status"] == "SUCCEEDED"
    return would


@pytest.mark.parametrize(("document", "story", "asked"), CASES)
async def test_a_retry_does_what_its_dry_run_said(
    serve: Serve, document: Document, story: Story, asked: dict[str, str]
) -> None:
    api = await serve(document)
    assert (await acted(api, await story(api), "retry", **asked))["re_executes"]


@pytest.mark.parametrize(
    ("document", "story"),
    [
        pytest.param(CHAIN, chain, id="a chain"),
        pytest.param(MAPPED, mapped, id="an item"),
        pytest.param(SLOW_MAP, slow_map, id="an item of a map with items not begun"),
        pytest.param(BRANCHES, branches, id="after branches"),
        pytest.param(PROMISED, promised, id="a result that was not as promised"),
        pytest.param(BOOKED, booked, id="a job that was held"),
        pytest.param(LOOPED, looped, id="a loop"),
    ],
)
async def test_a_skip_does_what_its_dry_run_said(serve: Serve, document: Document, story: Story) -> None:
    api = await serve(document)
    job_id = await story(api)
    skipped = (await item(api))["stepId"]
    assert skipped in (await acted(api, job_id, "skip", result={"text": "typed"}))["keeps"]
