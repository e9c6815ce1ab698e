"""What is away for a while is no fault of an activity: a line in the log, and Temporal repeats it."""

from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from lucius.ports.errors import LedgerAway

log = structlog.get_logger(__name__)

AWAY = "out of reach: the worker's log says why"  # the reason names hosts, and Temporal is read by others


class Outages(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Outages(super().intercept_activity(next))


class _Outages(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except LedgerAway as away:
            about = activity.info()
            log.warning(
                "out of reach, will go on", job_id=about.workflow_id, activity=about.activity_type, reason=str(away)
            )
            kind = type(away).__name__
            raise ApplicationError(AWAY, type=kind, category=ApplicationErrorCategory.BENIGN) from None
