"""Turns outages of ledger and bus into benign activity errors: one log line, and Temporal retries the activity."""

from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from lucius.ports.errors import LedgerAway

log = structlog.get_logger(__name__)

AWAY_MESSAGE = (
    "unreachable: see the worker's log"  # the reason names hosts, and Temporal would show it to its own users
)


class ErrorInterceptor(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _ActivityErrors(super().intercept_activity(next))


class _ActivityErrors(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except LedgerAway as away:
            about = activity.info()
            log.warning(
                "dependency unreachable, activity will be retried",
                job_id=about.workflow_id,
                activity=about.activity_type,
                reason=str(away),
            )
            kind = type(away).__name__
            raise ApplicationError(AWAY_MESSAGE, type=kind, category=ApplicationErrorCategory.BENIGN) from None
