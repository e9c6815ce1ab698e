"""The OpenAPI document declares the headers that the fast routes read."""

from collections.abc import Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from lucius.api.fast_routes import FastRequest, FastRoute, FastRoutes, RawResponse, RouteTable
from tests.integration.api.conftest import Start

FAST = {
    "/v1/commands": "/v1/commands",
    "/v1/commands:batch": "/v1/commands:batch",
    "/v1/callbacks/ack": "/v1/callbacks/ack",
    "/v1/callbacks/heartbeat": "/v1/callbacks/heartbeat",
    "/v1/callbacks/result": "/v1/callbacks/result",
    "/v1/callbacks:batch": "/v1/callbacks:batch",
    "/v1/services/ocr/directives:pull": "/v1/services/{service}/directives:pull",
    "/v1/jobs/j-1": "/v1/jobs/{job_id}",
}
TRACE_HEADERS = {"traceparent", "tracestate", "x-correlation-id"}
PROCESS_HEADERS = {"x-lucius-instance", "user-agent"}


def declared_headers(document: Any, path: str, method: str) -> set[str]:
    parameters = document["paths"][path][method].get("parameters", [])
    return {parameter["name"].lower() for parameter in parameters if parameter["in"] == "header"}


async def test_fast_routes_declare_the_headers_that_they_read(start: Start) -> None:
    api = await start()
    document = (await api.get("/openapi.json")).ok()
    table = api.app.table()
    assert table is not None
    assert table.exact.keys() <= FAST.keys()
    for address, path in FAST.items():
        route = table.find(address)
        assert route is not None, address
        declared = declared_headers(document, path, route.method.lower())
        assert {name.decode() for name in route.headers} == declared, address


async def test_batches_callbacks_and_pulls_declare_their_headers(start: Start) -> None:
    document = (await (await start()).get("/openapi.json")).ok()
    assert declared_headers(document, "/v1/commands:batch", "post") == TRACE_HEADERS
    assert declared_headers(document, "/v1/commands", "post") == {*TRACE_HEADERS, "idempotency-key"}
    for path in FAST.values():
        if path.startswith(("/v1/callbacks", "/v1/services")):
            assert declared_headers(document, path, "post") == PROCESS_HEADERS, path


async def test_handler_of_a_fast_route_sees_only_the_headers_that_the_route_declares() -> None:
    seen: list[Sequence[tuple[bytes, bytes]]] = []

    async def handle(call: FastRequest) -> RawResponse:
        seen.append(call.headers)
        return 200, b"{}", ()

    async def nowhere(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the route is in the table")

    route = FastRoute(lambda key: key, handle, "GET", headers=frozenset({b"x-read"}))
    table = RouteTable({"/v1/one": route}, (), lambda code: None)
    app = FastRoutes(nowhere, lambda: table, lambda scope: None)
    headers = [(b"x-read", b"1"), (b"x-unread", b"2")]
    scope = {"type": "http", "method": "GET", "path": "/v1/one", "query_string": b"", "headers": headers}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    assert seen == [[(b"x-read", b"1")]]
