"""Hand-overs that a workflow makes itself: directives to a push bus, and external calls.

Each attempt has at most one task at a time. Directives that services pull, and job webhooks, are taken from the outbox
by other components.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError

from lucius.core.model.records import OutboxRow
from lucius.core.protocol.definition import HTTP_SERVICE, WEBHOOK_SERVICE
from lucius.engine.temporal.messages import HandoverRequest, JobMessage

LEDGER_TIMEOUT = timedelta(seconds=15)
PUBLISH_TIMEOUT = timedelta(seconds=3)
CALL_TIMEOUT = timedelta(hours=24)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
"""An activity without heartbeat for this long counts as dead. A workflow does not end before its calls have ended."""
UNLIMITED_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10))
SINGLE_ATTEMPT = RetryPolicy(maximum_attempts=1)


class HandoverTasks:
    """Runs the hand-over activities of one workflow.

    `receive` gets the messages of each finished hand-over. A hand-over without outcome met a paused job; `start_again`
    starts it again if the job has been resumed meanwhile.
    """

    def __init__(
        self, publishes: bool, receive: Callable[[Sequence[JobMessage]], None], start_again: Callable[[], None]
    ) -> None:
        self._publishes = publishes
        self._receive = receive
        self._start_again = start_again
        self._tasks: set[asyncio.Task[bool]] = set()
        self._leases: set[str] = set()

    @property
    def under_way(self) -> bool:
        return bool(self._tasks)

    def is_own(self, row: OutboxRow) -> bool:
        """Return whether the workflow hands the row over, rather than a component that reads the outbox."""
        if row.service == WEBHOOK_SERVICE:
            return False
        return row.service == HTTP_SERVICE or self._publishes

    def start_ready(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if row.is_ready:
                self.start(
                    HandoverRequest(row.job_id, row.step_id, row.attempt_no, row.lease_id, row.service, row.topic)
                )

    def start(self, what: HandoverRequest) -> None:
        if what.lease_id in self._leases:
            return
        if what.service == HTTP_SERVICE:
            self._keep(self._call(what), what)
        elif self._publishes:
            self._keep(self._publish(what), what)

    def _keep(self, work: Coroutine[Any, Any, bool], what: HandoverRequest) -> None:
        self._leases.add(what.lease_id)
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def on_done(done: "asyncio.Task[bool]") -> None:
            self._tasks.discard(done)
            self._leases.discard(what.lease_id)
            if not done.cancelled() and done.exception() is None and not done.result():
                self._start_again()

        task.add_done_callback(on_done)

    async def _publish(self, what: HandoverRequest) -> bool:
        """Publish by a local activity; if that fails, by an activity that Temporal retries until the bus accepts it."""
        try:
            outcome: list[JobMessage] = await workflow.execute_local_activity(
                "publish_to_bus",
                what,
                result_type=list[JobMessage],
                start_to_close_timeout=PUBLISH_TIMEOUT,
                retry_policy=SINGLE_ATTEMPT,
            )
        except FailureError:  # a local activity raises its own error, not wrapped in ActivityError
            outcome = await workflow.execute_activity(
                "publish_to_bus",
                what,
                result_type=list[JobMessage],
                start_to_close_timeout=LEDGER_TIMEOUT,
                retry_policy=UNLIMITED_RETRIES,
            )
        self._receive(outcome)
        return bool(outcome)

    async def _call(self, what: HandoverRequest) -> bool:
        """Make the call by an activity. If its worker dies, the attempt ends by its lease, as any attempt does."""
        try:
            outcome: list[JobMessage] = await workflow.execute_activity(
                "external_call",
                what,
                result_type=list[JobMessage],
                start_to_close_timeout=CALL_TIMEOUT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=UNLIMITED_RETRIES,
            )
        except ActivityError:
            return True
        self._receive(outcome)
        return bool(outcome)
