"""The ASGI application; `create_app` is the name given to uvicorn's factory option."""

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import FrameType

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from lucius.api.batches import CallbackBatchRule, known_limits
from lucius.api.control_routes import router as control_router
from lucius.api.docs_page import router as docs_router
from lucius.api.fast_handlers import CallbackRoutes, CommandRoutes, JobRoute, PullRoute
from lucius.api.fast_routes import FastRoutes, RouteTable
from lucius.api.health_routes import router as health_router
from lucius.api.openapi_doc import describe
from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, ledger_refusal, problem_headers
from lucius.api.protocol_routes import router as protocol_router
from lucius.api.requests import RequestRules, allowed_methods, as_get
from lucius.api.review_routes import router as review_router
from lucius.api.routes import router
from lucius.api.slots import LONG_POLLS, PULLS, STREAMS, RequestSlots, SlotLimits
from lucius.api.tenant_routes import router as tenant_router
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.contract import Fault
from lucius.observability.logs import configure_logging
from lucius.observability.readiness import Role
from lucius.ports.errors import ExpectedError, LedgerError
from lucius.usecases.errors import RejectCode, Rejected
from lucius.version import __version__

log = structlog.get_logger(__name__)

Opener = Callable[[], AbstractAsyncContextManager[ControlPlane]]


class App(FastAPI):
    """FastAPI that answers HEAD like GET, and reports a known reason for a failed start in one line."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say_plainly(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self.state.refusal:
                message = {**message, "message": self.state.refusal}
            await send(message)

        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope, send = as_get(scope, send)
        await super().__call__(scope, receive, say_plainly if scope["type"] == "lifespan" else send)


def create_app(opener: Opener | None = None) -> FastRoutes:
    """Return the ASGI application; without an opener, it is wired from the environment when the server starts."""
    app = fastapi_app(opener)
    state = app.state
    rules = RequestRules(state.routes, lambda: state.runtime and state.runtime.auth)
    return FastRoutes(app, lambda: state.runtime and state.fast_routes, rules.check)


def fastapi_app(opener: Opener | None = None) -> FastAPI:
    """Return the application behind the fast routes, which describes them too. Opens nothing until it is served."""
    app = App(
        title="Lucius",
        version=__version__,
        summary="A durable control plane for document-AI pipelines",
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        lifespan=_lifespan(opener or _from_environment),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.runtime = None
    app.state.refusal = ""
    _include(app, router, protocol_router, control_router, review_router, tenant_router, health_router, docs_router)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    _refuse_with_problems(app)
    return app


def health_app(opener: Opener) -> FastAPI:
    """Return the application of a process without an API: health, readiness and metrics."""
    app = App(title="Lucius", version=__version__, lifespan=_lifespan(opener), openapi_url=None)
    app.state.runtime = None
    app.state.refusal = ""
    _include(app, health_router)
    _refuse_with_problems(app)
    return app


def _include(app: FastAPI, *routers: APIRouter) -> None:
    """Include routers, and keep a flat list of all routes for the rules on requests."""
    app.state.routes = [*app.routes, *(route for router in routers for route in router.routes)]
    for each in routers:
        app.include_router(each)


def _fast_routes(runtime: ControlPlane, long_polls: RequestSlots, waiting_pulls: RequestSlots) -> RouteTable:
    settings, auth = runtime.settings, runtime.auth
    limits = known_limits(settings.max_batch_bytes, settings.max_body_bytes)
    batch_rule = CallbackBatchRule(auth, runtime.callbacks, runtime.clock, limits)

    def count_refusal(code: RejectCode) -> None:
        runtime.metrics.refusals(code).inc()

    commands = CommandRoutes(auth, runtime.intake, limits, count_refusal)
    callbacks = CallbackRoutes(runtime.callbacks, batch_rule, settings.max_body_bytes, count_refusal)
    pulls = PullRoute(
        auth,
        runtime.directive_pulls,
        runtime.services,
        waiting_pulls,
        settings.max_body_bytes,
        is_push_bus=runtime.publisher is not None,
    )
    patterns = (JobRoute(auth, runtime.queries, long_polls).find, pulls.find)
    return RouteTable({**commands.routes(), **callbacks.routes()}, patterns, count_refusal)


def _stream_slots(runtime: ControlPlane) -> RequestSlots:
    settings = runtime.settings
    limits = SlotLimits(settings.max_streams, settings.max_streams_per_key, settings.max_streams_per_tenant)
    return RequestSlots(STREAMS, limits, runtime.metrics.streams.set)


def _long_poll_slots(runtime: ControlPlane) -> RequestSlots:
    settings = runtime.settings
    limits = SlotLimits(per_key=settings.max_long_polls_per_key, per_tenant=settings.max_long_polls_per_tenant)
    return RequestSlots(LONG_POLLS, limits, runtime.metrics.long_polls.set)


def _pull_slots(runtime: ControlPlane) -> RequestSlots:
    settings = runtime.settings
    limits = SlotLimits(per_key=settings.max_waiting_pulls_per_key, per_tenant=settings.max_waiting_pulls_per_tenant)
    return RequestSlots(PULLS, limits, runtime.metrics.waiting_pulls.set)


@asynccontextmanager
async def _from_environment() -> AsyncIterator[ControlPlane]:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    async with open_runtime(settings, role=Role.WHOLE if settings.api_engine else Role.API) as runtime:

        def let_go() -> None:
            runtime.drain.ask()
            runtime.drain.start_clock(settings.drain_seconds)
            runtime.notifier.close()

        collect_less()
        with on_stop_signals(let_go):
            yield runtime


def collect_less() -> None:
    """Freeze the objects made so far and collect garbage less often.

    Requests make no cycles, and looking for them took a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def _lifespan(opener: Opener) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opener() as runtime:
                state = app.state
                state.streams = _stream_slots(runtime)
                state.long_polls, state.waiting_pulls = _long_poll_slots(runtime), _pull_slots(runtime)
                state.fast_routes = _fast_routes(runtime, state.long_polls, state.waiting_pulls)
                app.state.runtime = runtime
                yield
        except ExpectedError as error:
            app.state.refusal = f"Lucius cannot start: {error}"
            raise
        finally:
            app.state.runtime = None

    return lifespan


def _refuse_with_problems(app: FastAPI) -> None:
    def respond(request: Request, rejected: Rejected, headers: Mapping[str, str] | None = None) -> Response:
        runtime: ControlPlane | None = request.app.state.runtime
        if runtime is not None:
            runtime.metrics.refusals(rejected.code).inc()
        headers = {**problem_headers(rejected), **(headers or {})}
        return Response(encode_problem(rejected), STATUS[rejected.code], headers=headers, media_type=MEDIA_TYPE)

    @app.exception_handler(Rejected)
    async def rejected(request: Request, error: Rejected) -> Response:
        return respond(request, error)

    @app.exception_handler(LedgerError)
    async def ledger(request: Request, error: LedgerError) -> Response:
        return respond(request, ledger_refusal(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # A parameter is not in the body, so its name is given in place of the pointer.
        faults = [Fault(str(fault["loc"][-1]), fault["msg"].removeprefix("Value error, ")) for fault in error.errors()]
        detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)
        return respond(request, Rejected(RejectCode.INVALID_QUERY, detail, faults))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code = {404: RejectCode.NOT_FOUND, 405: RejectCode.METHOD_NOT_ALLOWED}.get(error.status_code)
        if code is None:
            code = RejectCode.INVALID_QUERY if error.status_code < 500 else RejectCode.INTERNAL
        headers = (
            {"allow": allowed_methods(app.state.routes, request.scope)} if error.status_code == 405 else error.headers
        )
        return respond(request, Rejected(code, f"{request.method} {request.url.path[:256]}"), headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("request failed", path=request.url.path, exc_info=error)
        return respond(request, Rejected(RejectCode.INTERNAL, "see the server's log"))


@contextmanager
def on_stop_signals(act: Callable[[], None]) -> Iterator[None]:
    """Run `act` in this loop as soon as SIGINT or SIGTERM arrives, then the server's own handler.

    A server informs its application only after the last connection has closed, and long polls and streams would hold
    that up; `act` ends them. Where no server
    handles these signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)
