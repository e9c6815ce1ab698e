"""HTTP to the orchestrator over keep-alive sessions, raw bytes in and out."""

from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from lucius.retry_after import parse_retry_after
from lucius.worker.resolver import Resolver

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 15.0
MISDIRECTED_REQUEST = 421
MAX_CONNECTIONS_PER_HOST = 16
MAX_RETRY_AFTER_SECONDS = 300.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OrchestratorUnreachable(Exception):
    """No answer: whether the request was processed is unknown."""


class HttpReply(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    retry_after: float = 0.0


class Transport:
    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """`headers` go with every request."""
        self._headers = {**(headers or {}), "Content-Type": "application/json"}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def post(
        self,
        url: str,
        body: bytes,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        aside: bool = False,
    ) -> HttpReply:
        """POST JSON and return the answer. Raises OrchestratorUnreachable.

        Redirects are not followed: the token is for this address only. Requests sent `aside` use a connection pool of
        their own, even to the same host. An unusable URL is answered with 421 BAD_CALLBACK_URL.
        """
        if token:
            headers = {**(headers or {}), "Authorization": f"Bearer {token}"}
        try:
            async with self._open(aside).post(
                _parse(url), data=body, headers=headers, allow_redirects=False
            ) as response:
                answer = await response.read()
                asked = parse_retry_after(response.headers.get("Retry-After"), max_seconds=MAX_RETRY_AFTER_SECONDS)
                return HttpReply(response.status, answer, asked or 0.0)
        except aiohttp.InvalidURL as error:
            return _no_address(error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise OrchestratorUnreachable(f"{type(error).__name__}: {error}") from error
        except ValueError as error:  # a host that can't be one, such as one with an empty label
            return _no_address(error)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def _open(self, aside: bool) -> aiohttp.ClientSession:
        if aside not in self._sessions:
            self._sessions[aside] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, limit_per_host=MAX_CONNECTIONS_PER_HOST, keepalive_timeout=60, resolver=Resolver()
                ),
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            )
        return self._sessions[aside]


def _no_address(error: Exception) -> HttpReply:
    """Return the reply for a URL that can never be reached."""
    return HttpReply(MISDIRECTED_REQUEST, msgspec.json.encode({"code": "BAD_CALLBACK_URL", "detail": str(error)}))


@lru_cache(maxsize=1024)
def _parse(url: str) -> URL:
    return URL(url, encoded=True)


@lru_cache(maxsize=1024)
def origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL; None if it is not an HTTP address."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port
