"""Routes that carry the load, as plain ASGI in front of FastAPI: same checks, same errors, far less work.

Each route first admits the caller, before a byte of the body is read, and then answers. `fast_handlers` has the
handlers. The OpenAPI document describes these routes like the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.batches import BatchLimits
from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, ledger_refusal, problem_headers
from lucius.api.request_parsing import read_body, read_headers, refuse_encoded, require_json
from lucius.api.requests import allow, as_get, check_query
from lucius.ports.errors import LedgerError
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

RawResponse = tuple[int, bytes, Sequence[tuple[bytes, bytes]]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", MEDIA_TYPE.encode())
NEEDS_CONTROL_PLANE = "/v1/"

encode_json = msgspec.json.Encoder().encode


class FastRequest(msgspec.Struct):
    """A request as a handler sees it, with the headers that its route names.

    `caller` is what the route's `admit` returned.
    """

    caller: Any
    query: bytes
    receive: Receive
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""

    def hung_up(self) -> asyncio.Future[Any]:
        """Return a future that is done when the client is gone. Nothing else can be received meanwhile."""
        return asyncio.ensure_future(self._receive_disconnect())

    async def _receive_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":  # the body of a GET, which is empty, comes first
            pass


class FastRoute(msgspec.Struct, frozen=True):
    admit: Callable[[str], Any]
    """Returns the caller for the bearer token, empty if there is none. Raises Rejected."""
    handle: Callable[[FastRequest], Awaitable[RawResponse]]
    method: str = "POST"
    max_bytes: int = 0
    """Size of the body; `BatchLimits` as caller have a size of their own."""
    query: frozenset[str] = frozenset()
    """Names of the query parameters that the route takes."""
    headers: frozenset[bytes] = frozenset()
    """Names of the headers that the handler reads."""
    too_large: Callable[[FastRequest], Awaitable[None]] | None = None
    """Called if a body is too large to be read, before the request is refused."""


class RouteTable(msgspec.Struct, frozen=True):
    """Fast routes of a running control plane."""

    exact: Mapping[str, FastRoute]
    patterns: Sequence[Callable[[str], FastRoute | None]]
    count_refusal: Callable[[RejectCode], None]

    def find(self, path: str) -> FastRoute | None:
        if route := self.exact.get(path):
            return route
        return next((route for find in self.patterns if (route := find(path)) is not None), None)


class FastRoutes:
    """Answers the requests of its table itself and passes every other one on."""

    def __init__(self, app: ASGIApp, table: Callable[[], RouteTable | None], check: Callable[[Scope], None]) -> None:
        """Call `check` with every request that is passed on; it raises Rejected. Without a table, answer NOT_READY."""
        self.app = app
        self.table = table
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = as_get(scope, send)
        table = self.table()
        answer: RawResponse | None = None
        route: FastRoute | None = None
        try:
            if table is None and scope["path"].startswith(NEEDS_CONTROL_PLANE):
                raise Rejected(RejectCode.NOT_READY, "the server is starting or stopping", retry_after_seconds=1)
            route = table.find(scope["path"]) if table else None
            if route is None:
                self._check(scope)
            else:
                answer = await _answer(route, scope, receive)
        except Rejected as rejected:
            answer = _refuse(rejected, table, route)
        except LedgerError as error:
            answer = _refuse(ledger_refusal(error), table)
        except Exception:
            log.exception("request failed", path=scope["path"])
            answer = _refuse(Rejected(RejectCode.INTERNAL, "see the server's log"), table)
        if answer is None:
            await self.app(scope, receive, send)
        else:
            await _send(send, answer)


async def _answer(route: FastRoute, scope: Scope, receive: Receive) -> RawResponse:
    if scope["method"] != route.method:
        raise Rejected(RejectCode.METHOD_NOT_ALLOWED, f"{scope['method']} {scope['path'][:256]}")
    key, declared, media_type = read_headers(scope["headers"])
    headers = [header for header in scope["headers"] if header[0] in route.headers] if route.headers else []
    call = FastRequest(route.admit(key), scope["query_string"], receive, headers)
    if call.query:
        check_query(call.query, route.query)
    if route.method == "POST":
        require_json(media_type)
        refuse_encoded(scope["headers"])
        call.body = await _read_body(route, call, declared)
    return await route.handle(call)


async def _read_body(route: FastRoute, call: FastRequest, declared: int) -> bytes:
    limit = call.caller.max_bytes if isinstance(call.caller, BatchLimits) else route.max_bytes
    try:
        return await read_body(call.receive, limit, declared)
    except Rejected as refusal:
        if refusal.code is RejectCode.BODY_TOO_LARGE and route.too_large is not None:
            await route.too_large(call)
        raise


def _refuse(rejected: Rejected, table: RouteTable | None, route: FastRoute | None = None) -> RawResponse:
    if table is not None:
        table.count_refusal(rejected.code)
    headers = dict(problem_headers(rejected))
    if rejected.code is RejectCode.METHOD_NOT_ALLOWED and route is not None:
        headers["allow"] = allow({route.method})
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    return STATUS[rejected.code], encode_problem(rejected), (PROBLEM, *extra)


async def _send(send: Send, answer: RawResponse) -> None:
    status, body, headers = answer
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-length", str(len(body)).encode()), *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
