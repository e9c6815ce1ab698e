"""What can be done about a review item, and what each act leads to."""

import asyncio
from typing import Any

import pytest

from lucius.core.values import MAX_VALUE_BYTES
from tests.support.api import Api
from tests.unit.api.kinds import CHAIN, Serve, break_, do, events, statuses
from tests.unit.api.reviewing import (
    BOOKED,
    FORKED,
    MAPPED,
    WHY,
    act,
    failed_chain,
    held_booking,
    item,
    items,
    show,
    stale_ocr,
)


class TestRetry:
    async def test_it_opens_a_new_run_and_closes_the_item(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        outcome = (await act(api, f"{job_id}~run1", "retry")).ok()
        assert (outcome["outcome"], outcome["run_no"], outcome["job_status"]) == ("APPLIED", 2, "DISPATCHING")
        assert (outcome["re_executes"], outcome["runs"], outcome["keeps"]) == (["read"], ["file"], ["scan"])
        assert await items(api) == []
        closed = await item(api, "status=REPROCESSED")
        assert (closed["resolved_by"], closed["act"], closed["reason"]) == ("dev", "retry", WHY["reason"])
        (told,) = await events(api, job_id, "REVIEW_CLOSED")
        assert (told["by"], told["act"], told["reason"]) == ("dev", "retry", WHY["reason"])
        assert await api.pull("scan") == []
        await do(api, "read")

    async def test_a_dry_run_says_what_would_run_and_changes_nothing(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        before = await api.event_types(job_id)
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        assert (outcome["outcome"], outcome["re_executes"], outcome["keeps"]) == ("WOULD", ["read"], ["scan"])
        earlier = (await act(api, f"{job_id}~run1", "retry", dry_run=True, from_step="scan")).ok()
        assert (earlier["re_executes"], earlier["runs"], earlier["keeps"]) == (["scan", "read"], ["file"], [])
        assert await api.event_types(job_id) == before
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        assert len(await items(api)) == 1

    async def test_a_failure_of_the_new_run_is_an_item_of_its_own(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "retry")).ok()
        await break_(api, "read")
        assert (await item(api))["review_id"] == f"{job_id}~run2"
        (await act(api, f"{job_id}~run1", "retry")).problem(409, "REVIEW_CLOSED")

    async def test_what_an_earlier_run_kept_is_kept_on(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "retry", from_step="read")).ok()
        await do(api, "read")
        await break_(api, "file")
        outcome = (await act(api, f"{job_id}~run2", "retry", dry_run=True)).ok()
        assert (outcome["re_executes"], outcome["keeps"]) == (["file"], ["scan", "read"])
        (await act(api, f"{job_id}~run2", "retry")).ok()
        assert [len(await api.pull(service)) for service in ("scan", "read", "file")] == [0, 0, 1]

    async def test_two_people_who_act_at_once_open_one_run(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        answers = await asyncio.gather(*(act(api, f"{job_id}~run1", "retry") for _ in range(2)))
        assert sorted(answer.status for answer in answers) == [200, 409]
        assert (await api.job(job_id))["run_no"] == 2

    async def test_only_what_failed_in_a_map_is_done_again(self, serve: Serve) -> None:
        api = await serve(MAPPED)
        job_id = await api.submit(request_type="MAPPED", payload={"pages": ["a", "b", "c"]})
        await do(api, "split")
        for directive in await api.pull("scan", max=10):
            (await api.succeed(directive)).ok()
        read = await api.pull("read", max=10)
        for directive in read:
            if directive["item"] == "b":
                (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
            elif directive["item"] == "a":
                (await api.succeed(directive)).ok()
        await api.sweep()
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        done = {name for name, status in (await statuses(api, job_id)).items() if status == "SUCCEEDED"}
        assert set(outcome["keeps"]) == done
        assert set(outcome["re_executes"]) == {"read.0", "read.1", "read.2"} - done
        assert outcome["runs"] == ["file"]
        (await act(api, f"{job_id}~run1", "retry")).ok()
        again = await api.pull("read", max=10)
        assert {directive["stepId"] for directive in again} == set(outcome["re_executes"])
        assert await api.pull("scan") == []

    async def test_where_the_protocol_decides_every_way_is_counted(self, serve: Serve) -> None:
        api = await serve(FORKED)
        job_id = await api.submit(request_type="FORKED")
        await break_(api, "scan")
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        assert outcome["re_executes"] == ["scan"]
        assert outcome["runs"] == ["big", "split", "read", "file"]

    async def test_a_way_that_was_not_taken_is_not_counted_after_it(self, serve: Serve) -> None:
        api = await serve(FORKED)
        job_id = await api.submit(request_type="FORKED")
        await do(api, "scan", result={"pages": 3})
        await break_(api, "read")
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        assert (outcome["re_executes"], outcome["runs"]) == (["read"], ["file"])
        assert outcome["keeps"] == ["scan", "big"]


class TestSkip:
    async def test_the_step_counts_as_done_with_the_result_that_was_supplied(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        outcome = (await act(api, f"{job_id}~run1", "skip", result={"text": "typed in by hand"})).ok()
        assert (outcome["re_executes"], outcome["runs"], outcome["keeps"]) == ([], ["file"], ["scan", "read"])
        directive = await do(api, "file")
        assert directive["inputs"]["read"]["result"] == {"text": "typed in by hand"}
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
        assert (await statuses(api, job_id))["read"] == "SKIPPED"

    async def test_a_held_job_goes_on_after_the_step_that_may_have_had_its_effect(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "skip", result={"paid": "by hand"})).ok()
        directive = await do(api, "mail")
        assert directive["inputs"]["pay"]["result"] == {"paid": "by hand"}
        job = await api.job(job_id)
        assert (job["status"], job["run_no"], job["review_id"]) == ("SUCCEEDED", 2, None)

    async def test_inside_a_map_only_that_item_counts_as_done(self, serve: Serve) -> None:
        api = await serve(MAPPED)
        job_id = await api.submit(request_type="MAPPED", payload={"pages": ["a", "b"]})
        await do(api, "split")
        for directive in await api.pull("scan", max=10):
            (await api.succeed(directive)).ok()
        for directive in await api.pull("read", max=10):
            if directive["item"] == "b":
                (await api.fail(directive, failure_class="NON_RETRYABLE")).ok()
            else:
                (await api.succeed(directive)).ok()
        assert (await item(api))["stepId"] == "read.1"
        outcome = (await act(api, f"{job_id}~run1", "skip", result="typed")).ok()
        assert (outcome["re_executes"], outcome["runs"]) == ([], ["file"])
        assert "read.1" in outcome["keeps"]
        await do(api, "file")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
        assert (await api.step(job_id, "read.1"))["result"] == "typed"

    async def test_a_result_has_its_bounds(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        large = await act(api, f"{job_id}~run1", "skip", result="x" * MAX_VALUE_BYTES)
        assert large.problem(413, "VALUE_TOO_LARGE")["errors"][0]["pointer"] == "/result"
        assert (await api.job(job_id))["run_no"] == 1


class TestCompensate:
    async def test_handlers_run_in_reverse_order_and_the_job_ends_failed(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        review_id = (await item(api))["review_id"]
        would = (await act(api, review_id, "compensate", dry_run=True)).ok()
        assert (would["undoes"], would["re_executes"]) == (["hotel", "car"], [])
        assert await api.pull("unhotel") == []
        (await act(api, review_id, "compensate")).ok()
        job = await api.job(job_id)
        assert (job["compensation"]["status"], job["compensation"]["todo"]) == ("RUNNING", ["hotel", "car"])
        await do(api, "unhotel")
        await do(api, "uncar")
        job = await api.job(job_id)
        assert (job["status"], job["compensation"]["status"]) == ("FAILED_FINAL", "COMPLETED")
        assert job["compensation"]["done"] == ["hotel", "car"]
        (asked,) = await events(api, job_id, "COMPENSATION_REQUESTED")
        assert (asked["by"], asked["reason"]) == ("dev", WHY["reason"])

    async def test_a_handler_that_failed_can_be_gone_on_with(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        review_id = (await item(api))["review_id"]
        (await act(api, review_id, "compensate")).ok()
        await break_(api, "unhotel")
        job = await api.job(job_id)
        assert (job["status"], job["compensation"]["status"]) == ("PAUSED", "HALTED")
        assert job["compensation"]["failed"] == "hotel"
        outcome = (await act(api, job["review_id"], "compensate", reason="hotel answers again")).ok()
        assert outcome["undoes"] == ["hotel", "car"]
        await do(api, "unhotel")
        await do(api, "uncar")
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        (resumed,) = await events(api, job_id, "COMPENSATION_RESUMED")
        assert resumed["reason"] == "hotel answers again"

    async def test_after_it_a_retry_does_all_of_it_again(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "compensate")).ok()
        await do(api, "unhotel")
        await do(api, "uncar")
        (await api.post(f"/v1/jobs/{job_id}:retry", WHY)).ok(202)
        await do(api, "car")
        await do(api, "hotel")
        await do(api, "pay")

    async def test_a_held_job_can_be_retried_instead(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        outcome = (await act(api, (await item(api))["review_id"], "retry")).ok()
        assert (outcome["re_executes"], outcome["runs"], outcome["keeps"]) == (["pay"], ["mail"], ["car", "hotel"])
        await do(api, "pay")
        await do(api, "mail")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"

    async def test_without_a_handler_there_is_nothing_to_undo(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "compensate")).problem(409, "NOTHING_TO_COMPENSATE")


class TestAdopt:
    async def test_it_fences_the_attempt_that_runs_and_takes_the_kept_result(self, api: Api) -> None:
        job_id, second = await stale_ocr(api, ended=False)
        outcome = (await act(api, (await item(api))["review_id"], "adopt")).ok()
        assert (outcome["outcome"], outcome["keeps"], outcome["run_no"]) == ("APPLIED", ["ocr"], 1)
        job = await api.job(job_id)
        assert job["status"] == "SUCCEEDED"
        assert job["steps"][0]["result"] == {"pages": 7}
        assert job["steps"][0]["artifact_refs"] == ["blob://w/text"]
        attempts = (await api.get(f"/v1/jobs/{job_id}/attempts")).ok()["attempts"]
        assert [(a["attempt_no"], a["outcome"], a["adopted_from"]) for a in attempts] == [
            (1, "ACK_TIMEOUT", None),
            (2, "FENCED", None),
            (3, "SUCCEEDED", 1),
        ]
        (await api.succeed(second)).problem(409, "STALE_CALLBACK")

    async def test_after_the_end_it_is_a_new_run_with_that_step_done(self, api: Api) -> None:
        job_id, _ = await stale_ocr(api, ended=True)
        stale = await item(api, "kind=STALE_RESULT")
        outcome = (await act(api, stale["review_id"], "adopt")).ok()
        assert (outcome["run_no"], outcome["keeps"], outcome["re_executes"]) == (2, ["ocr"], [])
        job = await api.job(job_id)
        assert (job["status"], job["steps"][0]["result"]) == ("SUCCEEDED", {"pages": 7})
        assert await items(api) == [], "the failed run's own item is closed with it"
        assert (await item(api, "status=RESOLVED"))["act"] == "adopt"

    async def test_what_has_a_result_needs_no_other(self, api: Api) -> None:
        _, second = await stale_ocr(api, ended=False)
        (await api.succeed(second)).ok()
        review_id = (await item(api))["review_id"]
        (await act(api, review_id, "adopt")).problem(409, "STEP_SUCCEEDED")
        (await act(api, review_id, "discard")).ok()
        assert await items(api) == []

    async def test_a_late_success_is_adopted_or_discarded_and_nothing_else(self, api: Api) -> None:
        await stale_ocr(api, ended=True)
        stale = await item(api, "kind=STALE_RESULT")
        problem = (await act(api, stale["review_id"], "retry")).problem(409, "ACT_NOT_APPLICABLE")
        assert "adopt or discard" in problem["detail"]
        failed = await item(api, "kind=JOB_FAILED")
        (await act(api, failed["review_id"], "adopt")).problem(409, "ACT_NOT_APPLICABLE")


class TestDiscard:
    async def test_it_closes_the_item_and_leaves_the_job(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "discard")).ok()
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        assert (await item(api, "status=DISCARDED"))["reason"] == WHY["reason"]
        (await act(api, f"{job_id}~run1", "discard")).problem(409, "REVIEW_CLOSED")
        (await api.post(f"/v1/jobs/{job_id}:retry")).ok(202)

    async def test_a_job_that_was_held_for_it_ends(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "discard")).ok()
        job = await api.job(job_id)
        assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "BROKEN")


async def test_a_skipped_step_s_result_must_be_said_be_it_null(serve: Serve) -> None:
    api = await serve(CHAIN)
    review_id = f"{await failed_chain(api)}~run1"
    problem = (await act(api, review_id, "skip")).problem(422, "INVALID_ENVELOPE")
    assert problem["errors"][0]["pointer"] == "/result"
    would = (await act(api, review_id, "skip", result=None, dry_run=True)).ok()
    assert (would["outcome"], would["runs_total"], would["undoes_total"]) == ("WOULD", 1, 0)


async def test_the_reason_for_undoing_is_on_the_item_once_it_is_done(serve: Serve) -> None:
    api = await serve(BOOKED)
    await held_booking(api)
    review_id = (await item(api))["review_id"]
    (await act(api, review_id, "compensate")).ok()
    await do(api, "unhotel")
    await do(api, "uncar")
    shown = await show(api, review_id)
    assert (shown["status"], shown["act"], shown["reason"]) == ("RESOLVED", "compensate", WHY["reason"])


@pytest.mark.parametrize("body", [b"", {"reason": "  "}])
async def test_an_item_that_an_act_on_its_job_closed_says_so_if_nobody_said_why(serve: Serve, body: Any) -> None:
    api = await serve(CHAIN)
    job_id = await failed_chain(api)
    (await api.post(f"/v1/jobs/{job_id}:retry", body)).ok(202)
    shown = await show(api, f"{job_id}~run1")
    assert (shown["resolved_by"], shown["act"], shown["reason"]) == ("dev", "retry", "no reason given")


@pytest.mark.parametrize("name", ["retry", "skip", "compensate", "adopt", "discard"])
async def test_every_act_needs_a_reason(api: Api, name: str) -> None:
    await api.submit()
    await break_(api, "ocr")
    review_id = (await item(api))["review_id"]
    for body in ({}, {"reason": ""}, {"reason": "  "}, {"reason": None}):
        problem = (await api.post(f"/v1/review/{review_id}:{name}", body)).problem(422, "INVALID_ENVELOPE")
        assert problem["errors"][0]["pointer"] == "/reason"
