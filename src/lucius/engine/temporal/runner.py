"""Runs workflows in the SDK's sandbox, without three of its overheads.

For each payload, the SDK enters the sandbox six times to get the context of its conversion. Lucius converts all
payloads alike and stores none elsewhere, and these calls alone were a fifth of a worker's Python time. Moreover, the
SDK compiles the same few lines each time it runs them in the sandbox.

Finally, it runs workflow tasks in a pool of threads, although only one can run at a time, to detect workflows that
hang. Job workflows compute for about a millisecond, so they run in the event loop, as all other decisions do.
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


class EventLoopExecutor(ThreadPoolExecutor):
    """Executor without threads: each submitted function runs in its own turn of the event loop."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        loop = asyncio.get_running_loop()
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - passed on to the waiting caller
                asyncio._set_running_loop(loop)
                future.set_exception(error)
            else:
                asyncio._set_running_loop(loop)  # a workflow sets its own event loop, and leaves none set
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
