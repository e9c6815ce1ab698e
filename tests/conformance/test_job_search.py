"""Job search by document, correlation id, target, error code and end time, on every ledger."""

from typing import Any

import pytest

from lucius.adapters.ledger import search_page
from lucius.core.model.decision import Decision
from lucius.core.model.records import ErrorInfo
from lucius.core.model.statuses import BlockedReason, JobStatus
from lucius.ports.readers import JobFilter
from lucius.ports.store import Store
from tests.conformance.builders import accept, command, dispatch, then

TARGET = {"type": "contract", "id": "c/1"}


async def names(store: Store, limit: int = 50, **where: Any) -> list[str]:
    return [job.job_id for job in (await store.jobs.jobs(JobFilter(**where), limit, None)).jobs]


async def paged(store: Store, limit: int, **where: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    for _ in range(50):
        page = await store.jobs.jobs(JobFilter(**where), limit, cursor)
        found += [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the pages never end")


async def put(store: Store, job_id: str, created_at: int = 1_000, **asked: Any) -> Decision:
    new = accept(job_id, asked=command(job_id, **asked), created_at=created_at)
    await store.ledger.commit(new)
    return new


async def end(store: Store, before: Decision, at: int, code: str | None = None) -> Decision:
    error = ErrorInfo(code, "it broke") if code else None
    status = JobStatus.FAILED_FINAL if code else JobStatus.SUCCEEDED
    ended = then(before, status=status, completed_at=at, updated_at=at, error=error)
    await store.ledger.commit(ended)
    return ended


async def test_jobs_are_found_by_document_correlation_id_and_target(store: Store) -> None:
    await put(store, "j1", 1_000, doc_id="d1", correlation_id="c1", target=TARGET)
    ended = await put(store, "j2", 2_000, doc_id="d1", correlation_id="j2")
    await end(store, ended, 2_500)
    await put(store, "j3", 3_000, doc_id="d2", correlation_id="c1", tenant_id="other")
    assert await names(store, doc_id="d1") == ["j2", "j1"]
    assert await names(store, correlation_id="c1") == ["j3", "j1"]
    assert await names(store, target="contract/c/1") == ["j1"]
    assert await names(store, target="contract/c") == []
    assert await names(store, doc_id="d1", correlation_id="c1") == ["j1"]
    assert await names(store, correlation_id="c1", tenants=frozenset({"other"})) == ["j3"]
    assert await names(store, doc_id="d1", status=JobStatus.SUCCEEDED) == ["j2"]
    assert await names(store, doc_id="d1", created_after=1_000) == ["j2"]
    assert await names(store, doc_id="d\x001") == []
    assert await names(store, correlation_id="c1", request_type="SIS") == []


async def test_job_without_a_correlation_id_of_its_own_is_found_by_its_id(store: Store) -> None:
    await put(store, "j1", correlation_id="j1")
    await put(store, "j2", correlation_id="j1")
    assert await names(store, correlation_id="j1") == ["j2", "j1"]
    assert await names(store, correlation_id="j2") == []


async def test_blocked_jobs_of_a_document_are_found(store: Store) -> None:
    await store.ledger.commit(dispatch("j1", asked=command("j1", doc_id="d1")))
    await put(store, "j2", doc_id="d1")
    assert await names(store, doc_id="d1", blocked_on=BlockedReason.HANDOVER) == ["j1"]
    full = frozenset({"ocr"})
    assert await names(store, doc_id="d1", blocked_on=BlockedReason.HANDOVER, blocked_services=full) == ["j1"]
    assert await names(store, doc_id="d1", blocked_on=BlockedReason.HANDOVER, except_services=full) == []


async def test_error_code_finds_ended_jobs_until_they_are_retried(store: Store) -> None:
    failed = await end(store, await put(store, "j1", 1_000), 5_000, "BROKEN")
    await end(store, await put(store, "j2", 2_000, tenant_id="other"), 6_000, "BROKEN")
    await end(store, await put(store, "j3", 3_000), 7_000, "TIMEOUT")
    assert await names(store, error_code="BROKEN") == ["j2", "j1"]
    assert await names(store, error_code="BROKEN", tenants=frozenset({"acme"})) == ["j1"]
    assert await names(store, error_code="BROKEN", completed_after=5_000) == ["j2"]
    again = then(failed, status=JobStatus.DISPATCHING, completed_at=None, error=None, updated_at=8_000)
    await store.ledger.commit(again)
    assert await names(store, error_code="BROKEN") == ["j2"]
    assert await names(store, completed_after=0) == ["j3", "j2"]
    await end(store, again, 9_000)
    assert await names(store, completed_after=0) == ["j1", "j3", "j2"]


async def test_jobs_are_found_by_end_time_newest_first(store: Store) -> None:
    for number, at in ((1, 9_000), (2, 7_000), (3, 8_000), (4, 8_000)):
        asked = {"tenant_id": "other"} if number == 3 else {}
        await end(store, await put(store, f"j{number}", number * 1_000, **asked), at)
    await put(store, "j5", 5_000)
    assert await names(store, completed_after=7_000) == ["j1", "j4", "j3"]
    assert await names(store, completed_before=8_000) == ["j2"]
    assert await names(store, completed_after=7_000, completed_before=9_000) == ["j4", "j3"]
    assert await names(store, completed_after=0, tenants=frozenset({"acme"})) == ["j1", "j4", "j2"]
    assert await names(store, completed_after=0, tenants=frozenset({"acme", "other"})) == ["j1", "j4", "j3", "j2"]
    assert await names(store, completed_after=0, tenants=frozenset()) == []
    assert await names(store, completed_before=2**70) == ["j1", "j4", "j3", "j2"]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_of_a_search_join_without_gaps(store: Store, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(search_page, "MAX_WALK_ENTRIES", 2)
    monkeypatch.setattr(search_page, "MAX_WALKS", 2)
    for number in range(12):
        asked = {"doc_id": "d1", "tenant_id": "acme" if number % 6 == 0 else "other"}
        await end(store, await put(store, f"j{number:02}", 1_000 + number, **asked), 9_000 - number // 3)
    by_id = [f"j{number:02}" for number in reversed(range(12))]
    assert await paged(store, limit, doc_id="d1") == by_id
    mine = await paged(store, limit, doc_id="d1", tenants=frozenset({"acme", "third"}))
    assert mine == ["j06", "j00"]
    by_end = [f"j{number:02}" for number in (2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9)]
    assert await paged(store, limit, completed_after=0) == by_end


async def test_cursor_of_another_order_is_refused(store: Store) -> None:
    for number in range(3):
        await end(store, await put(store, f"j{number}", 1_000 + number, doc_id="d1"), 9_000)
    plain = (await store.jobs.jobs(JobFilter(), 1, None)).next_cursor
    by_doc = (await store.jobs.jobs(JobFilter(doc_id="d1"), 1, None)).next_cursor
    by_end = (await store.jobs.jobs(JobFilter(completed_after=0), 1, None)).next_cursor
    for where, cursor in (
        (JobFilter(), by_doc),
        (JobFilter(doc_id="d1"), by_end),
        (JobFilter(doc_id="d1"), plain),
        (JobFilter(completed_after=0), by_doc),
        (JobFilter(completed_after=0), "bm8"),
    ):
        with pytest.raises(ValueError, match="not a cursor"):
            await store.jobs.jobs(where, 1, cursor)
