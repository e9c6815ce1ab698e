"""Environment of one case: a played orchestrator, a service process, a folder, and helpers for writing cases."""

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lucius.conformance import process
from lucius.conformance.attempt_log import AttemptLog, PlayedAttempt, now
from lucius.conformance.buses import new_feed
from lucius.conformance.directives import DirectiveFactory
from lucius.conformance.feed import Feed, LocalFeed, QueuedMessage
from lucius.conformance.model import CaseFailed, NotShown, Options, Pace
from lucius.conformance.process import ServiceProcess, describe_exit
from lucius.conformance.server import Orchestrator

T = TypeVar("T")

LONG_LEASE_SECONDS = 60.0
POLL_SECONDS = 0.25
STOP_SECONDS = 10.0
MIN_SLOW_SECONDS = 2.0
FAILURE_CLASSES = (
    "TRANSIENT",
    "RETRYABLE",
    "RATE_LIMITED",
    "DEPENDENCY_FAILED",
    "NON_RETRYABLE",
    "COMPENSATION_REQUIRED",
)
PLAIN_STEP = "that the service can execute a plain step"
PLAIN_STEP_HINT = "give a --payload, a --step-type and an --input that suit the service"
SAMPLE_TEXT = "The supplier shall deliver the goods within thirty days.\nThe customer must report defects in writing.\n"


class CaseEnv:
    """Environment of one case, closed after it. Times are those of `attempt_log.now`."""

    def __init__(self, options: Options, pace: Pace | None, folder: Path) -> None:
        self.options = options
        self.pace = pace
        self.folder = folder
        self.log = folder / "service.log"
        self.warnings: list[str] = []
        self.slow = 0.0
        """Minimum seconds that a step now takes; 0 if it is not slowed down."""
        self._changed = asyncio.Event()
        self._key = secrets.token_urlsafe(24)
        self.attempt_log = AttemptLog(self._changed.set)
        local = LocalFeed(self.attempt_log.handed_over)
        self.server = Orchestrator(self.attempt_log, local, self._key, self._changed.set)
        self.server.service = options.service or (pace.service if pace else None)
        self.feed: Feed = new_feed(options.bus, self.server.service, self.attempt_log, local)
        self.process: ServiceProcess | None = None
        self.may_end = False
        """True if the process may end by itself."""
        self._directive_factory: DirectiveFactory | None = None

    async def open(self) -> None:
        for name in ("data", "blobs", "workspace", "output"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        await self.server.start()
        await self.feed.open()

    async def close(self) -> None:
        if self.process is not None:
            self.may_end = True
            await self.process.kill()
        await self.server.close()
        await self.feed.close()
        if self.options.keep is not None:
            self._write_requests()

    # The service

    async def start(self, *, slow: float = 0.0) -> None:
        """Start the command and wait until it pulls. Raises CaseFailed if it does not.

        `slow`: steps take that many seconds longer, or as long as the author's --slow-payload. Raises NotShown if that
        is too short.
        """
        measured = self.pace.slow_seconds if self.pace else None
        if slow and measured is not None and measured < MIN_SLOW_SECONDS:
            raise NotShown(f"--slow-payload took {measured:.2f} s: give one that takes {MIN_SLOW_SECONDS:g} s or more")
        self.slow = (measured or slow) if slow else 0.0
        began = now()
        self.process = await process.start(self.options.command, self._environment(), self.log, self._changed.set)
        if await self.wait_until(lambda: self._has_pulled_since(began), self.options.start_seconds):
            return
        service = self.server.service or "{service}"
        request = f"POST /v1/services/{service}/directives:pull" if self.feed.pulled_over_http else "XREADGROUP"
        hint = "if the service takes longer to start, increase --start-seconds"
        raise CaseFailed(
            f"a pull within {self.options.start_seconds:g} s of the start", f"{request} never came; {hint}"
        )

    def _has_pulled_since(self, since: float) -> bool:
        return any(pull.at >= since for pull in self.server.pulls) or self.feed.asked_since(since)

    def _environment(self) -> dict[str, str]:
        """Return the service's environment, without LUCIUS_ variables that could point it to a real deployment."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
        env |= {
            "LUCIUS_ORCHESTRATOR_URL": self.server.url,
            "LUCIUS_API_KEY": self._key,
            "LUCIUS_BUS_URL": self.feed.url,
            "LUCIUS_DATA_DIR": str(self.folder / "data"),
            "LUCIUS_BLOB_ROOT": str(self.folder / "blobs"),
            "LUCIUS_FILE_ROOTS": os.pathsep.join((str(self.folder), str(self._input().parent))),
        }
        if self.slow and self.options.slow_payload is None:
            env["LUCIUS_SERVICE_DELAY"] = f"{self.slow:g}"
        return env | self.options.env

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self.process is not None
        process_to_stop, self.process = self.process, None
        await process_to_stop.kill()

    async def restart(self) -> None:
        """Stop the process, by SIGKILL if necessary, and start it again on the same data folder."""
        assert self.process is not None
        self.process.terminate()
        process_to_stop, self.process = self.process, None
        await process_to_stop.wait(STOP_SECONDS)
        await process_to_stop.kill()
        await self.start(slow=self.slow)

    # Directives

    def make(
        self,
        *,
        payload: dict[str, Any] | None = None,
        lease: float = LONG_LEASE_SECONDS,
        after: PlayedAttempt | None = None,
        job_id: str | None = None,
        step_id: str | None = None,
        ack_seconds: float | None = None,
    ) -> PlayedAttempt:
        """Create an attempt without sending it. `after`: the step's previous attempt, which is thereby fenced."""
        if payload is None:
            slow_payload = self.options.slow_payload if self.slow else None
            payload = self.options.payload if slow_payload is None else slow_payload
        directive = self.directive_factory.directive(
            payload,
            lease_seconds=lease,
            job_id=after.key.job_id if after else job_id,
            step_id=after.key.step_id if after else step_id,
            attempt_no=after.key.attempt_no + 1 if after else 1,
        )
        if after is not None:
            directive["idempotency_key"] = after.directive["idempotency_key"]
            after.fenced = True
        return self.attempt_log.add(directive, ack_seconds or self.options.ack_seconds)

    def send(self, attempt: PlayedAttempt) -> PlayedAttempt:
        self.feed.send(QueuedMessage(attempt.directive, attempt))
        return attempt

    @property
    def directive_factory(self) -> DirectiveFactory:
        if self._directive_factory is None:
            service = self.server.service
            assert service is not None, "a directive before the first pull"
            self._directive_factory = DirectiveFactory(
                base_url=self.server.url,
                client_url=self.server.client_url,
                folder=self.folder,
                service=service,
                step_type=self.options.step_type or service.upper(),
                input_ref=self._input().as_uri(),
                ack_seconds=self.options.ack_seconds,
            )
        return self._directive_factory

    def _input(self) -> Path:
        if self.options.input_file is not None:
            return self.options.input_file.resolve()
        sample = self.folder / "input.txt"
        sample.write_text(SAMPLE_TEXT)
        return sample

    # Watching

    async def wait_until(self, condition: Callable[[], T], within: float) -> T | None:
        """Wait until `condition` returns a true value and return it; None after `within` seconds.

        Raises CaseFailed if the service meanwhile violates the contract or its process ends.
        """
        deadline = now() + within
        while not (value := condition()):
            self.check_contract()
            self._check_alive()
            remaining = deadline - now()
            if remaining <= 0:
                return None
            self._changed.clear()
            try:
                async with asyncio.timeout(min(remaining, POLL_SECONDS)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return value

    async def watch(self, seconds: float) -> None:
        """Wait for some seconds in which the service must not violate the contract. Raises CaseFailed."""
        await self.wait_until(lambda: False, seconds)

    async def wait_for_hand_over(self, attempt: PlayedAttempt) -> float:
        """Wait for the attempt's hand-over and return its time. Raises CaseFailed."""
        await self._handed_over(attempt, 1, f"that the directive of {describe(attempt)} is pulled")
        return attempt.first_handed_over

    async def wait_for_redelivery(self, attempt: PlayedAttempt, times: int = 2) -> float:
        """Wait until the directive was handed over `times` times; return the time of the second. Raises CaseFailed."""
        expected = f"that the directive of {describe(attempt)} is pulled again"
        await self._handed_over(attempt, times, expected)
        return attempt.handed_over[1]

    async def _handed_over(self, attempt: PlayedAttempt, times: int, expected: str) -> None:
        """Wait for `times` hand-overs as long as the queue keeps shrinking, however slowly. Raises CaseFailed."""
        within = self.slow * 4 + self.work + self.options.patience
        while len(attempt.handed_over) < times:
            if not await self.wait_until(self._progress(attempt, times), within):
                raise CaseFailed(f"{expected} within {within:.0f} s", "it was not")

    def _progress(self, attempt: PlayedAttempt, times: int) -> Callable[[], bool]:
        waiting = self.feed.waiting()
        return lambda: len(attempt.handed_over) >= times or self.feed.waiting() < waiting

    async def wait_for_ack(self, attempt: PlayedAttempt) -> None:
        """Wait for an ACK of the attempt, or a callback that implies one. Raises CaseFailed."""
        await self.wait_for_hand_over(attempt)
        expected = f"an ACK of {describe(attempt)}"
        await self.require(lambda: bool(attempt.callbacks), expected, lambda: "nothing came", attempt.ack_seconds)

    async def wait_for_result(self, attempt: PlayedAttempt) -> None:
        """Wait until a RESULT of the attempt was applied. Raises CaseFailed."""
        await self.wait_for_hand_over(attempt)
        expected = f"an accepted RESULT of {describe(attempt)}"
        await self.require(
            lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), self.slow + self.work
        )

    async def require(
        self, condition: Callable[[], bool], expected: str, came: Callable[[], str], takes: float
    ) -> None:
        """Wait for a condition for `takes` seconds plus the kit's patience. Raises CaseFailed."""
        within = takes + self.options.patience
        if not await self.wait_until(condition, within):
            raise CaseFailed(f"{expected} within {within:.0f} s", came())

    @property
    def work(self) -> float:
        return self.pace.work_seconds if self.pace else self.options.patience

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def warn_unclassified_failures(self) -> None:
        """Warn about a failed RESULT without a known failure_class or an error code."""
        bodies = [callback.body for attempt in self.attempt_log.attempts.values() for callback in attempt.results]
        for body in (body for body in bodies if body["status"] != "SUCCEEDED"):
            failure_class, code = body.get("failure_class"), (body.get("error") or {}).get("code")
            if failure_class is not None and failure_class not in FAILURE_CLASSES:
                return self.warn(f"failure_class {failure_class!r} is none of {', '.join(FAILURE_CLASSES)}")
            if failure_class is None and not code:
                return self.warn(f"a {body['status']} without both failure_class and error.code cannot be classified")
        return None

    def check_contract(self) -> None:
        """Check what must hold in every case. Raises CaseFailed, or the kit's own error."""
        if internal_error := self.server.internal_error or self.feed.internal_error():
            raise internal_error
        if faults := self.violations():
            more = f" ({len(faults)} of this kind)" if len(faults) > 1 else ""
            raise CaseFailed(
                "callbacks that fit the contract and carry their own attempt's token", f"{faults[0]}{more}"
            )
        for attempt in self.attempt_log.attempts.values():
            results = attempt.results
            if len(results) > 1 and not attempt.is_malformed and len({callback.content for callback in results}) > 1:
                statuses = " and then ".join(f"{callback.body.get('status')}" for callback in results[:3])
                raise CaseFailed(
                    f"one RESULT of {describe(attempt)}, repeated only unchanged",
                    f"different RESULTs came: {statuses}",
                )

    def violations(self) -> list[str]:
        """Return the contract violations seen in callbacks and pulls."""
        return [*self.attempt_log.faults(), *self.server.faults]

    def _check_alive(self) -> None:
        if self.process is not None and self.process.exit_code is not None and not self.may_end:
            expected = "that the service keeps running" if self.server.pulls else "that the command starts and pulls"
            raise CaseFailed(expected, f"its process {describe_exit(self.process.exit_code)}")

    def _write_requests(self) -> None:
        """Write all pulls and callbacks to `requests.jsonl`, if the folder is kept."""
        lines = [{"pull": msgspec.to_builtins(pull)} for pull in self.server.pulls]
        lines += [{"callback": msgspec.to_builtins(callback)} for callback in self.attempt_log.received]
        encoded = [msgspec.json.encode(line) + b"\n" for line in lines]
        (self.folder / "requests.jsonl").write_bytes(b"".join(encoded))


def describe(attempt: PlayedAttempt) -> str:
    return f"attempt {attempt.key.attempt_no} of job {attempt.key.job_id[:8]}"


def summarize_callbacks(attempt: PlayedAttempt) -> str:
    """Summarize the callbacks received for an attempt."""
    if not attempt.callbacks:
        return "no callback came"
    counts = [(len(attempt.acks), "ACK"), (len(attempt.heartbeats), "heartbeat"), (len(attempt.results), "RESULT")]
    summary = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for count, name in counts)
    return (
        f"{summary} came, the last answered {attempt.callbacks[-1].status} {attempt.callbacks[-1].disposition}".rstrip()
    )


def no_result(attempt: PlayedAttempt, within: float) -> CaseFailed:
    """Return the failure, with a hint, of a plain step without a RESULT."""
    slow = f"give a --payload that takes less than {within:g} s, or increase --patience"
    return CaseFailed(PLAIN_STEP, f"{summarize_callbacks(attempt)}; {slow if attempt.callbacks else PLAIN_STEP_HINT}")


def require_success(attempt: PlayedAttempt) -> None:
    """Raise Failed, with a hint, if the step's RESULT is not SUCCEEDED."""
    body = attempt.results[0].body
    if body.get("status") != "SUCCEEDED":
        error = body.get("error") if isinstance(body.get("error"), dict) else {}
        summary = f"it was {body.get('status')} {error.get('code')}: {error.get('message', '')}"
        raise CaseFailed(PLAIN_STEP, f"{summary[:300]}; {PLAIN_STEP_HINT}")


def require_not_refused(attempt: PlayedAttempt) -> None:
    """Raise NotShown if the step did not succeed: later observations would prove nothing."""
    body = attempt.results[0].body
    if body.get("status") != "SUCCEEDED":
        error = body.get("error") or {}
        error_text = f"{error.get('code')}: {error.get('message', '')}"[:200]
        raise NotShown(f"the step did not succeed ({error_text}): give a suitable --payload and --input")
