"""HTTP calls of the engine, over aiohttp.

Every call has its own connection, to an address that was checked for it. Nothing is reused, so no request is resent
silently, and it is known whether a failed request can have reached the peer.
"""

import asyncio
import codecs
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct

from lucius.adapters.http import destination as destinations
from lucius.adapters.http.destination import Destination, Rules
from lucius.adapters.http.host_concurrency import HostConcurrency
from lucius.adapters.http.lookups import Lookups, Resolve, resolve_by_system
from lucius.adapters.http.secrets import Filling, normal
from lucius.adapters.http.signing import Keys, parse_keys, signed_headers
from lucius.contract.trace_context import trace_headers
from lucius.core.model.records import Instant, Millis
from lucius.ports.clock import Clock
from lucius.ports.config import CallbackPolicy, CallPolicy
from lucius.ports.errors import CallError, CallFailed, CallRefused
from lucius.ports.http import Closed, HttpResponse, Outgoing, Slot
from lucius.retry_after import parse_retry_after

MAX_REQUEST_BYTES = 1024 * 1024
MAX_RESPONSE_BYTES = 256 * 1024
MAX_HEADERS, MAX_HEADER_CHARS = 32, 1024
SLOWED = frozenset({429, 503})
RAISED = (aiohttp.ClientError, OSError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a peer can provoke in the libraries; each ends this call alone."""

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "webhook-id", "webhook-signature", "webhook-timestamp"}
)
_CHARSET = re.compile(r"utf-8|utf-(16|32)(-[lb]e)?|ascii|iso8859-\d+|cp\d+|koi8-[ru]|gb\w+|big5|(shift|euc)_\w+")
_KEPT = frozenset({"content-type", "date", "etag", "last-modified", "link", "location", "retry-after", "traceparent"})


class _Prepared(Struct, frozen=True):
    """A call with its secrets filled in; must never be shown."""

    destination: Destination
    rules: Rules
    headers: dict[str, str]
    body: bytes | None


class _SendProgress:
    """Host of the request, and whether the peer may have seen it."""

    host = ""
    sent = False


class HttpCaller:
    def __init__(
        self,
        *,
        policy: Callable[[], CallPolicy],
        clock: Clock,
        orchestrator_url: str,
        secrets: Mapping[str, str],
        webhook_secrets: Mapping[str, str],
        tenant_secrets: Callable[[str], list[str]] = lambda tenant_id: [],
        callbacks: Callable[[], CallbackPolicy] = CallbackPolicy,
        tenant_hosts: Callable[[str], Collection[str] | None] = lambda tenant_id: None,
        resolve: Resolve = resolve_by_system,
        tls: ssl.SSLContext | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Parse the webhook secrets and the orchestrator's URL.

        Raises ValueError for an unusable webhook secret, CallRefused for an invalid `orchestrator_url`.
        """
        self._policy = policy
        self._callbacks = callbacks
        self._tenant_hosts = tenant_hosts
        self._clock = clock
        self._ourselves = destinations.parse(orchestrator_url)
        self._secrets = secrets
        self._tenant_secrets = tenant_secrets
        self._keys = {name: _parsed(name, secret) for name, secret in webhook_secrets.items()}
        self._lookups = Lookups(resolve)
        self._tls = tls
        self._max_response_bytes = max_response_bytes
        self.hosts = HostConcurrency()

    def host(self, url: str, tenant_id: str = "") -> str:
        try:
            return _host_key(destinations.parse(url if tenant_id else Filling(self._secrets).fill(url)), tenant_id)
        except CallRefused:
            return ""

    def admit(self, host: str) -> Slot | Closed:
        return self.hosts.admit(host, self._policy().per_host, self._clock.now())

    async def send(self, call: Outgoing) -> HttpResponse:
        filling = Filling(self._secrets if call.fills_secrets else None)
        try:
            return await self._send(call, filling)
        except CallError as error:
            error.message = filling.blank(error.message)
            raise

    async def _send(self, call: Outgoing, filling: Filling) -> HttpResponse:
        progress = _SendProgress()
        try:
            prepared = self._prepare(call, filling)
            progress.host = prepared.destination.host
            async with asyncio.timeout(call.timeout_ms / 1000):
                return await self._exchange(call, prepared, filling, progress)
        except CallError:
            raise
        except TimeoutError:
            message = f"{call.method} {progress.host}: no complete answer within {call.timeout_ms} ms"
            raise CallFailed("TIMEOUT", message, sent=progress.sent) from None
        except RAISED as error:
            code, message = _explained(error)
            raise CallFailed(code, f"{call.method} {progress.host}: {message}", sent=progress.sent) from None

    def _prepare(self, call: Outgoing, filling: Filling) -> _Prepared:
        destination = destinations.parse(filling.fill(call.url))
        rules = self._rules(call, destination)
        destinations.check(destination, rules, self._ourselves)
        hosts = self._tenant_hosts(call.tenant_id) if call.from_client else None
        if hosts is not None and not destinations.listed(destination, hosts):
            message = f"the host {destination.authority} is not on the tenant's list of hosts for callbacks"
            raise CallRefused("HOST_NOT_ALLOWED", message)
        headers = _checked(filling.fill(call.headers))
        body, media_type = _encoded(filling.fill(call.body))
        if media_type is not None:
            headers.setdefault("content-type", media_type)
        headers["idempotency-key"] = call.idempotency_key
        # The protocol may name a correlation id of its own; the trace is the job's.
        correlation = {name: value for name, value in headers.items() if name == "x-correlation-id"}
        headers |= {**trace_headers(call.traceparent, call.tracestate, call.correlation_id), **correlation}
        if keys := self._keys_of(call):
            headers |= signed_headers(call.idempotency_key, self._clock.now(), body or b"", keys)
        return _Prepared(destination, rules, headers, body)

    def _rules(self, call: Outgoing, destination: Destination) -> Rules:
        if call.from_client:
            return destinations.rules_for_clients(destination, self._callbacks(), self._policy())
        return destinations.rules_for_protocols(self._policy())

    def _keys_of(self, call: Outgoing) -> Keys:
        if call.from_client and call.tenant_id:
            return parse_keys(" ".join(self._tenant_secrets(call.tenant_id)))
        name = call.sign_with
        if name is None:
            return ()
        keys = self._keys.get(normal(name))
        if keys is None:
            message = f"there is no webhook secret {name}; set LUCIUS_WEBHOOK_SECRET_{normal(name)}"
            raise CallRefused("UNKNOWN_SECRET", message)
        return keys

    async def _exchange(
        self, call: Outgoing, prepared: _Prepared, filling: Filling, progress: _SendProgress
    ) -> HttpResponse:
        destination = prepared.destination
        party = call.tenant_id if call.from_client else destination.host
        resolve = partial(self._lookups.resolve, party)
        addresses = await destinations.addresses(destination, prepared.rules, self._ourselves, resolve)
        async with (
            self._session(addresses, progress) as session,
            session.request(
                call.method, destination.url, headers=prepared.headers, data=prepared.body, allow_redirects=False
            ) as response,
        ):
            host = _host_key(destination, call.tenant_id if call.from_client else "")
            return await self._answer(response, destination, filling, host)

    @asynccontextmanager
    async def _session(self, addresses: list[str], progress: _SendProgress) -> AsyncIterator[aiohttp.ClientSession]:
        trace = aiohttp.TraceConfig()

        async def connected(*_: Any) -> None:
            progress.sent = True

        trace.on_connection_create_end.append(connected)
        connector = aiohttp.TCPConnector(
            resolver=_Fixed(addresses), use_dns_cache=False, force_close=True, ssl=self._tls or True
        )
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "lucius"},
            auto_decompress=False,
            trace_configs=[trace],
        ) as session:
            yield session

    async def _answer(
        self, response: aiohttp.ClientResponse, destination: Destination, filling: Filling, host: str
    ) -> HttpResponse:
        now = self._clock.now()
        wait_ms = _retry_after_ms(response, now)
        if response.status in SLOWED and wait_ms is not None:
            self.hosts.pause(host, now, wait_ms)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise CallFailed(
                "RESPONSE_UNREADABLE", f"{destination.host} answered in an encoding that was not requested", sent=True
            )
        raw = await self._read(response, destination)
        return HttpResponse(
            status=response.status,
            headers=_kept(response, filling),
            body=filling.blank(_decoded(raw, response)),
            retry_after_ms=wait_ms,
        )

    async def _read(self, response: aiohttp.ClientResponse, destination: Destination) -> bytes:
        raw = bytearray()
        async for chunk in response.content.iter_any():
            raw += chunk
            if len(raw) > self._max_response_bytes:
                message = f"{destination.host} answered with more than {self._max_response_bytes} bytes"
                raise CallFailed("RESPONSE_TOO_LARGE", message, sent=True)
        return bytes(raw)


class _Fixed(AbstractResolver):
    """Resolves every name to the checked addresses."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


def _host_key(destination: Destination, tenant_id: str) -> str:
    return f"{tenant_id} {destination.authority}" if tenant_id else destination.authority


def _parsed(name: str, secret: str) -> Keys:
    try:
        return parse_keys(secret)
    except ValueError as error:
        raise ValueError(f"LUCIUS_WEBHOOK_SECRET_{name}: {error}") from None


def _checked(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with lower-case names.

    Raises CallRefused for a header that could change the meaning of the request around it.
    """
    checked = {}
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise CallRefused("BAD_HEADER", "a header's name or value holds characters that no header may have")
        if name.lower() in _OURS:
            raise CallRefused("BAD_HEADER", f"the header {name} is not for a protocol to set")
        checked[name.lower()] = value
    return checked


def _encoded(body: Any) -> tuple[bytes | None, str | None]:
    if body is None:
        return None, None
    encoded, media_type = (
        (body.encode(errors="replace"), "text/plain; charset=utf-8")
        if isinstance(body, str)
        else (msgspec.json.encode(body), "application/json")
    )
    if len(encoded) > MAX_REQUEST_BYTES:
        raise CallRefused("BODY_TOO_LARGE", f"a body may have {MAX_REQUEST_BYTES} bytes and this has {len(encoded)}")
    return encoded, media_type


def _retry_after_ms(response: aiohttp.ClientResponse, now: Instant) -> Millis | None:
    """Return the pause that the answer asks for; None without one in the future."""
    seconds = parse_retry_after(response.headers.get("Retry-After"), whole_only=True, now=now / 1000)
    return round((seconds or 0.0) * 1000) or None


def _kept(response: aiohttp.ClientResponse, filling: Filling) -> dict[str, str]:
    """Return the headers to keep, blanked before they are cut: half a secret would not be found any more."""
    found = [(_utf8(name).lower(), _utf8(value)) for name, value in response.headers.items()]
    kept = [(name, value) for name, value in found if name in _KEPT or name.startswith("x-")][:MAX_HEADERS]
    return {name: value[:MAX_HEADER_CHARS] for name, value in filling.blank(dict(reversed(kept))).items()}


def _utf8(text: str) -> str:
    """Replace bytes that are not UTF-8: aiohttp gives them as surrogates, which can't be stored."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _decoded(raw: bytes, response: aiohttp.ClientResponse) -> Any:
    """Return JSON if the answer declares it and is valid, otherwise text; None for an empty body."""
    if not raw:
        return None
    if response.content_type == "application/json" or response.content_type.endswith("+json"):
        try:
            return msgspec.json.decode(raw)
        except msgspec.MsgspecError:
            pass  # the status still says what became of the call
    return raw.decode(_charset(response), errors="replace")


def _charset(response: aiohttp.ClientResponse) -> str:
    """Return the charset if it is a text encoding, else UTF-8: some Python codecs are slow, raise, or undo escapes."""
    try:
        name = codecs.lookup(response.charset or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if _CHARSET.fullmatch(name) else "utf-8"


def _explained(error: Exception) -> tuple[str, str]:
    """Return a code and a sentence. The libraries' messages may hold the URL and are not passed on."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError() | ssl.SSLError():
            return "TLS_FAILED", "no trusted TLS connection could be made"
        case aiohttp.ClientConnectorError():
            return "CONNECTION_FAILED", f"no connection could be made ({error.os_error.strerror or 'no route'})"
        case aiohttp.ClientResponseError() | RecursionError():
            return "RESPONSE_UNREADABLE", "the answer is not readable HTTP or JSON"
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | OSError():
            return "CONNECTION_LOST", "the connection broke off before the answer was complete"
        case _:
            return "CALL_FAILED", f"the call failed ({type(error).__name__})"
