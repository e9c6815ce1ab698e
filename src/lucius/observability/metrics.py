"""Prometheus metrics. Labels are small sets: request types, services, causes; never tenants or jobs."""

from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lucius.core.decision import Decision
from lucius.core.model import TERMINAL_JOB, AttemptOutcome
from lucius.ports.clock import Clock
from lucius.ports.ledger import Reader

STEP_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLUSH_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1)


T = TypeVar("T", Counter, Histogram)


class Children(Generic[T]):
    """A metric's children by their labels. The library's own look-up costs more than counting does."""

    def __init__(self, metric: T) -> None:
        self._metric: T = metric
        self._children: dict[tuple[str, ...], T] = {}

    def __call__(self, *labels: str) -> T:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class Metrics:
    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self.registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Children[Counter]:
            return Children(Counter(name, what, labels, registry=registry))

        def histogram(name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Children[Histogram]:
            return Children(Histogram(name, what, labels, buckets=buckets, registry=registry))

        self.accepted = counter("lucius_jobs_accepted", "Jobs accepted", "request_type")
        self.ended = counter("lucius_jobs_ended", "Jobs ended", "request_type", "outcome")
        self.retries = counter("lucius_step_retries", "Retries scheduled", "service", "cause")
        self.callbacks = counter("lucius_callbacks", "Callbacks", "type", "disposition")
        self.sweeps = counter("lucius_sweeper_actions", "Jobs moved by the sweeper", "action")
        self.loop_failures = counter("lucius_loop_failures", "Failed turns of a loop", "loop")
        self.refusals = counter("lucius_refusals", "Requests refused", "code")
        self.job_seconds = histogram("lucius_job_seconds", "Acceptance to end", STEP_BUCKETS, "request_type")
        self.step_seconds = histogram(
            "lucius_step_seconds", "From an attempt's hand-over to its end", STEP_BUCKETS, "service", "outcome"
        )
        self.dispatch_lag = histogram(
            "lucius_dispatch_lag_seconds", "From an attempt being recorded to its hand-over", LAG_BUCKETS, "service"
        )
        self.batch = Histogram(
            "lucius_commit_batch_size", "Decisions that shared a commit", buckets=BATCH_BUCKETS, registry=registry
        )
        self.flush = Histogram("lucius_commit_seconds", "One durable commit", buckets=FLUSH_BUCKETS, registry=registry)
        self.inflight = Gauge("lucius_jobs_inflight", "Jobs not yet ended", registry=registry)
        self.unacked = Gauge("lucius_unacked", "Directives handed over, not picked up", ["service"], registry=registry)
        self.backlog = Gauge("lucius_outbox_pending", "Outbox rows that wait", ["service"], registry=registry)
        self.oldest = Gauge("lucius_outbox_oldest_seconds", "Age of the oldest one", registry=registry)

    def committed(self, decision: Decision) -> None:
        """Count what a durable decision did."""
        job = decision.job
        if decision.creates:
            self.accepted(job.command.request_type).inc()
        if job.status in TERMINAL_JOB and job.completed_at == job.updated_at and decision.counters:
            self.ended(job.command.request_type, job.status).inc()
            self.job_seconds(job.command.request_type).observe((job.updated_at - job.created_at) / 1000)
        services = {step.step_id: step.service for step in decision.steps}
        for event in decision.events:
            if event.type == "STEP_RETRY_SCHEDULED":
                self.retries(services[event.step_id or ""], event.data["cause"]).inc()
            elif event.type.startswith("CALLBACK_"):
                self.callbacks(event.type.removeprefix("CALLBACK_"), event.data["disposition"]).inc()
        self._attempts(decision, services)

    def _attempts(self, decision: Decision, services: dict[str, str]) -> None:
        for step in decision.steps:
            handed_over = step.attempt.handed_over_at
            if handed_over == decision.job.updated_at and step.attempt.ended_at is None:
                self.dispatch_lag(step.service).observe((handed_over - step.attempt.created_at) / 1000)
        for ended in decision.attempts:
            attempt = ended.attempt
            if attempt.handed_over_at is None or attempt.ended_at is None or attempt.outcome is None:
                continue
            if attempt.outcome in (AttemptOutcome.WITHDRAWN, AttemptOutcome.REPAIRED):
                continue
            seconds = (attempt.ended_at - attempt.handed_over_at) / 1000
            self.step_seconds(services.get(ended.step_id, "?"), attempt.outcome).observe(seconds)

    def flushed(self, size: int, seconds: float) -> None:
        self.batch.observe(size)
        self.flush.observe(seconds)

    def swept(self, action: str) -> None:
        self.sweeps(action).inc()

    def loop_failed(self, loop: str) -> None:
        self.loop_failures(loop).inc()

    async def render(self) -> bytes:
        """The exposition text, with the gauges read from the ledger now."""
        counters = await self._reader.counters()
        backlog = await self._reader.backlog()
        self.inflight.set(counters.get("jobs", 0))
        self.unacked.clear()
        for counter, n in counters.items():
            if counter.startswith("unacked/"):
                self.unacked.labels(counter.removeprefix("unacked/")).set(n)
        self.backlog.clear()
        for service, n in backlog.pending.items():
            self.backlog.labels(service).set(n)
        self.oldest.set(0 if backlog.oldest_at is None else max(0, self._clock.now() - backlog.oldest_at) / 1000)
        return generate_latest(self.registry)
