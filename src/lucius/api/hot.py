"""The routes that carry the load, as bare ASGI in front of FastAPI: same checks, same errors, far less work.

Each route first admits the caller, before a byte of the body is read, and then answers. The OpenAPI document
describes them like the rest.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.bodies import decode, read_body, read_headers, require_json
from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, ledger_refusal, problem, problem_headers
from lucius.contract import PullAnswer, PullRequest
from lucius.ports.errors import LedgerError
from lucius.service.auth import Principal
from lucius.service.callbacks import Callbacks, ServiceSaid, Spoken
from lucius.service.errors import RejectCode, Rejected
from lucius.service.tokens import Claims
from lucius.wiring import Runtime

log = structlog.get_logger(__name__)

Answer = tuple[int, bytes, Sequence[tuple[bytes, bytes]]]

MAX_BATCH = 500
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", MEDIA_TYPE.encode())
JOB_PREFIX = "/v1/jobs/"
JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_WAIT = 60.0
PULL_PATH = re.compile(r"/v1/services/([a-z0-9][a-z0-9_-]{0,63})/directives:pull")

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder().decode
_decode_pull = msgspec.json.Decoder(PullRequest).decode


class Call(msgspec.Struct):
    """What a hot route gets to see of a request. `caller` is whatever the route admitted."""

    runtime: Runtime
    caller: Any
    query: bytes
    receive: Receive
    body: bytes = b""

    def hung_up(self) -> asyncio.Future[Any]:
        """Done when the client is gone: after the body, that is all there is to receive."""
        return asyncio.ensure_future(self.receive())


class Route(msgspec.Struct, frozen=True):
    admit: Callable[[Runtime, str], Any]
    handle: Callable[[Call], Awaitable[Answer]]
    method: str = "POST"
    is_batch: bool = False
    too_large: Callable[[Call], Awaitable[None]] | None = None
    """What a body means that is too large to be read, beside its refusal."""


class _CommandBatch(msgspec.Struct, forbid_unknown_fields=True):
    commands: list[msgspec.Raw]


class _CallbackBatch(msgspec.Struct, forbid_unknown_fields=True):
    callbacks: list[Any]


_decode_commands = msgspec.json.Decoder(_CommandBatch).decode
_decode_callbacks = msgspec.json.Decoder(_CallbackBatch).decode


class HotRoutes:
    """Answers the hot paths itself and passes everything else on."""

    def __init__(self, app: ASGIApp, runtime: Callable[[], Runtime | None]) -> None:
        self._app = app
        self._runtime = runtime
        self._routes = {
            "/v1/commands": Route(_submitter, self._command),
            "/v1/commands:batch": Route(_submitter, self._commands, is_batch=True),
            "/v1/callbacks/ack": Route(_token_bearer, _callback("ack")),
            "/v1/callbacks/heartbeat": Route(_token_bearer, _callback("heartbeat")),
            "/v1/callbacks/result": Route(_token_bearer, _callback("result"), too_large=_result_too_large),
            "/v1/callbacks:batch": Route(_anyone, self._callbacks, is_batch=True),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(route, scope, receive)
        except Rejected as rejected:
            answer = self._refuse(rejected)
        except LedgerError as error:
            answer = self._refuse(ledger_refusal(error))
        except Exception:
            log.exception("request failed", path=scope["path"])
            answer = self._refuse(Rejected(RejectCode.INTERNAL, "see the server's log"))
        await _send(send, answer)

    def _find(self, path: str) -> Route | None:
        if route := self._routes.get(path):
            return route
        if path.startswith(JOB_PREFIX):
            return Route(_reader, _job(path[9:]), "GET") if JOB_ID.fullmatch(path, 9) else None
        if matched := PULL_PATH.fullmatch(path):
            return _pull(matched[1])
        return None

    async def _answer(self, route: Route, scope: Scope, receive: Receive) -> Answer:
        if scope["method"] != route.method:
            return self._wrong_method(route, scope)
        runtime = self._runtime()
        if runtime is None:
            raise Rejected(RejectCode.NOT_READY, "the server is starting or stopping", retry_after_seconds=1)
        key, declared, media_type = read_headers(scope["headers"])
        call = Call(runtime, route.admit(runtime, key), scope["query_string"], receive)
        if route.method == "POST":
            require_json(media_type)
            settings = runtime.settings
            limit = settings.max_batch_bytes if route.is_batch else settings.max_body_bytes
            call.body = await self._body(route, call, limit, declared)
        return await route.handle(call)

    async def _body(self, route: Route, call: Call, limit: int, declared: int) -> bytes:
        try:
            return await read_body(call.receive, limit, declared)
        except Rejected as refusal:
            if refusal.code is RejectCode.BODY_TOO_LARGE and route.too_large is not None:
                await route.too_large(call)
            raise

    def _wrong_method(self, route: Route, scope: Scope) -> Answer:
        refusal = Rejected(RejectCode.METHOD_NOT_ALLOWED, f"{scope['method']} {scope['path'][:256]}")
        status, body, headers = self._refuse(refusal)
        return status, body, (*headers, (b"allow", route.method.encode()))

    def _refuse(self, rejected: Rejected) -> Answer:
        if runtime := self._runtime():
            runtime.metrics.refusals(rejected.code).inc()
        extra = [(name.encode(), value.encode()) for name, value in problem_headers(rejected).items()]
        return STATUS[rejected.code], encode_problem(rejected), (PROBLEM, *extra)

    async def _command(self, call: Call) -> Answer:
        accepted = await call.runtime.ingress.submit(call.body, call.caller)
        location = (b"location", f"/v1/jobs/{accepted.jobId}".encode())
        return 202, _encode(accepted), (JSON, location)

    async def _commands(self, call: Call) -> Answer:
        commands = decode(call.body, _decode_commands).commands
        _check_size(commands)
        submit = call.runtime.ingress.submit
        outcomes = await asyncio.gather(
            *(submit(bytes(command), call.caller) for command in commands), return_exceptions=True
        )
        return 200, _encode({"results": [self._item(outcome, 202) for outcome in outcomes]}), (JSON,)

    async def _callbacks(self, call: Call) -> Answer:
        """What services said about one step is applied in order in one commit; steps go side by side."""
        items = decode(call.body, _decode_callbacks).callbacks
        _check_size(items)
        callbacks = call.runtime.callbacks
        outcomes: list[Any] = [None] * len(items)
        by_step: dict[tuple[str, str], list[tuple[int, ServiceSaid]]] = {}
        for i, item in enumerate(items):
            try:
                spoken = await _speak(callbacks, item)
            except (Rejected, LedgerError) as refusal:
                outcomes[i] = refusal
            else:
                by_step.setdefault((spoken.job_id, spoken.said.step_id), []).append((i, spoken.said))
        await asyncio.gather(*(_apply(callbacks, job_id, said, outcomes) for (job_id, _), said in by_step.items()))
        return 200, _encode({"results": [self._item(outcome, 200) for outcome in outcomes]}), (JSON,)

    def _item(self, outcome: Any, status: int) -> dict[str, Any]:
        """One item's own answer within a batch: the body it would have got alone, with its status."""
        if isinstance(outcome, LedgerError):
            outcome = ledger_refusal(outcome)
        elif isinstance(outcome, BaseException) and not isinstance(outcome, Rejected):
            log.error("an item of a batch failed", exc_info=outcome)
            outcome = Rejected(RejectCode.INTERNAL, "see the server's log")
        if isinstance(outcome, Rejected):
            if runtime := self._runtime():
                runtime.metrics.refusals(outcome.code).inc()
            return {"status_code": STATUS[outcome.code], **msgspec.to_builtins(problem(outcome))}
        return {"status_code": status, "status": status, **msgspec.structs.asdict(outcome)}


def _submitter(runtime: Runtime, key: str) -> Principal:
    principal = runtime.auth.authenticate(key)
    principal.require("submit")
    return principal


def _reader(runtime: Runtime, key: str) -> Principal:
    principal = runtime.auth.authenticate(key)
    principal.require("read")
    return principal


def _token_bearer(runtime: Runtime, key: str) -> Claims:
    if not key:
        raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "send the directive's callback_token as bearer token")
    return runtime.callbacks.verify(key)


def _anyone(runtime: Runtime, key: str) -> None:
    """Each item of the body brings its own token."""


def _callback(kind: str) -> Callable[[Call], Awaitable[Answer]]:
    async def handle(call: Call) -> Answer:
        callbacks = call.runtime.callbacks
        parsed = decode(call.body, _decode_any)
        if not isinstance(parsed, dict):
            raise Rejected(RejectCode.INVALID_CALLBACK, "the body must be a JSON object")
        spoken = await callbacks.hear(kind, parsed, call.caller)
        (answer,) = await callbacks.apply(spoken.job_id, [spoken.said])
        if isinstance(answer, Rejected):
            raise answer
        return 200, _encode(answer), (JSON,)

    return handle


async def _result_too_large(call: Call) -> None:
    """The service has done its work and can't say so: that is the attempt's end, not something to wait for."""
    await call.runtime.callbacks.end_unheard(call.caller)


async def _speak(callbacks: Callbacks, item: Any) -> Spoken:
    if not isinstance(item, dict):
        raise Rejected(RejectCode.INVALID_CALLBACK, "a callback must be a JSON object")
    kind, token = item.get("type"), item.get("callback_token")
    if not isinstance(token, str) or not token:
        raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "callback_token is missing")
    claims = callbacks.verify(token)
    if kind not in ("ack", "heartbeat", "result"):
        raise Rejected(RejectCode.INVALID_CALLBACK, "type must be ack, heartbeat or result")
    return await callbacks.hear(kind, item, claims)


async def _apply(callbacks: Callbacks, job_id: str, said: list[tuple[int, ServiceSaid]], outcomes: list[Any]) -> None:
    try:
        answers: Sequence[Any] = await callbacks.apply(job_id, [one for _, one in said])
    except Exception as error:  # noqa: BLE001 - it is the answer of these items, and of no others
        answers = [error] * len(said)
    for (i, _), answer in zip(said, answers, strict=True):
        outcomes[i] = answer


def _job(job_id: str) -> Callable[[Call], Awaitable[Answer]]:
    async def handle(call: Call) -> Answer:
        job = await call.runtime.queries.job(job_id, call.caller, _wait(call.query))
        return 200, _encode(job), (JSON,)

    return handle


def _pull(service: str) -> Route:
    def admit(runtime: Runtime, key: str) -> None:
        runtime.auth.authenticate(key).require_service(service)

    async def handle(call: Call) -> Answer:
        if call.runtime.publisher is not None:
            raise Rejected(RejectCode.PUSH_BUS, f"directives for {service} are on the bus")
        request = decode(call.body, _decode_pull) if call.body else PullRequest()
        lanes = frozenset(request.lanes) if request.lanes is not None else None
        pull = call.runtime.dispatcher.pull
        directives = await pull(service, request.max, min(request.wait_seconds, MAX_WAIT), lanes, call.hung_up)
        return 200, _encode(PullAnswer(directives)), (JSON,)

    return Route(admit, handle)


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
    if not seconds >= 0:
        raise Rejected(RejectCode.INVALID_QUERY, f"wait must be a number of seconds; more than {MAX_WAIT:.0f} are cut")
    return min(seconds, MAX_WAIT)


def _check_size(items: list[Any]) -> None:
    if len(items) > MAX_BATCH:
        raise Rejected(RejectCode.BATCH_TOO_LARGE, f"a batch may have {MAX_BATCH} items, this one has {len(items)}")


async def _send(send: Send, answer: Answer) -> None:
    status, body, headers = answer
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-length", str(len(body)).encode()), *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
