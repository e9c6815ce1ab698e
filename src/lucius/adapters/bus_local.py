"""`local:` bus, a service's side: long polls to the orchestrator. There is no broker, and no publisher either."""

import asyncio
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from lucius.contract import Directive, PullAnswer, PullRequest
from lucius.ports.errors import BusDown, BusError

log: structlog.stdlib.BoundLogger = structlog.get_logger()

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # beyond the wait we asked for
LONGEST_WAIT = 60.0
LONGEST_RETRY_AFTER = 300.0


class PullRefused(BusError):
    """The orchestrator will not let us pull, today or tomorrow: a wrong key, an unknown service."""


class _Problem(msgspec.Struct):
    """What tells Lucius from whatever else may answer."""

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
    ) -> None:
        self._url = URL(f"{base_url.rstrip('/')}/v1/services/{service}/directives:pull", encoded=True)
        self._service = service
        self._api_key = api_key
        self._lanes = None if lanes is None else sorted(set(lanes))
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._not_before = 0.0

    async def pull(self, max_directives: int, wait_seconds: float) -> list[Directive]:
        wait_seconds = min(max(wait_seconds, 0.0), LONGEST_WAIT)
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
        except ValueError as error:  # a host that can't be one
            raise PullRefused(f"{self._url} is not an address: {error}") from error
        if status == 429:
            self._not_before = _now() + _seconds(told_to_wait)
            await self._sit_out(wait_seconds)
            return []
        if status == 503 and told_to_wait:
            self._not_before = _now() + _seconds(told_to_wait)
        return self._read(status, body)

    async def settle(self, directives: Sequence[Directive]) -> list[bool]:
        return [True] * len(directives)  # given out but once: the pull was the hand-over

    async def give_back(self, directives: Sequence[Directive]) -> list[bool]:
        return [False] * len(directives)  # the ledger counts them as handed over

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _sit_out(self, at_most: float) -> float:
        """Wait while we were told to stay away; returns how long."""
        pause = min(max(self._not_before - _now(), 0.0), at_most)
        if pause:
            await asyncio.sleep(pause)
        return pause

    def _read(self, status: int, body: bytes) -> list[Directive]:
        if status == 200:
            return _decode(body)
        if status in (401, 403):
            raise PullRefused(
                f"the API key may not pull for service {self._service!r} at {self._url.origin()} ({status})"
            )
        problem = _problem(body) if 400 <= status < 500 and status not in (408, 425) else None
        if problem is not None:
            raise PullRefused(self._in_words(status, problem))
        # Also what a gateway says while there is nobody behind it: that gets better by waiting.
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
                headers={"Authorization": f"Bearer {self._api_key}", "Content-Type": "application/json"},
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            )
        return self._session


def _decode(body: bytes) -> list[Directive]:
    """All directives that can be read. One that can't costs its own attempt, not its neighbours'."""
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
            log.error("directive ignored: it can't be read", reason=str(error))
    return directives


def _problem(body: bytes) -> _Problem | None:
    try:
        problem = _problems.decode(body)
    except msgspec.DecodeError:
        return None
    return problem if problem.code else None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seconds(retry_after: str | None) -> float:
    try:
        return min(LONGEST_RETRY_AFTER, max(0.1, float(retry_after or 1)))
    except ValueError:
        return 1.0
