"""The acts on a review item and the effect of each."""

import asyncio
from typing import Any

import pytest

from lucius.core.decide.values import MAX_VALUE_BYTES
from tests.integration.api.protocols import CHAIN, Serve, complete_step, events, fail_step, statuses
from tests.integration.api.review_helpers import (
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
from tests.support.api import Api


async def test_unknown_act_is_refused_naming_the_valid_acts(serve: Serve) -> None:
    api = await serve(CHAIN)
    problem = (await api.post("/v1/review:act", {"act": "discrad", **WHY})).problem(422, "INVALID_ENVELOPE")
    acts = "retry, skip, compensate, adopt, discard"
    expected = f"Invalid enum value 'discrad'; it can be {acts}; did you mean discard?"
    assert problem["errors"] == [{"pointer": "/act", "message": expected}]


class TestRetry:
    async def test_retry_opens_a_new_run_and_closes_the_item(self, serve: Serve) -> None:
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
        await complete_step(api, "read")

    async def test_dry_run_shows_what_would_run_and_changes_nothing(self, serve: Serve) -> None:
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

    async def test_failure_of_the_new_run_opens_its_own_item(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "retry")).ok()
        await fail_step(api, "read")
        assert (await item(api))["review_id"] == f"{job_id}~run2"
        (await act(api, f"{job_id}~run1", "retry")).problem(409, "REVIEW_CLOSED")

    async def test_step_kept_by_an_earlier_run_is_kept_again(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "retry", from_step="read")).ok()
        await complete_step(api, "read")
        await fail_step(api, "file")
        outcome = (await act(api, f"{job_id}~run2", "retry", dry_run=True)).ok()
        assert (outcome["re_executes"], outcome["keeps"]) == (["file"], ["scan", "read"])
        (await act(api, f"{job_id}~run2", "retry")).ok()
        assert [len(await api.pull(service)) for service in ("scan", "read", "file")] == [0, 0, 1]

    async def test_concurrent_retries_open_one_run(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        answers = await asyncio.gather(*(act(api, f"{job_id}~run1", "retry") for _ in range(2)))
        assert sorted(answer.status for answer in answers) == [200, 409]
        assert (await api.job(job_id))["run_no"] == 2

    async def test_retry_of_a_map_repeats_only_its_unfinished_steps(self, serve: Serve) -> None:
        api = await serve(MAPPED)
        job_id = await api.submit(request_type="MAPPED", payload={"pages": ["a", "b", "c"]})
        await complete_step(api, "split")
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

    async def test_dry_run_before_a_decision_counts_every_branch(self, serve: Serve) -> None:
        api = await serve(FORKED)
        job_id = await api.submit(request_type="FORKED")
        await fail_step(api, "scan")
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        assert outcome["re_executes"] == ["scan"]
        assert outcome["runs"] == ["big", "split", "read", "file"]

    async def test_dry_run_after_a_decision_does_not_count_the_other_branch(self, serve: Serve) -> None:
        api = await serve(FORKED)
        job_id = await api.submit(request_type="FORKED")
        await complete_step(api, "scan", result={"pages": 3})
        await fail_step(api, "read")
        outcome = (await act(api, f"{job_id}~run1", "retry", dry_run=True)).ok()
        assert (outcome["re_executes"], outcome["runs"]) == (["read"], ["file"])
        assert outcome["keeps"] == ["scan", "big"]


class TestSkip:
    async def test_skipped_step_is_done_with_the_supplied_result(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        outcome = (await act(api, f"{job_id}~run1", "skip", result={"text": "typed in by hand"})).ok()
        assert (outcome["re_executes"], outcome["runs"], outcome["keeps"]) == ([], ["file"], ["scan", "read"])
        directive = await complete_step(api, "file")
        assert directive["inputs"]["read"]["result"] == {"text": "typed in by hand"}
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
        assert (await statuses(api, job_id))["read"] == "SKIPPED"

    async def test_skipping_the_uncertain_step_continues_a_held_job(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "skip", result={"paid": "by hand"})).ok()
        directive = await complete_step(api, "mail")
        assert directive["inputs"]["pay"]["result"] == {"paid": "by hand"}
        job = await api.job(job_id)
        assert (job["status"], job["run_no"], job["review_id"]) == ("SUCCEEDED", 2, None)

    async def test_skipping_inside_a_map_completes_that_item_only(self, serve: Serve) -> None:
        api = await serve(MAPPED)
        job_id = await api.submit(request_type="MAPPED", payload={"pages": ["a", "b"]})
        await complete_step(api, "split")
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
        await complete_step(api, "file")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
        assert (await api.step(job_id, "read.1"))["result"] == "typed"

    async def test_supplied_result_is_limited_in_size(self, serve: Serve) -> None:
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
        await complete_step(api, "unhotel")
        await complete_step(api, "uncar")
        job = await api.job(job_id)
        assert (job["status"], job["compensation"]["status"]) == ("FAILED_FINAL", "COMPLETED")
        assert job["compensation"]["done"] == ["hotel", "car"]
        (asked,) = await events(api, job_id, "COMPENSATION_REQUESTED")
        assert (asked["by"], asked["reason"]) == ("dev", WHY["reason"])

    async def test_compensation_halted_by_a_failed_handler_can_be_resumed(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        review_id = (await item(api))["review_id"]
        (await act(api, review_id, "compensate")).ok()
        await fail_step(api, "unhotel")
        job = await api.job(job_id)
        assert (job["status"], job["compensation"]["status"]) == ("PAUSED", "HALTED")
        assert job["compensation"]["failed"] == "hotel"
        outcome = (await act(api, job["review_id"], "compensate", reason="hotel answers again")).ok()
        assert outcome["undoes"] == ["hotel", "car"]
        await complete_step(api, "unhotel")
        await complete_step(api, "uncar")
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        (resumed,) = await events(api, job_id, "COMPENSATION_RESUMED")
        assert resumed["reason"] == "hotel answers again"

    async def test_retry_after_compensation_repeats_all_steps(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "compensate")).ok()
        await complete_step(api, "unhotel")
        await complete_step(api, "uncar")
        (await api.post(f"/v1/jobs/{job_id}:retry", WHY)).ok(202)
        await complete_step(api, "car")
        await complete_step(api, "hotel")
        await complete_step(api, "pay")

    async def test_held_job_can_be_retried_instead(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        outcome = (await act(api, (await item(api))["review_id"], "retry")).ok()
        assert (outcome["re_executes"], outcome["runs"], outcome["keeps"]) == (["pay"], ["mail"], ["car", "hotel"])
        await complete_step(api, "pay")
        await complete_step(api, "mail")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"

    async def test_compensating_without_handlers_is_refused(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "compensate")).problem(409, "NOTHING_TO_COMPENSATE")


class TestAdopt:
    async def test_adopting_fences_the_running_attempt_and_uses_the_kept_result(self, api: Api) -> None:
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

    async def test_adopting_after_the_end_opens_a_new_run_with_the_step_done(self, api: Api) -> None:
        job_id, _ = await stale_ocr(api, ended=True)
        stale = await item(api, "kind=STALE_RESULT")
        outcome = (await act(api, stale["review_id"], "adopt")).ok()
        assert (outcome["run_no"], outcome["keeps"], outcome["re_executes"]) == (2, ["ocr"], [])
        job = await api.job(job_id)
        assert (job["status"], job["steps"][0]["result"]) == ("SUCCEEDED", {"pages": 7})
        assert await items(api) == [], "the failed run's own item is closed with it"
        assert (await item(api, "status=RESOLVED"))["act"] == "adopt"

    async def test_adopting_for_a_succeeded_step_is_refused(self, api: Api) -> None:
        _, second = await stale_ocr(api, ended=False)
        (await api.succeed(second)).ok()
        review_id = (await item(api))["review_id"]
        (await act(api, review_id, "adopt")).problem(409, "STEP_SUCCEEDED")
        (await act(api, review_id, "discard")).ok()
        assert await items(api) == []

    async def test_late_success_can_only_be_adopted_or_discarded(self, api: Api) -> None:
        await stale_ocr(api, ended=True)
        stale = await item(api, "kind=STALE_RESULT")
        problem = (await act(api, stale["review_id"], "retry")).problem(409, "ACT_NOT_APPLICABLE")
        assert "adopt or discard" in problem["detail"]
        failed = await item(api, "kind=JOB_FAILED")
        (await act(api, failed["review_id"], "adopt")).problem(409, "ACT_NOT_APPLICABLE")


class TestDiscard:
    async def test_discarding_closes_the_item_and_leaves_the_job_unchanged(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "discard")).ok()
        assert (await api.job(job_id))["status"] == "FAILED_FINAL"
        assert (await item(api, "status=DISCARDED"))["reason"] == WHY["reason"]
        (await act(api, f"{job_id}~run1", "discard")).problem(409, "REVIEW_CLOSED")
        (await api.post(f"/v1/jobs/{job_id}:retry")).ok(202)

    async def test_discarding_ends_a_held_job(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        (await act(api, (await item(api))["review_id"], "discard")).ok()
        job = await api.job(job_id)
        assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "BROKEN")


async def test_skip_needs_a_result_which_may_be_null(serve: Serve) -> None:
    api = await serve(CHAIN)
    review_id = f"{await failed_chain(api)}~run1"
    problem = (await act(api, review_id, "skip")).problem(422, "INVALID_ENVELOPE")
    assert problem["errors"][0]["pointer"] == "/result"
    would = (await act(api, review_id, "skip", result=None, dry_run=True)).ok()
    assert (would["outcome"], would["runs_total"], would["undoes_total"]) == ("WOULD", 1, 0)


async def test_reason_for_a_compensation_is_on_its_item(serve: Serve) -> None:
    api = await serve(BOOKED)
    await held_booking(api)
    review_id = (await item(api))["review_id"]
    (await act(api, review_id, "compensate")).ok()
    await complete_step(api, "unhotel")
    await complete_step(api, "uncar")
    shown = await show(api, review_id)
    assert (shown["status"], shown["act"], shown["reason"]) == ("RESOLVED", "compensate", WHY["reason"])


@pytest.mark.parametrize("body", [b"", {"reason": "  "}])
async def test_item_closed_by_a_job_retry_shows_that_no_reason_was_given(serve: Serve, body: Any) -> None:
    api = await serve(CHAIN)
    job_id = await failed_chain(api)
    (await api.post(f"/v1/jobs/{job_id}:retry", body)).ok(202)
    shown = await show(api, f"{job_id}~run1")
    assert (shown["resolved_by"], shown["act"], shown["reason"]) == ("dev", "retry", "no reason given")


@pytest.mark.parametrize("name", ["retry", "skip", "compensate", "adopt", "discard"])
async def test_every_act_needs_a_reason(api: Api, name: str) -> None:
    await api.submit()
    await fail_step(api, "ocr")
    review_id = (await item(api))["review_id"]
    for body in ({}, {"reason": ""}, {"reason": "  "}, {"reason": None}):
        problem = (await api.post(f"/v1/review/{review_id}:{name}", body)).problem(422, "INVALID_ENVELOPE")
        assert problem["errors"][0]["pointer"] == "/reason"
