"""The Python client, for people: answers as they came, and what goes wrong as a line that says what to do about it."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from lucius.cli.connection import Connection
from lucius.cli.errors import CliError, Misused, Refused, Unreachable
from lucius.client import TERMINAL, AsyncClient, LuciusError, Misconfigured, RequestRefused
from lucius.client import Unreachable as NoAnswer
from lucius.client.http import address, job_path
from lucius.client.paging import items
from lucius.client.waiting import until_ended
from lucius.contract import Accepted, EventView, JobList, JobSummary, JobView, StepList

__all__ = ["TERMINAL", "Client", "job_path"]

T = TypeVar("T")

ANSWER_SECONDS = 30.0
AT_ONCE = 0.0  # a person sees that it failed, and knows whether to ask again
PATIENCE_SECONDS = 60.0  # of those who wait for a job anyway


class Client:
    """One session with one control plane."""

    def __init__(self, to: Connection) -> None:
        with _plainly(to.url):
            address(to.url)
            self._lucius = _client(to)
        self._url = to.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lucius.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None, *, within: float = ANSWER_SECONDS) -> bytes:
        with _plainly(self._url):
            return await self._lucius.http.get(path, params, within=within)

    async def post(self, path: str, body: Any, *, token: str | None = None, within: float = ANSWER_SECONDS) -> bytes:
        """With a `token`, as its bearer instead of our key: how callbacks are sent."""
        with _plainly(self._url):
            return await self._lucius.http.post(path, body, token=token, within=within)

    async def delete(self, path: str) -> bytes:
        with _plainly(self._url):
            return await self._lucius.http.delete(path)

    async def submit(self, command: Mapping[str, Any]) -> Accepted:
        return self.read(await self.post("/v1/commands", command), Accepted)

    async def job(self, job_id: str) -> bytes:
        return await self.get(job_path(job_id))

    async def job_view(self, job_id: str) -> JobView:
        return self.read(await self.job(job_id), JobView)

    async def wait_for_end(self, job_id: str) -> bytes:
        with _plainly(self._url):
            return (await until_ended(self._lucius.http, job_id, None, PATIENCE_SECONDS)).answer

    async def jobs(self, params: Mapping[str, str], limit: int | None = None) -> AsyncIterator[JobSummary]:
        """Newest first, page by page."""
        with _plainly(self._url):
            async for job in items(self._lucius.http, "/v1/jobs", params, limit, JobList, lambda page: page.jobs):
                yield job

    async def steps(self, job_id: str) -> StepList:
        return self.read(await self.get(f"{job_path(job_id)}/steps"), StepList)

    async def events(self, job_id: str) -> list[EventView]:
        with _plainly(self._url):
            return [event async for event in self._lucius.events(job_id)]

    async def follow(self, job_id: str) -> AsyncIterator[EventView]:
        """Events as they happen, until the job has ended; over restarts of the server too."""
        with _plainly(self._url):
            async for event in self._lucius.stream(job_id, retry_for=PATIENCE_SECONDS):
                yield event

    async def answers(self, path: str) -> bool:
        """Whether a GET is answered 200, for those who wait for a server."""
        try:
            await self.get(path, within=2.0)
        except CliError:
            return False
        return True

    def read(self, answer: bytes, kind: type[T]) -> T:
        with _plainly(self._url):
            return self._lucius.http.read(answer, kind)


def _client(to: Connection) -> AsyncClient:
    try:
        return AsyncClient(to.url, api_key=to.api_key, retry_for=AT_ONCE, timeout=ANSWER_SECONDS)
    except Misconfigured as error:
        raise Misused(str(error)) from error


@contextmanager
def _plainly(url: str) -> Iterator[None]:
    try:
        yield
    except LuciusError as error:
        raise _for_people(url, error) from error


def _for_people(url: str, error: LuciusError) -> CliError:
    match error:
        case RequestRefused():
            return Refused(error.status, error.problem)
        case Misconfigured():
            return Unreachable(f"{url} is not an address: give --url as http://host:port")
        case NoAnswer(failure="no_connection"):
            return Unreachable(f"no control plane answers at {url}; start one with `lucius dev`, or give --url")
        case _:
            return Unreachable(str(error))
