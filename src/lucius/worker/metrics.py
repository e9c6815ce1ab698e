"""Prometheus metrics of a service process. Labels are services and step types, never tenants or jobs."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lucius.contract import Directive

BUCKETS = (0.005, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
SUCCEEDED = b'"status":"SUCCEEDED"'


class Metrics:
    """Metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        step = ("service", "step_type")
        self._ended = Counter(
            "lucius_worker_attempts", "Attempts that ended", (*step, "outcome"), registry=self.registry
        )
        self._seconds = Histogram(
            "lucius_worker_attempt_seconds",
            "From pickup to RESULT",
            step,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._ignored = Counter(
            "lucius_worker_directives_ignored", "Directives that made no sense", ("service",), registry=self.registry
        )
        self._pull_failures = Counter(
            "lucius_worker_pull_failures", "Pulls that failed", ("service",), registry=self.registry
        )
        self.stalls = Counter(
            "lucius_worker_loop_stalls",
            "Times the event loop was blocked so long that a thread kept leases alive",
            registry=self.registry,
        )
        self.running = Gauge("lucius_worker_running", "Attempts at work", ("service",), registry=self.registry)
        self.stray = Gauge(
            "lucius_worker_stray_threads",
            "Threads of attempts that lost their lease",
            ("service",),
            registry=self.registry,
        )
        self.undelivered = Gauge(
            "lucius_worker_callbacks_undelivered",
            "Callbacks that the orchestrator has not received",
            registry=self.registry,
        )

    def ended(self, directive: Directive, result: bytes | None, seconds: float) -> None:
        outcome = "lease_lost" if result is None else "succeeded" if SUCCEEDED in result[:1024] else "failed"
        self._ended.labels(directive.service, directive.step_type, outcome).inc()
        self._seconds.labels(directive.service, directive.step_type).observe(seconds)

    def ignored(self, service: str) -> None:
        self._ignored.labels(service).inc()

    def pull_failed(self, service: str) -> None:
        self._pull_failures.labels(service).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
