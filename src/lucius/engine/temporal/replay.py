"""Replays the history of a workflow with the code of this version, without a server and without a ledger."""

from collections.abc import Mapping

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from lucius.core.model.tools import Tools
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.worker import PASSED_THROUGH
from lucius.engine.temporal.workflow import JobWorkflow
from lucius.engine.temporal.workflow_tools import workflow_tools


async def replay_history(history: WorkflowHistory, keys: Mapping[str, bytes], tools: Tools) -> Exception | None:
    """Return why this version could not go on with the workflow, or None if it could.

    `keys` decrypt the payloads, `tools` evaluate the expressions of protocols. Raises SettingsError.
    """
    workflow_tools.tools = tools
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    replayer = Replayer(
        workflows=[JobWorkflow],
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
        data_converter=data_converter(keys),
    )
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
