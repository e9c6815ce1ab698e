"""Pages of jobs found by a document, a correlation id, a target, an error code or the time of their end.

A search walks one index in the order of its answer and keeps what the other filters leave. A page walks a bounded
number of entries: where few of them match, it is short or even empty, and its cursor continues after the last one.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from lucius.core.model.records import Command, Job
from lucius.ports.readers import JobFilter, JobPage

MAX_WALK_ENTRIES = 250
MAX_WALKS = 20
MAX_INT64 = 2**63 - 1


class SearchPosition(Struct, frozen=True, order=True):
    """Position of a job in a list: by the time of its end, if that orders the list, and then by its id."""

    completed_at: int
    id: int


Walk = Callable[[SearchPosition, int], Awaitable[Sequence[SearchPosition]]]
Pick = Callable[[Sequence[int], int], Awaitable[Mapping[int, Job]]]


def is_search(where: JobFilter) -> bool:
    """Return whether a filter needs one of the indexes that only searches use."""
    terms = (where.doc_id, where.correlation_id, where.target, where.error_code)
    return any(term is not None for term in terms) or has_completion(where)


def has_completion(where: JobFilter) -> bool:
    return where.completed_after is not None or where.completed_before is not None


def is_ordered_by_completion(where: JobFilter) -> bool:
    """Return whether jobs are searched only by the time of their end: then it orders them, too."""
    terms = (where.doc_id, where.correlation_id, where.target, where.error_code)
    return has_completion(where) and all(term is None for term in terms)


def clamp_instant(instant: int) -> int:
    """Return the nearest instant that a store can compare with."""
    return max(-MAX_INT64, min(instant, MAX_INT64))


def target_key(target: Mapping[str, str] | None) -> str | None:
    """Return a target as a search names it."""
    return f"{target.get('type', '')}/{target.get('id', '')}" if target else None


def own_correlation_id(command: Command, job_id: str) -> str | None:
    """Return the correlation id if the client gave one: without, it is the job's id and needs no index entry."""
    return command.correlation_id if command.correlation_id != job_id else None


async def search_page(where: JobFilter, limit: int, cursor: str | None, walk: Walk, pick: Pick) -> JobPage:
    """Return a page; `walk` returns positions below one, `pick` the matching jobs of some ids, in their order.

    Raises ValueError for a cursor that is not of this list.
    """
    by_completion = is_ordered_by_completion(where)
    place = decode_position(cursor, by_completion) if cursor is not None else SearchPosition(MAX_INT64, MAX_INT64)
    found: list[tuple[SearchPosition, Job]] = []
    for _ in range(MAX_WALKS):
        walked = await walk(place, MAX_WALK_ENTRIES)
        picked = await pick([one.id for one in walked], limit + 1 - len(found))
        found += [(one, picked[one.id]) for one in walked if one.id in picked]
        if len(found) > limit:
            return JobPage([job for _, job in found[:limit]], encode_position(found[limit - 1][0], by_completion))
        if len(walked) < MAX_WALK_ENTRIES:
            return JobPage([job for _, job in found], None)
        place = walked[-1]
    return JobPage([job for _, job in found], encode_position(place, by_completion))


def encode_position(place: SearchPosition, by_completion: bool) -> str:
    text = f"completed:{place.completed_at}:{place.id}" if by_completion else f"found:{place.id}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_position(cursor: str, by_completion: bool) -> SearchPosition:
    """Return the position. Raises ValueError unless `encode_position` made it for a list in the same order."""
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError as error:
        raise ValueError("not a cursor of this list") from error
    name, *numbers = raw.split(":")
    wanted = ("completed", 2) if by_completion else ("found", 1)
    usable = all(number.isdigit() and len(number) <= 19 and int(number) <= MAX_INT64 for number in numbers)
    if (name, len(numbers)) != wanted or not usable:
        raise ValueError("not a cursor of this list")
    return SearchPosition(int(numbers[0]) if by_completion else MAX_INT64, int(numbers[-1]))
