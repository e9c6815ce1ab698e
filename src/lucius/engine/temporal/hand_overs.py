"""What a workflow hands over itself: directives to a bus that is published to, and calls.

Each attempt once at a time. What services pull, and what is sent when a job has ended, others take out of the outbox.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, FailureError

from lucius.core.model import OutboxRow
from lucius.core.protocol import HTTP_SERVICE, WEBHOOK_SERVICE
from lucius.engine.temporal.wire import HandOver, Happened

LEDGER_SECONDS = timedelta(seconds=15)
PUBLISH_SECONDS = timedelta(seconds=3)
CALL_SECONDS = timedelta(hours=24)
DEAD_AFTER = timedelta(seconds=30)
"""Who makes a call and says nothing for so long has died. A workflow does not end before it has heard of its calls."""
PATIENT = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10))
ONCE = RetryPolicy(maximum_attempts=1)


class HandOvers:
    """`hear` takes what became of one. Work that came to nothing met a paused job; should that have been resumed
    meanwhile, `take_up` begins it anew."""

    def __init__(
        self, publishes: bool, hear: Callable[[Sequence[Happened]], None], take_up: Callable[[], None]
    ) -> None:
        self._publishes = publishes
        self._hear = hear
        self._take_up = take_up
        self._tasks: set[asyncio.Task[bool]] = set()
        self._leases: set[str] = set()

    @property
    def under_way(self) -> bool:
        return bool(self._tasks)

    def are_of(self, row: OutboxRow) -> bool:
        """Whether we hand it over, rather than somebody who takes it out of the outbox."""
        if row.service == WEBHOOK_SERVICE:
            return False
        return row.service == HTTP_SERVICE or self._publishes

    def start_ready(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if row.is_ready:
                self.start(HandOver(row.job_id, row.step_id, row.attempt_no, row.lease_id, row.service, row.topic))

    def start(self, what: HandOver) -> None:
        if what.lease_id in self._leases:
            return
        if what.service == HTTP_SERVICE:
            self._keep(self._call(what), what)
        elif self._publishes:
            self._keep(self._publish(what), what)

    def _keep(self, work: Coroutine[Any, Any, bool], what: HandOver) -> None:
        self._leases.add(what.lease_id)
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def over(done: "asyncio.Task[bool]") -> None:
            self._tasks.discard(done)
            self._leases.discard(what.lease_id)
            if not done.cancelled() and done.exception() is None and not done.result():
                self._take_up()

        task.add_done_callback(over)

    async def _publish(self, what: HandOver) -> bool:
        """At once if the bus takes it; else by an activity that Temporal repeats until it does."""
        try:
            outcome: list[Happened] = await workflow.execute_local_activity(
                "publish_to_bus",
                what,
                result_type=list[Happened],
                start_to_close_timeout=PUBLISH_SECONDS,
                retry_policy=ONCE,
            )
        except FailureError:  # of a local activity, its own error comes out, and no ActivityError around it
            outcome = await workflow.execute_activity(
                "publish_to_bus",
                what,
                result_type=list[Happened],
                start_to_close_timeout=LEDGER_SECONDS,
                retry_policy=PATIENT,
            )
        self._hear(outcome)
        return bool(outcome)

    async def _call(self, what: HandOver) -> bool:
        """Should whoever calls die with it, the attempt ends by its lease, as any does."""
        try:
            outcome: list[Happened] = await workflow.execute_activity(
                "external_call",
                what,
                result_type=list[Happened],
                start_to_close_timeout=CALL_SECONDS,
                heartbeat_timeout=DEAD_AFTER,
                retry_policy=PATIENT,
            )
        except ActivityError:
            return True
        self._hear(outcome)
        return bool(outcome)
