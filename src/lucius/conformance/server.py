"""The orchestrator's HTTP face: the four requests of the `local:` contract, answered rightly unless told otherwise.

Listens on a port of its own that it keeps, so that it can go `away` (connections are refused) and come `back` with
all it knew; and on a second one as a client who wants to be called back there. A `Mood` is how a case makes it
misbehave: errors, slowness, answers that get lost.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import ClientError, web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from lucius.conformance.book import KINDS, Answer, Book, Kind, Said, now, problem
from lucius.conformance.feed import LocalFeed
from lucius.contract import PullRequest

HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections: a client that tries a closed port of that range can end
# up connected to itself.
PORTS = range(20_000, 32_000)
LONGEST_WAIT = 60.0
HANG_UP_CHECK = 0.25
MAX_BATCH = 500
MAX_BODY_BYTES = 1024 * 1024  # as the orchestrator's own limits
MAX_BATCH_BYTES = 16 * MAX_BODY_BYTES


class Mood(Struct, frozen=True, kw_only=True):
    status: int = 0
    """Answer this instead, and do nothing."""
    retry_after: float | None = None
    delay: float = 0.0
    """Act at once, answer later."""
    lose_answer: bool = False
    """Act, and close the connection instead of answering."""
    body: bytes | None = None
    """Answer 200 with this instead."""


class Pull(Struct, kw_only=True):
    at: float
    service: str
    max: int = 0
    wait_seconds: float = 0.0
    status: int = 0
    handed: int = 0
    answered_at: float | None = None


class Orchestrator:
    """`on_callbacks` sees what one request carries, `on_pull` each pull; either may return a Mood."""

    def __init__(self, book: Book, feed: LocalFeed, api_key: str, on_news: Callable[[], None]) -> None:
        self.book = book
        self.feed = feed
        self.pulls: list[Pull] = []
        self.faults: list[str] = []
        self.service: str | None = None
        self.answers_at_once = False
        """Empty pulls don't wait."""
        self.on_callbacks: Callable[[Sequence[Said]], Mood | None] = lambda _: None
        self.on_pull: Callable[[Pull], Mood | None] = lambda _: None
        self._api_key = api_key
        self._on_news = on_news
        self._requests = 0
        self.surprise: Exception | None = None
        """What went wrong in here, and is nobody's fault but the kit's."""
        self._ports = (0, 0)
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._ports[0]}"

    @property
    def elsewhere_url(self) -> str:
        """Someone else, who takes callbacks too."""
        return f"http://{HOST}:{self._ports[1]}"

    async def start(self) -> None:
        for _ in range(100):
            first, second = random.sample(PORTS, 2)
            self._ports = (first, second)
            try:
                await self.back()
            except OSError:
                continue
            return
        raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")

    async def back(self) -> None:
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.05)
        await runner.setup()
        try:
            for port in self._ports:
                await web.TCPSite(runner, HOST, port, reuse_address=True).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.book.give_fresh_periods()

    async def away(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answered(request)
        except ConnectionError:
            return web.Response(status=400)  # someone hung up, so nobody hears it
        except (ClientError, HttpProcessingError, web.HTTPException, web.RequestPayloadError):
            raise  # or does not speak HTTP
        except Exception as error:
            self.surprise = self.surprise or error
            self._on_news()
            raise

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if _port(request) == self._ports[1]:
            return await self._elsewhere(request)
        if request.method == "GET" and path in ("/healthz", "/readyz"):
            return _reply(Answer(200, {"status": "ok"}))
        if request.method != "POST":
            return self._refuse(problem(405, "METHOD_NOT_ALLOWED", f"{request.method} {path}"))
        body = await self._body(request, MAX_BATCH_BYTES if path.endswith(":batch") else MAX_BODY_BYTES)
        if isinstance(body, Answer):
            return self._refuse(body)
        if path.startswith("/v1/services/") and path.endswith("/directives:pull"):
            return await self._pull(request, body, path.split("/")[3])
        if path == "/v1/callbacks:batch":
            return await self._batch(request, body)
        kind = path.removeprefix("/v1/callbacks/")
        if kind not in KINDS:
            return self._refuse(problem(404, "NOT_FOUND", f"there is no {request.method} {path}"))
        return await self._single(request, body, KINDS[KINDS.index(kind)])

    async def _elsewhere(self, request: web.BaseRequest) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2].removesuffix("-of-it")
        if request.method != "POST" or kind not in KINDS:
            return self._refuse(problem(404, "NOT_FOUND", f"no callback_urls have {request.method} {_url(request)}"))
        body = await self._body(request, MAX_BODY_BYTES)
        if isinstance(body, Answer):
            return self._refuse(body)
        return await self._single(request, body, KINDS[KINDS.index(kind)])

    async def _body(self, request: web.BaseRequest, limit: int) -> bytes | Answer:
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                detail = f"POST {request.path} has more than {limit} bytes; write an artifact instead"
                return problem(413, "BODY_TOO_LARGE", detail)
        return bytes(body)

    def _refuse(self, answer: Answer) -> web.Response:
        """Something that an orchestrator would not take, and no case asked for."""
        self.faults.append(f"a request was wrong: {answer.status} {answer.body['code']}: {answer.body['detail']}")
        self._on_news()
        return _reply(answer)

    # Pulls

    async def _pull(self, request: web.BaseRequest, body: bytes, service: str) -> web.StreamResponse:
        pull = Pull(at=now(), service=service)
        refusal, wanted = self._admit(request, body)
        pull.max, pull.wait_seconds = wanted.max, wanted.wait_seconds
        self.pulls.append(pull)
        self.service = self.service or service
        self._on_news()
        mood = self.on_pull(pull)
        response = await self._moody(request, mood)
        if response is None and refusal is not None:
            response = self._refuse(refusal)
        if response is None:
            directives = await self._hand_out(request, wanted) if service == self.service else await self._none(wanted)
            pull.handed = len(directives)
            response = _reply(Answer(200, {"directives": directives}))
        pull.status, pull.answered_at = response.status, now()
        self._on_news()
        return response

    def _admit(self, request: web.BaseRequest, body: bytes) -> tuple[Answer | None, PullRequest]:
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
        """Waits for the first one; what nobody is there to take stays."""
        wait = 0.0 if self.answers_at_once else min(wanted.wait_seconds, LONGEST_WAIT)
        deadline = now() + wait
        while request.transport is not None and not request.transport.is_closing():
            if self.feed.waiting() and (taken := self.feed.take(wanted)):
                return taken
            if (remaining := deadline - now()) <= 0 or self.answers_at_once:
                break
            await self.feed.arrival(min(remaining, HANG_UP_CHECK))
        return []

    async def _none(self, wanted: PullRequest) -> list[Any]:
        """The command serves another service too, which we have nothing for."""
        await asyncio.sleep(min(wanted.wait_seconds, LONGEST_WAIT))
        return []

    # Callbacks

    async def _single(self, request: web.BaseRequest, body: bytes, kind: Kind) -> web.StreamResponse:
        if refusal := _not_json(request):
            return self._refuse(refusal)
        self._requests += 1
        said = Said(
            at=now(),
            kind=kind,
            token=_bearer(request),
            body=_decoded(body),
            request=self._requests,
            url=_url(request),
        )
        return await self._callbacks(request, [said], lambda answers: _reply(answers[0]))

    async def _batch(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        batch = _decoded(body)
        items = batch.get("callbacks") if isinstance(batch, dict) else None
        if refusal := _not_json(request):
            return self._refuse(refusal)
        if not isinstance(items, list) or len(items) > MAX_BATCH:
            detail = f"a batch is {{callbacks: […]}} of at most {MAX_BATCH}"
            return self._refuse(problem(422, "INVALID_BODY", detail))
        self._requests += 1
        said = [_item(item, self._requests, _url(request)) for item in items]
        if None in said:
            detail = "an item of a batch needs type (ack, heartbeat or result) and callback_token"
            return self._refuse(problem(422, "INVALID_CALLBACK", detail))
        return await self._callbacks(request, [one for one in said if one is not None], _batch_reply)

    async def _callbacks(
        self, request: web.BaseRequest, said: list[Said], reply: Callable[[list[Answer]], web.Response]
    ) -> web.StreamResponse:
        mood = self.on_callbacks(said)
        if mood is not None and mood.status:
            refusal = _in_no_mood(mood)
            for one in said:
                self.book.refuse_unheard(one, refusal)
            answers = []
        else:
            answers = [self.book.hear(one) for one in said]
        response = await self._moody(request, mood) or reply(answers)
        for one in said:
            one.answered_at = now()
        self._on_news()
        return response

    async def _moody(self, request: web.BaseRequest, mood: Mood | None) -> web.StreamResponse | None:
        if mood is None:
            return None
        if mood.delay:
            await asyncio.sleep(mood.delay)
        if mood.lose_answer and request.transport is not None:
            request.transport.abort()
            return web.Response(status=500)  # nobody reads it
        if mood.body is not None:
            return web.Response(body=mood.body, content_type="text/html")
        return _reply(_in_no_mood(mood)) if mood.status else None


def _in_no_mood(mood: Mood) -> Answer:
    codes = {401: "UNAUTHENTICATED", 403: "FORBIDDEN_SCOPE", 429: "TENANT_LIMIT", 503: "NOT_READY"}
    return problem(mood.status, codes.get(mood.status, "INTERNAL"), "a rehearsed failure", mood.retry_after)


def _reply(answer: Answer) -> web.Response:
    headers = {}
    if answer.retry_after is not None:
        headers["Retry-After"] = f"{answer.retry_after:g}"
    if answer.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    media_type = "application/json" if answer.status < 400 else "application/problem+json"
    body = msgspec.json.encode(answer.body)
    return web.Response(status=answer.status, body=body, content_type=media_type, headers=headers)


def _batch_reply(answers: list[Answer]) -> web.Response:
    results = [{**answer.body, "status": answer.status, "status_code": answer.status} for answer in answers]
    return _reply(Answer(200, {"results": results}))


def _item(item: Any, request: int, url: str) -> Said | None:
    if not isinstance(item, dict) or item.get("type") not in KINDS or not isinstance(item.get("callback_token"), str):
        return None
    return Said(at=now(), kind=item["type"], token=item["callback_token"], body=item, request=request, url=url)


def _port(request: web.BaseRequest) -> int:
    return int(request.transport.get_extra_info("sockname")[1]) if request.transport else 0


def _url(request: web.BaseRequest) -> str:
    """Where it came to, by whatever name the service calls us."""
    return f"http://{HOST}:{_port(request)}{request.path_qs}"


def _bearer(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _not_json(request: web.BaseRequest) -> Answer | None:
    """As the orchestrator has it: who says nothing is believed, and so is what `curl -d` says by itself."""
    said = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if said.endswith(("/json", "+json")) or said == "application/x-www-form-urlencoded":
        return None
    detail = f"{request.path} needs Content-Type: application/json, not {said}"
    return problem(415, "UNSUPPORTED_MEDIA_TYPE", detail)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
