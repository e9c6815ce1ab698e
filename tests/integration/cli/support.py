"""A stub of the control plane with configured answers, and a runner for the command line."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from aiohttp import web
from typer.testing import CliRunner, Result

from lucius.cli.main import app

Answer = tuple[int, Any] | bytes
Tell = Callable[["Asked"], Answer]

NOW = "2026-01-02T03:04:05.678Z"


class Asked(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Stub:
    """Routes are `METHOD /path`, or `STREAM /path` for requests for live events.

    An answer of bytes is an event stream; a pair is a status with JSON.
    """

    def __init__(self) -> None:
        self.routes: dict[str, Answer | Tell] = {}
        self.asked: list[Asked] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        asked = Asked(
            request.method,
            request.path,
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
            msgspec.json.decode(raw) if raw else None,
        )
        self.asked.append(asked)
        method = "STREAM" if "event-stream" in asked.headers.get("accept", "") else asked.method
        told = self.routes.get(f"{method} {asked.path}", (404, problem("NOT_FOUND", "nothing there", 404)))
        answer: Answer = told if isinstance(told, bytes | tuple) else cast(Tell, told)(asked)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="text/event-stream")
        status, body = answer
        return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


@contextmanager
def serving() -> Iterator[Stub]:
    """Run a stub in its own thread: the command under test has its own event loop."""
    stub = Stub()
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        server = web.AppRunner(_application(stub), access_log=None)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        stub.url = f"http://127.0.0.1:{server.addresses[0][1]}"
        started.set()
        await stop.wait()
        await server.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def _application(stub: Stub) -> web.Application:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", stub.handle)
    return application


def lucius(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env=env)


def at(stub: Stub, *arguments: str) -> Result:
    """Run `lucius` with a key against the stub."""
    return lucius("--url", stub.url, "--api-key", "k", *arguments)


def problem(code: str, detail: str, status: int, faults: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    errors = [{"pointer": pointer, "message": message} for pointer, message in faults or []]
    return {"type": "about:x", "title": "Refused", "status": status, "code": code, "detail": detail, "errors": errors}


def job(job_id: str = "j-1", status: str = "SUCCEEDED", **fields: Any) -> dict[str, Any]:
    return {
        "jobId": job_id,
        "tenant_id": "acme",
        "request_type": "OCR",
        "protocol_id": "ocr",
        "protocol_version": 1,
        "status": status,
        "run_no": 1,
        "current_step_id": "ocr",
        "mode": "DEFAULT",
        "blocked_on": None,
        "created_at": NOW,
        "updated_at": NOW,
        "completed_at": NOW if status in ("SUCCEEDED", "FAILED_FINAL", "CANCELLED") else None,
        "error": None,
        "correlation_id": job_id,
        "steps": [step(status="SUCCEEDED" if status == "SUCCEEDED" else "PROCESSING")],
        "input_ref": "blob://in/a",
        "output_ref": "blob://out/a",
        "workspace_ref": "file:///w",
        "doc_id": None,
        "idempotency_key": None,
        "attempts_total": 1,
        "traceparent": None,
        "target": None,
        **fields,
    }


def step(step_id: str = "ocr", **fields: Any) -> dict[str, Any]:
    return {
        "stepId": step_id,
        "index": 0,
        "kind": "task",
        "step_type": step_id.upper(),
        "service": step_id,
        "status": "SUCCEEDED",
        "attempt_no": 1,
        "lease_id": "l-1",
        "lane": 3,
        "routing_key_used": "acme",
        "resolved_mode": "DEFAULT",
        "decision_source": "REQUEST",
        "decision_reason": "said so",
        "workspace_ref": "file:///w",
        "idempotency_key": "k",
        **fields,
    }


def attempt(attempt_no: int = 1, outcome: str | None = "SUCCEEDED", **fields: Any) -> dict[str, Any]:
    return {
        "stepId": "ocr",
        "attempt_no": attempt_no,
        "lease_id": f"l-{attempt_no}",
        "run_no": 1,
        "outcome": outcome,
        "created_at": NOW,
        "handed_over_at": NOW,
        "ack_deadline": NOW,
        "acked_at": NOW,
        "lease_expires_at": NOW,
        "ended_at": NOW,
        "progress": None,
        "failure_class": None,
        "error": None,
        "idempotency_key": "k",
        "lane": 3,
        "routing_key_used": "acme",
        "resolved_mode": "DEFAULT",
        "decision_source": "REQUEST",
        "decision_reason": "said so",
        **fields,
    }


def event(seq: int, type_: str, **fields: Any) -> dict[str, Any]:
    return {
        "jobId": "j-1",
        "seq": seq,
        "type": type_,
        "at": NOW,
        "stepId": None,
        "attempt_no": None,
        "data": {},
    } | fields


def stream(*events: dict[str, Any], ended: bool = True) -> bytes:
    told = b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (e["seq"], e["type"].encode(), msgspec.json.encode(e)) for e in events
    )
    return told + (b"event: end\ndata: {}\n\n" if ended else b"")
