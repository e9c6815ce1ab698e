"""A fake orchestrator for callbacks, a manual clock, and directives."""

import asyncio
import heapq
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from lucius.contract import CallbackUrls, Directive, StepInput
from lucius.worker.timing import Timer, Timing

API_KEY = "key-for-tests"
Item = dict[str, Any]


def directive(base_url: str = "http://127.0.0.1:9", number: int = 1, **changes: Any) -> Directive:
    fields: dict[str, Any] = {
        "message_id": f"job-{number}/ocr/1",
        "jobId": f"job-{number}",
        "stepId": "ocr",
        "tenant_id": "acme",
        "protocol_id": "ocr",
        "protocol_version": 1,
        "request_type": "OCR",
        "step_type": "OCR",
        "kind": "task",
        "service": "ocr",
        "attempt_no": 1,
        "lease_id": f"lease-{number}",
        "lease_seconds": 900.0,
        "ack_deadline": "1970-01-01T00:00:30.000Z",
        "idempotency_key": f"key-{number}",
        "lane": 3,
        "mode": "DEFAULT",
        "routing_key_used": "acme",
        "input_ref": "blob://in/a.txt",
        "workspace_ref": f"file:///nowhere/lucius/acme/job-{number}",
        "output_ref": "blob://out/a.txt",
        "payload": {},
        "callback_urls": CallbackUrls(
            ack=f"{base_url}/v1/callbacks/ack",
            result=f"{base_url}/v1/callbacks/result",
            heartbeat=f"{base_url}/v1/callbacks/heartbeat",
        ),
        "callback_token": f"token-{number}",
        "correlation_id": "corr-1",
        "last_step": False,
        "inputs": dict[str, StepInput](),
    }
    return Directive(**{**fields, **changes})


class ManualTiming(Timing):
    """Time stands still until `advance`. Wall time counts from the epoch; jitter is always at its maximum."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def random(self) -> float:
        return 1.0

    def call_later(self, delay: float, act: Callable[[], None]) -> Timer:
        timer = _ManualTimer(act, delay)
        self.pauses.append(delay)
        heapq.heappush(self._timers, (self.time + delay, len(self.pauses), timer))
        return timer

    @property
    def waiting(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._timers)

    @property
    def waits(self) -> list[float]:
        """Return the delays of all current timers."""
        return [timer.delay for _, _, timer in self._timers if not timer.cancelled]

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        while self._timers and self._timers[0][0] <= until:
            self.time, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.act()
        self.time = until


class _ManualTimer:
    def __init__(self, act: Callable[[], None], delay: float) -> None:
        self.act = act
        self.delay = delay
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


async def until(condition: Callable[[], bool]) -> None:
    """Run other tasks until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event, and time may stand still
            await asyncio.sleep(0)


class FakeOrchestrator:
    """The callback and pull endpoints over real HTTP. Records requests and gives configured answers."""

    def __init__(self) -> None:
        self.requests: list[list[Item]] = []
        self.bearers: list[str | None] = []
        self.traces: list[str | None] = []
        self.contexts: list[tuple[str | None, str | None]] = []
        self.directives: deque[Directive] = deque()
        self.pulls: list[Item] = []
        self.agents: list[str | None] = []
        self.headers: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        """Headers of every request, by the last part of its path: `pull`, `ack`, …, `batch`."""
        self.whole_answers: deque[web.Response] = deque()
        self.pull_answers: deque[web.Response] = deque()
        self.answer: Callable[[Item], Item] = lambda _: {"status": 200, "disposition": "APPLIED"}
        self.before_answering: Callable[[], Awaitable[object]] | None = None
        self.before_answering_singly: Callable[[], Awaitable[object]] | None = None
        self.hanging = 0
        self.got_result = asyncio.Event()
        self.url = ""
        self.port = 0
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def callbacks(self) -> list[Item]:
        return [item for request in self.requests for item in request]

    def of_type(self, kind: str) -> list[Item]:
        return [item for item in self.callbacks if item["type"] == kind]

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/v1/callbacks:batch", self._batch)
        app.router.add_post("/v1/callbacks/{kind}", self._single)
        app.router.add_post("/v1/services/{service}/directives:pull", self._pull)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.port = int(self._runner.addresses[0][1])
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._changed.set()  # ends long polls
            await runner.cleanup()

    def offer(self, *directives: Directive) -> None:
        self.directives.extend(directives)
        self._changed.set()

    async def _batch(self, request: web.Request) -> web.Response:
        items = (await request.json())["callbacks"]
        self._note_headers("batch", request)
        self.bearers.append(request.headers.get("Authorization"))
        self.traces.append(request.headers.get("traceparent"))
        self.contexts.append((request.headers.get("tracestate"), request.headers.get("X-Correlation-ID")))
        if self.whole_answers:
            self.requests.append([])
            return self.whole_answers.popleft()
        self._record(items)
        if self.before_answering is not None:
            await self.before_answering()
        return web.json_response({"results": [self.answer(item) for item in items]})

    async def _single(self, request: web.Request) -> web.Response:
        item = {"type": request.match_info["kind"], **(await request.json())}
        self._note_headers(item["type"], request)
        self.bearers.append(request.headers.get("Authorization"))
        self.traces.append(request.headers.get("traceparent"))
        self.contexts.append((request.headers.get("tracestate"), request.headers.get("X-Correlation-ID")))
        self._record([item])
        if self.before_answering_singly is not None:
            self.hanging += 1
            await self.before_answering_singly()
        answer = self.answer(item)
        headers = {"Location": answer["location"]} if "location" in answer else None
        return web.json_response(answer, status=answer["status"], headers=headers)

    def _note_headers(self, route: str, request: web.Request) -> None:
        self.headers[route].append({name.lower(): value for name, value in request.headers.items()})

    def _record(self, items: list[Item]) -> None:
        self.requests.append(items)
        if any(item["type"] == "result" for item in items):
            self.got_result.set()

    async def _pull(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.pulls.append(asked)
        self._note_headers("pull", request)
        self.agents.append(request.headers.get("User-Agent"))
        if request.headers.get("Authorization") != f"Bearer {API_KEY}":
            return web.json_response({"code": "UNAUTHENTICATED"}, status=401)
        if self.pull_answers:
            return self.pull_answers.popleft()
        service, lanes = request.match_info["service"], asked.get("lanes") or range(16)
        found = self._claim(service, set(lanes), asked["max"])
        if not found and asked["wait_seconds"]:
            found = await self._wait_for(service, set(lanes), asked)
        return web.json_response({"directives": found})

    async def _wait_for(self, service: str, lanes: set[int], asked: Item) -> list[Any]:
        found: list[Any] = []
        try:
            async with asyncio.timeout(asked["wait_seconds"]):
                while not found and self._runner is not None:
                    self._changed.clear()
                    await self._changed.wait()
                    found = self._claim(service, lanes, asked["max"])
        except TimeoutError:
            pass
        return found

    def _claim(self, service: str, lanes: set[int], limit: int) -> list[Any]:
        fitting = [found for found in self.directives if found.service == service and found.lane in lanes][:limit]
        for found in fitting:
            self.directives.remove(found)
        return [msgspec.to_builtins(found) for found in fitting]


@asynccontextmanager
async def fake_orchestrator() -> AsyncIterator[FakeOrchestrator]:
    server = FakeOrchestrator()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
