"""Batch submission of commands: in chunks, each command with its own outcome."""

from collections.abc import Iterator, Sequence

import msgspec

from lucius.client.errors import RequestRefused, refused
from lucius.client.http import Http
from lucius.client.reading import convert
from lucius.client.retry import is_retryable
from lucius.contract import Accepted, CommandBatchAnswer, CommandOutcome, Problem

MAX_COMMANDS = 500
MAX_BATCH_BYTES = 900_000  # below the usual default body limit of proxies

Outcome = Accepted | RequestRefused


async def submit_all(http: Http, commands: Sequence[bytes]) -> list[Outcome]:
    """Submit encoded commands; return their outcomes in order. Temporary refusals are retried within `retry_for`."""
    outcomes: list[Outcome] = []
    for chunk in chunks(commands):
        outcomes += await _submit_chunk(http, chunk)
    return outcomes


def chunks(commands: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    begin, size = 0, 0
    for i, command in enumerate(commands):
        if i > begin and (i - begin == MAX_COMMANDS or size + len(command) > MAX_BATCH_BYTES):
            yield commands[begin:i]
            begin, size = i, 0
        size += len(command) + 1
    if begin < len(commands):
        yield commands[begin:]


async def _submit_chunk(http: Http, chunk: Sequence[bytes]) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    open_ = list(range(len(chunk)))
    tries = http.tries()
    while open_:
        for i, outcome in zip(open_, await _post(http, [chunk[i] for i in open_]), strict=True):
            found[i] = outcome
        temporary = {i: refusal for i in open_ if (refusal := _temporary_refusal(found[i])) is not None}
        if len(temporary) < len(open_):
            tries.reset()
        open_ = list(temporary)
        if open_:
            try:
                await tries.pause_or_raise(
                    max(temporary.values(), key=lambda refusal: refusal.retry_after or 0.0), True
                )
            except RequestRefused:
                break
    return [found[i] for i in range(len(chunk))]


def _temporary_refusal(outcome: Outcome) -> RequestRefused | None:
    return outcome if isinstance(outcome, RequestRefused) and is_retryable(outcome, True) else None


async def _post(http: Http, chunk: Sequence[bytes]) -> list[Outcome]:
    body = {"commands": [msgspec.Raw(command) for command in chunk]}
    answer = await http.post("/v1/commands:batch", body, repeatable=True)
    results = http.read(answer, CommandBatchAnswer).results
    if len(results) != len(chunk):
        raise http.unlike(f"{len(results)} outcomes for {len(chunk)} commands")
    return [_outcome(http, result) for result in results]


def _outcome(http: Http, result: CommandOutcome) -> Outcome:
    if result.status_code < 400:
        if result.jobId is None:
            raise http.unlike("a command was accepted without a job")
        return Accepted(
            jobId=result.jobId,
            status=str(result.status),
            duplicate=bool(result.duplicate),
            accepted_at=result.accepted_at,
        )
    members = {name: value for name, value in msgspec.to_builtins(result).items() if value is not None}
    problem = convert({"type": "", "title": "", "code": "", **members, "status": result.status_code}, Problem)
    return refused(problem, "POST /v1/commands:batch", result.retry_after_seconds)
