"""Calls an author's hooks: async ones on the event loop, plain ones, which may block, in threads."""

import inspect
from collections.abc import Callable, Sequence

from lucius.worker.threads import Threads

Hook = Callable[[], object]
"""A hook function, plain or async. An awaitable it returns is awaited."""


async def call_hook(hook: Hook, name: str, threads: Threads | None = None) -> object:
    if inspect.iscoroutinefunction(hook):
        return await hook()
    said = await (threads or Threads(lambda: None)).run(hook, name)
    return await said if inspect.isawaitable(said) else said


async def call_all(hooks: Sequence[Hook]) -> None:
    """Call the hooks one after the other."""
    for hook in hooks:
        await call_hook(hook, getattr(hook, "__name__", "hook"))
