"""The routes that carry the load, as bare ASGI in front of FastAPI: same checks, same errors, far less work.

Each route is a function from (headers, body) to an answer. The OpenAPI document describes them like the rest.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, ledger_refusal, problem, problem_headers
from lucius.contract import PullAnswer, PullRequest
from lucius.ports.errors import LedgerError
from lucius.service.callbacks import ServiceSaid
from lucius.service.errors import RejectCode, Rejected
from lucius.wiring import Runtime

log = structlog.get_logger(__name__)

Answer = tuple[int, bytes, Sequence[tuple[bytes, bytes]]]
Handler = Callable[["Call"], Awaitable[Answer]]

MAX_BATCH = 500
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", MEDIA_TYPE.encode())
JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_WAIT = 60.0
PULL_PATH = re.compile(r"/v1/services/([a-z0-9][a-z0-9_-]{0,63})/directives:pull")

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder().decode
_decode_pull = msgspec.json.Decoder(PullRequest).decode


class Call(msgspec.Struct):
    """What a hot route gets to see of a request."""

    key: str
    body: bytes
    query: bytes
    receive: Receive

    def hung_up(self) -> asyncio.Future[Any]:
        """Done when the client is gone: after the body, that is all there is to receive."""
        return asyncio.ensure_future(self.receive())


class _CommandBatch(msgspec.Struct, forbid_unknown_fields=True):
    commands: list[msgspec.Raw]


class _CallbackBatch(msgspec.Struct, forbid_unknown_fields=True):
    callbacks: list[dict[str, Any]]


_decode_commands = msgspec.json.Decoder(_CommandBatch).decode
_decode_callbacks = msgspec.json.Decoder(_CallbackBatch).decode


class HotRoutes:
    """Answers the hot paths itself and passes everything else on."""

    def __init__(self, app: ASGIApp, runtime: Callable[[], Runtime | None]) -> None:
        self._app = app
        self._runtime = runtime
        self._single: dict[str, Handler] = {
            "/v1/commands": self._command,
            "/v1/callbacks/ack": self._callback("ack"),
            "/v1/callbacks/heartbeat": self._callback("heartbeat"),
            "/v1/callbacks/result": self._callback("result"),
        }
        self._batch: dict[str, Handler] = {
            "/v1/commands:batch": self._commands,
            "/v1/callbacks:batch": self._callbacks,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        handler, is_batch = found
        try:
            answer = await self._answer(handler, is_batch, scope, receive)
        except Rejected as rejected:
            answer = self._refuse(rejected)
        except LedgerError as error:
            answer = self._refuse(ledger_refusal(error))
        except Exception:
            log.exception("request failed", path=scope["path"])
            answer = self._refuse(Rejected(RejectCode.INTERNAL, "see the server's log"))
        await _send(send, answer)

    def _find(self, method: str, path: str) -> tuple[Handler, bool] | None:
        if method == "GET":
            return (self._job(path[9:]), False) if path.startswith("/v1/jobs/") and JOB_ID.fullmatch(path, 9) else None
        if method != "POST":
            return None
        if handler := self._single.get(path):
            return handler, False
        if handler := self._batch.get(path):
            return handler, True
        if matched := PULL_PATH.fullmatch(path):
            return self._pull(matched[1]), False
        return None

    async def _answer(self, handler: Handler, is_batch: bool, scope: Scope, receive: Receive) -> Answer:
        settings = self._ready().settings
        key, declared = _read_headers(scope["headers"])
        limit = settings.max_batch_bytes if is_batch else settings.max_body_bytes
        return await handler(Call(key, await _read_body(receive, limit, declared), scope["query_string"], receive))

    def _ready(self) -> Runtime:
        runtime = self._runtime()
        if runtime is None:
            raise Rejected(RejectCode.NOT_READY, "the server is starting or stopping", retry_after_seconds=1)
        return runtime

    def _refuse(self, rejected: Rejected) -> Answer:
        if runtime := self._runtime():
            runtime.metrics.refusals(rejected.code).inc()
        extra = [(name.encode(), value.encode()) for name, value in problem_headers(rejected).items()]
        return STATUS[rejected.code], encode_problem(rejected), (PROBLEM, *extra)

    async def _command(self, call: Call) -> Answer:
        runtime = self._ready()
        principal = runtime.auth.authenticate(call.key)
        principal.require("submit")
        accepted = await runtime.ingress.submit(call.body, principal)
        location = (b"location", f"/v1/jobs/{accepted.jobId}".encode())
        return 202, _encode(accepted), (JSON, location)

    async def _commands(self, call: Call) -> Answer:
        runtime = self._ready()
        principal = runtime.auth.authenticate(call.key)
        principal.require("submit")
        commands = _decode(call.body, _decode_commands).commands
        _check_size(commands)
        outcomes = await asyncio.gather(
            *(runtime.ingress.submit(bytes(command), principal) for command in commands), return_exceptions=True
        )
        results = [self._item(outcome, 202) for outcome in outcomes]
        return 200, _encode({"results": results}), (JSON,)

    def _callback(self, kind: str) -> Handler:
        async def handle(call: Call) -> Answer:
            callbacks = self._ready().callbacks
            parsed = _decode(call.body, _decode_any)
            if not isinstance(parsed, dict):
                raise Rejected(RejectCode.INVALID_CALLBACK, "the body must be a JSON object")
            if not call.key:
                raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "send the directive's callback_token as bearer token")
            spoken = await callbacks.authenticate(kind, parsed, call.key)
            (answer,) = await callbacks.apply(spoken.job_id, [spoken.said])
            if isinstance(answer, Rejected):
                raise answer
            return 200, _encode(answer), (JSON,)

        return handle

    async def _callbacks(self, call: Call) -> Answer:
        """What services said about one step is applied in order in one commit; steps go side by side."""
        items = _decode(call.body, _decode_callbacks).callbacks
        _check_size(items)
        outcomes: list[Any] = [None] * len(items)
        by_step: dict[tuple[str, str], list[tuple[int, ServiceSaid]]] = {}
        for i, item in enumerate(items):
            try:
                spoken = await self._speak(item)
            except Rejected as rejected:
                outcomes[i] = rejected
            else:
                by_step.setdefault((spoken.job_id, spoken.said.step_id), []).append((i, spoken.said))
        await asyncio.gather(*(self._apply(job_id, said, outcomes) for (job_id, _), said in by_step.items()))
        return 200, _encode({"results": [self._item(outcome, 200) for outcome in outcomes]}), (JSON,)

    async def _speak(self, item: dict[str, Any]) -> Any:
        kind, token = item.get("type"), item.get("callback_token")
        if kind not in ("ack", "heartbeat", "result"):
            raise Rejected(RejectCode.INVALID_CALLBACK, "type must be ack, heartbeat or result")
        if not isinstance(token, str) or not token:
            raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "callback_token is missing")
        return await self._ready().callbacks.authenticate(kind, item, token)

    async def _apply(self, job_id: str, said: list[tuple[int, ServiceSaid]], outcomes: list[Any]) -> None:
        try:
            answers: Sequence[Any] = await self._ready().callbacks.apply(job_id, [one for _, one in said])
        except (Rejected, LedgerError) as error:
            answers = [error] * len(said)
        for (i, _), answer in zip(said, answers, strict=True):
            outcomes[i] = answer

    def _item(self, outcome: Any, status: int) -> dict[str, Any]:
        """One item's own answer within a batch: the body it would have got alone, with its status."""
        if isinstance(outcome, LedgerError):
            outcome = ledger_refusal(outcome)
        if isinstance(outcome, Rejected):
            if runtime := self._runtime():
                runtime.metrics.refusals(outcome.code).inc()
            return {"status_code": STATUS[outcome.code], **msgspec.to_builtins(problem(outcome))}
        if isinstance(outcome, BaseException):
            raise outcome
        return {"status_code": status, "status": status, **msgspec.structs.asdict(outcome)}

    def _job(self, job_id: str) -> Handler:
        async def handle(call: Call) -> Answer:
            runtime = self._ready()
            principal = runtime.auth.authenticate(call.key)
            principal.require("read")
            return 200, _encode(await runtime.queries.job(job_id, principal, _wait(call.query))), (JSON,)

        return handle

    def _pull(self, service: str) -> Handler:
        async def handle(call: Call) -> Answer:
            runtime = self._ready()
            runtime.auth.authenticate(call.key).require_service(service)
            request = _decode(call.body, _decode_pull, RejectCode.INVALID_QUERY) if call.body else PullRequest()
            lanes = frozenset(request.lanes) if request.lanes is not None else None
            directives = await runtime.dispatcher.pull(service, request.max, request.wait_seconds, lanes, call.hung_up)
            return 200, _encode(PullAnswer(directives)), (JSON,)

        return handle


def _decode(body: bytes, decode: Callable[[bytes], Any], code: RejectCode = RejectCode.INVALID_ENVELOPE) -> Any:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise Rejected(code, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(RejectCode.MALFORMED_JSON, str(error) or "the JSON is nested too deeply") from None


def _wait(query: bytes) -> float:
    """`?wait=SECONDS`; other parameters are none of ours."""
    if not query:
        return 0.0
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("wait")
    if given is None:
        return 0.0
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT:
        raise Rejected(RejectCode.INVALID_QUERY, f"wait must be a number of seconds from 0 to {MAX_WAIT:.0f}")
    return seconds


def _check_size(items: list[Any]) -> None:
    if len(items) > MAX_BATCH:
        raise Rejected(RejectCode.BATCH_TOO_LARGE, f"a batch may have {MAX_BATCH} items, this one has {len(items)}")


def _read_headers(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, int]:
    """The bearer token, and the length that the client declared."""
    key, declared = "", 0
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        elif name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"content-type" and b"json" not in value.lower():
            raise Rejected(RejectCode.UNSUPPORTED_MEDIA_TYPE, "send the body as application/json")
    return key, declared


async def _read_body(receive: Receive, limit: int, declared: int) -> bytes:
    too_large = Rejected(RejectCode.BODY_TOO_LARGE, f"the body may have {limit} bytes")
    if declared > limit:
        raise too_large
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
    if len(body) > limit:
        raise too_large
    return body


async def _send(send: Send, answer: Answer) -> None:
    status, body, headers = answer
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-length", str(len(body)).encode()), *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
