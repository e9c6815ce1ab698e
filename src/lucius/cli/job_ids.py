"""Finds the job with a given id or unique id prefix."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import quote

from lucius.cli.errors import CliError, Misused, one_line
from lucius.contract import JobList

if TYPE_CHECKING:
    from lucius.client import AsyncClient

MIN_PREFIX_CHARS = 8
MAX_CANDIDATES = 10
JOB_ID_DIGITS = 32
_GROUPS = (0, 8, 12, 16, 20, JOB_ID_DIGITS)


def job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def id_prefix(text: str) -> str | None:
    """Return `text` as a normalised id prefix; None if it is a full id or can't be one.

    Raises Misused.
    """
    digits = text.strip().lower().replace("-", "")
    if len(digits) >= JOB_ID_DIGITS or not digits or set(digits) - set("0123456789abcdef"):
        return None
    prefix = "-".join(filter(None, (digits[a:b] for a, b in pairwise(_GROUPS))))
    if len(prefix) < MIN_PREFIX_CHARS:
        raise Misused(f"{text} is too short for a job id: give at least {MIN_PREFIX_CHARS} characters")
    return prefix


def only_id(prefix: str, found: Sequence[str]) -> str:
    """Return the only id found. Raises Misused unless there is exactly one."""
    if not found:
        raise Misused(f"no job id begins with {prefix}")
    if len(found) > 1:
        raise Misused(f"{prefix} is a prefix of several job ids: {join_some(found)}")
    return found[0]


def join_some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MAX_CANDIDATES]) + (", and more" if len(ids) > MAX_CANDIDATES else "")


async def find_job(client: "AsyncClient", id_or_prefix: str) -> str:
    """Return the id of the only job whose id is or begins with `id_or_prefix`. Raises Misused and CliError."""
    from lucius.client import RequestRefused  # noqa: PLC0415

    prefix = id_prefix(id_or_prefix)
    if prefix is None:
        return id_or_prefix
    try:
        answer = await client.http.get("/v1/jobs", {"id_prefix": prefix, "limit": str(MAX_CANDIDATES + 1)})
    except RequestRefused as refused:
        if refused.code != "FORBIDDEN_SCOPE":
            raise
        raise CliError(f"{one_line(refused.problem)}; or give the whole job id") from refused
    return only_id(prefix, [job.jobId for job in client.http.read(answer, JobList).jobs])
