"""HTTP to the control plane, for people: typed answers, refusals as one line, and events as they happen."""

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from lucius.cli.connection import Connection
from lucius.cli.errors import CliError, Refused, Unreachable
from lucius.contract import Accepted, EventList, EventView, JobList, JobSummary, JobView, Problem, StepList

T = TypeVar("T")

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
LONG_POLL = 30.0
PAGE = 200
QUIET_STREAM_SECONDS = 60.0  # the server speaks at least every 15
MAX_LINE = 4 * 1024 * 1024

TERMINAL = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})


class Client:
    """One session with one control plane."""

    def __init__(self, to: Connection) -> None:
        self._base = to.url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {to.api_key}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            read_bufsize=MAX_LINE,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, within: float = ANSWER_SECONDS) -> bytes:
        return await self._call("GET", path, params=params, within=within)

    async def post(self, path: str, body: Any, *, token: str | None = None, within: float = ANSWER_SECONDS) -> bytes:
        """With a `token`, as its bearer instead of our key: how callbacks are sent."""
        return await self._call("POST", path, body=msgspec.json.encode(body), token=token, within=within)

    async def delete(self, path: str) -> bytes:
        return await self._call("DELETE", path, within=ANSWER_SECONDS)

    async def submit(self, command: Mapping[str, Any]) -> Accepted:
        return self.read(await self.post("/v1/commands", command), Accepted)

    async def job(self, job_id: str, wait: float = 0) -> bytes:
        params = {"wait": str(wait)} if wait else None
        return await self.get(job_path(job_id), params, within=wait + ANSWER_SECONDS)

    async def job_view(self, job_id: str) -> JobView:
        return self.read(await self.job(job_id), JobView)

    async def wait_for_end(self, job_id: str) -> bytes:
        while True:
            answer = await self.job(job_id, LONG_POLL)
            if self.read(answer, JobView).status in TERMINAL:
                return answer

    async def jobs(self, params: Mapping[str, str], limit: int | None = None) -> AsyncIterator[JobSummary]:
        """Newest first, page by page."""
        cursor: str | None = None
        seen = 0
        while limit is None or seen < limit:
            page = PAGE if limit is None else min(PAGE, limit - seen)
            asked = {**params, "limit": str(page), **({"cursor": cursor} if cursor else {})}
            answer = self.read(await self.get("/v1/jobs", asked), JobList)
            for job in answer.jobs:
                yield job
            seen += page
            cursor = answer.next_cursor
            if cursor is None:
                return

    async def steps(self, job_id: str) -> StepList:
        return self.read(await self.get(f"{job_path(job_id)}/steps"), StepList)

    async def events(self, job_id: str) -> list[EventView]:
        found: list[EventView] = []
        cursor: int | None = 0
        while cursor is not None:
            params = {"cursor": str(cursor), "limit": "500"}
            page = self.read(await self.get(f"{job_path(job_id)}/events", params), EventList)
            found += page.events
            cursor = page.next_cursor
        return found

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[EventView]:
        """Events as they happen, until the job has ended or the server stops."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=QUIET_STREAM_SECONDS)
        url = f"{self._base}{job_path(job_id)}/events"
        try:
            async with self._session.get(url, headers=headers, timeout=timeout) as response:
                if response.status != 200:
                    raise self._refusal(response.status, await response.read())
                async for event in _sse(response.content):
                    yield self.read(event, EventView)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def answers(self, path: str) -> bool:
        """Whether a GET is answered 200, for those who wait for a server."""
        try:
            await self.get(path, within=2.0)
        except CliError:
            return False
        return True

    def read(self, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise Unreachable(f"{self._base} does not answer as Lucius does: {error}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        token: str | None = None,
        within: float,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=within, sock_connect=CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            async with self._session.request(
                method, self._base + path, params=params, data=body, headers=headers, timeout=timeout
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise self._refusal(response.status, answer)
        return answer

    def _refusal(self, status: int, answer: bytes) -> CliError:
        try:
            return Refused(status, msgspec.json.decode(answer, type=Problem))
        except msgspec.DecodeError:
            return Unreachable(f"{self._base} answered {status}, not as Lucius does")

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
            return Unreachable(f"{self._base} is not an address: give --url as http://host:port")
        if isinstance(error, TimeoutError):
            return Unreachable(f"{self._base} did not answer in time")
        if isinstance(error, aiohttp.ClientConnectorError):
            return Unreachable(f"no control plane answers at {self._base}; start one with `lucius dev`, or give --url")
        return Unreachable(f"the connection to {self._base} was lost: {error or type(error).__name__}")


async def _sse(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event; ends with the server's own end event."""
    name = ""
    async for line in content:
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data" and name == "refused":
            raise Unreachable(value.decode())
        elif field == b"data" and name == "end":
            return
        elif field == b"data":
            yield value


def job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
