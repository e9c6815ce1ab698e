"""The review queue: its entries, their visibility, and acts on many items at once."""

from typing import Any
from urllib.parse import quote

import pytest

from lucius.core.model.inputs import HandOverFailed
from lucius.core.model.records import ErrorInfo
from tests.integration.api.conftest import Start, key_entry
from tests.integration.api.protocols import CHAIN, Serve, fail_step
from tests.integration.api.review_helpers import (
    BOOKED,
    WHY,
    act,
    failed_chain,
    held_booking,
    item,
    items,
    option,
    show,
    stale_ocr,
)
from tests.support.api import Api


class TestQueue:
    async def test_permanently_failed_job_opens_an_item(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        found = await item(api)
        assert found["review_id"] == f"{job_id}~run1" == (await api.job(job_id))["review_id"]
        assert (found["kind"], found["status"], found["stepId"]) == ("JOB_FAILED", "OPEN", "read")
        assert (found["error"]["code"], found["failure_class"]) == ("BROKEN", "NON_RETRYABLE")
        assert found["signature"] == "chain/read/JOB_FAILED/NON_RETRYABLE/BROKEN"
        assert "REVIEW_OPENED" in await api.event_types(job_id)

    async def test_message_refused_permanently_by_the_bus_opens_an_item(self, api: Api) -> None:
        job_id = await api.submit()
        for attempt_no in (1, 2, 3):
            step = await api.step(job_id)
            refused = HandOverFailed("ocr", attempt_no, step["lease_id"], ErrorInfo("TOO_BIG", "the bus said no"))
            await api.runtime.engine.apply(job_id, (refused,))
            await api.sweep(after=700)
        found = await item(api, "kind=POISON")
        assert (found["jobId"], found["error"]["code"]) == (job_id, "TOO_BIG")

    async def test_late_success_of_a_fenced_attempt_opens_one_item(self, api: Api) -> None:
        job_id = await api.submit()
        first = await api.pull_one()
        await api.sweep(after=31)
        await api.sweep(after=61)
        for _ in range(2):
            (await api.succeed(first, result={"pages": 7})).problem(409, "STALE_CALLBACK")
        found = await item(api, "kind=STALE_RESULT")
        assert (found["jobId"], found["stepId"], found["attempt_no"]) == (job_id, "ocr", 1)
        assert (await show(api, found["review_id"]))["quarantined"]["result"] == {"pages": 7}

    async def test_possible_effect_of_a_failed_step_opens_an_item_and_holds_the_job(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        found = await item(api, "kind=COMPENSATION")
        assert (found["jobId"], found["stepId"]) == (job_id, "pay")
        job = await api.job(job_id)
        assert (job["status"], job["blocked_on"]["reason"]) == ("PAUSED", "REVIEW")
        assert found["review_id"] in job["blocked_on"]["message"]
        assert await api.jobs("blocked_on=REVIEW") == [job_id]
        problem = (await api.post(f"/v1/jobs/{job_id}:resume")).problem(409, "REVIEW_OPEN")
        assert found["review_id"] in problem["detail"]

    async def test_listing_supports_every_filter_and_pages(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        ours = [await failed_chain(api, idempotency_key=str(n)) for n in range(3)]
        theirs = await failed_chain(api, tenant_id="globex")
        stale, _ = await stale_ocr(api, ended=False)
        assert [found["jobId"] for found in await items(api)] == [stale, theirs, *reversed(ours)]
        for query, jobs in (
            ("tenant_id=globex", [theirs]),
            ("kind=STALE_RESULT", [stale]),
            ("kind=JOB_FAILED&tenant_id=ACME", list(reversed(ours))),
            (f"jobId={ours[1]}", [ours[1]]),
            ("status=DISCARDED", []),
            (f"signature={quote('chain/read/JOB_FAILED/NON_RETRYABLE/BROKEN', safe='')}&tenant_id=globex", [theirs]),
            ("signature=nothing", []),
        ):
            assert [found["jobId"] for found in await items(api, query)] == jobs, query
        walked, cursor = [], ""
        while True:
            page = (await api.get(f"/v1/review?limit=2{cursor}")).ok()
            walked += [found["jobId"] for found in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert walked == [stale, theirs, *reversed(ours)]

    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ("status=CLOSED", "INVALID_QUERY"),
            ("kind=OTHER", "INVALID_QUERY"),
            ("limit=0", "INVALID_QUERY"),
            ("cursor=bm9wZQ", "INVALID_CURSOR"),
            ("tenant_id=a%2Fb", "INVALID_TENANT"),
        ],
    )
    async def test_invalid_query_is_refused(self, api: Api, query: str, code: str) -> None:
        (await api.get(f"/v1/review?{query}")).problem(422, code)

    async def test_items_are_grouped_by_cause(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        for n in range(2):
            newest = await failed_chain(api, idempotency_key=str(n))
        await api.submit(request_type="CHAIN", idempotency_key="other")
        await fail_step(api, "scan", error={"code": "TORN", "message": "torn page"})
        groups = (await api.get("/v1/review/groups")).ok()["groups"]
        assert [(group["signature"], group["count"]) for group in groups] == [
            ("chain/read/JOB_FAILED/NON_RETRYABLE/BROKEN", 2),
            ("chain/scan/JOB_FAILED/NON_RETRYABLE/TORN", 1),
        ]
        assert groups[0]["newest"]["jobId"] == newest
        assert (await api.get("/v1/review/groups?kind=POISON")).ok()["groups"] == []

    async def test_items_of_another_tenant_are_neither_visible_nor_changeable(
        self, start: Start, ledger_url: str
    ) -> None:
        keys = [key_entry("acmes", "read", "operate", tenants=("acme",)), key_entry("looks", "read", tenants=("*",))]
        api = await start({"api_keys": keys}, ledger_url=ledger_url)
        theirs = await api.submit(tenant_id="globex")
        await fail_step(api, "ocr")
        review_id = f"{theirs}~run1"
        assert await items(api, key="acmes") == []
        assert (await api.get("/v1/review/groups", key="acmes")).ok()["groups"] == []
        (await api.get("/v1/review?tenant_id=globex", key="acmes")).problem(403, "FORBIDDEN_TENANT")
        hidden = (await api.get(f"/v1/review/{review_id}", key="acmes")).problem(404, "REVIEW_NOT_FOUND")
        never = (await api.get("/v1/review/never", key="acmes")).problem(404, "REVIEW_NOT_FOUND")
        assert hidden["detail"].replace(review_id, "never") == never["detail"]
        (await api.post(f"/v1/review/{review_id}:retry", WHY, key="acmes")).problem(404, "REVIEW_NOT_FOUND")
        bulk = (await api.post("/v1/review:act", {"act": "discard", **WHY, "ids": [review_id]}, key="acmes")).ok()
        assert bulk["results"][0]["code"] == "REVIEW_NOT_FOUND"
        for name in ("retry", "skip", "compensate", "adopt", "discard"):
            (await api.post(f"/v1/review/{review_id}:{name}", WHY, key="looks")).problem(403, "FORBIDDEN_SCOPE")
        (await api.post("/v1/review:act", {"act": "retry", **WHY, "ids": ["x"]}, key="looks")).problem(
            403, "FORBIDDEN_SCOPE"
        )


class TestShow:
    async def test_item_shows_every_act_with_its_effect(self, serve: Serve) -> None:
        api = await serve(BOOKED)
        job_id = await held_booking(api)
        shown = await show(api, (await item(api))["review_id"])
        assert (shown["job_status"], shown["blocked_on"]["reason"]) == ("PAUSED", "REVIEW")
        assert [entry["act"] for entry in shown["acts"]] == ["retry", "skip", "compensate", "discard"]
        assert all(entry["allowed"] for entry in shown["acts"])
        assert option(shown, "retry")["re_executes"] == ["pay"]
        assert option(shown, "compensate")["undoes"] == ["hotel", "car"]
        assert option(shown, "skip")["keeps"] == ["car", "hotel", "pay"]
        assert (await api.job(job_id))["status"] == "PAUSED"

    async def test_refused_act_shows_its_reason(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        shown = await show(api, f"{job_id}~run1")
        assert (shown["job_status"], shown["job_error"]["code"]) == ("FAILED_FINAL", "BROKEN")
        refused = option(shown, "compensate")
        assert (refused["allowed"], refused["code"]) == (False, "NOTHING_TO_COMPENSATE")
        assert refused["message"]

    async def test_closed_item_offers_no_act(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await failed_chain(api)
        (await act(api, f"{job_id}~run1", "discard")).ok()
        assert (await show(api, f"{job_id}~run1"))["acts"] == []


class TestBulkAct:
    async def test_all_items_of_a_cause_are_retried_together(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        jobs = [await failed_chain(api, idempotency_key=str(n)) for n in range(3)]
        asked = {"act": "retry", **WHY, "signature": "chain/read/JOB_FAILED/NON_RETRYABLE/BROKEN"}
        would = (await api.post("/v1/review:act", {**asked, "dry_run": True})).ok()
        assert [result["outcome"] for result in would["results"]] == ["WOULD"] * 3
        assert [result["re_executes"] for result in would["results"]] == [["read"]] * 3
        assert (would["applied"], would["refused"], would["more"]) == (0, 0, False)
        assert len(await items(api)) == 3
        done = (await api.post("/v1/review:act", asked)).ok()
        assert (done["applied"], done["refused"]) == (3, 0)
        assert {result["jobId"] for result in done["results"]} == set(jobs)
        assert len(await api.pull("read", max=10)) == 3

    async def test_refused_item_does_not_affect_the_others(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        first, second = [await failed_chain(api, idempotency_key=str(n)) for n in range(2)]
        (await act(api, f"{first}~run1", "discard")).ok()
        ids = [f"{first}~run1", "nowhere", f"{second}~run1", f"{second}~run1"]
        done = (await api.post("/v1/review:act", {"act": "retry", **WHY, "ids": ids})).ok()
        assert [(r["review_id"], r["outcome"], r["code"]) for r in done["results"]] == [
            (f"{first}~run1", "REFUSED", "REVIEW_CLOSED"),
            ("nowhere", "REFUSED", "REVIEW_NOT_FOUND"),
            (f"{second}~run1", "APPLIED", None),
        ]
        assert (done["applied"], done["refused"]) == (1, 2)

    async def test_items_beyond_the_limit_are_left_for_another_call(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        for n in range(3):
            await failed_chain(api, idempotency_key=str(n))
        asked = {"act": "discard", **WHY, "kind": "JOB_FAILED", "limit": 2}
        done = (await api.post("/v1/review:act", asked)).ok()
        assert (done["applied"], done["more"]) == (2, True)
        assert (await api.post("/v1/review:act", asked)).ok()["more"] is False
        assert await items(api) == []

    async def test_tenant_limit_holds_for_each_retried_item(self, serve: Serve) -> None:
        api = await serve(CHAIN, config={"limits": {"tenant_max_inflight": 1}})
        for n in range(2):
            await failed_chain(api, idempotency_key=str(n))
        done = (await api.post("/v1/review:act", {"act": "retry", **WHY, "kind": "JOB_FAILED"})).ok()
        assert sorted((r["outcome"], r["code"]) for r in done["results"]) == [
            ("APPLIED", None),
            ("REFUSED", "TENANT_LIMIT"),
        ]

    async def test_dry_run_counts_the_jobs_that_it_would_add(self, serve: Serve) -> None:
        api = await serve(CHAIN, config={"limits": {"tenant_max_inflight": 3}})
        for n in range(3):
            await failed_chain(api, idempotency_key=str(n))
        await api.submit(request_type="CHAIN", idempotency_key="live")
        asked = {"act": "retry", **WHY, "kind": "JOB_FAILED"}
        would = (await api.post("/v1/review:act", {**asked, "dry_run": True})).ok()
        assert [(r["outcome"], r["code"]) for r in would["results"]] == [
            ("WOULD", None),
            ("WOULD", None),
            ("REFUSED", "TENANT_LIMIT"),
        ]
        done = (await api.post("/v1/review:act", asked)).ok()
        assert done["applied"] == 2
        left = (await item(api))["review_id"]
        assert [entry["code"] for entry in (await show(api, left))["acts"]][:2] == ["TENANT_LIMIT", "TENANT_LIMIT"]
        (await act(api, left, "retry", dry_run=True)).problem(429, "TENANT_LIMIT")

    async def test_cursor_continues_after_refused_items(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        for n in range(2):
            await failed_chain(api, idempotency_key=str(n))
        asked = {"act": "compensate", **WHY, "kind": "JOB_FAILED", "limit": 1}
        first = (await api.post("/v1/review:act", asked)).ok()
        assert (first["refused"], first["more"]) == (1, True)
        second = (await api.post("/v1/review:act", {**asked, "cursor": first["next_cursor"]})).ok()
        assert (second["refused"], second["more"], second["next_cursor"]) == (1, False, None)
        assert first["results"][0]["review_id"] != second["results"][0]["review_id"]

    async def test_filter_selects_only_items_to_which_the_act_applies(self, api: Api) -> None:
        await stale_ocr(api, ended=True)
        assert {entry["kind"] for entry in await items(api)} == {"STALE_RESULT", "JOB_FAILED"}
        asked = {**WHY, "tenant_id": "acme", "dry_run": True}
        adopted = (await api.post("/v1/review:act", {"act": "adopt", **asked})).ok()
        retried = (await api.post("/v1/review:act", {"act": "retry", **asked})).ok()
        assert [(len(answer["results"]), answer["refused"]) for answer in (adopted, retried)] == [(1, 0), (1, 0)]

    async def test_cursor_of_another_list_is_refused(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        for n in range(2):
            await failed_chain(api, idempotency_key=str(n))
        jobs = (await api.get("/v1/jobs?limit=1")).ok()["next_cursor"]
        reviews = (await api.get("/v1/review?limit=1")).ok()["next_cursor"]
        (await api.get(f"/v1/review?cursor={jobs}")).problem(422, "INVALID_CURSOR")
        (await api.get(f"/v1/jobs?cursor={reviews}")).problem(422, "INVALID_CURSOR")

    @pytest.mark.parametrize(
        ("said", "pointer"),
        [
            ({"act": "skip", "ids": ["a"]}, "/result"),
            ({"act": "retry", "ids": ["a"], "cursor": "x"}, "/cursor"),
            ({"act": "retry", "kind": "STALE_RESULT"}, "/kind"),
            ({"act": "retry"}, "/ids"),
            ({"act": "retry", "ids": ["a"], "kind": "POISON"}, "/kind"),
            ({"act": "explode", "ids": ["a"]}, "/act"),
            ({"act": "retry", "ids": ["a"] * 501}, "/ids"),
            ({"act": "retry", "kind": "POISON", "limit": 501}, "/limit"),
            ({"act": "retry", "kind": "OTHER"}, "/kind"),
            ({"act": "retry", "ids": ["a"], "reason": ""}, "/reason"),
            ({"act": "retry", "ids": ["a"], "reason": " \n"}, "/reason"),
            ({"act": "retry", "ids": ["a"], "result": {}}, "/result"),
            ({"act": "skip", "ids": ["a"], "from_step": "scan"}, "/from_step"),
        ],
    )
    async def test_invalid_bulk_act_is_refused_naming_the_field(
        self, api: Api, said: dict[str, Any], pointer: str
    ) -> None:
        problem = (await api.post("/v1/review:act", {**WHY, **said})).problem(422, "INVALID_ENVELOPE")
        assert problem["errors"][0]["pointer"] == pointer
