"""Handlers of the fast routes: commands, callbacks, a job's state and pulls. Each has just the use cases it calls."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog

from lucius.api.batches import BatchLimits, CallbackBatchRule, cut_items, decode_item, read_head, require_item_size
from lucius.api.fast_routes import JSON, FastRequest, FastRoute, RawResponse, encode_json
from lucius.api.problems import STATUS, ledger_refusal, problem
from lucius.api.request_headers import PULL_PATH, header_names
from lucius.api.request_parsing import decode, read_sender
from lucius.api.slots import RequestSlots
from lucius.contract import PullAnswer, PullRequest
from lucius.ports.errors import LedgerError
from lucius.ports.sightings import Sender
from lucius.usecases.access.auth import Authenticator, Principal
from lucius.usecases.callbacks.apply import CallbackInput, Callbacks, VerifiedCallback
from lucius.usecases.callbacks.tokens import Claims
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover.pull import DirectivePulls
from lucius.usecases.queries.jobs import Queries, WaitOptions
from lucius.usecases.queries.services import ServiceRegistry
from lucius.usecases.submit.duplicate_members import count_members, refuse_duplicates
from lucius.usecases.submit.request_context import read_context
from lucius.usecases.submit.submit import CommandIntake

log = structlog.get_logger(__name__)

JOB_PREFIX = "/v1/jobs/"
JOB_QUERY = frozenset({"wait"})
JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_TURN_BYTES = 65_536
MAX_WAIT_SECONDS = 50.0  # below nginx's default proxy_read_timeout of 60 s
PULL_ADDRESS = re.compile(r"/v1/services/([a-z0-9][a-z0-9_-]{0,63})/directives:pull")

PULL_HEADERS = header_names(PULL_PATH)

CountRefusal = Callable[[RejectCode], None]

_decode_any = msgspec.json.Decoder().decode
_decode_pull = msgspec.json.Decoder(PullRequest).decode


class CommandRoutes:
    """Accepts commands, singly and in batches."""

    def __init__(
        self, auth: Authenticator, intake: CommandIntake, limits: BatchLimits, count_refusal: CountRefusal
    ) -> None:
        self._auth = auth
        self._intake = intake
        self._limits = limits
        self._count_refusal = count_refusal

    def routes(self) -> Mapping[str, FastRoute]:
        return {
            "/v1/commands": FastRoute(
                self._admit,
                self._submit,
                max_bytes=self._limits.max_item_bytes,
                headers=header_names("/v1/commands"),
            ),
            "/v1/commands:batch": FastRoute(
                self._admit,
                self._submit_batch,
                max_bytes=self._limits.max_bytes,
                headers=header_names("/v1/commands:batch"),
            ),
        }

    def _admit(self, key: str) -> Principal:
        principal = self._auth.authenticate(key)
        principal.require("submit")
        return principal

    async def _submit(self, call: FastRequest) -> RawResponse:
        accepted = await self._intake.submit(call.body, call.caller, read_context(call.headers))
        location = (b"location", f"/v1/jobs/{accepted.jobId}".encode())
        return 202, encode_json(accepted), (JSON, location)

    async def _submit_batch(self, call: FastRequest) -> RawResponse:
        commands = await cut_items(call.body, "commands", self._limits)
        context = read_context(call.headers)

        async def submit(command: bytes) -> Any:
            require_item_size(command, self._limits)
            return await self._intake.submit(command, call.caller, context)

        outcomes = await _run_in_turn(submit, commands)
        return 200, _encode_outcomes(outcomes, 202, self._count_refusal), (JSON,)


class CallbackRoutes:
    """Takes callbacks of services, singly and in batches."""

    def __init__(
        self, callbacks: Callbacks, batch_rule: CallbackBatchRule, max_body_bytes: int, count_refusal: CountRefusal
    ) -> None:
        self._callbacks = callbacks
        self._batch_rule = batch_rule
        self._max_body_bytes = max_body_bytes
        self._count_refusal = count_refusal

    def routes(self) -> Mapping[str, FastRoute]:
        batch = FastRoute(self._batch_rule.admit, self._apply_batch, headers=header_names("/v1/callbacks:batch"))
        return {
            "/v1/callbacks/ack": self._single("ack"),
            "/v1/callbacks/heartbeat": self._single("heartbeat"),
            "/v1/callbacks/result": self._single("result", too_large=self._result_too_large),
            "/v1/callbacks:batch": batch,
        }

    def _single(self, kind: str, too_large: Callable[[FastRequest], Awaitable[None]] | None = None) -> FastRoute:
        return FastRoute(
            self._admit,
            self._callback(kind),
            max_bytes=self._max_body_bytes,
            headers=header_names(f"/v1/callbacks/{kind}"),
            too_large=too_large,
        )

    def _admit(self, key: str) -> Claims:
        if not key:
            raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "send the directive's callback_token as bearer token")
        return self._callbacks.verify(key)

    def _callback(self, kind: str) -> Callable[[FastRequest], Awaitable[RawResponse]]:
        async def handle(call: FastRequest) -> RawResponse:
            parsed = decode(call.body, _decode_any)
            refuse_duplicates(call.body, count_members(parsed))
            if not isinstance(parsed, dict):
                raise Rejected(RejectCode.INVALID_CALLBACK, "the body must be a JSON object")
            verified = await self._callbacks.parse(kind, parsed, call.caller)
            (answer,) = await self._callbacks.apply(verified.job_id, [verified.callback], read_sender(call.headers))
            if isinstance(answer, Rejected):
                raise answer
            return 200, encode_json(answer), (JSON,)

        return handle

    async def _result_too_large(self, call: FastRequest) -> None:
        """End the attempt: the service has done its work and can't report it, so there is nothing to wait for."""
        await self._callbacks.fail_oversized(call.caller, read_sender(call.headers))

    async def _apply_batch(self, call: FastRequest) -> RawResponse:
        """Apply the callbacks about one step in order, in one commit, and different steps concurrently."""
        limits: BatchLimits = call.caller
        items = await cut_items(call.body, "callbacks", limits)
        sender = read_sender(call.headers)
        outcomes: list[Any] = [None] * len(items)
        verified_tokens: dict[str, Claims] = {}
        by_step: dict[tuple[str, str], list[tuple[int, CallbackInput]]] = {}
        for i, item in enumerate(items):
            if len(call.body) > MAX_TURN_BYTES:
                await asyncio.sleep(0)
            try:
                verified = await self._read(item, limits, sender, verified_tokens)
            except (Rejected, LedgerError) as refusal:
                outcomes[i] = refusal
            else:
                by_step.setdefault((verified.job_id, verified.callback.step_id), []).append((i, verified.callback))
        await asyncio.gather(
            *(self._apply(job_id, entries, sender, outcomes) for (job_id, _), entries in by_step.items())
        )
        return 200, _encode_outcomes(outcomes, 200, self._count_refusal), (JSON,)

    async def _read(
        self, item: bytes, limits: BatchLimits, sender: Sender, verified_tokens: dict[str, Claims]
    ) -> VerifiedCallback:
        """Verify the token of a callback, once in a batch, and only then decode the rest. Raises Rejected."""
        if len(item) > limits.max_item_bytes:
            await self._fail_oversized(item, sender)
            require_item_size(item, limits)
        kind, token = read_head(item)
        if not token:
            raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "callback_token is missing")
        claims = verified_tokens.get(token)
        if claims is None:
            claims = verified_tokens[token] = self._callbacks.verify(token)
        if kind not in ("ack", "heartbeat", "result"):
            raise Rejected(RejectCode.INVALID_CALLBACK, "type must be ack, heartbeat or result")
        return await self._callbacks.parse(kind, decode_item(item), claims)

    async def _fail_oversized(self, item: bytes, sender: Sender) -> None:
        """End the attempt of a RESULT that is too large, as when it comes by itself."""
        try:
            kind, token = read_head(item)
            claims = self._callbacks.verify(token) if kind == "result" else None
        except Rejected:
            return
        if claims is not None:
            await self._callbacks.fail_oversized(claims, sender)

    async def _apply(
        self, job_id: str, entries: list[tuple[int, CallbackInput]], sender: Sender, outcomes: list[Any]
    ) -> None:
        try:
            answers: Sequence[Any] = await self._callbacks.apply(job_id, [one for _, one in entries], sender)
        except Exception as error:  # noqa: BLE001 - it is the answer of these items, and of no others
            answers = [error] * len(entries)
        for (i, _), answer in zip(entries, answers, strict=True):
            outcomes[i] = answer


class JobRoute:
    """Answers with one job's state, at once or when the job has ended."""

    def __init__(self, auth: Authenticator, queries: Queries, long_polls: RequestSlots) -> None:
        self._auth = auth
        self._queries = queries
        self._long_polls = long_polls

    def find(self, path: str) -> FastRoute | None:
        if not path.startswith(JOB_PREFIX) or not JOB_ID.fullmatch(path, len(JOB_PREFIX)):
            return None
        job_id = path[len(JOB_PREFIX) :]

        async def handle(call: FastRequest) -> RawResponse:
            who: Principal = call.caller
            wait = WaitOptions(
                _wait(call.query), lambda tenant_id: self._long_polls.hold(who.name, tenant_id), call.hung_up
            )
            return 200, encode_json(await self._queries.job(job_id, who, wait)), (JSON,)

        return FastRoute(self._admit, handle, "GET", query=JOB_QUERY)

    def _admit(self, key: str) -> Principal:
        principal = self._auth.authenticate(key)
        principal.require("read")
        return principal


class PullRoute:
    """Hands directives to services that pull; refuses pulls if a broker delivers the directives."""

    def __init__(
        self,
        auth: Authenticator,
        directive_pulls: DirectivePulls,
        services: ServiceRegistry,
        slots: RequestSlots,
        max_body_bytes: int,
        *,
        is_push_bus: bool,
    ) -> None:
        self._auth = auth
        self._directive_pulls = directive_pulls
        self._services = services
        self._slots = slots
        self._max_body_bytes = max_body_bytes
        self._is_push_bus = is_push_bus

    def find(self, path: str) -> FastRoute | None:
        matched = PULL_ADDRESS.fullmatch(path)
        if matched is None:
            return None
        service = matched[1]

        def admit(key: str) -> Principal:
            principal = self._auth.authenticate(key)
            principal.require_service(service)
            return principal

        async def handle(call: FastRequest) -> RawResponse:
            return await self._pull(service, call)

        return FastRoute(admit, handle, max_bytes=self._max_body_bytes, headers=PULL_HEADERS)

    async def _pull(self, service: str, call: FastRequest) -> RawResponse:
        if self._is_push_bus:
            raise Rejected(RejectCode.PUSH_BUS, f"directives for {service} are on the bus")
        request = decode(call.body, _decode_pull) if call.body else PullRequest()
        if call.body:
            refuse_duplicates(call.body, count_members(_decode_any(call.body)))
        sender = read_sender(call.headers)
        self._services.note_pull(service, *sender)
        lanes = frozenset(request.lanes) if request.lanes is not None else None
        wait = min(request.wait_seconds, MAX_WAIT_SECONDS)
        principal: Principal = call.caller
        tenants = principal.serves_tenants
        # Under a key of several tenants, one tenant's own pulls must not keep the others' from waiting.
        only_tenant = next(iter(tenants)) if tenants is not None and len(tenants) == 1 else None
        with ExitStack() as waiting:

            def begin_wait() -> asyncio.Future[Any]:
                waiting.enter_context(self._slots.hold(principal.name, only_tenant))
                hung_up = call.hung_up()
                waiting.enter_context(self._auth.watch(principal, hung_up.cancel))
                if not self._auth.is_current(principal):
                    hung_up.cancel()
                return hung_up

            directives = await self._directive_pulls.pull(service, request.max, wait, lanes, begin_wait, tenants)
        if not directives:
            self._auth.require_current(principal)
        if wait:
            self._services.note_pull(service, *sender)
        return 200, encode_json(PullAnswer(directives)), (JSON,)


def _encode_outcomes(outcomes: Sequence[Any], status: int, count_refusal: CountRefusal) -> bytes:
    return encode_json({"results": [_item_answer(outcome, status, count_refusal) for outcome in outcomes]})


def _item_answer(outcome: Any, status: int, count_refusal: CountRefusal) -> dict[str, Any]:
    """Return one item's answer within a batch: the body it would have got alone, with its status."""
    if isinstance(outcome, LedgerError):
        outcome = ledger_refusal(outcome)
    elif isinstance(outcome, BaseException) and not isinstance(outcome, Rejected):
        log.error("an item of a batch failed", exc_info=outcome)
        outcome = Rejected(RejectCode.INTERNAL, "see the server's log")
    if isinstance(outcome, Rejected):
        count_refusal(outcome.code)
        return {"status_code": STATUS[outcome.code], **msgspec.to_builtins(problem(outcome))}
    return {"status_code": status, "status": status, **msgspec.to_builtins(outcome)}


async def _run_in_turn(run: Callable[[bytes], Awaitable[Any]], items: Sequence[bytes]) -> list[Any]:
    """Run items concurrently, and let other requests in after every 64 KiB; an exception is its item's outcome."""
    tasks: list[asyncio.Future[Any]] = []
    size = 0
    try:
        for item in items:
            tasks.append(asyncio.ensure_future(run(item)))
            size += len(item)
            if size > MAX_TURN_BYTES:
                size = 0
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise


def _wait(query: bytes) -> float:
    """Return the seconds of `?wait=SECONDS`, cut to MAX_WAIT_SECONDS; 0 without it. Raises Rejected."""
    if not query:
        return 0.0
    name, _, value = query.partition(b"=")
    if name == b"wait" and value.isdigit():
        given = [value.decode("latin-1")]
    else:
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("wait", [])
    if not given:
        return 0.0
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise Rejected(
            RejectCode.INVALID_QUERY, f"wait must be a number of seconds; more than {MAX_WAIT_SECONDS:.0f} are cut"
        )
    return min(seconds, MAX_WAIT_SECONDS)
