"""Workflows in the SDK's sandbox, without one of its detours.

For each payload, six times over, the SDK enters the sandbox to ask in which context it is to be converted. Ours are
converted the same way everywhere, and that question alone was a fifth of what a worker's Python did.
"""

from typing import Any

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner


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
