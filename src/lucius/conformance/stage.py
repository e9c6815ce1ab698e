"""One case's world: an orchestrator, a service process, a folder, and the words that cases are written in."""

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lucius.conformance import process
from lucius.conformance.book import Attempt, Book, now
from lucius.conformance.directives import Maker
from lucius.conformance.feed import Feed, LocalFeed, Parcel
from lucius.conformance.feed_redis import RedisFeed
from lucius.conformance.model import Failed, NotShown, Options, Pace
from lucius.conformance.process import ServiceProcess, exit_words
from lucius.conformance.server import Orchestrator

T = TypeVar("T")

LONG_LEASE = 60.0
LOOK_AGAIN = 0.25
STOP_SECONDS = 10.0
SHORTEST_SLOW = 2.0
FAILURE_CLASSES = (
    "TRANSIENT",
    "RETRYABLE",
    "RATE_LIMITED",
    "DEPENDENCY_FAILED",
    "NON_RETRYABLE",
    "COMPENSATION_REQUIRED",
)
SAMPLE = "The supplier shall deliver the goods within thirty days.\nThe customer must report defects in writing.\n"


class Stage:
    """Made for one case and closed after it. Instants are those of `book.now`."""

    def __init__(self, options: Options, pace: Pace | None, folder: Path) -> None:
        self.options = options
        self.pace = pace
        self.folder = folder
        self.log = folder / "service.log"
        self.warnings: list[str] = []
        self.slow = 0.0
        """How long a step takes now, at least; 0 if it is as quick as it is."""
        self._news = asyncio.Event()
        self._key = secrets.token_urlsafe(24)
        self.book = Book(self._news.set)
        local = LocalFeed(self.book.handed_over)
        self.server = Orchestrator(self.book, local, self._key, self._news.set)
        self.server.service = options.service or (pace.service if pace else None)
        self.feed: Feed = local if options.bus == "local:" else self._redis(options)
        self.process: ServiceProcess | None = None
        self.may_end = False
        """Whether the process may go without being told."""
        self._maker: Maker | None = None

    async def open(self) -> None:
        for name in ("data", "blobs", "workspace", "output"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        await self.server.start()
        await self.feed.open()

    def _redis(self, options: Options) -> Feed:
        assert self.server.service is not None
        feed = RedisFeed(options.bus, self.server.service, self.book.handed_over)
        self.book.implied = feed.was_taken
        return feed

    async def close(self) -> None:
        if self.process is not None:
            self.may_end = True
            await self.process.kill()
        await self.server.away()
        await self.feed.close()
        if self.options.keep is not None:
            self._write_down()

    # The service

    async def start(self, *, slow: float = 0.0) -> None:
        """Start the command and wait until it pulls. `slow`: steps take that much longer, or as the author said."""
        measured = self.pace.slow_seconds if self.pace else None
        if slow and measured is not None and measured < SHORTEST_SLOW:
            raise NotShown(f"--slow-payload took {measured:.2f} s: give one that takes {SHORTEST_SLOW:g} s or more")
        self.slow = (measured or slow) if slow else 0.0
        began = now()
        self.process = await process.start(self.options.command, self._environment(), self.log, self._news.set)
        if await self.until(lambda: self._came_for_work(began), self.options.start_seconds):
            return
        service = self.server.service or "{service}"
        never = f"POST /v1/services/{service}/directives:pull" if self.feed.pulled_over_http else "XREADGROUP"
        raise Failed(f"a pull within {self.options.start_seconds:g} s of the start", f"{never} never came")

    def _came_for_work(self, since: float) -> bool:
        return any(pull.at >= since for pull in self.server.pulls) or self.feed.asked_since(since)

    def _environment(self) -> dict[str, str]:
        """What the author has exported for a real deployment must not lead the service there."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
        env |= {
            "LUCIUS_ORCHESTRATOR_URL": self.server.url,
            "LUCIUS_API_KEY": self._key,
            "LUCIUS_BUS_URL": self.feed.url,
            "LUCIUS_DATA_DIR": str(self.folder / "data"),
            "LUCIUS_BLOB_ROOT": str(self.folder / "blobs"),
        }
        if self.slow and self.options.slow_payload is None:
            env["LUCIUS_SERVICE_DELAY"] = f"{self.slow:g}"
        return env | self.options.env

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        gone, self.process = self.process, None
        await gone.kill()

    async def restart(self) -> None:
        """Ask it to stop, insist if need be, and start it again on the same data folder."""
        assert self.process is not None
        self.process.terminate()
        gone, self.process = self.process, None
        await gone.wait(STOP_SECONDS)
        await gone.kill()
        await self.start(slow=self.slow)

    # Directives

    def make(
        self,
        *,
        payload: dict[str, Any] | None = None,
        lease: float = LONG_LEASE,
        after: Attempt | None = None,
        job_id: str | None = None,
        step_id: str | None = None,
        ack_seconds: float | None = None,
    ) -> Attempt:
        """An attempt, not yet sent. `after`: the next one of that attempt's step, which thereby is fenced."""
        if payload is None:
            slow_payload = self.options.slow_payload if self.slow else None
            payload = self.options.payload if slow_payload is None else slow_payload
        directive = self.maker.directive(
            payload,
            lease_seconds=lease,
            job_id=after.key.job_id if after else job_id,
            step_id=after.key.step_id if after else step_id,
            attempt_no=after.key.attempt_no + 1 if after else 1,
        )
        if after is not None:
            directive["idempotency_key"] = after.directive["idempotency_key"]
            after.fenced = True
        return self.book.add(directive, ack_seconds or self.options.ack_seconds)

    def send(self, attempt: Attempt) -> Attempt:
        self.feed.send(Parcel(attempt.directive, attempt))
        return attempt

    @property
    def maker(self) -> Maker:
        if self._maker is None:
            service = self.server.service
            assert service is not None, "a directive before the first pull"
            self._maker = Maker(
                base_url=self.server.url,
                elsewhere_url=self.server.elsewhere_url,
                folder=self.folder,
                service=service,
                step_type=self.options.step_type or service.upper(),
                input_ref=self._input().as_uri(),
                ack_seconds=self.options.ack_seconds,
            )
        return self._maker

    def _input(self) -> Path:
        if self.options.input_file is not None:
            return self.options.input_file.resolve()
        sample = self.folder / "input.txt"
        sample.write_text(SAMPLE)
        return sample

    # Watching

    async def until(self, true: Callable[[], T], within: float) -> T | None:
        """What it is as soon as it is true; None if it is not `within` seconds. Raises Failed for what never may be."""
        deadline = now() + within
        while not (value := true()):
            self.check_manners()
            self._check_alive()
            remaining = deadline - now()
            if remaining <= 0:
                return None
            self._news.clear()
            try:
                async with asyncio.timeout(min(remaining, LOOK_AGAIN)):
                    await self._news.wait()
            except TimeoutError:
                continue
        return value

    async def watch(self, seconds: float) -> None:
        """Let time pass in which something must not happen."""
        await self.until(lambda: False, seconds)

    async def taken(self, attempt: Attempt) -> float:
        """When the attempt was handed over."""
        await self._handed_over(attempt, 1, f"that the directive of {words(attempt)} is pulled")
        return attempt.first_handed_over

    async def taken_again(self, attempt: Attempt, times: int = 2) -> float:
        """When its directive was handed over for the second time, once it has been `times` times."""
        expected = f"that the directive of {words(attempt)} is pulled when it comes again"
        await self._handed_over(attempt, times, expected)
        return attempt.handed_over[1]

    async def _handed_over(self, attempt: Attempt, times: int, expected: str) -> None:
        """However slowly it pulls: we wait as long as the queue gets shorter."""
        within = self.slow * 4 + self.work + self.options.patience
        while len(attempt.handed_over) < times:
            if not await self.until(self._progress(attempt, times), within):
                raise Failed(f"{expected} within {within:.0f} s", "it was not")

    def _progress(self, attempt: Attempt, times: int) -> Callable[[], bool]:
        waiting = self.feed.waiting()
        return lambda: len(attempt.handed_over) >= times or self.feed.waiting() < waiting

    async def acked(self, attempt: Attempt) -> None:
        """Until the service has said something of it: an ACK, or what implies one."""
        await self.taken(attempt)
        expected = f"an ACK of {words(attempt)}"
        await self.must(lambda: bool(attempt.heard), expected, lambda: "nothing came", attempt.ack_seconds)

    async def ended(self, attempt: Attempt) -> None:
        """Until its RESULT is in the book."""
        await self.taken(attempt)
        expected = f"an accepted RESULT of {words(attempt)}"
        await self.must(
            lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), self.slow + self.work
        )

    async def must(self, true: Callable[[], bool], expected: str, came: Callable[[], str], takes: float) -> None:
        """Until it is true, for as long as that takes and the kit has patience. Raises Failed."""
        within = takes + self.options.patience
        if not await self.until(true, within):
            raise Failed(f"{expected} within {within:.0f} s", came())

    @property
    def work(self) -> float:
        return self.pace.work_seconds if self.pace else self.options.patience

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def check_words(self) -> None:
        """Failures that nobody could decide upon are worth a warning, whatever the case is about."""
        told = [said.body for attempt in self.book.attempts.values() for said in attempt.results]
        for body in (body for body in told if body["status"] != "SUCCEEDED"):
            given, code = body.get("failure_class"), (body.get("error") or {}).get("code")
            if given is not None and given not in FAILURE_CLASSES:
                return self.warn(f"failure_class {given!r} is none of {', '.join(FAILURE_CLASSES)}")
            if given is None and not code:
                return self.warn(f"a {body['status']} without failure_class and error.code: nobody can tell what to do")
        return None

    def check_manners(self) -> None:
        """What must hold in every case, whatever it is about. Raises Failed."""
        if surprise := self.server.surprise or self.feed.surprise():
            raise surprise
        if faults := [*self.book.faults(), *self.server.faults]:
            more = f" ({len(faults)} of this kind)" if len(faults) > 1 else ""
            raise Failed("callbacks that fit the contract and carry their own attempt's token", f"{faults[0]}{more}")
        for attempt in self.book.attempts.values():
            results = attempt.results
            if len(results) > 1 and not attempt.disowned and len({said.says for said in results}) > 1:
                told = " and then ".join(f"{said.body.get('status')}" for said in results[:3])
                raise Failed(
                    f"one RESULT of {words(attempt)}, if need be repeated word by word",
                    f"RESULTs that differ came: {told}",
                )

    def _check_alive(self) -> None:
        if self.process is not None and self.process.exit_code is not None and not self.may_end:
            expected = "that the service goes on" if self.server.pulls else "that the command starts and pulls"
            raise Failed(expected, f"its process {exit_words(self.process.exit_code)}")

    def _write_down(self) -> None:
        """Everything that was said, for whoever keeps the folder."""
        lines = [{"pull": msgspec.to_builtins(pull)} for pull in self.server.pulls]
        lines += [{"callback": msgspec.to_builtins(said)} for said in self.book.said]
        encoded = [msgspec.json.encode(line) + b"\n" for line in lines]
        (self.folder / "requests.jsonl").write_bytes(b"".join(encoded))


def words(attempt: Attempt) -> str:
    return f"attempt {attempt.key.attempt_no} of job {attempt.key.job_id[:8]}"


def heard_of(attempt: Attempt) -> str:
    """All that a service said of an attempt, in a few words."""
    if not attempt.heard:
        return "nothing was heard of it"
    counts = [(len(attempt.acks), "ACK"), (len(attempt.beats), "heartbeat"), (len(attempt.results), "RESULT")]
    told = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for count, name in counts)
    return f"{told} came, the last answered {attempt.heard[-1].status} {attempt.heard[-1].disposition}".rstrip()


def require_not_refused(attempt: Attempt) -> None:
    """Raises NotShown if the service could not do the step at all: what follows would mean nothing."""
    body = attempt.results[0].body
    if body.get("status") != "SUCCEEDED":
        error = body.get("error") or {}
        said = f"{error.get('code')}: {error.get('message', '')}"[:200]
        raise NotShown(
            f"the service did not succeed with the step ({said}): give a --payload and an --input that it can work on"
        )
