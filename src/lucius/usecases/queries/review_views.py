"""Converts review items to their API representation."""

from typing import Any

from lucius.contract.control import ReviewItemView
from lucius.core.model.records import ReviewItem
from lucius.usecases.queries.views import error_view
from lucius.usecases.timestamps import timestamp


def item_view(item: ReviewItem) -> ReviewItemView:
    return ReviewItemView(**item_fields(item))


def item_fields(item: ReviewItem) -> dict[str, Any]:
    return {
        "review_id": item.review_id,
        "jobId": item.job_id,
        "tenant_id": item.tenant_id,
        "request_type": item.request_type,
        "kind": item.kind,
        "status": item.status,
        "signature": item.signature,
        "created_at": timestamp(item.created_at),
        "updated_at": timestamp(item.updated_at),
        "run_no": item.run_no,
        "stepId": item.step_id,
        "attempt_no": item.attempt_no,
        "failure_class": item.failure_class,
        "error": error_view(item.error),
        "resolved_by": item.resolved_by,
        "act": item.act,
        "reason": item.reason,
    }
