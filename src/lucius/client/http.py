"""HTTP to a control plane: one session, answers as bytes, failures as this package's errors, and retries.

The client and the command line are built on it.
"""

import asyncio
import math
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from msgspec import Struct

from lucius.client import reading
from lucius.client.encoding import encode_body
from lucius.client.errors import LuciusError, Misconfigured, NotLucius, RequestRefused, Unreachable, refused
from lucius.client.retry import TEMPORARY_STATUSES, Tries
from lucius.client.sse import Parser, ServerSentEvent
from lucius.contract import Problem
from lucius.retry_after import parse_retry_after
from lucius.version import __version__

T = TypeVar("T")
Trace = str | Callable[[], str | None] | None

CONNECT_SECONDS = 5.0
STREAM_TIMEOUT_SECONDS = 45.0  # the server sends something at least every 15 s
KEEP_ALIVE_SECONDS = 4.0  # less than servers use: if they close during a request, it is unknown whether they acted
MAX_CONNECTIONS = 100  # for requests; as many again for long polls, which must not keep requests waiting
BUFFER_BYTES = 256 * 1024
STATUS_NO_CONTENT = 204


class Request(Struct, frozen=True, kw_only=True):
    """One HTTP request.

    `repeatable`: sending it twice has the same effect as once. `waits` is the seconds the server may hold a long poll;
    `within` replaces the client's timeout.
    """

    method: str
    path: str
    params: Mapping[str, str] | None = None
    body: bytes | None = None
    token: str | None = None
    repeatable: bool = False
    waits: float | None = None
    within: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Http:
    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        retry_for: float,
        timeout: float,
        trace: Trace = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = address(url)
        self.timeout = timeout
        self._retry_for = retry_for
        self._trace = trace
        self._tls = tls
        self._proxy = proxy_for(self.url)
        self._headers = {
            "Authorization": f"Bearer {_key(api_key)}",
            "Content-Type": "application/json",
            "User-Agent": f"lucius-client/{__version__}",
        }
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._requests = asyncio.Semaphore(MAX_CONNECTIONS)
        self._polls = asyncio.Semaphore(MAX_CONNECTIONS)

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    @property
    def are_polls_exhausted(self) -> bool:
        """True if a long poll would have to queue, and so should be short."""
        return self._polls.locked()

    def tries(self, retry_for: float | None = None) -> Tries:
        return Tries(self._retry_for if retry_for is None else retry_for)

    def trace(self) -> str | None:
        """Return the current traceparent, if any."""
        return self._trace() if callable(self._trace) else self._trace

    async def call(self, request: Request, *, retry_for: float | None = None) -> bytes:
        """Send a request with retries; return the answer's body.

        Raises Unreachable, NotLucius or RequestRefused once a retry is unsafe, useless or too late, and Misconfigured.
        """
        tries: Tries | None = None
        while True:
            try:
                return await self._send(request)
            except (Unreachable, NotLucius, RequestRefused) as error:
                tries = tries or self.tries(retry_for)
                await tries.pause_or_raise(error, request.repeatable)

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, retry_for: float | None = None, **options: Any
    ) -> bytes:
        request = Request(method="GET", path=path, params=params, repeatable=True, **options)
        return await self.call(request, retry_for=retry_for)

    async def post(self, path: str, body: Any, *, repeatable: bool = False, **options: Any) -> bytes:
        """POST `body`, anything that can be encoded as JSON. See Request for the other arguments.

        Raises Misconfigured for NaN and infinities.
        """
        encoded = encode_body(body)
        return await self.call(Request(method="POST", path=path, body=encoded, repeatable=repeatable, **options))

    async def delete(self, path: str) -> bytes:
        return await self.call(Request(method="DELETE", path=path))

    def read(self, answer: bytes, kind: type[T]) -> T:
        """Decode an answer. Raises NotLucius if it does not fit."""
        try:
            return reading.read(answer, kind)
        except (ValueError, RecursionError) as error:
            raise self.unlike(str(error)) from error

    def unlike(self, reason: str) -> NotLucius:
        return NotLucius(self.url, f"does not answer as Lucius does: {reason}")

    async def stream(
        self, path: str, last_event_id: int, opened: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield events until the stream ends. Makes one try, and calls `opened` once the server has accepted it.

        Raises the package's errors. Close the generator when done.
        """
        request = Request(method="GET", path=path)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last_event_id)}
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=STREAM_TIMEOUT_SECONDS)
        parser = Parser()
        try:
            async with self._open(request, timeout, headers) as response:
                if response.status == STATUS_NO_CONTENT:
                    opened()
                    return
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise self._refusal(request, response, await response.read())
                opened()
                async for chunk in response.content.iter_any():
                    for event in parser.feed(chunk):
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(request, error) from error
        except ValueError as error:
            raise self.unlike(str(error)) from error

    async def _send(self, request: Request) -> bytes:
        within = self.timeout if request.within is None else request.within
        timeout = aiohttp.ClientTimeout(total=within + (request.waits or 0.0), sock_connect=CONNECT_SECONDS)
        slots = self._requests if request.waits is None else self._polls
        try:
            async with slots, self._open(request, timeout) as response:
                answer: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(request, error) from error
        if response.status >= 300:
            raise self._refusal(request, response, answer)
        return answer

    def _open(
        self, request: Request, timeout: aiohttp.ClientTimeout, extra: Mapping[str, str] | None = None
    ) -> Any:  # what aiohttp calls it is private
        headers = dict(extra or {})
        if request.token is not None:
            headers["Authorization"] = f"Bearer {request.token}"
        if trace := self.trace():
            headers["traceparent"] = trace
        # Following a redirect would turn a POST into a GET and send the key to another address.
        return self._opened().request(
            request.method,
            self.url + request.path,
            params=request.params,
            data=request.body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            proxy=self._proxy,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=True if self._tls is None else self._tls
            )
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=connector,
                read_bufsize=BUFFER_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _failure(self, request: Request, error: Exception) -> LuciusError:
        """Convert an aiohttp exception to this package's; sets `maybe_done` if the server may have acted."""
        reason = str(error) or type(error).__name__
        match error:
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return Misconfigured(f"{self.url} is not an address: {reason}")
            case aiohttp.ClientConnectorCertificateError():
                return Unreachable(self.url, "untrusted", reason)
            case aiohttp.ClientProxyConnectionError():
                return Unreachable(self.url, "no_proxy", _reason_for(error))
            case aiohttp.ClientHttpProxyError():  # its own text may hold the proxy's password
                return NotLucius(self.url, f"is behind a proxy that answers {error.status} to CONNECT", error.status)
            case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
                return Unreachable(self.url, "no_connection", _reason_for(error))
            case TimeoutError():
                failure = Unreachable(self.url, "no_answer", str(request))
            case _:
                failure = Unreachable(self.url, "lost", f"{reason} ({request})")
        failure.maybe_done = request.method != "GET"
        return failure

    def _refusal(self, request: Request, response: aiohttp.ClientResponse, answer: bytes) -> LuciusError:
        retry_after = parse_retry_after(response.headers.get("Retry-After"), max_seconds=math.inf, whole_only=True)
        failure: LuciusError
        try:
            if response.status < 400:
                raise ValueError("a problem has a status of 400 or more")
            failure = refused(reading.read(answer, Problem), str(request), retry_after)
            maybe_done = failure.status in (502, 504)
        except (ValueError, RecursionError):
            failure = NotLucius(self.url, _describe(request, response), response.status, retry_after)
            maybe_done = response.status in TEMPORARY_STATUSES and response.status != 429
        failure.maybe_done = maybe_done and request.method != "GET"
        return failure


def _describe(request: Request, response: aiohttp.ClientResponse) -> str:
    where = response.headers.get("Location")
    detail = f", which leads to {where}" if where else f" ({response.content_type})" if response.status < 300 else ""
    return f"answered {response.status}, not as Lucius does, to {request}{detail}"


def _reason_for(error: Exception) -> str:
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno)  # asyncio's own text names calls and tuples
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner) or type(inner).__name__


def address(url: str) -> str:
    """Return the URL without a trailing slash. Raises Misconfigured, also for credentials, which it does not quote."""
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        shown = f"…@{url.strip().rpartition('@')[2]}" if "@" in url else url
        raise Misconfigured(f"{shown} is not an address: it looks like http://host:port")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Misconfigured(f"the address of {parts.hostname} has more than a host, a port and a path")
    return url.strip().rstrip("/")


def _key(api_key: str) -> str:
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Misconfigured("the API key is empty, or has characters that no key has")
    return key


def job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def proxy_for(url: str) -> str | None:
    """Return the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for a URL; None for this machine's own hosts.

    aiohttp could read these itself, but would then also read ~/.netrc, whose password would replace the API key.
    Raises Misconfigured.
    """
    parts = urlsplit(url)
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme)
    if not proxy or _is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not _is_proxy_url(proxy):
        variable = f"{parts.scheme.upper()}_PROXY"
        raise Misconfigured(f"{variable} is not a proxy that can be used: it looks like http://host:port")
    return proxy


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_proxy_url(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
