"""HTTP server of the played orchestrator: the four requests of the `local:` contract.

It keeps its port and its state, so that it can go offline (connections are refused) and come back. A second port
plays a client that takes the callbacks instead of the orchestrator. Answers are correct unless a case returns a
`ResponseOverride`: errors, delays, lost answers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import ClientError, web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from lucius.conformance.attempt_log import KINDS, AttemptLog, CallbackResponse, Kind, ReceivedCallback, now, problem
from lucius.conformance.feed import LocalFeed
from lucius.conformance.ports import HOST, PortBlocks
from lucius.contract import PullRequest

MAX_WAIT_SECONDS = 50.0  # the orchestrator's own limit
DISCONNECT_CHECK_SECONDS = 0.25
GRACE_SECONDS = 0.05
MAX_STARTS = 100
MAX_BATCH_CALLBACKS = 500
MAX_ANONYMOUS_BATCH_CALLBACKS = 100
MAX_BODY_BYTES = 1024 * 1024  # as the orchestrator's own limits
MAX_BATCH_BYTES = 16 * MAX_BODY_BYTES

_ports = PortBlocks()


class ResponseOverride(Struct, frozen=True, kw_only=True):
    status: int = 0
    """Answer with this status instead, without processing the request."""
    retry_after: float | None = None
    delay: float = 0.0
    """Process the request at once, answer after this many seconds."""
    lose_answer: bool = False
    """Process the request, and close the connection instead of answering."""
    body: bytes | None = None
    """Answer 200 with this body instead."""


class Pull(Struct, kw_only=True):
    at: float
    service: str
    max: int = 0
    wait_seconds: float = 0.0
    status: int = 0
    handed: int = 0
    answered_at: float | None = None


class Orchestrator:
    """Server of one case.

    `on_callbacks` gets a request's callbacks, `on_pull` each pull; either may return a ResponseOverride.
    """

    def __init__(self, attempt_log: AttemptLog, feed: LocalFeed, api_key: str, on_change: Callable[[], None]) -> None:
        self.attempt_log = attempt_log
        self.feed = feed
        self.pulls: list[Pull] = []
        self.faults: list[str] = []
        self.service: str | None = None
        self.answers_at_once = False
        """True if pulls do not wait for directives."""
        self.on_callbacks: Callable[[Sequence[ReceivedCallback]], ResponseOverride | None] = lambda _: None
        self.on_pull: Callable[[Pull], ResponseOverride | None] = lambda _: None
        self._api_key = api_key
        self._on_change = on_change
        self._requests = 0
        self.internal_error: Exception | None = None
        """Internal error of the kit, if any."""
        self._ports: tuple[int, ...] = ()
        self._runner: web.ServerRunner | None = None
        self._handling: set[asyncio.Task[Any]] = set()
        self._is_offline = False

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._ports[0]}"

    @property
    def client_url(self) -> str:
        """Base URL of the client that takes callbacks instead of the orchestrator."""
        return f"http://{HOST}:{self._ports[1]}"

    async def start(self) -> None:
        for _ in range(MAX_STARTS):
            self._ports = (_ports.take(), _ports.take())
            try:
                await self.go_online()
            except OSError:  # a port is taken by another program
                continue
            return
        raise RuntimeError(f"no two free ports in {MAX_STARTS} tries")

    async def go_online(self) -> None:
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=GRACE_SECONDS)
        await runner.setup()
        self._is_offline = False
        try:
            for port in self._ports:
                await web.TCPSite(runner, HOST, port, reuse_address=True).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.attempt_log.restart_leases()

    async def close(self) -> None:
        """Go offline and release the ports."""
        await self.go_offline()
        _ports.give_back(self._ports)
        self._ports = ()

    async def go_offline(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        await self._end_requests()
        await runner.cleanup()

    async def _end_requests(self) -> None:
        """Leave requests a moment to be answered, and cancel the others.

        aiohttp does the same, but logs an InvalidStateError if a request ends in the turn in which its time is up.
        """
        if self._handling:
            await asyncio.wait(self._handling, timeout=GRACE_SECONDS)
        self._is_offline = True
        if self._handling:
            for task in self._handling:
                task.cancel()
            await asyncio.wait(self._handling)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._is_offline:  # a keep-alive connection that is about to be closed
            return _lost(request)
        task = asyncio.current_task()
        assert task is not None, "aiohttp runs each request in a task"
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        try:
            return await self._answered(request)
        except ConnectionError:
            return web.Response(status=400)  # the peer has closed the connection: the answer is not sent
        except (ClientError, HttpProcessingError, web.HTTPException, web.RequestPayloadError):
            raise  # the peer does not speak HTTP
        except Exception as error:
            self.internal_error = self.internal_error or error
            self._on_change()
            raise

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if _port(request) == self._ports[1]:
            return await self._client_callback(request)
        if request.method == "GET" and path in ("/healthz", "/readyz"):
            return _reply(CallbackResponse(200, {"status": "ok"}))
        if request.method != "POST":
            return self._refuse(problem(405, "METHOD_NOT_ALLOWED", f"{request.method} {path}"))
        is_large = path.endswith(":batch") and _bearer(request)
        body = await self._body(request, MAX_BATCH_BYTES if is_large else MAX_BODY_BYTES)
        if isinstance(body, CallbackResponse):
            return self._refuse(body)
        if path.startswith("/v1/services/") and path.endswith("/directives:pull"):
            return await self._pull(request, body, path.split("/")[3])
        if path == "/v1/callbacks:batch":
            return await self._batch(request, body)
        kind = path.removeprefix("/v1/callbacks/")
        if kind not in KINDS:
            return self._refuse(problem(404, "NOT_FOUND", f"{request.method} {path} does not exist"))
        return await self._single(request, body, KINDS[KINDS.index(kind)])

    async def _client_callback(self, request: web.BaseRequest) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2].removesuffix("-of-it")
        if request.method != "POST" or kind not in KINDS:
            return self._refuse(problem(404, "NOT_FOUND", f"no callback_urls have {request.method} {_url(request)}"))
        body = await self._body(request, MAX_BODY_BYTES)
        if isinstance(body, CallbackResponse):
            return self._refuse(body)
        return await self._single(request, body, KINDS[KINDS.index(kind)])

    async def _body(self, request: web.BaseRequest, limit: int) -> bytes | CallbackResponse:
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                detail = f"POST {request.path} has more than {limit} bytes; write an artifact instead"
                return problem(413, "BODY_TOO_LARGE", detail)
        return bytes(body)

    def _refuse(self, answer: CallbackResponse) -> web.Response:
        """Refuse a request that violates the contract, and record it as a fault."""
        self.faults.append(f"a request was invalid: {answer.status} {answer.body['code']}: {answer.body['detail']}")
        self._on_change()
        return _reply(answer)

    # Pulls

    async def _pull(self, request: web.BaseRequest, body: bytes, service: str) -> web.StreamResponse:
        pull = Pull(at=now(), service=service)
        refusal, wanted = self._admit(request, body)
        pull.max, pull.wait_seconds = wanted.max, wanted.wait_seconds
        self.pulls.append(pull)
        self.service = self.service or service
        self._on_change()
        override = self.on_pull(pull)
        response = await self._overridden_response(request, override)
        if response is None and refusal is not None:
            response = self._refuse(refusal)
        if response is None:
            directives = (
                await self._hand_out(request, wanted)
                if service == self.service
                else await self._wait_without_directives(wanted)
            )
            pull.handed = len(directives)
            response = _reply(CallbackResponse(200, {"directives": directives}))
        pull.status, pull.answered_at = response.status, now()
        self._on_change()
        return response

    def _admit(self, request: web.BaseRequest, body: bytes) -> tuple[CallbackResponse | None, PullRequest]:
        if _bearer(request) != self._api_key:
            return problem(401, "UNAUTHENTICATED", "a pull must carry LUCIUS_API_KEY as bearer token"), PullRequest()
        if refusal := _not_json(request):
            return refusal, PullRequest()
        try:
            return None, msgspec.json.decode(body, type=PullRequest) if body else PullRequest()
        except msgspec.ValidationError as error:
            return problem(422, "INVALID_BODY", f"a pull that does not fit the contract: {error}"), PullRequest()
        except msgspec.DecodeError as error:
            return problem(400, "MALFORMED_JSON", f"a pull that is not JSON: {error}"), PullRequest()

    async def _hand_out(self, request: web.BaseRequest, wanted: PullRequest) -> list[Any]:
        """Wait for directives and return them; if the client disconnects, they stay queued."""
        wait = 0.0 if self.answers_at_once else min(wanted.wait_seconds, MAX_WAIT_SECONDS)
        deadline = now() + wait
        while request.transport is not None and not request.transport.is_closing():
            if self.feed.waiting() and (taken := self.feed.take(wanted)):
                return taken
            if (remaining := deadline - now()) <= 0 or self.answers_at_once:
                break
            await self.feed.arrival(min(remaining, DISCONNECT_CHECK_SECONDS))
        return []

    async def _wait_without_directives(self, wanted: PullRequest) -> list[Any]:
        """Wait and return nothing, for another service of the same command."""
        await asyncio.sleep(min(wanted.wait_seconds, MAX_WAIT_SECONDS))
        return []

    # Callbacks

    async def _single(self, request: web.BaseRequest, body: bytes, kind: Kind) -> web.StreamResponse:
        if refusal := _not_json(request):
            return self._refuse(refusal)
        self._requests += 1
        callback = ReceivedCallback(
            at=now(),
            kind=kind,
            token=_bearer(request),
            body=_decoded(body),
            request=self._requests,
            url=_url(request),
        )
        return await self._callbacks(request, [callback], lambda answers: _reply(answers[0]))

    async def _batch(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        batch = _decoded(body)
        items = batch.get("callbacks") if isinstance(batch, dict) else None
        if refusal := _not_json(request):
            return self._refuse(refusal)
        max_items = MAX_BATCH_CALLBACKS if _bearer(request) else MAX_ANONYMOUS_BATCH_CALLBACKS
        if not isinstance(items, list) or len(items) > max_items:
            detail = (
                f"a batch is {{callbacks: […]}} of at most {MAX_BATCH_CALLBACKS}, "
                f"or {MAX_ANONYMOUS_BATCH_CALLBACKS} without a token"
            )
            return self._refuse(problem(422, "INVALID_BODY", detail))
        self._requests += 1
        items_or_none = [_item(item, self._requests, _url(request)) for item in items]
        if None in items_or_none:
            detail = "an item of a batch needs type (ack, heartbeat or result) and callback_token"
            return self._refuse(problem(422, "INVALID_CALLBACK", detail))
        return await self._callbacks(request, [item for item in items_or_none if item is not None], _batch_reply)

    async def _callbacks(
        self,
        request: web.BaseRequest,
        callbacks: list[ReceivedCallback],
        reply: Callable[[list[CallbackResponse]], web.Response],
    ) -> web.StreamResponse:
        override = self.on_callbacks(callbacks)
        if override is not None and override.status:
            refusal = _error_response(override)
            for callback in callbacks:
                self.attempt_log.refuse_unprocessed(callback, refusal)
            answers = []
        else:
            answers = [self.attempt_log.receive(callback) for callback in callbacks]
        response = await self._overridden_response(request, override) or reply(answers)
        for callback in callbacks:
            callback.answered_at = now()
        self._on_change()
        return response

    async def _overridden_response(
        self, request: web.BaseRequest, override: ResponseOverride | None
    ) -> web.StreamResponse | None:
        if override is None:
            return None
        if override.delay:
            await asyncio.sleep(override.delay)
        if override.lose_answer and request.transport is not None:
            return _lost(request)
        if override.body is not None:
            return web.Response(body=override.body, content_type="text/html")
        return _reply(_error_response(override)) if override.status else None


def _lost(request: web.BaseRequest) -> web.Response:
    """Abort the connection; the returned answer is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _error_response(override: ResponseOverride) -> CallbackResponse:
    codes = {401: "UNAUTHENTICATED", 403: "FORBIDDEN_SCOPE", 429: "TENANT_LIMIT", 503: "NOT_READY"}
    return problem(override.status, codes.get(override.status, "INTERNAL"), "a simulated failure", override.retry_after)


def _reply(answer: CallbackResponse) -> web.Response:
    headers = {}
    if answer.retry_after is not None:
        headers["Retry-After"] = f"{answer.retry_after:g}"
    if answer.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    media_type = "application/json" if answer.status < 400 else "application/problem+json"
    body = msgspec.json.encode(answer.body)
    return web.Response(status=answer.status, body=body, content_type=media_type, headers=headers)


def _batch_reply(answers: list[CallbackResponse]) -> web.Response:
    results = [{**answer.body, "status": answer.status, "status_code": answer.status} for answer in answers]
    return _reply(CallbackResponse(200, {"results": results}))


def _item(item: Any, request: int, url: str) -> ReceivedCallback | None:
    if not isinstance(item, dict) or item.get("type") not in KINDS or not isinstance(item.get("callback_token"), str):
        return None
    return ReceivedCallback(
        at=now(), kind=item["type"], token=item["callback_token"], body=item, request=request, url=url
    )


def _port(request: web.BaseRequest) -> int:
    return int(request.transport.get_extra_info("sockname")[1]) if request.transport else 0


def _url(request: web.BaseRequest) -> str:
    """Return the URL of a request, with this server's host name in place of the one the service used."""
    return f"http://{HOST}:{_port(request)}{request.path_qs}"


def _bearer(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _not_json(request: web.BaseRequest) -> CallbackResponse | None:
    """Return a 415 unless the content type is JSON, missing, or `curl -d`'s default, as the orchestrator does."""
    media_type = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if media_type.endswith(("/json", "+json")) or media_type == "application/x-www-form-urlencoded":
        return None
    detail = f"{request.path} needs Content-Type: application/json, not {media_type}"
    return problem(415, "UNSUPPORTED_MEDIA_TYPE", detail)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
