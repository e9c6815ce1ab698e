"""Cursor pagination of listings."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from lucius.client.http import Http

PAGE_ITEMS = 200


class Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)
T = TypeVar("T")


async def items(
    http: Http,
    path: str,
    wanted: Mapping[str, str | None],
    limit: int | None,
    kind: type[P],
    of: Callable[[P], Sequence[T]],
) -> AsyncGenerator[T, None]:
    """Yield at most `limit` items; all of them if it is None."""
    params = {name: value for name, value in wanted.items() if value is not None}
    left = limit
    while left is None or left > 0:
        size = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
        page = http.read(await http.get(path, {**params, "limit": str(size)}), kind)
        for item in of(page)[:left]:
            yield item
        if page.next_cursor is None:
            return
        params["cursor"] = page.next_cursor
        left = None if left is None else left - len(of(page))
