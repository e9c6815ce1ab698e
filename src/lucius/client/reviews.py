"""Review items. Acts other than dry runs are not sent twice: if one went unanswered, read the item again."""

from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from lucius.client.http import Http
from lucius.client.paging import items
from lucius.contract.control import (
    Act,
    ReviewDetail,
    ReviewGroupList,
    ReviewItemView,
    ReviewList,
    ReviewOutcome,
)


class AsyncReviews:
    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self,
        *,
        tenant: str | None = None,
        status: str = "OPEN",
        kind: str | None = None,
        signature: str | None = None,
        job_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[ReviewItemView, None]:
        """Yield review items, newest first; status ANY for all."""
        wanted = {"tenant_id": tenant, "status": status, "kind": kind, "signature": signature, "jobId": job_id}
        return items(self._http, "/v1/review", wanted, limit, ReviewList, lambda page: page.items)

    async def groups(self, *, tenant: str | None = None, kind: str | None = None) -> ReviewGroupList:
        """Return the open items grouped by cause, the most frequent first."""
        wanted = {"tenant_id": tenant, "kind": kind, "limit": "200"}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._http.read(await self._http.get("/v1/review/groups", params), ReviewGroupList)

    async def get(self, review_id: str) -> ReviewDetail:
        """Return a review item with what each act would lead to."""
        return self._http.read(await self._http.get(_path(review_id)), ReviewDetail)

    async def act(
        self,
        review_id: str,
        act: Act,
        *,
        reason: str,
        from_step: str | None = None,
        result: Any | UnsetType = UNSET,
        dry_run: bool = False,
    ) -> ReviewOutcome:
        """Decide on a review item and return the outcome. A dry run changes nothing and returns what would run.

        `from_step` is for retry, `result` for skip.
        """
        body: dict[str, Any] = {"reason": reason, "dry_run": dry_run, "result": result}
        if from_step is not None:
            body["from_step"] = from_step
        if result is UNSET:
            del body["result"]
        answer = await self._http.post(f"{_path(review_id)}:{act}", body, repeatable=dry_run)
        return self._http.read(answer, ReviewOutcome)


def _path(review_id: str) -> str:
    return f"/v1/review/{quote(review_id, safe='~')}"
