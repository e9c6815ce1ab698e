"""`local:` bus, service side: long polls to the orchestrator. There is no broker and no publisher."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import aiohttp
import msgspec
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from lucius.contract import Directive, PullAnswer, PullRequest
from lucius.contract.process_headers import process_headers
from lucius.ports.errors import BusDown, BusError
from lucius.retry_after import parse_retry_after

log: structlog.stdlib.BoundLogger = structlog.get_logger()

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # beyond the requested wait
MAX_WAIT_SECONDS = 60.0
MIN_RETRY_AFTER_SECONDS, DEFAULT_RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS = 0.1, 1.0, 300.0


class PullRefused(BusError):
    """The orchestrator refuses the pull for good: a wrong key, an unknown service."""


class _Problem(msgspec.Struct):
    """Problem document of Lucius; its `code` tells it from answers of other servers."""

    code: str
    title: str = ""
    detail: str | None = None


class _RawAnswer(msgspec.Struct):
    directives: list[msgspec.Raw]


_encode = msgspec.json.Encoder().encode
_answers = msgspec.json.Decoder(PullAnswer)
_raw_answers = msgspec.json.Decoder(_RawAnswer)
_directives = msgspec.json.Decoder(Directive)
_problems = msgspec.json.Decoder(_Problem)


class LocalConsumer:
    """Pulls one service's directives over one keep-alive connection."""

    gives_once = True

    def __init__(
        self,
        base_url: str,
        service: str,
        api_key: str,
        lanes: Iterable[int] | None = None,
        resolver: AbstractResolver | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` name the process; by default as one of this service alone."""
        self._url = URL(f"{base_url.rstrip('/')}/v1/services/{service}/directives:pull", encoded=True)
        self._service = service
        self._api_key = api_key
        self._lanes = None if lanes is None else sorted(set(lanes))
        self._resolver = resolver
        self._headers = process_headers({service: ""}) if headers is None else headers
        self._session: aiohttp.ClientSession | None = None
        self._not_before = 0.0

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        wait_seconds = min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        wait_seconds -= await self._sit_out(wait_seconds)
        if self._not_before > _now():
            return []
        request = _encode(PullRequest(max=max_directives, wait_seconds=wait_seconds, lanes=self._lanes))
        timeout = aiohttp.ClientTimeout(total=wait_seconds + ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self._open().post(self._url, data=request, timeout=timeout, allow_redirects=False) as response:
                status, body = response.status, await response.read()
                told_to_wait = response.headers.get("Retry-After")
        except aiohttp.InvalidURL as error:
            raise PullRefused(f"{self._url} is not an address: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BusDown(f"{self._url.origin()}: {type(error).__name__}: {error}") from error
        except ValueError as error:  # an invalid host
            raise PullRefused(f"{self._url} is not an address: {error}") from error
        if status == 429:
            self._not_before = _now() + _pause_seconds(told_to_wait)
            await self._sit_out(wait_seconds)
            return []
        if status == 503 and told_to_wait:
            self._not_before = _now() + _pause_seconds(told_to_wait)
        return self._read(status, body)

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        return [True] * len(directives)  # each directive is given out once: the pull was the hand-over

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        return [False] * len(directives)  # the ledger counts them as handed over

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _sit_out(self, at_most: float) -> float:
        """Wait until Retry-After has passed, at most `at_most` seconds; return the seconds waited."""
        pause = min(max(self._not_before - _now(), 0.0), at_most)
        if pause:
            await asyncio.sleep(pause)
        return pause

    def _read(self, status: int, body: bytes) -> list[Directive]:
        if status == 200:
            return _decode(body)
        if status == 401:
            raise PullRefused(f"{self._url.origin()} does not know this API key")
        if status == 403:
            raise PullRefused(
                f"the API key may not pull for service {self._service!r} at {self._url.origin()} ({status})"
            )
        problem = _problem(body) if 400 <= status < 500 and status not in (408, 425) else None
        if problem is not None:
            raise PullRefused(self._in_words(status, problem))
        # Gateways also answer like this while their backend is down: retrying helps.
        raise BusDown(f"{self._url.origin()} answered {status}")

    def _in_words(self, status: int, problem: _Problem) -> str:
        if problem.code == "PUSH_BUS":
            return (
                f"directives for service {self._service!r} are on a bus and can't be pulled from {self._url.origin()}: "
                "set LUCIUS_BUS_URL as it is set for the API"
            )
        said = problem.detail or problem.title
        return f"pulling for service {self._service!r} was refused: {said[:300]} [{problem.code}] ({status})"

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=60, resolver=self._resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    **self._headers,
                    "Authorization": f"Bearer {self._api_key}",
                    "Content-Type": "application/json",
                },
                skip_auto_headers=("Accept-Encoding", "Accept"),
            )
        return self._session


def _decode(body: bytes) -> list[Directive]:
    """Decode the directives, skipping unreadable ones: each costs only its own attempt.

    Raises BusDown if the answer as a whole can't be read.
    """
    try:
        return _answers.decode(body).directives
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise BusDown(f"the answer to a pull is not JSON: {error}") from error
    directives: list[Directive] = []
    try:
        raws = _raw_answers.decode(body).directives
    except msgspec.DecodeError as error:
        raise BusDown(f"the answer to a pull is not a list of directives: {error}") from error
    for raw in raws:
        try:
            directives.append(_directives.decode(raw))
        except msgspec.DecodeError as error:
            log.error("unreadable directive ignored", reason=str(error))
    return directives


def _problem(body: bytes) -> _Problem | None:
    try:
        problem = _problems.decode(body)
    except msgspec.DecodeError:
        return None
    return problem if problem.code else None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pause_seconds(retry_after: str | None) -> float:
    seconds = parse_retry_after(retry_after, max_seconds=MAX_RETRY_AFTER_SECONDS)
    return DEFAULT_RETRY_AFTER_SECONDS if seconds is None else max(MIN_RETRY_AFTER_SECONDS, seconds)
