"""The real API with its real wiring in this process: requests are ASGI calls, and tests advance the clock."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from lucius.api.app import create_app
from lucius.api.fast_routes import FastRoutes
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import Settings, load_settings
from lucius.core.model.decision import Defaults
from tests.support.clock import ManualClock
from tests.support.fastpath import fastpath_env

KEY = "key-for-every-scope"
SECRET = "a-secret-that-only-tests-know"
NEVER = 3_600.0  # the engine's own loops never run during a test; `Api.sweep` runs one turn of the sweeper
WITHIN = 5.0
MAX_REQUEST_SECONDS = 30.0
"""More than the 10 s for which Temporal may keep a task for a worker that has stopped."""

Headers = Sequence[tuple[bytes, bytes]]


class Answer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self, status: int = 200) -> Any:
        assert self.status == status, (self.status, self.body)
        return self.json

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """Return the body after asserting that it is the expected problem."""
        assert (self.status, self.json.get("code")) == (status, code), (self.status, self.body)
        assert self.headers["content-type"] == "application/problem+json"
        body: dict[str, Any] = self.json
        assert body["status"] == status
        assert body["type"].endswith(code.lower().replace("_", "-"))
        assert body["title"]
        return body


class Stream:
    """An open text/event-stream response."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._began = asyncio.Event()
        self._rest = b""

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], _headers(message["headers"])
            self._began.set()
        elif message.get("body"):
            self._chunks.put_nowait(message["body"])

    def finish(self) -> None:
        self._chunks.put_nowait(None)
        self._began.set()

    def hang_up(self) -> None:
        self._gone.set()

    async def began(self) -> None:
        async with asyncio.timeout(WITHIN):
            await self._began.wait()

    async def event(self) -> dict[str, str] | None:
        """Return the next event's fields, or None at the end of the stream."""
        async with asyncio.timeout(WITHIN):
            while b"\n\n" not in self._rest:
                chunk = await self._chunks.get()
                if chunk is None:
                    return None
                self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\n\n")
        return dict(line.split(": ", 1) for line in text.decode().splitlines())

    async def body(self) -> bytes:
        """Return what is left of the current chunk, or the next chunk."""
        return self._rest or await self._chunks.get() or b""

    async def rest(self) -> list[dict[str, str]]:
        found = []
        while event := await self.event():
            found.append(event)
        return found


def _headers(raw: Headers) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class Api(Struct):
    """Calls one server. Requests carry `key` unless a call passes another."""

    app: FastRoutes
    runtime: ControlPlane
    clock: ManualClock
    key: str = KEY
    tenant: str = "acme"
    settled: list[asyncio.Task[Any]] = field(default_factory=list)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        chunks: Sequence[bytes] | None = None,
    ) -> Answer:
        """Send a request: `body` is raw bytes or a value to send as JSON; `chunks` are sent without a length header."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.asgi(self.scope(method, path, key, headers, None if chunks else len(raw)), *(chunks or [raw]))

    async def asgi(self, scope: dict[str, Any], *chunks: bytes) -> Answer:
        """Send a request with any ASGI scope."""
        parts = list(chunks)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not parts:
                return await asyncio.Future()  # the client stays connected and waits
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(MAX_REQUEST_SECONDS):
            await self.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], _headers(sent[0]["headers"]), body)

    def scope(
        self, method: str, path: str, key: str | None, headers: Mapping[str, str] | None, length: int | None
    ) -> dict[str, Any]:
        path, _, query = path.partition("?")
        key = self.key if key is None else key
        given = {"authorization": f"Bearer {key}"} if key else {}
        if length:
            given |= {"content-type": "application/json", "content-length": str(length)}
        given |= headers or {}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.call("POST", path, body, **options)

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Stream]:
        stream = Stream()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        scope = self.scope("GET", path, None, {"accept": "text/event-stream", **names}, None)
        task = asyncio.create_task(self.app(scope, stream.receive, stream.send))
        task.add_done_callback(lambda _: stream.finish())
        try:
            await stream.began()
            yield stream
        finally:
            stream.hang_up()
            async with asyncio.timeout(WITHIN):
                await asyncio.gather(task, return_exceptions=True)

    # Frequent operations

    def command(self, **changes: Any) -> dict[str, Any]:
        return {**command(tenant_id=self.tenant), **changes}

    async def submit(self, **changes: Any) -> str:
        answer = (await self.post("/v1/commands", self.command(**changes))).ok(202)
        assert answer["duplicate"] is False
        job_id: str = answer["jobId"]
        return job_id

    async def job(self, job_id: str) -> Any:
        return (await self.get(f"/v1/jobs/{job_id}")).ok()

    async def step(self, job_id: str, step_id: str = "ocr") -> Any:
        return next(step for step in (await self.job(job_id))["steps"] if step["stepId"] == step_id)

    async def jobs(self, query: str = "", **options: Any) -> list[str]:
        listed = (await self.get(f"/v1/jobs?{query}", **options)).ok()
        return [job["jobId"] for job in listed["jobs"]]

    async def event_types(self, job_id: str) -> list[str]:
        listed = (await self.get(f"/v1/jobs/{job_id}/events?limit=500")).ok()
        return [event["type"] for event in listed["events"]]

    async def pull(self, service: str = "ocr", **request: Any) -> list[dict[str, Any]]:
        answer = await self.post(f"/v1/services/{service}/directives:pull", request)
        directives: list[dict[str, Any]] = answer.ok()["directives"]
        return directives

    async def pull_one(self, service: str = "ocr") -> dict[str, Any]:
        (directive,) = await self.pull(service)
        return directive

    async def callback(
        self,
        kind: str,
        directive: Mapping[str, Any],
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        body = {**identity(directive), **fields}
        key = token or directive["callback_token"]
        return await self.post(f"/v1/callbacks/{kind}", body, key=key, headers=headers)

    async def succeed(self, directive: Mapping[str, Any], **fields: Any) -> Answer:
        return await self.callback("result", directive, status="SUCCEEDED", **fields)

    async def fail(self, directive: Mapping[str, Any], **fields: Any) -> Answer:
        error = {"code": "BROKEN", "message": "it broke"}
        return await self.callback("result", directive, **{"status": "FAILED", "error": error, **fields})

    async def finish(self, job_id: str) -> None:
        """Complete every remaining step of the job."""
        for step in (await self.job(job_id))["steps"]:
            if step["status"] == "DISPATCHING" or step["status"] == "PENDING":
                (directive,) = [d for d in await self.pull(step["service"], max=500) if d["jobId"] == job_id]
                (await self.succeed(directive)).ok()

    async def sweep(self, after: float = 0.0) -> int:
        """Advance the clock by `after` seconds and sweep once; return the sweeper's count."""
        self.clock.advance(after)
        return await self.runtime.loops.sweeper.sweep()


def command(**changes: Any) -> dict[str, Any]:
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": "blob://in/a.pdf",
        "output_ref": "blob://out/a.json",
        "payload": {},
        "schema_version": "v1",
        **changes,
    }


def identity(directive: Mapping[str, Any]) -> dict[str, Any]:
    return {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}


def settings_for(tmp_path: Path, **changes: Any) -> Settings:
    """Return settings as read from the environment, with all background activity disabled."""
    quiet: dict[str, Any] = {
        "ledger_url": "memory:",
        "dev": True,  # test keys are short, which only dev mode permits
        "dev_api_key": KEY,
        "token_secrets": (SECRET,),
        "sweep_interval": NEVER,
        "repair_interval": NEVER,
        "reload_interval": 0.05,
        "defaults": Defaults(),
    }
    return load_settings(fastpath_env(), data_dir=tmp_path, **{**quiet, **changes})


@asynccontextmanager
async def serving(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[Api]:
    """Run a server with its lifespan, as uvicorn would."""
    clock = clock or ManualClock()
    opened: list[ControlPlane] = []

    def opener() -> AbstractAsyncContextManager[ControlPlane]:
        return _recording(open_runtime(settings, clock), opened)

    app = create_app(opener)
    async with _lifespan(app):
        yield Api(app, opened[0], clock)


@asynccontextmanager
async def _recording(
    opening: AbstractAsyncContextManager[ControlPlane], opened: list[ControlPlane]
) -> AsyncIterator[ControlPlane]:
    async with opening as runtime:
        opened.append(runtime)
        yield runtime


@asynccontextmanager
async def _lifespan(app: FastRoutes) -> AsyncIterator[None]:
    requests: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    responses: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = asyncio.create_task(app(scope, requests.get, responses.put))
    try:
        await _send_lifespan(requests, responses, task, "startup")
        try:
            yield
        finally:
            await _send_lifespan(requests, responses, task, "shutdown")
    finally:
        await asyncio.gather(task, return_exceptions=True)


async def _send_lifespan(
    requests: asyncio.Queue[dict[str, str]], responses: asyncio.Queue[Any], task: asyncio.Task[Any], phase: str
) -> None:
    """Send a lifespan message; raise what stopped the server, after asserting that it reported no traceback."""
    requests.put_nowait({"type": f"lifespan.{phase}"})
    answer = asyncio.create_task(responses.get())
    await asyncio.wait({answer, task}, return_when=asyncio.FIRST_COMPLETED)
    if not answer.done() or answer.result()["type"] != f"lifespan.{phase}.complete":
        answer.cancel()
        assert "Traceback" not in str(answer), answer.result()["message"]
        await task
