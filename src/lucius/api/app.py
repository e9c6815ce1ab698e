"""The application: `create_app` is what uvicorn's factory option names."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from lucius import __version__
from lucius.api.control_routes import router as control_router
from lucius.api.document import describe
from lucius.api.health_routes import router as health_router
from lucius.api.hot import HotRoutes
from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, ledger_refusal, problem_headers
from lucius.api.protocol_routes import router as protocol_router
from lucius.api.review_routes import router as review_router
from lucius.api.routes import MAX_STREAMS, router
from lucius.api.stopping import on_stop_signals
from lucius.contract import Fault
from lucius.observability.logs import configure_logging
from lucius.observability.readiness import Role
from lucius.ports.errors import LedgerError, LuciusError
from lucius.service.errors import RejectCode, Rejected
from lucius.settings import load_settings
from lucius.wiring import Runtime, open_runtime

log = structlog.get_logger(__name__)

Opener = Callable[[], AbstractAsyncContextManager[Runtime]]


class App(FastAPI):
    """FastAPI that says in one line why it cannot start, where that is known."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say_plainly(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self.state.refusal:
                message = {**message, "message": self.state.refusal}
            await send(message)

        await super().__call__(scope, receive, say_plainly if scope["type"] == "lifespan" else send)


def create_app(opener: Opener | None = None) -> HotRoutes:
    """The ASGI application; without an opener, wired from the environment when the server starts."""
    app = fastapi_app(opener)
    return HotRoutes(app, lambda: app.state.runtime)


def fastapi_app(opener: Opener | None = None) -> FastAPI:
    """What is behind the hot routes, and describes them too. Opens nothing until it is served."""
    app = App(
        title="Lucius",
        version=__version__,
        summary="A durable control plane for document-AI pipelines",
        lifespan=_lifespan(opener or _from_environment),
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.runtime = None
    app.state.refusal = ""
    app.state.streams = asyncio.Semaphore(MAX_STREAMS)
    for routes in (router, protocol_router, control_router, review_router, health_router):
        app.include_router(routes)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    _refuse_with_problems(app)
    return app


def health_app(opener: Opener) -> FastAPI:
    """For a process that has no API: what those need who keep it running."""
    app = App(title="Lucius", version=__version__, lifespan=_lifespan(opener), openapi_url=None)
    app.state.runtime = None
    app.state.refusal = ""
    app.include_router(health_router)
    _refuse_with_problems(app)
    return app


@asynccontextmanager
async def _from_environment() -> AsyncIterator[Runtime]:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    async with open_runtime(settings, role=Role.WHOLE if settings.api_engine else Role.API) as runtime:

        def let_go() -> None:
            runtime.drain.ask()
            runtime.drain.start_clock(settings.drain_seconds)
            runtime.hub.close()

        collect_less()
        with on_stop_signals(let_go):
            yield runtime


def collect_less() -> None:
    """What was made until now stays, and requests make no cycles: looking for them took a tenth of our time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def _lifespan(opener: Opener) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opener() as runtime:
                app.state.runtime = runtime
                yield
        except LuciusError as error:
            app.state.refusal = f"Lucius cannot start: {error}"
            raise
        finally:
            app.state.runtime = None

    return lifespan


def _refuse_with_problems(app: FastAPI) -> None:
    def respond(request: Request, rejected: Rejected, headers: Mapping[str, str] | None = None) -> Response:
        runtime: Runtime | None = request.app.state.runtime
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
        # A parameter has no place in the body, so its name takes the pointer's.
        faults = [Fault(str(fault["loc"][-1]), fault["msg"]) for fault in error.errors()]
        detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults)
        return respond(request, Rejected(RejectCode.INVALID_QUERY, detail, faults))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code = {404: RejectCode.NOT_FOUND, 405: RejectCode.METHOD_NOT_ALLOWED}.get(error.status_code)
        if code is None:
            code = RejectCode.INVALID_QUERY if error.status_code < 500 else RejectCode.INTERNAL
        return respond(request, Rejected(code, f"{request.method} {request.url.path[:256]}"), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("request failed", path=request.url.path, exc_info=error)
        return respond(request, Rejected(RejectCode.INTERNAL, "see the server's log"))
