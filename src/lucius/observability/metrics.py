"""Prometheus metrics. Labels have few values (request types, services, causes), never tenants or jobs."""

from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lucius.core.model.counters import PENDING, UNACKED, pending_by_lane, unacked_by_service
from lucius.core.model.decision import Decision
from lucius.core.model.records import Event, Millis, Step
from lucius.core.model.statuses import TERMINAL_JOB, TERMINAL_STEP, AttemptOutcome, ReviewKind
from lucius.ports.clock import Clock
from lucius.ports.readers import JobReader, ReviewReader

STEP_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLUSH_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1)


T = TypeVar("T", Counter, Histogram)


class Children(Generic[T]):
    """Cache of a metric's children by label values; the library's own look-up costs more than counting."""

    def __init__(self, metric: T) -> None:
        self._metric: T = metric
        self._children: dict[tuple[str, ...], T] = {}

    def __call__(self, *labels: str) -> T:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class Metrics:
    """Metrics of this process: counters fed by decisions, and gauges read from the ledger when rendered."""

    def __init__(self, jobs: JobReader, reviews: ReviewReader, clock: Clock) -> None:
        self._jobs = jobs
        self._reviews = reviews
        self._clock = clock
        self.registry = registry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Children[Counter]:
            return Children(Counter(name, description, labels, registry=registry))

        def histogram(name: str, description: str, buckets: tuple[float, ...], *labels: str) -> Children[Histogram]:
            return Children(Histogram(name, description, labels, buckets=buckets, registry=registry))

        self.accepted = counter("lucius_jobs_accepted", "Jobs accepted", "request_type")
        self.ended = counter("lucius_jobs_ended", "Jobs ended", "request_type", "outcome")
        self.retries = counter("lucius_step_retries", "Retries scheduled", "service", "cause")
        self.classes = counter("lucius_step_retries_by_class", "Retries scheduled", "failure_class")
        self.failures = counter("lucius_step_failures", "Steps that ended FAILED_FINAL", "step_type", "failure_class")
        self.runs = counter("lucius_runs_started", "New runs of jobs that had ended", "act")
        self.acts = counter("lucius_review_acts", "Acts on review items", "act")
        self.votes = counter("lucius_votes", "Approvals and rejections by people", "vote")
        self.callbacks = counter("lucius_callbacks", "Callbacks", "type", "disposition")
        self.sweeps = counter("lucius_sweeper_actions", "Jobs moved by the sweeper", "action")
        self.loop_failures = counter("lucius_loop_failures", "Failed iterations of a background loop", "loop")
        self.refusals = counter("lucius_refusals", "Requests refused", "code")
        self.connections_refused = counter("lucius_connections_refused", "Connections refused or cut off", "code")
        self.connections = Gauge("lucius_connections", "Open HTTP connections", registry=registry)
        self.streams = Gauge("lucius_streams", "Open event streams", registry=registry)
        self.long_polls = Gauge("lucius_long_polls", "Requests that wait for a job's end", registry=registry)
        self.waiting_pulls = Gauge("lucius_waiting_pulls", "Pulls that wait for a directive", registry=registry)
        self.job_seconds = histogram("lucius_job_seconds", "Acceptance to end", STEP_BUCKETS, "request_type")
        self.step_seconds = histogram(
            "lucius_step_seconds", "From an attempt's hand-over to its end", STEP_BUCKETS, "service", "outcome"
        )
        self.step_type_seconds = histogram(
            "lucius_step_duration_seconds", "From a step's turn to its end, with its retries", STEP_BUCKETS, "step_type"
        )
        self.dispatch_lag = histogram(
            "lucius_dispatch_lag_seconds", "From an attempt being recorded to its hand-over", LAG_BUCKETS, "service"
        )
        self.batch = Histogram(
            "lucius_commit_batch_size", "Decisions that shared a commit", buckets=BATCH_BUCKETS, registry=registry
        )
        self.flush = Histogram("lucius_commit_seconds", "One durable commit", buckets=FLUSH_BUCKETS, registry=registry)
        self.inflight = Gauge("lucius_jobs_inflight", "Jobs not yet ended", registry=registry)
        self.paced_tenants = Gauge("lucius_tenants_paced", "Tenants above their share", registry=registry)
        self.unacked = Gauge(
            "lucius_unacked", "Directives handed over, not acknowledged", ["service"], registry=registry
        )
        self.pending = Gauge("lucius_outbox_pending", "Directives ready for hand-over", ["service"], registry=registry)
        self.backlog = Gauge("lucius_backlog", "Directives ready for hand-over", ["service", "lane"], registry=registry)
        self.open_reviews = Gauge("lucius_reviews_open", "Open review items", ["kind"], registry=registry)
        self.config_stale = Gauge(
            "lucius_config_stale",
            "1 while the newest config file is invalid and an older one is used",
            registry=registry,
        )
        self.oldest = Gauge(
            "lucius_outbox_oldest_seconds", "Age of the oldest directive ready for hand-over", registry=registry
        )
        self.oldest_of_service = Gauge(
            "lucius_service_oldest_waiting_seconds",
            "Age of the oldest step of a service that was not handed over",
            ["service"],
            registry=registry,
        )

    def committed(self, decision: Decision) -> None:
        """Count the effects of a committed decision."""
        job = decision.job
        if decision.creates:
            self.accepted(job.command.request_type).inc()
        if job.status in TERMINAL_JOB and job.completed_at == job.updated_at and decision.counters:
            self.ended(job.command.request_type, job.status).inc()
            self.job_seconds(job.command.request_type).observe((job.updated_at - job.created_at) / 1000)
        steps = {step.step_id: step for step in decision.steps}
        for event in decision.events:
            self._count_event(event, steps)
        self._observe_attempts(decision, steps)

    def _count_event(self, event: Event, steps: dict[str, Step]) -> None:
        step = steps.get(event.step_id or "")
        match event.type:
            case "STEP_RETRY_SCHEDULED":
                self.retries(step.service if step else "?", event.data["cause"]).inc()
                self.classes(event.data["failure_class"]).inc()
            case "STEP_FAILED":
                self.failures(_type_of(step), event.data.get("failure_class", "")).inc()
            case "RUN_STARTED":
                self.runs(event.data["act"]).inc()
            case "REVIEW_CLOSED":
                self.acts(event.data["act"]).inc()
            case "STEP_APPROVED" | "STEP_REJECTED":
                self.votes(event.type.removeprefix("STEP_")).inc()
            case callback if callback.startswith("CALLBACK_"):
                self.callbacks(callback.removeprefix("CALLBACK_"), event.data["disposition"]).inc()
            case _:
                pass

    def _observe_attempts(self, decision: Decision, steps: dict[str, Step]) -> None:
        for step in decision.steps:
            handed_over = step.attempt.handed_over_at
            if handed_over == decision.job.updated_at and step.attempt.ended_at is None:
                self.dispatch_lag(step.service).observe((handed_over - step.attempt.created_at) / 1000)
        for ended in decision.attempts:
            attempt, of = ended.attempt, steps.get(ended.step_id)
            if of is not None and of.status in TERMINAL_STEP and of.attempt is attempt:
                self.step_type_seconds(_type_of(of)).observe(_duration(of) / 1000)
            if attempt.handed_over_at is None or attempt.ended_at is None or attempt.outcome is None:
                continue
            if attempt.outcome in (AttemptOutcome.WITHDRAWN, AttemptOutcome.REPAIRED):
                continue
            seconds = (attempt.ended_at - attempt.handed_over_at) / 1000
            self.step_seconds(of.service if of else "?", attempt.outcome).observe(seconds)

    def flushed(self, size: int, seconds: float) -> None:
        self.batch.observe(size)
        self.flush.observe(seconds)

    def swept(self, action: str) -> None:
        self.sweeps(action).inc()

    def loop_failed(self, loop: str) -> None:
        self.loop_failures(loop).inc()

    async def render(self) -> bytes:
        """Return the metrics in Prometheus text format; the gauges are read from the ledger on each call."""
        counters = await self._jobs.counters("jobs", UNACKED, PENDING)
        now = self._clock.now()
        backlog, reviews = await self._jobs.backlog(now), await self._reviews.open_reviews()
        self.inflight.set(counters.get("jobs", 0))
        self.unacked.clear()
        for service, n in unacked_by_service(counters).items():
            self.unacked.labels(service).set(n)
        self._set_backlog(counters)
        for kind in ReviewKind:
            self.open_reviews.labels(kind).set(reviews.get(kind, 0))
        self.oldest.set(max(0, now - min((oldest.at for oldest in backlog.values()), default=now)) / 1000)
        self.oldest_of_service.clear()
        for service, oldest in backlog.items():
            self.oldest_of_service.labels(service).set(max(0, now - oldest.at) / 1000)
        return generate_latest(self.registry)

    def _set_backlog(self, counters: dict[str, int]) -> None:
        self.pending.clear()
        self.backlog.clear()
        for service, lanes in pending_by_lane(counters).items():
            self.pending.labels(service).set(sum(lanes.values()))
            for lane, n in lanes.items():
                self.backlog.labels(service, str(lane)).set(n)


def _type_of(step: Step | None) -> str:
    """Return the step's type, or its kind if no service runs it."""
    return (step.step_type or step.kind) if step is not None else "?"


def _duration(step: Step) -> Millis:
    """Return the duration of this visit.

    A record reused by a later run or visit only keeps the start of its last attempt.
    """
    first = step.run_no == 1 and step.visit == 1
    return max(0, (step.completed_at or step.updated_at) - (step.created_at if first else step.attempt.created_at))
