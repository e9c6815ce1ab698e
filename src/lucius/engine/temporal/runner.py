"""Workflows in the SDK's sandbox, without two of its detours.

For each payload, six times over, the SDK enters the sandbox to ask in which context it is to be converted. Ours are
converted the same way everywhere, and that question alone was a fifth of what a worker's Python did.

And it lets a pool of threads take turns at what only one of them can do at a time, so as to find out about a workflow
that hangs. Ours compute, for a millisecond or so, as whatever else decides about jobs does in the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

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
        return _Instance(super().create_instance(det))


class _Instance(WorkflowInstance):
    def __init__(self, sandboxed: WorkflowInstance) -> None:
        self._sandboxed = sandboxed
        self._store: Any = None

    def activate(self, act: Any) -> Any:
        return self._sandboxed.activate(act)

    def get_info(self) -> Any:
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        return self._sandboxed.get_thread_id()

    def get_serialization_context(self, command_info: Any) -> None:
        return None

    def get_external_store_context(self, command_info: Any) -> Any:
        if self._store is None:
            self._store = self._sandboxed.get_external_store_context(None)
        return self._store
