"""Workflows in the SDK's sandbox, without three of its detours.

For each payload, six times over, the SDK enters the sandbox to ask in which context it is to be converted. Ours are
converted the same way everywhere and kept nowhere else, and that question alone was a fifth of what a worker's Python
did. What it has the sandbox run are the same few lines each time, which it compiles each time.

And it lets a pool of threads take turns at what only one of them can do at a time, so as to find out about a workflow
that hangs. Ours compute, for a millisecond or so, as whatever else decides about jobs does in the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from types import CodeType
from typing import Any, ParamSpec, TypeVar, cast

from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox._runner import _Instance as _Sandboxed

_NOWHERE = StorageDriverStoreContext(target=None)

P = ParamSpec("P")
T = TypeVar("T")


class InTheLoop(ThreadPoolExecutor):
    """One without threads: what is submitted runs in a turn of the event loop of its own."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        loop = asyncio.get_running_loop()
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for who waits for it
                asyncio._set_running_loop(loop)
                future.set_exception(error)
            else:
                asyncio._set_running_loop(loop)  # a workflow is a loop of its own, and leaves none behind
                future.set_result(result)

        loop.call_soon(run)
        return future


class JobRunner(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(det, self.runner_class, self.restrictions)


class _Instance(_Sandboxed):
    def get_serialization_context(self, command_info: Any) -> None:
        return None

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return _NOWHERE

    def _run_code(self, code: str, **extra_globals: Any) -> None:
        super()._run_code(cast(str, _compiled(code)), **extra_globals)


@cache
def _compiled(code: str) -> CodeType:
    return compile(code, "workflow_sandbox.py", "exec")
